"""Hands the words typed after `make train` (or another command) to that command, byte for byte.

make takes `model/position=rotary` for a variable of its own. Putting such variables into a recipe would let make expand
`$` and a shell act on `;`, `&`, quotes and blanks; so the recipe only starts this module, which reads them where make
leaves them untouched: in MAKEFLAGS. See the head of the Makefile for what a user may type.
"""

import os
import re
import shlex
import sys
from collections.abc import Mapping

from diglot.commands.start import start

MAKEFILE_VARIABLES = re.compile(r"(ARGS|PYTHON|LOGDIR|PIP_\w+):?=")


def command_line(makeflags: str) -> list[str]:
    """The `name=value` words that make was given, in the order typed.

    Args:
        makeflags: what make puts into MAKEFLAGS: its options, `--`, then the words, last one first; blanks and
            backslashes have a backslash before them, and a dollar sign another one.
    """
    words = re.findall(r"(?:\\.|[^ \t\\])+", makeflags, flags=re.DOTALL)
    typed = words[words.index("--") + 1 :] if "--" in words else []
    return [re.sub(r"\\(.)", r"\1", word, flags=re.DOTALL).replace("$$", "$") for word in reversed(typed)]


def overrides(makeflags: str) -> list[str]:
    """The Hydra overrides that make was given; variables that are the Makefile's own are left out."""
    return [word for word in command_line(makeflags) if not MAKEFILE_VARIABLES.match(word)]


def arguments(environment: Mapping[str, str]) -> list[str]:
    """All that the command is to be given: the words of ARGS, split as a shell would, then the overrides."""
    makeflags = environment.get("MAKEFLAGS", "")
    args = environment.get("ARGS", "")
    for word in command_line(makeflags):
        if word.startswith("ARGS="):
            args = word.removeprefix("ARGS=")
    return [*shlex.split(args), *overrides(makeflags)]


def main() -> None:
    """Becomes the command that the first argument names."""
    command = sys.argv[1]
    sys.argv = [f"diglot-{command}", *arguments(os.environ)]
    # What this run starts in turn is none of this make's business.
    for name in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "ARGS"):
        os.environ.pop(name, None)
    start(command)


if __name__ == "__main__":
    main()
