"""`python -m diglot COMMAND ...`, for what starts modules: `torchrun -m diglot train ...`."""

import sys

from diglot.commands.start import COMMANDS, start


def main() -> None:
    """Become the command that is named first."""
    named = sys.argv[1] if len(sys.argv) > 1 else ""
    if named in COMMANDS:
        start(sys.argv.pop(1))
    asked = named in ("-h", "--help")
    usage = (
        f"python -m diglot COMMAND [override ...]\nCOMMAND is one of {', '.join(COMMANDS)}; COMMAND --help says more."
    )
    print(usage, file=sys.stdout if asked else sys.stderr)
    sys.exit(0 if asked else 2)


if __name__ == "__main__":
    main()
