"""Where the commands begin: importing what they need takes seconds, in which Ctrl-C is a wish like any other."""

import importlib
import sys
from functools import partial


def start(command: str) -> None:
    """Become the command of that name."""
    try:
        main = importlib.import_module(f"diglot.{command}").main
    except KeyboardInterrupt:
        print(f"diglot-{command}: interrupted", file=sys.stderr)
        sys.exit(130)
    main()


prepare = partial(start, "prepare")
doctor = partial(start, "doctor")
train = partial(start, "train")
sweep = partial(start, "sweep")
average = partial(start, "average")
evaluate = partial(start, "evaluate")
translate = partial(start, "translate")
score = partial(start, "score")
export = partial(start, "export")
