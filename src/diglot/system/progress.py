"""How a long step of data work shows itself: on stderr, a bar at a terminal and plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

shows = True  # False in a process beside which another one shows the same


@contextmanager
def step(description: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Shows that a step runs while the block does.

    Args:
        description: what is done, "reading texts" say.
        total: how many units of work there are; None where that is unknown.

    Yields:
        A function to call with the number of units just done.
    """
    if not shows:
        yield lambda done: None
    elif sys.stderr.isatty():
        bar = [] if total is None else [BarColumn(), TaskProgressColumn()]
        columns = [SpinnerColumn(), TextColumn("{task.description}"), *bar, TimeElapsedColumn()]
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task(description, total=total)
            yield lambda done: progress.advance(task, done)
            progress.update(task, total=total or 1, completed=total or 1)
    else:
        print(f"{description} ...", file=sys.stderr, flush=True)
        start = time.monotonic()
        yield lambda done: None
        print(f"{description}: {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
