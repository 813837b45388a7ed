"""TensorBoard event files.

They are written on the thread that logs, in an order that TensorBoard understands even if the system clock is changed.
"""

import io
import itertools
import os
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import FileWriter, SummaryWriter

from diglot.data.held_out import PREFIX


class Clock:
    """Unix time that always increases, even if the system clock is set back.

    TensorBoard orders a run's files by the time in their names, and discards events by their order.

    Attributes:
        latest: the time returned last, or a later one that the next time must exceed.
    """

    def __init__(self) -> None:
        self.latest = 0.0

    def __call__(self) -> float:
        self.latest = max(time.time(), self.latest + 1e-6)
        return self.latest

    def pass_files(self, folder: Path) -> None:
        """Advance past the second in the name of every event file in a folder.

        If two names had the same second, the process ID would decide which file is read first.
        """
        for file in folder.glob("events.out.tfevents.*"):
            second = file.name.split(".")[3]
            self.latest = max(self.latest, float(second) + 1 if second.isdecimal() else 0.0)


now = Clock()
_number = itertools.count()  # numbers this process's files


class EventFile(FileWriter):
    """Event file like that of TensorBoard's EventFileWriter, but with `now` as its clock and without a thread.

    When `add_event` returns, the event is in the file. If an event was written incompletely, no further events are
    written. If the folder was moved or removed, a new file is started as soon as the folder exists again.

    Args:
        folder: folder of the file.
        forgiven: context manager in which events are written, which may suppress their errors. The first event, which
            starts the file, is written outside it.
        suffix: suffix of the file's name.
    """

    def __init__(self, folder: str, forgiven: Callable[[], AbstractContextManager[None]], suffix: str = "") -> None:
        self.forgiven = forgiven
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        now.pass_files(self.folder)
        of_process = f"{socket.gethostname()}.{os.getpid()}.{next(_number)}"
        self.file = self.folder / f"events.out.tfevents.{int(now()):010}.{of_process}{suffix}"
        self.failure: OSError | None = None
        self._write()

    def get_logdir(self) -> str:
        return str(self.folder)

    def add_event(self, event: Event, step: int | None = None, walltime: float | None = None) -> None:
        event.wall_time = now() if walltime is None else walltime
        if step is not None:
            event.step = int(step)
        with self.forgiven():
            self._write(event)

    def _write(self, *events: Event) -> None:
        if self.failure is not None:
            raise self.failure.with_traceback(None)  # the traceback would grow with each attempt
        if not self.file.exists():
            events = (Event(wall_time=now(), file_version="brain.Event:2"), *events)
        records = io.BytesIO()
        for event in events:
            RecordWriter(records).write(event.SerializeToString())
        try:
            with self.file.open("ab") as file:
                file.write(records.getvalue())
        except FileNotFoundError:  # nothing was written
            raise
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        """Do nothing: events are not buffered."""

    def close(self) -> None:
        """Do nothing: the file is open only while an event is written."""


# TensorBoard sorts groups of tags by name, numbers first. These groups come first, in this order.
FIRST_GROUPS = ("dev", "train", "speed")


def numbered(tag: str) -> str:
    """Return the tag of a scalar in TensorBoard: its group has a number if it is one of the first ones.

    A further dev set, such as dev_news, has the number of dev.
    """
    group, slash, name = tag.partition("/")
    first = "dev" if group.startswith(PREFIX) else group
    return f"{FIRST_GROUPS.index(first) + 1}_{group}/{name}" if slash and first in FIRST_GROUPS else tag


def without_number(tag: str) -> str:
    """Return the tag that `numbered` has changed, or else the same tag."""
    group, slash, name = tag.partition("/")
    original = group.partition("_")[2]
    return f"{original}/{name}" if slash and numbered(f"{original}/{name}") == tag else tag


class EventWriter(SummaryWriter):
    """SummaryWriter that writes to an `EventFile`.

    Args:
        folder: folder of the file.
        forgiven: see `EventFile`.
        options: options of SummaryWriter.

    Raises:
        OSError: the file cannot be started.
    """

    file_writer: Any
    all_writers: Any

    def add_scalar(self, tag: str, *arguments: Any, **options: Any) -> None:
        super().add_scalar(numbered(tag), *arguments, **options)

    def __init__(self, folder: str, forgiven: Callable[[], AbstractContextManager[None]], **options: Any) -> None:
        self.forgiven = forgiven
        super().__init__(folder, **options)

    def _get_file_writer(self) -> FileWriter:
        if self.file_writer is None:
            self.file_writer = EventFile(self.log_dir, self.forgiven, self.filename_suffix)
            self.all_writers = {self.file_writer.get_logdir(): self.file_writer}
            if self.purge_step is not None:  # a file reopened after close() discards nothing
                self.begin_session(self.purge_step)
                self.purge_step = None
        return self.file_writer

    def begin_session(self, step: int) -> None:
        """Make TensorBoard discard the events written so far whose step is at least `step`."""
        self.file_writer.add_event(Event(session_log=SessionLog(status=SessionLog.START)), step)


def logged_at(folder: Path, step: int, until: float | None) -> list[Event]:
    """Return the last event of each tag that a folder's files hold for a step.

    Events later than `until` are ignored. If `until` is None, the result is empty. The clock `now` is reset: its next
    time exceeds those of the folder's events, and may be earlier than the times that it has returned before.
    """
    now.latest = 0.0
    events: dict[str, Event] = {}
    for file in sorted(folder.glob("events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(file)).Load():
            now.latest = max(now.latest, event.wall_time)
            if until is not None and event.step == step and event.wall_time <= until:
                events |= {value.tag: event for value in event.summary.value}
    return list(events.values())
