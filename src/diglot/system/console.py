"""Messages of commands: where they are shown, and which messages of libraries are shown with them."""

import errno
import io
import logging
import logging.handlers
import os
import stat
import sys
import warnings
from pathlib import Path
from typing import Any

import sentencepiece
from rich.console import Console

from diglot.errors import UserError
from diglot.system import progress
from diglot.system.quoting import printable

say = logging.getLogger("diglot").info  # our own messages
warn = logging.getLogger("diglot").warning  # shown, on stderr, even by commands whose output is for other programs


class PrintHandler(logging.Handler):
    """Handler that prints to the current standard output, which a progress bar may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        print(printable(self.format(record), keep="\n\t"), flush=True)


def quiet() -> None:
    """Show diglot's messages, and only those messages of libraries that a user can act on."""
    logger = logging.getLogger("diglot")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.handlers = [PrintHandler()]
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    sentencepiece.set_min_log_level(2)
    for message in (
        ".*does not have many workers.*",  # batches are collated from memory in microseconds
        ".*The `srun` command is available.*",
        ".*Checkpoint directory .* exists.*",
        ".*isinstance\\(treespec, LeafSpec\\).*",
        ".*Trying to infer the `batch_size`.*",
        ".*Experiment logs directory .* exists.*",  # the run's own folder, just made
        ".*sync_dist=True.*",  # dev scores are gathered before they are logged, and so equal on all processes
        ".*The number of training batches.*smaller than the logging interval.*",
        ".*resuming from a checkpoint that ended before the epoch ended.*",  # the loader starts at that update
    ):
        warnings.filterwarnings("ignore", message=message)


def only_warnings() -> None:
    """Show only warnings; used in all processes of a run but the first, which shows the other messages."""
    logging.getLogger("diglot").setLevel(logging.WARNING)
    progress.shows = False


def render(renderable: Any, width: int = 100) -> list[str]:
    """Render an object with rich, and return it as plain lines."""
    text = io.StringIO()
    Console(file=text, width=width).print(renderable)
    return [line.rstrip() for line in text.getvalue().splitlines()]


class LogFile(logging.handlers.WatchedFileHandler):
    """Log file that reports its first write error, for example on a full disk, and ignores later ones.

    If the file was removed or moved, a new one is started under its name as soon as its folder exists.
    """

    fails = False

    def _open(self) -> io.TextIOWrapper:
        # A symbolic link in its place would redirect the log to another file, and a pipe would block the run.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.fdopen(os.open(self.baseFilename, flags, 0o666), "a", encoding="utf-8", errors="backslashreplace")
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise OSError(errno.EINVAL, "not a regular file")
        return file

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), keep="\n\t")

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if Path(self.baseFilename).parent.is_dir():
                self.reopenIfNeeded()
            logging.FileHandler.emit(self, record)
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - of the base class
        if not self.fails:
            self.fails = True
            print(f"{self.baseFilename} cannot be written ({sys.exception()}): later messages appear only here")


def log_to(file: Path) -> None:
    """Also write diglot's messages to a file.

    Raises:
        UserError: the file cannot be opened.
    """
    try:
        handler = LogFile(file, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}") from None
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.getLogger("diglot").addHandler(handler)
