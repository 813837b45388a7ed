"""Progress of long steps of data work, on stderr: a bar at a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

shows = True  # False in all processes of a run but the first, which shows the progress


@contextmanager
def step(description: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show that a step is running during the block.

    Args:
        description: the step, for example "reading texts".
        total: number of units of work; None if unknown.

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
