"""Where a command's output goes: to a file, or to standard output."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from diglot.errors import UserError
from diglot.whole import whole_file


@contextmanager
def written(path: str | None) -> Iterator[Callable[[str], None]]:
    """What writes text to a file, which is there whole or not at all, or to standard output, at once.

    Args:
        path: of the file; None: standard output.

    Raises:
        UserError: it cannot be written.
        BrokenPipeError: whoever read standard output has gone.
    """
    if path is not None:
        with _explained(path), whole_file(Path(path)) as file:

            def write_file(text: str) -> None:
                file.write(text.encode())

            yield write_file
        return

    def write(text: str) -> None:
        try:
            with _explained("standard output"):
                sys.stdout.buffer.write(text.encode())
                sys.stdout.buffer.flush()
        except UserError:
            sys.stdout = None  # type: ignore[assignment]  # nothing more can be flushed into it
            raise

    yield write


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"{name}: cannot be written ({error.strerror})") from None
