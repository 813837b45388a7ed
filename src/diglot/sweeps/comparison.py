"""The comparison of a sweep's configurations: a row of values for each, which the tables and the chart show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from diglot.evaluation.repeated import LEVEL, Difference, Mean
from diglot.evaluation.scorer import label as metric_label
from diglot.sweeps.configuration import Configuration, checkpoint_of, configurations, label, metric_columns
from diglot.sweeps.job import Job
from diglot.sweeps.judgement import Finding, Judgement

# What the tables show besides scores, by column: the field of a run's results.
NUMBERS = {
    "parameters": "parameters",
    "tokens/s": "tokens_per_second",
    "minutes": "minutes",
    "sentences/s": "dev_sentences_per_second",
    "updates": "updates",
}
# Columns for which the Pareto front of the score is marked; True: a higher value is better.
COSTS = {"parameters": False, "minutes": False, "sentences/s": True}


@dataclass(frozen=True)
class Row:
    """One configuration.

    Attributes:
        configuration: its jobs.
        scores: the mean score of each metric.
        deviations: the standard deviation of each metric over the seeds.
        numbers: the means of perplexity and of the columns in `NUMBERS`.
        mean: the mean of the compared metric with its confidence interval; None: not computed.
        difference: the difference from the baseline; None: not compared.
        finding: what the tests found.
        fronts: the columns in `COSTS` for which no other configuration has a better score without a worse value there.
        checkpoint: the best checkpoint of the seed with the best score.
    """

    configuration: Configuration
    scores: Mapping[str, float | None]
    deviations: Mapping[str, float | None]
    numbers: Mapping[str, float | None]
    mean: Mean | None
    difference: Difference | None
    finding: Finding
    fronts: frozenset[str]
    checkpoint: str | None


@dataclass(frozen=True)
class Comparison:
    """The comparison of all configurations of a sweep.

    Attributes:
        jobs: the jobs, ordered by number.
        judgement: the result of the significance tests.
        metrics: the names of the metrics with their columns; the compared metric is the first.
        rows: the rows, ordered by the number of their first job.
    """

    jobs: Sequence[Job]
    judgement: Judgement = field(default_factory=Judgement)

    @cached_property
    def metrics(self) -> dict[str, str]:
        return metric_columns(self.jobs, self.judgement.metric)

    @cached_property
    def rows(self) -> list[Row]:
        metrics, judgement = self.metrics, self.judgement
        first = next(iter(metrics))
        found = configurations(self.jobs)
        numbers = {column: [each.mean(key) for each in found] for column, key in NUMBERS.items()}
        scores = [each.score(first) for each in found]
        fronts = {
            name: pareto_front(list(zip(scores, numbers[name], strict=True)), judgement.higher_is_better, is_better)
            for name, is_better in COSTS.items()
        }
        return [
            Row(
                configuration=each,
                scores={name: each.score(name) for name in metrics},
                deviations={name: each.deviation(name) for name in metrics},
                numbers={"perplexity": each.score("perplexity")} | {name: means[i] for name, means in numbers.items()},
                mean=judgement.means.get(each.number),
                difference=judgement.differences.get(each.number),
                finding=judgement.finding(each.number),
                fronts=frozenset(name for name, front in fronts.items() if i in front),
                checkpoint=each.checkpoint(first, judgement.higher_is_better),
            )
            for i, each in enumerate(found)
        ]

    def job_rows(self) -> list[dict[str, Any]]:
        """Return the values of each job, by column."""
        rows = []
        for job in self.jobs:
            results = job.results
            row: dict[str, Any] = {"job": job.number, "overrides": label(job, self.jobs), "status": job.state}
            row |= {column: job.value(name) for name, column in self.metrics.items()}
            row |= {"perplexity": job.value("perplexity")}
            row |= {column: results.get(key) for column, key in NUMBERS.items()}
            row["test opened"] = len(job.openings)
            rows.append(row | {"checkpoint": checkpoint_of(job)})
        return rows

    @property
    def has_seeds(self) -> bool:
        """Whether any configuration has several jobs."""
        return any(len(row.configuration.jobs) > 1 for row in self.rows)

    @property
    def baseline(self) -> str:
        """The baseline, such as "job 1"."""
        return next((row.configuration.name for row in self.rows if row.finding == "baseline"), "")

    def notes(self) -> list[str]:
        """Return remarks for the reader of a table: what was tested or not compared, and if a test set was opened."""
        return [*self._about_tests(), *self.judgement.notes, openings(self.jobs)]

    def _about_tests(self) -> list[str]:
        judgement, n_compared = self.judgement, len(self.judgement.differences)
        notes = []
        if self.has_seeds:
            notes.append("± after a score: standard deviation over the seeds")
        if n_compared and judgement.metric is not None:
            compared = f"{metric_label(judgement.metric)} on {judgement.n_sentences:,} dev sentences"
            notes += [
                f"± after a difference from {self.baseline}: its 95% confidence interval. p: the larger p-value of "
                f"paired bootstrap and paired approximate randomisation of {compared}, corrected for {n_compared} "
                f"comparison{'s' if n_compared > 1 else ''} (Holm); a difference is found if p is below {LEVEL}",
                "In brackets: the smallest difference that would be found with a probability of 80%",
            ]
            if all(len(row.configuration.finished) < 2 for row in self.rows):
                notes.append("With one seed, the tests compare these models; another seed may give another result")
        if any(row.fronts for row in self.rows) and len(self.rows) > 1:
            search = ", or with as fast a search" if any("sentences/s" in row.fronts for row in self.rows) else ""
            notes.append(f"*: no row has a better score with as few parameters, or in as few minutes{search}")
        return notes


def pareto_front(
    points: Sequence[tuple[float | None, float | None]], higher_is_better: bool, higher_cost_is_better: bool = False
) -> set[int]:
    """Return the indices of the points that no other point dominates.

    A point dominates another one if its score is as good and its cost as low, and one of both is better. Points without
    a score or a cost are not on the front.

    Args:
        points: the score and the cost of each point.
        higher_is_better: whether a higher score is better.
        higher_cost_is_better: whether the cost is a number of which more is better, such as a speed.
    """
    sign, cost_sign = 1 if higher_is_better else -1, 1 if higher_cost_is_better else -1
    known = {
        i: (sign * score, cost_sign * cost)
        for i, (score, cost) in enumerate(points)
        if score is not None and cost is not None
    }
    return {
        i
        for i, one in known.items()
        if not any(all(a >= b for a, b in zip(other, one)) and other != one for other in known.values())
    }


def openings(jobs: Sequence[Job]) -> str:
    """Return how often the jobs' checkpoints were scored on a test set, as a line; each text counts separately."""
    numbers = [(opening.text, job.number) for job in jobs for opening in job.openings]
    if not numbers:
        return "Test opened by no run of this sweep"
    counts = []
    texts = list(dict.fromkeys(text for text, _ in numbers))
    for text in texts:
        jobs_of_text = [number for other, number in numbers if other == text]
        n_times, n_runs = len(jobs_of_text), len({*jobs_of_text})
        count = f"{n_times:,} time{'s' * (n_times > 1)} by {n_runs:,} run{'s' * (n_runs > 1)} of this sweep"
        counts.append(count if len(texts) == 1 else f"{count} (text {text[:12] if text else 'unknown'})")
    return f"Test opened {'; '.join(counts)}"
