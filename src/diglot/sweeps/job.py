"""One job of a sweep: its folder and record, its process, and its log."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from diglot.config import composed_command
from diglot.data.text import write_json
from diglot.errors import RESUME_ME, UserError
from diglot.evaluation.openings import Opening, openings_in
from diglot.runs.contents import Contents, changed_contents, contents_in
from diglot.runs.folder import JOB, STOPPED, read_results, read_stopped, refuse_links
from diglot.system.atomic import lock
from diglot.system.children import be_signalled_with_parent, how_it_ended
from diglot.system.interruption import STOP_SIGNALS
from diglot.system.masking import shortened
from diglot.system.quoting import quoted

OUTPUT = "output.txt"  # a job's standard output and error

# The environment variables of a process in a distributed run. A job is a separate run, so it must not inherit them.
# Without SLURM_NTASKS, Lightning starts a job's processes itself.
DISTRIBUTED = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("SLURM_NTASKS", "DIGLOT_RUN_FOLDER", "DIGLOT_FIRST_PROCESS", "HYDRA_FULL_ERROR"),
}

# Seconds for a job to end after a signal, before it is killed.
GRACE = 60.0
# Seconds in which processes that were killed may still hold the lock of a job.
PATIENCE = 10.0


def say(line: str) -> None:
    """Print a line immediately, even into a pipe."""
    print(line, flush=True)


@dataclass
class Job:
    """A job: a folder with a record of its config and of its outcome, and with results once it is finished.

    Attributes:
        folder: the job's folder, which is also the run's folder.
        number: the job's number within the sweep.
        overrides: all overrides of its command line.
        varies: the overrides that the sweep's command varied.
        hash: the hash of its config. Jobs with the same hash are one job.
        configuration: the hash of its config without the seed. Jobs with the same one differ by their seed alone.
        status: "not started", "running", "interrupted", "failed", "tried" (fast_dev_run), "finished", "stopped" (by
            sweep.stop) or "outdated" (some of its input has changed since).
        exit_status: the exit status of its process; -N: signal N killed it.
        message: why the job failed, was stopped or is outdated.
        process: the process's ID while it runs.
        place: where it runs or ran last: the job of a SLURM cluster, if there is one, and the machine.
        started: local time of its start.
        ended: local time of its end.
    """

    folder: Path
    number: int
    overrides: tuple[str, ...]
    varies: tuple[str, ...]
    hash: str
    configuration: str = ""
    status: str = "not started"
    exit_status: int | None = None
    message: str = ""
    process: int | None = None
    place: str = ""
    started: str | None = None
    ended: str | None = None

    @classmethod
    def read(cls, folder: Path) -> "Job":
        """Return the job that a folder's record describes.

        Raises:
            UserError: the record is damaged.
        """
        try:
            record = json.loads((folder / JOB).read_bytes())
            record = {"configuration": record["hash"], "place": ""} | record  # an earlier version had neither
            fields = {name: record[name] for name in cls._stored_fields()}
            lists: dict[str, Any] = {name: tuple(map(str, fields[name])) for name in ("overrides", "varies")}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"{folder / JOB}: damaged ({error}); delete this file to start the job again") from None
        job = cls(folder, **fields | lists)
        if job.results:
            job.status = "finished"
        elif job.status == "finished":  # someone has removed its results
            job.status = "interrupted"
        job._note_early_end()
        return job

    def _note_early_end(self) -> None:
        """Set the status of a job that the sweep's rule has ended."""
        reason = read_stopped(self.folder)
        if reason and self.status not in ("finished", "outdated"):
            self.status, self.message = "stopped", reason
        elif self.status == "stopped" and not reason:  # it has gone on since, or someone has removed the file
            self.status, self.message = "interrupted", ""

    @property
    def state(self) -> str:
        """The status for readers, with the reason for an early end."""
        return self.message.partition(";")[0] if self.status == "stopped" else self.status

    def write(self) -> None:
        """Write the record into the job's folder."""
        record = {name: getattr(self, name) for name in self._stored_fields()}
        write_json(self.folder / JOB, record)

    @classmethod
    def _stored_fields(cls) -> list[str]:
        return [field.name for field in fields(cls) if field.name != "folder"]

    @property
    def results(self) -> dict[str, Any]:
        """Return the results that the run wrote at its end; empty before its end, and if the job is outdated."""
        return {} if self.status == "outdated" else read_results(self.folder)

    @property
    def openings(self) -> list[Opening]:
        """The openings of a test set by the job's checkpoints."""
        return openings_in(self.folder)

    def compare_contents(self, current: Contents) -> bool:
        """Mark the job as outdated if its input has changed since it ran; undo this if the input is the same again.

        Args:
            current: the contents that its config refers to now.

        Returns:
            Whether the status has changed.
        """
        old_status = self.status
        if changed := changed_contents(contents_in(self.folder), current):
            self.status, self.message = "outdated", f"outdated: {changed} has changed since"
        elif self.status == "outdated":
            self.status, self.message = "interrupted", ""  # an outdated job has no `results`
            self.status = "finished" if self.results else "interrupted"
        if self.status != old_status:
            self.write()
        return self.status != old_status

    def value(self, objective: str) -> float | None:
        """Return the best checkpoint's score for an objective like dev/bleu, or None without results."""
        return self.results.get("best", {}).get(objective.removeprefix("dev/"))


def command(module: str, hydra: Any, folder: Path) -> list[str]:
    """Return the command line of a job, which reads its config from the job's folder.

    Args:
        module: the module to run, like diglot.commands.train.
        hydra: the hydra node of the sweep's config. The user's overrides of Hydra's own keys are passed on.
        folder: the job's folder.
    """
    return [*composed_command(module, hydra, folder), f"resume={quoted(str(folder))}"]


def run(
    job: Job,
    command: Sequence[str],
    signals: "Signals | None" = None,
    tries_only: bool = False,
    is_shown: bool = True,
) -> None:
    """Run a job to its end, with its own process, session and log, and record the outcome.

    Args:
        job: the job.
        command: its command line.
        signals: signals from the user, which are passed on to the job.
        tries_only: whether the run writes no results (fast_dev_run).
        is_shown: whether to print the lines about validations.

    Raises:
        UserError: another process runs the job.
    """
    refuse_links(job.folder)
    with (job.folder / OUTPUT).open("ab") as output:
        # The job's processes inherit this file with its lock, so that the lock lasts as long as they do.
        if not _lock_patiently(output.fileno()):
            raise UserError(f"{job.folder}: another process runs this job: {Job.read(job.folder).place}")
        (job.folder / STOPPED).unlink(missing_ok=True)
        begin = output.tell()
        process = start(command, output)
    try:
        job.status, job.started, job.ended, job.exit_status, job.message = "running", now(), None, None, ""
        job.process, job.place = process.pid, _place()
        job.write()
        job.exit_status = wait(process, follow(job.folder / OUTPUT, begin) if is_shown else _show_nothing, signals)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # end all processes that the job started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        job.ended, job.process = now(), None
        if job.results:
            job.status = "finished"
        elif reason := read_stopped(job.folder):
            job.status, job.message = "stopped", reason
        elif job.exit_status in (None, RESUME_ME) or (signals and signals.received):
            job.status = "interrupted"
        elif job.exit_status == 0 and tries_only:
            job.status = "tried"
        else:
            job.status = "failed"
            job.message = how_it_ended(job.exit_status)
            if job.exit_status >= 0:  # a killed job has printed no reason
                job.message += f": {last_line(job.folder / OUTPUT, begin)}"
        job.write()


def is_running(folder: Path) -> bool:
    """Return whether a process runs the job of a folder, on any machine.

    A file system without locks has no such processes.
    """
    try:
        with (folder / OUTPUT).open("ab") as output:
            return not _lock_patiently(output.fileno())
    except OSError:
        return False


def _lock_patiently(descriptor: int) -> bool:
    """Lock a file, and return whether no other process has locked it. Processes that were just killed may still end."""
    deadline = time.monotonic() + PATIENCE
    while lock(descriptor) is False:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _place() -> str:
    """Return where this process runs: the job of a SLURM cluster, as scancel names it, and the machine."""
    array, task, single = (os.environ.get(f"SLURM_{name}") for name in ("ARRAY_JOB_ID", "ARRAY_TASK_ID", "JOB_ID"))
    number = f"{array}_{task}" if array and task else single
    return f"SLURM job {number} on {socket.gethostname()}" if number else socket.gethostname()


def _show_nothing() -> None:
    pass


def start(command: Sequence[str], output: Any) -> subprocess.Popen[bytes]:
    """Start a job's process in its own session, so that a terminal's signals do not reach it. It ends with this one."""
    launcher = os.getpid()

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # background processes of a shell inherit SIG_IGN
        be_signalled_with_parent(signal.SIGKILL)
        if os.getppid() != launcher:
            os._exit(1)

    environment = {name: value for name, value in os.environ.items() if name not in DISTRIBUTED}
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
        preexec_fn=prepare,
    )


def wait(process: subprocess.Popen[bytes], show: Callable[[], None], signals: "Signals | None") -> int:
    """Wait for a job's end and pass on signals. Return its exit status.

    Signals go only to the job's first process, which stops the others. If two processes got a signal at once, they
    would wait for each other.
    """
    deadline = None
    while (status := process.poll()) is None:
        show()
        if signals and signals.received:
            if deadline is None:
                process.send_signal(signal.SIGINT if signals.received[0] == signal.SIGINT else signal.SIGTERM)
                deadline = time.monotonic() + GRACE
            elif len(signals.received) > 1 or time.monotonic() > deadline:
                os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.1)
    show()
    return status


def follow(path: Path, position: int, title: str = "") -> Callable[[], None]:
    """Return a function that prints the lines about validations that a job has printed since the last call.

    Args:
        path: the job's log.
        position: where to begin in it, in bytes.
        title: what precedes each line.
    """
    partial_line = b""

    def show() -> None:
        nonlocal position, partial_line
        with path.open("rb") as file:
            file.seek(position)
            data = file.read()
        position += len(data)
        *lines, partial_line = (partial_line + data).split(b"\n")
        for line in lines:
            if re.match(rb"update [\d,]+ of [\d,]+, ", line):
                say(f"{title}  {line.decode(errors='replace').rstrip()}")

    return show


def last_line(path: Path, begin: int) -> str:
    """Return the last line that a job printed."""
    with path.open("rb") as file:
        file.seek(max(begin, path.stat().st_size - 10_000))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return shortened(lines[-1], 300) if lines else "it printed nothing"


def now() -> str:
    """Return the local time, to the second."""
    return datetime.now().isoformat(sep=" ", timespec="seconds")


class Signals:
    """Context manager that records the signals that ask this process to end, so that the job can end first.

    At the end of the block, the first of them is raised again for its original handler. Ignored signals stay ignored.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        for signum in STOP_SIGNALS:
            if signal.getsignal(signum) != signal.SIG_IGN:
                self._previous_handlers[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._previous_handlers.items():
            signal.signal(signum, handler)
        if self.received:
            signal.raise_signal(self.received[0])

    def _note(self, signum: int, _: FrameType | None) -> None:
        if not self.received or signum != signal.SIGHUP:  # a terminal that hangs up sends SIGHUP twice
            self.received.append(signum)


def slug(overrides: Sequence[str]) -> list[str]:
    """Return overrides as a part of a folder's name, without characters that shells or Hydra interpret.

    Returns:
        A list of one part, or an empty list without overrides.
    """
    parts = []
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        value = f"{float(value):.4g}" if re.fullmatch(r"\d*\.\d{5,}(e-?\d+)?", value) else value
        parts.append(re.sub(r"[^A-Za-z0-9_.]+", "-", f"{re.split('[./@]', key)[-1]}-{value}").strip("-."))
    return ["_".join(parts)[:60].rstrip("-._")] if parts else []
