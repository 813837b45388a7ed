"""`python -m diglot COMMAND ...`, for what starts modules: `torchrun -m diglot train ...`."""

import difflib
import sys

from diglot.commands.start import COMMANDS, start


def main() -> None:
    """Become the command that is named first."""
    named = sys.argv[1] if len(sys.argv) > 1 else ""
    if named in COMMANDS:
        start(sys.argv.pop(1))
    there_are = f"there are {', '.join(COMMANDS)}"
    if named in ("-h", "--help"):
        print(f"python -m diglot COMMAND [override ...]: {there_are}; COMMAND --help says more")
        sys.exit(0)
    nearest = difflib.get_close_matches(named, COMMANDS, 1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    print(
        f"diglot: {f'{named!r} is no command' if named else 'no command is named'}, {there_are}{hint}", file=sys.stderr
    )
    sys.exit(2)


if __name__ == "__main__":
    main()
