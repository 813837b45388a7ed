"""Significance tests of the difference between two systems, with the methods and the random numbers of sacreBLEU.

A metric's value depends only on sums of the sentences' statistics, so that all resamples are one product of matrices.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from diglot.evaluation.metrics import References, n_references
from diglot.evaluation.scorer import Scorer, label

# Resampling needs enough sentences: all resamples of a single sentence are equal, so any difference would be
# "significant". Thirty is a rule of thumb for a meaningful bootstrap distribution.
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
        come from the same system, and the signature. With fewer than 30 sentences, the number of samples is 0, and
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
            p_values = [_p_value(each, difference, metric.counts_ties) for each in (resampled, shuffled)]
        # As in sacreBLEU's signatures, the test follows the number of references.
        nrefs, *settings = metric.signature(n_references(references)).split("|")
        for test, p_value, kind in zip((bootstrap, randomisation), p_values, ("bs", "ar"), strict=True):
            of_test = [f"{kind}:{test['n']}", f"seed:{seed}"] if has_enough else []
            sides = {
                side: {"score": score, "mean": mean, "ci": width} if kind == "bs" else {"score": score, **_NO_INTERVAL}
                for side, score, (mean, width) in zip(("baseline", "system"), scores, intervals, strict=True)
            }
            signature = "|".join([nrefs, *of_test, *settings])
            test["metrics"].append({"name": label(name), **sides, "p_value": p_value, "signature": signature})
    return {"paired_bootstrap": bootstrap, "paired_approximate_randomisation": randomisation}


_NO_INTERVAL = {"mean": None, "ci": None}


def _bootstrap(
    tables: Sequence[np.ndarray], value: Value, random: np.random.Generator
) -> tuple[np.ndarray, list[tuple[float | None, float | None]]]:
    """Return the centred differences on resampled sentences, and the mean and interval of both systems."""
    counts = resampled_counts(len(tables[0]), random, RESAMPLES)
    samples = [np.array([value(sums) for sums in counts @ table]) for table in tables]
    differences = np.abs(samples[1] - samples[0])
    return differences - differences.mean(), [_interval(each) for each in samples]


def resampled_counts(n_sentences: int, random: np.random.Generator, resamples: int) -> np.ndarray:
    """Return how often each sentence is in each resample, which has as many sentences as there are."""
    chosen = random.choice(n_sentences, size=(resamples, n_sentences), replace=True)
    return np.stack([np.bincount(row, minlength=n_sentences) for row in chosen])


def _randomisation(tables: Sequence[np.ndarray], value: Value, random: np.random.Generator) -> np.ndarray:
    """Return the differences after outputs are swapped between the systems at random."""
    one, other = tables
    keeps = random.integers(2, size=(TRIALS, len(one)), dtype=bool)
    shuffled = keeps @ one + ~keeps @ other, ~keeps @ one + keeps @ other
    samples = [np.array([value(sums) for sums in table]) for table in shuffled]
    return np.asarray(np.abs(samples[0] - samples[1]))


def _p_value(differences: np.ndarray, difference: float, counts_ties: bool) -> float:
    """Return the share of differences that are greater than the observed one, which counts as one of them.

    Args:
        differences: differences under the null hypothesis.
        difference: the observed difference.
        counts_ties: whether equal differences, up to rounding, count too.
    """
    is_extreme = differences > difference - 1e-9 if counts_ties else differences > difference
    return float(is_extreme.sum() + 1) / (len(differences) + 1)


def _interval(values: np.ndarray) -> tuple[float | None, float | None]:
    """Return the mean of resampled values, and half the width of the interval that 95% of them lie in."""
    cut = len(values) // 40
    values = np.sort(values)
    return float(values.mean()), float(values[-1 - cut] - values[cut]) / 2
