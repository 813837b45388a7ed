"""Standard output and error, as a command owns them: what is shown to a person never ends or changes what is done.

A terminal hangs up, a disk fills up, a reader leaves, a stream was closed from the first, an encoding lacks a
character: what cannot be written is given up without a word (a run's log.txt has it), and what cannot be encoded is
shown as an escape. What may be a secret from the environment is shown as the expression that reads it. A command whose
product goes to standard output has to fail: `failure` says why it has not arrived.
"""

import contextlib
import io
import os
import select
import sys
from typing import Any, TextIO

from diglot.system.masking import masked


class Forgiving(io.RawIOBase):
    """The end of a stream that takes whatever it is given.

    Args:
        descriptor: of the open file that it writes to.

    Attributes:
        error: the first one that kept something from being written.
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
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            try:
                rest = rest[os.write(self.descriptor, rest) :]
            except BlockingIOError:  # another program has made the terminal so
                select.select([], [self.descriptor], [])
            except OSError as error:
                self.error = self.error or error
                break
        return size


class Masked(io.TextIOWrapper):
    """A stream for people, whoever writes to it: libraries' warnings and tracebacks, too."""

    def write(self, text: str) -> int:
        super().write(masked(text))
        return len(text)


def own() -> None:
    """Make this process' standard output and error forgiving, and standard input one that can be asked."""
    for descriptor, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        _occupy(descriptor, mode)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):  # else someone captures it
            owned = forgiving(stream, descriptor)
            setattr(sys, name, owned)
            setattr(sys, f"__{name}__", owned)


def _occupy(descriptor: int, mode: int) -> None:
    """Keep the place of a closed stream, which the next file to be opened would get. The mode is the one in which the
    stream is not used: using it fails as it would have."""
    try:
        os.fstat(descriptor)
    except OSError:
        opened = os.open(os.devnull, mode)
        os.dup2(opened, descriptor)
        os.set_inheritable(descriptor, True)
        if opened != descriptor:
            os.close(opened)


def forgiving(stream: TextIO | None, descriptor: int) -> io.TextIOWrapper:
    """A stream like another one that raises nothing, neither for what is written nor for where it goes."""
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
    """Why something that was written to a stream has not arrived; None: it has, as far as is known."""
    buffer = stream.buffer
    return getattr(getattr(buffer, "raw", buffer), "error", None)
