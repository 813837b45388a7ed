"""Pass the words typed after `make train` (or another command) to that command, byte for byte.

make treats `model/position=rotary` as a variable of its own. If a recipe used such variables, make would expand `$`,
and a shell would interpret `;`, `&`, quotes and blanks. So the recipe only starts this module. It reads the words from
MAKEFLAGS, where make leaves them unexpanded. The comment at the top of the Makefile describes what a user may type.
"""

import os
import re
import shlex
import sys
from collections.abc import Mapping

from diglot.commands.start import start

MAKEFILE_VARIABLES = re.compile(r"(ARGS|PYTHON|LOGDIR|PIP_\w+):?=")


def command_line(makeflags: str) -> list[str]:
    """Return the `name=value` arguments given to make, in the order typed.

    Args:
        makeflags: the value of MAKEFLAGS: make's options, `--`, then the arguments in reverse order. Make writes a
            backslash before blanks and backslashes, and doubles each dollar sign.
    """
    args = re.findall(r"(?:\\.|[^ \t\\])+", makeflags, flags=re.DOTALL)
    overrides = args[args.index("--") + 1 :] if "--" in args else []
    return [re.sub(r"\\(.)", r"\1", arg, flags=re.DOTALL).replace("$$", "$") for arg in reversed(overrides)]


def overrides(makeflags: str) -> list[str]:
    """Return the Hydra overrides given to make, without the Makefile's own variables."""
    return [arg for arg in command_line(makeflags) if not MAKEFILE_VARIABLES.match(arg)]


def arguments(environment: Mapping[str, str]) -> list[str]:
    """Return all arguments for the command: those in ARGS, split as a shell would, then the overrides."""
    makeflags = environment.get("MAKEFLAGS", "")
    args = environment.get("ARGS", "")
    for override in command_line(makeflags):
        if override.startswith("ARGS="):
            args = override.removeprefix("ARGS=")
    return [*shlex.split(args), *overrides(makeflags)]


def main() -> None:
    """Run the command that the first argument names."""
    command = sys.argv[1]
    sys.argv = [f"diglot-{command}", *arguments(os.environ)]
    # This make's variables must not affect processes that the command starts.
    for name in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "ARGS"):
        os.environ.pop(name, None)
    start(command)


if __name__ == "__main__":
    main()
