"""Comparison of systems that were each trained once or several times, with different seeds, on the same sentences.

Two things vary by chance: which sentences the text contains, and what a seed makes of a system. Both tests take both
into account.

- Paired bootstrap (Koehn, 2004): all outputs for a resample of the sentences are scored. The variance of a difference
  of means is that of the scores of the seeds, which contains what seeds do to single sentences, plus what the
  resamples add to it: that one system suits some of the sentences better (Obuchowski and Rockette, 1995).
- Paired approximate randomisation (Riezler and Maxwell, 2005): the outputs for each sentence are dealt out to all runs
  of both systems at random. The statistic is the difference divided by the standard deviation of the runs' scores, so
  that the test is also valid if a seed makes all outputs of a run better or worse (Chung and Romano, 2013).

With one seed on both sides, these are the well-known tests of two models: chance is that of the sentences alone.

The p-value of a comparison is the larger one of the two tests, corrected for the number of comparisons (Holm, 1979;
Dror et al., 2018).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diglot.evaluation.significance import RESAMPLES, Value, resampled_counts

LEVEL, POWER = 0.05, 0.8
TRIALS = 2_000
SEED = 12345  # as in sacreBLEU
# Draws of the part that seeds contribute to a deviation, for each resample of the sentences.
_DRAWS = 10
_BLOCK = 4_000_000  # outputs that are dealt out at once, which bounds the memory

System = Sequence[np.ndarray]  # the statistics of each run of a system: a row per sentence


@dataclass(frozen=True)
class Mean:
    """The mean score of a system's runs.

    Attributes:
        score: the mean.
        deviation: standard deviation of the runs' scores; None: there is only one run.
        margin: half the width of the 95% confidence interval.
    """

    score: float
    deviation: float | None
    margin: float


@dataclass(frozen=True)
class Difference:
    """The comparison of a system with the baseline.

    Attributes:
        value: mean score of the system's runs minus that of the baseline's.
        error: standard error of the value.
        margin: half the width of the 95% confidence interval of the value.
        smallest: the smallest true difference that would be found with a probability of 80%.
        p_bootstrap: p-value of the paired bootstrap.
        p_randomisation: p-value of the paired approximate randomisation.
        p: the larger one of both, corrected for the number of comparisons.
    """

    value: float
    error: float
    margin: float
    smallest: float
    p_bootstrap: float
    p_randomisation: float
    p: float

    @property
    def is_found(self) -> bool:
        """Whether the difference is significant at the level of 5% among all comparisons."""
        return self.p < LEVEL


class Systems:
    """Systems that are compared on the same sentences.

    Args:
        systems: the statistics of each system's runs.
        value: the metric's value for summed statistics.
        resamples: number of resamples of the bootstrap.
        trials: number of trials of the randomisation; more if many systems are compared.
    """

    def __init__(
        self, systems: Sequence[System], value: Value, resamples: int = RESAMPLES, trials: int = TRIALS
    ) -> None:
        self.systems, self.value, self.trials = systems, value, trials
        counts = resampled_counts(len(systems[0][0]), np.random.default_rng(SEED), resamples)
        self.scores = [np.array([value(run.sum(axis=0)) for run in system]) for system in systems]
        samples = [np.stack([_values(value, counts @ run) for run in system], axis=1) for system in systems]
        self.deviations = [each - scores for each, scores in zip(samples, self.scores, strict=True)]

    def mean(self, number: int) -> Mean:
        """Return the mean score of a system."""
        scores = self.scores[number]
        deviation = float(scores.std(ddof=1)) if len(scores) > 1 else None
        margin = np.quantile(np.abs(self._chance(number)[0]), 1 - LEVEL)
        return Mean(float(scores.mean()), deviation, float(margin))

    def differences(self, baseline: int, others: Sequence[int]) -> list[Difference]:
        """Compare systems with a baseline."""
        compared = [self._difference(baseline, other, len(others)) for other in others]
        p_values = holm([max(each.p_bootstrap, each.p_randomisation) for each in compared])
        return [Difference(**{**vars(each), "p": p_value}) for each, p_value in zip(compared, p_values, strict=True)]

    def _difference(self, baseline: int, other: int, n_comparisons: int) -> Difference:
        difference = float(self.scores[other].mean() - self.scores[baseline].mean())
        deviations, error = self._chance(other, baseline)
        sizes = np.abs(deviations)
        level = LEVEL / n_comparisons
        smallest = np.quantile(sizes, 1 - level) + np.quantile(deviations, POWER)
        trials = max(self.trials, int(2 / level))
        randomised = _randomised(self.systems[baseline], self.systems[other], self.value, trials)
        observed = _studentised(np.concatenate([self.scores[baseline], self.scores[other]]), len(self.scores[baseline]))
        return Difference(
            value=difference,
            error=error,
            margin=float(np.quantile(sizes, 1 - LEVEL)),
            smallest=float(smallest),
            p_bootstrap=_share(sizes, abs(difference)),
            p_randomisation=_share(np.abs(randomised), abs(float(observed))),
            p=1.0,
        )

    def _chance(self, number: int, baseline: int | None = None) -> tuple[np.ndarray, float]:
        """Return what chance may add to a mean score, or to the difference of two: draws, and the standard error."""
        numbers = [number] if baseline is None else [number, baseline]
        scores, deviations = ([each[i] for i in numbers] for each in (self.scores, self.deviations))
        means = deviations[0].mean(axis=1) - (deviations[1].mean(axis=1) if len(numbers) > 1 else 0.0)
        freedom = sum(len(each) - 1 for each in scores)
        share = sum(1 / len(each) for each in scores)
        of_seeds = float(_pooled_variance(scores)) * share
        # The scores of the seeds already contain what seeds do to single sentences.
        of_sentences = max(0.0, float(means.var()) - float(_pooled_variance(deviations).mean()) * share)
        random = np.random.default_rng(SEED)
        scale = np.sqrt(of_sentences / means.var()) if means.any() else 0.0
        draws = np.repeat((means - means.mean()) * scale, _DRAWS)
        if freedom:
            draws = draws + np.sqrt(of_seeds) * random.standard_t(freedom, size=len(draws))
        return draws, float(np.sqrt(of_seeds + of_sentences))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by the method of Holm (1979)."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def _values(value: Value, sums: np.ndarray) -> np.ndarray:
    """Return the metric's value of each row."""
    return np.array([value(row) for row in sums])


def _pooled_variance(groups: Sequence[np.ndarray]) -> np.ndarray:
    """Return the variance within groups of runs, along the last axis; zero if each group has one run."""
    freedom = sum(group.shape[-1] - 1 for group in groups)
    squares = [((group - group.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1) for group in groups]
    return np.asarray(sum(squares) / max(1, freedom))


def _studentised(scores: np.ndarray, n_first: int) -> np.ndarray:
    """Return the difference between two groups of runs, along the last axis, in units of their standard deviation.

    If both groups have one run, it is the difference itself.
    """
    groups = scores[..., :n_first], scores[..., n_first:]
    difference = groups[1].mean(axis=-1) - groups[0].mean(axis=-1)
    if scores.shape[-1] == 2:
        return np.asarray(difference)
    return np.asarray(difference / np.maximum(np.sqrt(_pooled_variance(groups)), 1e-9))


def _randomised(first: System, second: System, value: Value, trials: int) -> np.ndarray:
    """Return the statistic of `_studentised` after each sentence's outputs are dealt out to the runs at random."""
    runs = [*first, *second]
    random = np.random.default_rng(SEED)
    places = np.arange(len(runs))
    block = max(1, _BLOCK // (len(runs[0]) * len(runs)))
    scores = []
    for start in range(0, trials, block):
        shape = min(block, trials - start), len(runs[0]), len(runs)
        dealt = random.permuted(np.broadcast_to(places, shape), axis=2)
        sums = [sum((dealt[:, :, place] == i).astype(float) @ run for i, run in enumerate(runs)) for place in places]
        scores.append(np.stack([_values(value, each) for each in sums], axis=1))
    return _studentised(np.concatenate(scores), len(first))


def _share(draws: np.ndarray, size: float) -> float:
    """Return the share of draws that are as large as the observed size, which counts as one of them."""
    return float((draws >= size * (1 - 1e-9)).sum() + 1) / (len(draws) + 1)
