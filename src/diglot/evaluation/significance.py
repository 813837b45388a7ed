"""Significance tests of the difference between two systems, with the methods and the random numbers of sacreBLEU.

A metric's value depends only on sums of the sentences' statistics. So the sums of all resamples are computed as a
product of two matrices.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from diglot.evaluation.metrics import References, n_references
from diglot.evaluation.scorer import Scorer, label

# Tests of few sentences are meaningless: all resamples of a single sentence are equal, so that any difference would be
# significant. Thirty is a common rule of thumb for the bootstrap.
MIN_SENTENCES = 30

RESAMPLES, TRIALS = 1_000, 10_000

Value = Callable[[np.ndarray], float]  # a metric's value for summed statistics


def compare(
    scorer: Scorer, hypotheses: Sequence[str], baseline: Sequence[str], references: References
) -> dict[str, Any]:
    """Run paired bootstrap resampling (Koehn, 2004) and approximate randomisation (Riezler and Maxwell, 2005).

    For BLEU, chrF++ and TER, the results equal those of `sacrebleu --paired-bs` and `--paired-ar` with the baseline
    first: 1,000 resamples and 10,000 trials, with a fixed seed (12345, or the environment variable SACREBLEU_SEED).

    Args:
        scorer: scorer of the target language.
        hypotheses: output of the system.
        baseline: output of the baseline for the same sources.
        references: one or more lists of references, each with one line per source.

    Returns:
        For each test, the number of samples, and for each metric: the scores of both systems, their means and the half
        widths of their 95% confidence intervals (bootstrap only), the p-value of the null hypothesis that both outputs
        come from the same system, and the signature. With fewer than 30 sentences, the number of samples is 0, and the
        means, intervals and p-values are None.
    """
    has_enough = len(hypotheses) >= MIN_SENTENCES
    bootstrap: dict[str, Any] = {"n": RESAMPLES if has_enough else 0, "metrics": []}
    randomisation: dict[str, Any] = {"n": TRIALS if has_enough else 0, "metrics": []}
    seed = os.environ.get("SACREBLEU_SEED", "12345").lower()
    generator_seed = None if seed == "none" else int(seed)
    for name, metric in scorer.metrics.items():

        def value(sums: np.ndarray, name: str = name) -> float:
            return scorer.value(name, sums)

        tables = [scorer.statistics(name, lines, references) for lines in (baseline, hypotheses)]
        scores = [value(table.sum(axis=0)) for table in tables]
        p_values: list[float | None] = [None, None]
        intervals: list[tuple[float | None, float | None]] = [(None, None), (None, None)]
        if has_enough:
            difference = abs(scores[1] - scores[0])
            resampled, intervals = _bootstrap(tables, value, np.random.default_rng(generator_seed))
            shuffled = _randomisation(tables, value, np.random.default_rng(generator_seed))
            p_values = [_p_value(differences, difference, metric.counts_ties) for differences in (resampled, shuffled)]
        # As in sacreBLEU's signatures, the test comes after the number of references.
        nrefs, *settings = metric.signature(n_references(references)).split("|")
        for test, p_value, kind in zip((bootstrap, randomisation), p_values, ("bs", "ar"), strict=True):
            test_settings = [f"{kind}:{test['n']}", f"seed:{seed}"] if has_enough else []
            sides = {
                side: {"score": score, "mean": mean, "ci": width} if kind == "bs" else {"score": score, **_NO_INTERVAL}
                for side, score, (mean, width) in zip(("baseline", "system"), scores, intervals, strict=True)
            }
            signature = "|".join([nrefs, *test_settings, *settings])
            test["metrics"].append({"name": label(name), **sides, "p_value": p_value, "signature": signature})
    return {"paired_bootstrap": bootstrap, "paired_approximate_randomisation": randomisation}


_NO_INTERVAL = {"mean": None, "ci": None}


def _bootstrap(
    tables: Sequence[np.ndarray], value: Value, random: np.random.Generator
) -> tuple[np.ndarray, list[tuple[float | None, float | None]]]:
    """Run paired bootstrap resampling.

    Args:
        tables: statistics of the baseline and of the system, each (n_sentences, n_statistics).
        value: function that returns the metric's value for summed statistics.
        random: source of random numbers.

    Returns:
        The differences on the resamples, centred (RESAMPLES,), and the mean and interval of each system (see
        `_interval`).
    """
    counts = resampled_counts(len(tables[0]), random, RESAMPLES)
    samples = [np.array([value(sums) for sums in counts @ table]) for table in tables]
    differences = np.abs(samples[1] - samples[0])
    return differences - differences.mean(), [_interval(each) for each in samples]


def resampled_counts(n_sentences: int, random: np.random.Generator, resamples: int) -> np.ndarray:
    """Return how often each sentence is in each resample of `n_sentences` sentences (resamples, n_sentences)."""
    chosen = random.choice(n_sentences, size=(resamples, n_sentences), replace=True)
    return np.stack([np.bincount(row, minlength=n_sentences) for row in chosen])


def _randomisation(tables: Sequence[np.ndarray], value: Value, random: np.random.Generator) -> np.ndarray:
    """Return the differences after the outputs of random sentences are swapped between the systems (TRIALS,)."""
    baseline, system = tables
    is_kept = random.integers(2, size=(TRIALS, len(baseline)), dtype=bool)
    shuffled = is_kept @ baseline + ~is_kept @ system, ~is_kept @ baseline + is_kept @ system
    samples = [np.array([value(sums) for sums in table]) for table in shuffled]
    return np.asarray(np.abs(samples[0] - samples[1]))


def _p_value(differences: np.ndarray, difference: float, counts_ties: bool) -> float:
    """Return the p-value: the share of differences greater than the observed one, which is counted as one of them.

    Args:
        differences: differences under the null hypothesis.
        difference: the observed difference.
        counts_ties: whether equal differences, up to rounding, count too.
    """
    is_greater = differences > difference - 1e-9 if counts_ties else differences > difference
    return float(is_greater.sum() + 1) / (len(differences) + 1)


def _interval(values: np.ndarray) -> tuple[float | None, float | None]:
    """Return the mean of resampled values, and half the width of the interval that contains 95% of them."""
    n_outside = len(values) // 40
    values = np.sort(values)
    return float(values.mean()), float(values[-1 - n_outside] - values[n_outside]) / 2
