"""What a command prints about jobs that another launcher runs, such as those of a SLURM cluster."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from diglot.errors import UserError
from diglot.sweeps.configuration import label, outcome
from diglot.sweeps.job import OUTPUT, Job, follow, say

if TYPE_CHECKING:
    from diglot.sweeps.sweep import Sweep

INTERVAL = 1.0  # seconds between two looks at the jobs' folders


class Following:
    """Context manager that prints the starts, validations and ends of a sweep's jobs, as a thread.

    Args:
        sweep: the sweep. Its jobs have their folders.
        is_slurm: whether the jobs are those of a SLURM cluster, which outlive this process.
    """

    def __init__(self, sweep: "Sweep", is_slurm: bool = False) -> None:
        self.sweep, self.is_slurm = sweep, is_slurm
        self._known: dict[Path, tuple[str, str]] = {job.folder: _state(job) for job in sweep.jobs}
        self._followed: dict[Path, Callable[[], None]] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> "Following":
        waiting = sum(status not in ("finished", "outdated") for status, _ in self._known.values())
        if self.is_slurm and waiting:
            them = ("1 job is", "it", "job") if waiting == 1 else (f"{waiting} jobs are", "them", "jobs")
            say("{} submitted to SLURM; squeue lists {}. Ctrl-C ends this command and not the {}".format(*them))
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        if kind is not None and self.is_slurm:
            say("SLURM keeps the jobs; squeue lists them, scancel ends them. Then the same command resumes the sweep")

    def _follow(self) -> None:
        while not self._is_over.wait(INTERVAL):
            self._look()
        self._look()

    def _look(self) -> None:
        """Print what is new."""
        with contextlib.suppress(OSError, UserError):  # a file is just being replaced; the next look finds it
            jobs = self.sweep.jobs
            for job in jobs:
                self._show(job, jobs)

    def _show(self, job: Job, jobs: list[Job]) -> None:
        title = f"job {job.number} of {len(jobs)}"
        if job.folder in self._followed:
            self._followed[job.folder]()
        before, now = self._known.get(job.folder, ("", "")), _state(job)
        if now == before:
            return
        self._known[job.folder] = now
        if job.status == "running":
            log = job.folder / OUTPUT
            say(f"{title}: {label(job, jobs)}, {job.place} -> {job.folder}")
            self._followed[job.folder] = follow(log, log.stat().st_size, f"job {job.number}:")
        else:
            self._followed.pop(job.folder, None)
            say(f"{title}: {outcome(job)}")


def _state(job: Job) -> tuple[str, str]:
    """Return what changes when a job starts or ends."""
    return job.status, job.started or ""
