"""The test of sweep.stop=evidence: whether a configuration can still become the best one of a sweep.

A configuration is compared with the best finished one after the same number of updates. The null hypothesis is that it
is behind by no more than it can catch up until the end. How much that is cannot be known from its own scores. It is
assumed: from any validation to the end, no run's score improves by more than `catch_up` times the largest improvement
of a finished run.

The test is valid although it is repeated at each validation, because the level of the whole sweep is spent in equal
parts on all validations of all runs, whose number is known beforehand (alpha spending: Lan and DeMets, 1983). The parts
add up to the level whatever the correlation between the validations is (the inequality of Bonferroni). Boundaries of
group-sequential trials that use this correlation do not apply: they need sums of independent increments.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import NamedTuple

import numpy as np

from diglot.evaluation.significance import MIN_SENTENCES
from diglot.evaluation.validation import variance_of_mean

LEVEL = 0.05  # probability that a sweep ends any run that could have won, if the assumption holds


class Point(NamedTuple):
    """The best score of a run up to a validation; greater is better.

    Attributes:
        score: the score.
        influences: the influence of each sentence on it.
    """

    score: float
    influences: np.ndarray


@dataclass(frozen=True)
class Run:
    """A run, as far as it has come.

    Attributes:
        points: the best score up to each validation, by update.
        is_finished: whether it has ended.
    """

    points: Mapping[int, Point]
    is_finished: bool = True

    @property
    def end(self) -> float:
        """The score of the best checkpoint."""
        return self.points[max(self.points)].score


@dataclass(frozen=True)
class Deficit:
    """How far a configuration is behind the best finished one.

    Attributes:
        value: the difference between their scores after the same number of updates.
        margin: what the configuration can catch up until the end, by assumption.
        error: standard error of the value.
        critical: number of standard errors by which the value must exceed the margin.
        best: index of the best finished configuration.
    """

    value: float
    margin: float
    error: float
    critical: float
    best: int

    @property
    def is_final(self) -> bool:
        """Whether the configuration cannot win any more."""
        return self.value > self.margin + self.critical * self.error


def deficit(
    candidate: Sequence[Run],
    others: Sequence[Sequence[Run]],
    update: int,
    n_tests: int,
    has_seeds: bool,
    catch_up: float,
) -> Deficit | None:
    """Return how far a configuration is behind; None if it can catch up, or if nothing can be said yet.

    Args:
        candidate: its runs that have come to this validation, finished or not.
        others: the runs of each other configuration that have come to it.
        update: the number of updates of this validation.
        n_tests: number of tests in the whole sweep.
        has_seeds: whether the sweep repeats configurations with several seeds. If so, nothing is said until the scores
            of two seeds of a configuration show how far seeds differ.
        catch_up: the assumed maximum of a run's further improvement, in units of the largest one of a finished run.
    """
    finished = [[run for run in runs if run.is_finished] for runs in others]
    if not any(finished) or not candidate:
        return None
    ends = [fmean(run.end for run in runs) if runs else -math.inf for runs in finished]
    best = ends.index(max(ends))
    gains = [run.end - run.points[update].score for runs in [*finished, candidate] for run in runs if run.is_finished]
    there = [run.points[update] for run in candidate]
    there_best = [run.points[update] for run in finished[best]]
    at_best = fmean(point.score for point in there_best)
    value = at_best - fmean(point.score for point in there)
    margin = catch_up * max(gains) - (ends[best] - at_best)
    if value <= margin or len(there[0].influences) < MIN_SENTENCES:
        return None
    of_seeds, freedom = _pooled_variance([[run.points[update].score for run in runs] for runs in [candidate, *others]])
    if has_seeds and not freedom:
        return None
    of_sentences = variance_of_mean(_mean_influences(there_best) - _mean_influences(there))
    return Deficit(
        value=value,
        margin=margin,
        error=math.sqrt(of_sentences + of_seeds * (1 / len(there) + 1 / len(there_best))),
        critical=student_quantile(LEVEL / max(1, n_tests), freedom),
        best=best,
    )


def _mean_influences(points: Sequence[Point]) -> np.ndarray:
    return np.mean([point.influences for point in points], axis=0)


def _pooled_variance(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the variance of scores within configurations, and its degrees of freedom; zero without any."""
    freedom = sum(max(0, len(scores) - 1) for scores in groups)
    squares = sum((score - fmean(scores)) ** 2 for scores in groups for score in scores)
    return (squares / freedom if freedom else 0.0), freedom


def student_quantile(level: float, freedom: int) -> float:
    """Return the value that a variable with Student's t-distribution exceeds with a given probability.

    This is the approximation of Wallace (1959). Below a level of 5%, its error is under 1% from 5 degrees of freedom
    on; for fewer, the value is too large, so that the test is conservative.

    Args:
        level: the probability.
        freedom: degrees of freedom; 0: those of the normal distribution, without end.
    """
    normal = -NormalDist().inv_cdf(level)
    if not freedom:
        return normal
    scaled = normal * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(scaled**2 / freedom))
