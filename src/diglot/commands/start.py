"""Where the commands begin: their streams and signals are taken care of before what they need is imported, which takes
seconds."""

import importlib
import sys
from functools import partial
from typing import NoReturn

from diglot.system import interruption, streams

COMMANDS = ("prepare", "doctor", "train", "sweep", "average", "evaluate", "translate", "score", "export", "convert")
HELP = {"-h", "--help"}


def start(command: str) -> NoReturn:
    """Become the command of that name, or answer --help."""
    streams.own()
    interruption.answer_at_once(command)
    if not HELP.isdisjoint(sys.argv[1:]):
        from diglot.commands import help  # which no other start has to wait for

        sys.exit(help.answer(command, sys.argv[1:]))
    main = importlib.import_module(f"diglot.commands.{command}").main
    interruption.answer_by_exception()
    try:
        main()
    except BaseException as error:
        if interruption.received and not isinstance(error, SystemExit):  # whatever a library has made of the signal
            interruption.leave(command)
        raise
    finally:
        interruption.answer_at_once(command)  # while the interpreter ends
    sys.exit(0)


prepare = partial(start, "prepare")
doctor = partial(start, "doctor")
train = partial(start, "train")
sweep = partial(start, "sweep")
average = partial(start, "average")
evaluate = partial(start, "evaluate")
translate = partial(start, "translate")
score = partial(start, "score")
export = partial(start, "export")
convert = partial(start, "convert")
