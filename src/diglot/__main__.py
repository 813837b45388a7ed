"""`python -m diglot COMMAND ...`, for launchers that start modules: `torchrun -m diglot train ...`."""

import difflib
import sys

from diglot.commands import help
from diglot.commands.start import COMMANDS, HELP, start
from diglot.system import streams


def main() -> None:
    """Run the command that the first argument names."""
    named = sys.argv[1] if len(sys.argv) > 1 else ""
    if named in COMMANDS:
        start(sys.argv.pop(1))
    streams.make_forgiving()
    if named in HELP:
        print("\n".join(help.overview(COMMANDS)))
        sys.exit(0)
    if named:
        nearest = difflib.get_close_matches(named, COMMANDS, 1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        print(f"diglot: {named!r} is not a command, there are {', '.join(COMMANDS)}{hint}", file=sys.stderr)
    else:
        print("\n".join(["diglot: no command is given", "", *help.overview(COMMANDS)]), file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
