"""Standard output and error of a command, whose failures do not stop or change the command.

A terminal may hang up, a disk may be full, a pipe's reader may exit, a stream may be closed from the start, and an
encoding may lack a character. Messages that cannot be written are dropped silently (a run's log.txt has them), and
characters that cannot be encoded are shown as escapes. Values from the environment that may be secrets are shown as the
expressions that read them. Only a command whose result goes to standard output must fail if it cannot be written:
`failure` returns the error.
"""

import contextlib
import io
import os
import select
import sys
from typing import Any, TextIO

from diglot.system.masking import masked


class Forgiving(io.RawIOBase):
    """Raw stream that accepts all output, even if it cannot be written.

    Args:
        descriptor: descriptor of the open file to write to.

    Attributes:
        error: the first error that prevented output from being written; None if there was none.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.descriptor

    def isatty(self) -> bool:
        return os.isatty(self.descriptor)

    def write(self, data: Any) -> int:
        remaining = memoryview(data).cast("B")
        size = len(remaining)
        while remaining:
            try:
                remaining = remaining[os.write(self.descriptor, remaining) :]
            except BlockingIOError:  # another program has made the terminal non-blocking
                select.select([], [self.descriptor], [])
            except OSError as error:
                self.error = self.error or error
                break
        return size


class Masked(io.TextIOWrapper):
    """Text stream that masks secrets in all text, including warnings and tracebacks of libraries."""

    def write(self, text: str) -> int:
        super().write(masked(text))
        return len(text)


def make_forgiving() -> None:
    """Make this process's standard output and error forgiving (see `Forgiving`), and replace a `sys.stdin` of None."""
    for descriptor, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        _occupy(descriptor, mode)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):  # otherwise it is being captured
            wrapped = forgiving(stream, descriptor)
            setattr(sys, name, wrapped)
            setattr(sys, f"__{name}__", wrapped)


def _occupy(descriptor: int, mode: int) -> None:
    """Open the null device as the descriptor of a closed stream; otherwise the next opened file would get it.

    The mode is the opposite of the stream's: write-only for input, read-only for output. So using the stream fails, as
    it would if it were still closed.
    """
    try:
        os.fstat(descriptor)
    except OSError:
        null_device = os.open(os.devnull, mode)
        os.dup2(null_device, descriptor)
        os.set_inheritable(descriptor, True)
        if null_device != descriptor:
            os.close(null_device)


def forgiving(stream: TextIO | None, descriptor: int) -> io.TextIOWrapper:
    """Return a text stream for a descriptor, with the encoding of `stream`, whose writes never raise an error."""
    if stream is not None:
        with contextlib.suppress(OSError):
            stream.flush()
    raw = Forgiving(descriptor)
    write_through = bool(getattr(stream, "write_through", False))  # python -u
    return Masked(
        raw if write_through else io.BufferedWriter(raw),  # type: ignore[arg-type]
        encoding=getattr(stream, "encoding", None) or "utf-8",
        errors="backslashreplace",
        line_buffering=descriptor == 2 or raw.isatty(),
        write_through=write_through,
    )


def failure(stream: Any) -> OSError | None:
    """Return the error that prevented a stream's output from being written; None if none is known."""
    buffer = stream.buffer
    return getattr(getattr(buffer, "raw", buffer), "error", None)
