"""A sweep: a folder of jobs, each with its own process, and the comparison of their results.

This module is independent of Hydra's launchers. Hydra's side, which chooses the jobs, is hydra_plugins.diglot_launcher.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from diglot.config import (
    config_hash,
    hash_without_seed,
    higher_is_better,
    monitored,
    objective,
    read_composed,
    without_secrets,
    write_composed,
)
from diglot.data.text import write_bytes
from diglot.errors import UserError
from diglot.runs.contents import Contents, contents_in, contents_now, inputs_key
from diglot.runs.folder import JOB, refuse_links
from diglot.sweeps.chart import picture
from diglot.sweeps.comparison import Comparison
from diglot.sweeps.configuration import configurations, label, outcome
from diglot.sweeps.html_report import as_html
from diglot.sweeps.job import OUTPUT, Job, Signals, command, is_running, run, say, slug
from diglot.sweeps.judgement import Judgement, judge
from diglot.sweeps.search import JOURNAL, PICTURES
from diglot.sweeps.stopping import stop_with_configuration
from diglot.sweeps.tables import as_csv, as_latex, as_markdown, as_text, jobs_as_csv
from diglot.system.atomic import lock
from diglot.system.quoting import command_line

LOCK = ".lock"
# The tables by file name, the chart, and the page with everything.
TABLES = {"table.csv": as_csv, "jobs.csv": jobs_as_csv, "table.md": as_markdown, "table.tex": as_latex}
CHART = "table.png"
REPORT = "report.html"


class SweepKeys(TypedDict):
    """The keys of the config's node `sweep`."""

    folder: str | None
    stop_at_first_failure: bool
    baseline: int | None
    stop: Literal["evidence", "median"] | None
    catch_up: float
    job: str | None


class Objective(NamedTuple):
    """The score by which a sweep compares its jobs.

    Attributes:
        score: its name, such as dev/bleu.
        higher_is_better: whether a higher value of it is better.
        higher_metric_is_better: whether a higher value of the monitored metric is better, by which jobs are ordered as
            long as nothing is compared.
    """

    score: str
    higher_is_better: bool = True
    higher_metric_is_better: bool = True

    @classmethod
    def of(cls, config: DictConfig) -> "Objective":
        """Return the objective that a config names."""
        score = objective(config)
        return cls(score, higher_is_better(config, score), higher_is_better(config, f"dev/{monitored(config)}"))


class Sweep:
    """The jobs in a sweep's folder.

    Args:
        folder: the folder; created with the first job.
        objective: the score to compare jobs by.
        baseline: number of the job with whose configuration the others are compared; None: the first job.
        command: the line to type for the sweep, which the report shows; empty: unknown.
    """

    def __init__(self, folder: Path, objective: Objective, baseline: int | None = None, command: str = "") -> None:
        self.folder, self.objective, self.baseline, self.command = folder, objective, baseline, command
        self._lock: Any = None

    @classmethod
    def of(cls, config: DictConfig) -> "Sweep":
        """Return the sweep of a command's config, with Hydra's node."""
        overrides: Any = OmegaConf.to_container(config.hydra.overrides, resolve=False)
        typed = [word for word in [*overrides["hydra"], *overrides["task"]] if word != "hydra.mode=MULTIRUN"]
        command = command_line("sweep", typed)
        return cls(Path(config.hydra.sweep.dir), Objective.of(config), config.sweep.baseline, command)

    def check_baseline(self, n_jobs: int) -> None:
        """Check that the baseline can be one of the existing jobs or of new ones.

        Args:
            n_jobs: number of jobs of the command.

        Raises:
            UserError: there will be no such job.
        """
        jobs = self.jobs if self.folder.is_dir() else []
        highest = max((job.number for job in jobs), default=0) + n_jobs
        # A value of another type is reported when the jobs are checked.
        if isinstance(self.baseline, int) and not 1 <= self.baseline <= highest:
            raise UserError(
                f"sweep.baseline={self.baseline}: there is no job {self.baseline}; choose a number from 1 to {highest}"
            )

    @property
    def jobs(self) -> list[Job]:
        """Return all jobs in the folder, ordered by number."""
        return sorted((Job.read(path.parent) for path in self.folder.glob(f"*/{JOB}")), key=lambda job: job.number)

    def lock(self) -> None:
        """Lock the folder until `unlock`, or until this process ends.

        Raises:
            UserError: another process has locked the folder, or it is not a sweep's folder.
        """
        path = self.folder / LOCK
        try:
            self._refuse_foreign()
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = path.open("a")
        except OSError as error:
            raise UserError(f"sweep.folder={self.folder} cannot be used: {error.strerror}") from None
        if lock(self._lock.fileno()) is False:
            raise UserError(f"another sweep is running in {self.folder}")

    def refuse_running(self) -> None:
        """Mark jobs as interrupted whose process has ended without a record of it, such as a killed one.

        Raises:
            UserError: a job is running, because another launcher's jobs outlive their command.
        """
        jobs = self.jobs
        for job in jobs:
            if job.status != "running":
                continue
            if is_running(job.folder):
                found = re.match(r"SLURM job (\S+)", job.place)
                end = f"scancel {found.group(1)}" if found else "kill it"
                raise UserError(
                    f"job {job.number}, {label(job, jobs)}, is running: {job.place}; wait for its end, or end it first "
                    f"({end}), and type the command again"
                )
            job.status = "interrupted"
            job.write()

    def _refuse_foreign(self) -> None:
        """Check that the sweep's files would not replace other files.

        Raises:
            UserError: the folder exists and is not a sweep's.
        """
        existing = {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()
        has_jobs = any(self.folder.glob(f"*/{JOB}"))
        if existing:
            refuse_links(self.folder)
        # The names of jobs begin with a number.
        own = {LOCK, CHART, REPORT, JOURNAL, *PICTURES, *TABLES}
        foreign = [name for name in existing - own if not re.match(r"\d\d", name)]
        if existing and (LOCK not in existing or (foreign and not has_jobs)):
            raise UserError(f"sweep.folder={self.folder} exists and is not a sweep's folder")

    def unlock(self) -> None:
        """Release the lock, if there is one."""
        if self._lock is not None:
            self._lock.close()

    def job(
        self,
        overrides: Sequence[str],
        varies: Sequence[str],
        config: DictConfig,
        hash: str,
        number: int | None = None,
    ) -> Job:
        """Return the job of a config: the existing one, or else a new one with the given or the next free number.

        If the job is not finished, the config is written into its folder.
        """
        matching = [job for job in self.jobs if job.hash == hash and job.status != "outdated"]
        job = matching[0] if matching else self._new_job(overrides, varies, hash, hash_without_seed(config), number)
        if job.status != "finished":
            write_composed(job.folder, config)
        return job

    def find_outdated(self) -> None:
        """Mark jobs as outdated if their input has changed since they ran. The comparison shows no results for them."""
        contents_by_key: dict[str, Contents] = {}
        for job in self.jobs:
            config = read_composed(job.folder)
            if config is not None and contents_in(job.folder):
                key = inputs_key(without_secrets(config))
                if key not in contents_by_key:
                    contents_by_key[key] = contents_now(config)
                if job.compare_contents(contents_by_key[key]) and job.status == "outdated":
                    say(f"job {job.number}: {label(job, self.jobs)}: {job.message} ({job.folder})")

    def _new_job(
        self, overrides: Sequence[str], varies: Sequence[str], hash: str, configuration: str, number: int | None
    ) -> Job:
        number = number or max((job.number for job in self.jobs), default=0) + 1
        folder = self.folder / "_".join([f"{number:02d}", *slug(varies)])
        while True:
            try:
                folder.mkdir(parents=True)
                break
            except FileExistsError:
                folder = folder.with_name(f"{folder.name}_")
            except OSError as error:
                raise UserError(f"{folder} cannot be created: {error.strerror}") from None
        job = Job(folder, number, tuple(overrides), tuple(varies), hash, configuration)
        job.write()
        return job

    def write_tables(self, comparison: Comparison | None = None) -> None:
        """Write the tables and the report of a comparison, or those of all jobs without significance tests."""
        undecided = Judgement(higher_is_better=self.objective.higher_metric_is_better)
        comparison = comparison or Comparison(self.jobs, undecided)
        for name, table in TABLES.items():
            write_bytes(self.folder / name, table(comparison).encode())
        write_bytes(self.folder / REPORT, as_html(comparison, self.folder, self.command).encode())

    def conclude(self, made: Sequence[str] = ()) -> None:
        """Compare all jobs, print the comparison, and write its tables and chart.

        Args:
            made: names of further files that the sweep has written into its folder.
        """
        self.find_outdated()
        jobs = self.jobs
        score = self.objective.score
        judgement = judge(configurations(jobs), self.baseline, score)
        if judgement.metric is None:
            judgement.higher_is_better = self.objective.higher_metric_is_better
        comparison = Comparison(jobs, judgement)
        self.write_tables(comparison)
        say(as_text(comparison))
        files = [REPORT, *TABLES]
        if any(job.results for job in jobs):
            write_bytes(self.folder / CHART, picture(comparison))
            files.append(CHART)
        files += made
        if best := self.best(jobs):
            say(f"Best by {score} ({best.value(score):.2f}): job {best.number}, {label(best, jobs)}")
        say(f"Made in {self.folder}/: {', '.join(files)}, and a folder for each job with its checkpoints")

    def best(self, jobs: Sequence[Job]) -> Job | None:
        """Return the job with the best value of the objective. Ties are decided by chrF++, then by loss."""
        score, sign = self.objective.score, 1 if self.objective.higher_is_better else -1
        scored = [job for job in jobs if job.value(score) is not None]

        def rank(job: Job) -> tuple[float, float, float]:
            value, chrf, loss = (job.value(name) or 0.0 for name in (score, "dev/chrf", "dev/loss"))
            return sign * value, chrf, -loss

        return max(scored, key=rank) if scored else None


def failed(job: Job, jobs: Sequence[Job]) -> UserError:
    """Return an error that names a failed job, its outcome and its log."""
    return UserError(f"{label(job, jobs)} {outcome(job)} ({job.folder / OUTPUT})")


def some_failed(errors: Iterable[object], n_jobs: int) -> UserError:
    """Return an error that names the failed jobs of a sweep."""
    messages = list(dict.fromkeys(str(error) for error in errors))
    shown = "; ".join(messages[:5]) + (f"; and {len(messages) - 5} more" if len(messages) > 5 else "")
    return UserError(f"{len(messages)} of {n_jobs} jobs failed: {shown}. To resume them, type the same command again")


def run_in_subprocess(config: DictConfig, module: str = "diglot.commands.train") -> float | None:
    """Run one job in a new process, if a launcher other than diglot's has started this process for the job.

    Returns:
        The value of the job's objective; None if it was stopped.

    Raises:
        UserError: the job failed.
    """
    hydra = HydraConfig.get()
    overrides: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    sweep = Sweep(Path(config.sweep.folder or hydra.sweep.dir), Objective.of(config))
    if config.sweep.job is not None:  # the sweeper has created the job, with its config
        job = Job.read(sweep.folder / config.sweep.job)
    else:
        job = sweep.job(overrides, (), config, config_hash(config), hydra.job.num + 1)
    ended = job.status == "finished" or (job.status == "stopped" and config.sweep.stop is not None)
    if not ended and not stop_with_configuration(job, sweep.jobs, config.sweep.stop):
        with Signals() as signals:
            run(job, command(module, hydra, job.folder), signals, config.trainer.fast_dev_run, is_shown=False)
            sweep.write_tables()
    if job.status not in ("finished", "tried", "stopped"):
        raise failed(job, sweep.jobs)
    return job.value(sweep.objective.score)
