"""The entry point of all commands. It sets up streams and signals before the slow imports."""

import importlib
import sys
from functools import partial
from typing import NoReturn

from diglot.system import interruption, streams

COMMANDS = (
    *("prepare", "doctor", "train", "sweep", "replay", "average", "evaluate", "translate", "score", "export"),
    *("convert", "certify", "verify"),
)
HELP = {"-h", "--help"}


def start(command: str) -> NoReturn:
    """Run the command of the given name, or print its help for --help."""
    streams.make_forgiving()
    interruption.exit_on_signal(command)
    if not HELP.isdisjoint(sys.argv[1:]):
        from diglot.commands import help  # imported only here, so that commands start faster

        sys.exit(help.print_help(command, sys.argv[1:]))
    main = importlib.import_module(f"diglot.commands.{command}").main
    interruption.raise_on_signal()
    try:
        main()
    except BaseException as error:
        if interruption.received and not isinstance(error, SystemExit):  # a library may have replaced the exception
            interruption.leave(command)
        raise
    finally:
        interruption.exit_on_signal(command)  # while the interpreter shuts down
    sys.exit(0)


prepare = partial(start, "prepare")
doctor = partial(start, "doctor")
train = partial(start, "train")
sweep = partial(start, "sweep")
replay = partial(start, "replay")
average = partial(start, "average")
evaluate = partial(start, "evaluate")
translate = partial(start, "translate")
score = partial(start, "score")
export = partial(start, "export")
convert = partial(start, "convert")
certify = partial(start, "certify")
verify = partial(start, "verify")
