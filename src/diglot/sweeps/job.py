"""One job of a sweep: its folder and record, its process, its log."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from diglot.config import carrying
from diglot.data.text import write_json
from diglot.errors import RESUME_ME, UserError
from diglot.runs.contents import Contents, changed_contents, contents_in
from diglot.runs.folder import JOB, RESULTS, refuse_links
from diglot.system.children import be_signalled_with_parent, how_it_ended
from diglot.system.interruption import ASKING
from diglot.system.masking import shortened
from diglot.system.quoting import quoted

OUTPUT = "output.txt"  # what a job says

# What a process of a distributed run finds in its environment: a job is a run of its own, whoever starts it. Without
# the number of SLURM's tasks Lightning starts a job's processes itself.
DISTRIBUTED = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("SLURM_NTASKS", "DIGLOT_RUN_FOLDER", "DIGLOT_FIRST_PROCESS", "HYDRA_FULL_ERROR"),
}

# Seconds that a job has to end after a signal, before it is killed.
GRACE = 60.0


def say(line: str) -> None:
    print(line, flush=True)


@dataclass
class Job:
    """A job: a folder with the record of what it is and how it went. A finished one has results, too.

    Attributes:
        folder: its own; the run's folder is the same one.
        number: within the sweep.
        overrides: all of its command line.
        varies: those of them that the command varied.
        hash: of its config; two jobs with the same hash are one.
        status: "not started", "running", "interrupted", "failed", "tried" (fast_dev_run), "finished" or "outdated":
            what it has read has changed since.
        exit_status: of its process; negative: the signal that killed it.
        message: what went wrong.
        process: its number, while it runs.
        started, ended: local times.
    """

    folder: Path
    number: int
    overrides: tuple[str, ...]
    varies: tuple[str, ...]
    hash: str
    status: str = "not started"
    exit_status: int | None = None
    message: str = ""
    process: int | None = None
    started: str | None = None
    ended: str | None = None

    @classmethod
    def read(cls, folder: Path) -> "Job":
        """The job that a folder's record describes."""
        try:
            record = json.loads((folder / JOB).read_bytes())
            kept = {name: record[name] for name in cls._kept()}
            lists: dict[str, Any] = {name: tuple(map(str, kept[name])) for name in ("overrides", "varies")}
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"{folder / JOB}: damaged ({error}); without this file the job begins anew") from None
        job = cls(folder, **kept | lists)
        if job.results:
            job.status = "finished"
        elif job.status == "finished":  # its results have been removed
            job.status = "interrupted"
        return job

    def write(self) -> None:
        record = {name: getattr(self, name) for name in self._kept()}
        write_json(self.folder / JOB, record)

    @classmethod
    def _kept(cls) -> list[str]:
        return [field.name for field in fields(cls) if field.name != "folder"]

    @property
    def results(self) -> dict[str, Any]:
        """What the run wrote at its end; empty before, and where it is of what has changed since."""
        if self.status == "outdated":
            return {}
        try:
            results = json.loads((self.folder / RESULTS).read_bytes()) if (self.folder / RESULTS).is_file() else {}
        except (OSError, ValueError, RecursionError):
            return {}
        return results if isinstance(results, dict) and results.get("finished") else {}

    def compare_contents(self, now: Contents) -> bool:
        """Note whether what the job has read is still what its config names; return whether that is news."""
        before = self.status
        if changed := changed_contents(contents_in(self.folder), now):
            self.status, self.message = "outdated", f"outdated: {changed} has changed since"
        elif self.status == "outdated":
            self.status, self.message = "interrupted", ""
            self.status = "finished" if self.results else "interrupted"
        if self.status != before:
            self.write()
        return self.status != before

    def value(self, objective: str) -> float | None:
        """The score of its best checkpoint that an objective like dev/bleu names."""
        return self.results.get("best", {}).get(objective.removeprefix("dev/"))


def command(module: str, hydra: Any, folder: Path) -> list[str]:
    """The command line of a job, which reads the config that it carries.

    Args:
        module: what is run, like diglot.commands.train.
        hydra: the hydra node of the sweep's config, for what the user said to Hydra itself.
        folder: of the job.
    """
    return [*carrying(module, hydra, folder), f"resume={quoted(str(folder))}"]


def run(job: Job, words: Sequence[str], signals: "Signals | None" = None, tries_only: bool = False) -> None:
    """Run a job to its end, in a process, a session and a log of its own, and write down how it ended.

    Args:
        job: which it is.
        words: its command line.
        signals: what the user sends meanwhile: it is passed on.
        tries_only: whether the run makes no results (fast_dev_run).
    """
    refuse_links(job.folder)
    with (job.folder / OUTPUT).open("ab") as output:
        begin = output.tell()
        process = start(words, output)
    try:
        job.status, job.started, job.ended, job.exit_status, job.message = "running", now(), None, None, ""
        job.process = process.pid
        job.write()
        job.exit_status = wait(process, follow(job.folder / OUTPUT, begin), signals)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # what the job started ends with it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        job.ended, job.process = now(), None
        if job.results:
            job.status = "finished"
        elif job.exit_status in (None, RESUME_ME) or (signals and signals.received):
            job.status = "interrupted"
        elif job.exit_status == 0 and tries_only:
            job.status = "tried"
        else:
            job.status = "failed"
            job.message = how_it_ended(job.exit_status)
            if job.exit_status >= 0:  # what was killed has not said why
                job.message += f": {last_line(job.folder / OUTPUT, begin)}"
        job.write()


def start(words: Sequence[str], output: Any) -> subprocess.Popen[bytes]:
    """Start a job's process: no signal meant for others reaches it, and it does not outlive this one."""
    launcher = os.getpid()

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background process ignores it
        be_signalled_with_parent(signal.SIGKILL)
        if os.getppid() != launcher:
            os._exit(1)

    environment = {name: value for name, value in os.environ.items() if name not in DISTRIBUTED}
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
        preexec_fn=prepare,
    )


def wait(process: subprocess.Popen[bytes], show: Callable[[], None], signals: "Signals | None") -> int:
    """Wait for a job's end and pass on signals. They go to its first process alone, which stops the others it started:
    two that are signalled at once would wait for each other."""
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


def follow(path: Path, position: int) -> Callable[[], None]:
    """A function that shows what a job has said of its validations since it was last called."""
    rest = b""

    def show() -> None:
        nonlocal position, rest
        with path.open("rb") as file:
            file.seek(position)
            new = file.read()
        position += len(new)
        *lines, rest = (rest + new).split(b"\n")
        for line in lines:
            if re.match(rb"update [\d,]+ of [\d,]+, ", line):
                say(f"  {line.decode(errors='replace').rstrip()}")

    return show


def last_line(path: Path, begin: int) -> str:
    """The last thing that a job said."""
    with path.open("rb") as file:
        file.seek(max(begin, path.stat().st_size - 10_000))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return shortened(lines[-1], 300) if lines else "it said nothing"


def now() -> str:
    return datetime.now().isoformat(sep=" ", timespec="seconds")


class Signals:
    """Notes the signals that ask this process to end, so that its job can be ended first; then the first of them is
    answered as it would have been. Ignored ones stay ignored."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        for number in ASKING:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.received:
            signal.raise_signal(self.received[0])

    def _note(self, number: int, _: FrameType | None) -> None:
        if not self.received or number != signal.SIGHUP:  # which a terminal that hangs up sends twice
            self.received.append(number)


def slug(words: Sequence[str]) -> list[str]:
    """Overrides as a part of a folder's name, without what shells and the override grammar read."""
    parts = []
    for word in words:
        key, _, value = word.lstrip("+~").partition("=")
        value = f"{float(value):.4g}" if re.fullmatch(r"\d*\.\d{5,}(e-?\d+)?", value) else value
        parts.append(re.sub(r"[^A-Za-z0-9_.]+", "-", f"{re.split('[./@]', key)[-1]}-{value}").strip("-."))
    return ["_".join(parts)[:60].rstrip("-._")] if parts else []
