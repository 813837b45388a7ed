"""A configuration of a sweep: the jobs that differ by their seed alone, which are one row of its comparison."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from diglot.data.held_out import metric_of, score_of
from diglot.evaluation.scorer import label as metric_label
from diglot.sweeps.job import Job
from diglot.system.masking import masked


@dataclass(frozen=True)
class Configuration:
    """Jobs that differ by their seed alone.

    Attributes:
        jobs: the jobs, ordered by number.
        label: the overrides that distinguish the configuration from the others.
    """

    jobs: tuple[Job, ...]
    label: str

    @property
    def number(self) -> int:
        """The number of the first job, which also identifies the configuration."""
        return self.jobs[0].number

    @property
    def name(self) -> str:
        """The numbers of the jobs as text, such as "job 2" or "jobs 1-3"."""
        return f"job{'s' if len(self.jobs) > 1 else ''} {self.numbers}"

    @property
    def numbers(self) -> str:
        """The numbers of the jobs as ranges, such as 1-3,7."""
        ranges: list[list[int]] = []
        for job in self.jobs:
            if ranges and job.number == ranges[-1][-1] + 1:
                ranges[-1][1:] = [job.number]
            else:
                ranges.append([job.number])
        return ",".join("-".join(map(str, each)) for each in ranges)

    @property
    def finished(self) -> list[Job]:
        """The jobs with results."""
        return [job for job in self.jobs if job.results]

    @property
    def status(self) -> str:
        """The status of the jobs: the common one, or how many are finished."""
        statuses = {job.state for job in self.jobs}
        return statuses.pop() if len(statuses) == 1 else f"{len(self.finished)} of {len(self.jobs)} finished"

    @property
    def seeds(self) -> int:
        """The number of finished jobs."""
        return len(self.finished)

    def score(self, name: str) -> float | None:
        """Return the mean score of the best checkpoints; None if there is none."""
        return _mean([job.value(name) for job in self.finished])

    def deviation(self, name: str) -> float | None:
        """Return the standard deviation of the scores; None if fewer than two jobs have one."""
        scores = [score for job in self.finished if (score := job.value(name)) is not None]
        return stdev(scores) if len(scores) > 1 else None

    def mean(self, key: str) -> float | None:
        """Return the mean of a number in the jobs' results, such as minutes; None if there is none."""
        return _mean([job.results.get(key) for job in self.finished])

    def checkpoint(self, name: str, higher_is_better: bool) -> str | None:
        """Return the path of the best checkpoint of the job with the best score; None if there is none."""
        scored = [(job, score) for job in self.finished if (score := job.value(name)) is not None]
        if not scored:
            return None
        job, _ = max(scored, key=lambda each: each[1] if higher_is_better else -each[1])
        return checkpoint_of(job)


def configurations(jobs: Sequence[Job]) -> list[Configuration]:
    """Return the configurations of jobs, ordered by the number of their first job."""
    by_hash: dict[str, list[Job]] = {}
    for job in sorted(jobs, key=lambda job: job.number):
        by_hash.setdefault(job.configuration, []).append(job)
    return [Configuration(tuple(group), _label(group[0], jobs, _without_seed)) for group in by_hash.values()]


def label(job: Job, jobs: Sequence[Job]) -> str:
    """Return the overrides that distinguish a job: those that were varied, or that not all jobs have."""
    return _label(job, jobs, lambda job: (job.overrides, job.hash))


def _without_seed(job: Job) -> tuple[tuple[str, ...], str]:
    overrides = tuple(override for override in job.overrides if not re.match(r"[+~]*seed=", override))
    return overrides, job.configuration


def _label(job: Job, jobs: Sequence[Job], identity: Callable[[Job], tuple[tuple[str, ...], str]]) -> str:
    """Return the overrides that distinguish a job from others.

    Args:
        job: the job.
        jobs: all jobs.
        identity: returns the overrides of a job that count, and the hash that stands for them.
    """
    overrides, digest = identity(job)
    identities = [identity(other) for other in jobs]
    common = set(overrides).intersection(*(others for others, _ in identities))
    shown = [override for override in overrides if not re.match(r"[+~]*(objective|sweep\.|sweep=)", override)]
    text = (
        " ".join(override for override in shown if override in job.varies or override not in common)
        or "(nothing changed)"
    )
    # The same overrides give another config if a file in conf/ was edited between two sweeps.
    has_twin = any(others == overrides and other != digest for others, other in identities)
    return f"{text} (config {digest[:6]})" if has_twin else text


def metric_columns(jobs: Sequence[Job], first: str | None = None) -> dict[str, str]:
    """Return the names of the metrics that jobs computed on dev and on further dev sets, with their columns.

    Args:
        jobs: the jobs.
        first: the metric that comes first; None: the monitored one.
    """
    computed = dict.fromkeys(name for job in jobs for name in job.results.get("best", {}))
    others = {"loss", "perplexity", "cut", "update"}
    names = [name for name in computed if metric_of(name) not in others] or ["bleu", "chrf"]
    names.sort(key=lambda name: (name != first, "/" in name))
    return {name: _column(name, is_first=name == names[0]) for name in names}


def _column(name: str, is_first: bool) -> str:
    """Return the column of a score. Among those of dev, only the first one has the name of the set."""
    dev_set, _, metric = score_of(name).partition("/")
    return f"{dev_set} {metric_label(metric)}" if is_first or "/" in name else metric_label(metric)


def checkpoint_of(job: Job) -> str | None:
    """Return the path of a job's best checkpoint, without secrets; None without results."""
    return masked(str(job.folder / job.results["checkpoint"])) if "checkpoint" in job.results else None


def outcome(job: Job) -> str:
    """Return how a job ended, with its score."""
    if job.status != "finished":
        return job.message or job.status
    name, column = next(iter(metric_columns([job]).items()))
    score, minutes = job.value(name), job.results.get("minutes")
    return (
        f"{column} {'' if score is None else f'{score:,.2f}'}, {'' if minutes is None else f'{minutes:,.1f}'} minutes"
    )


def _mean(values: Sequence[Any]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None
