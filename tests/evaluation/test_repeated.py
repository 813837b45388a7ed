"""Comparisons of systems with several seeds: p-values are right without a difference, and large ones are found."""

import numpy as np
import pytest

from diglot.evaluation.metrics import Bleu
from diglot.evaluation.repeated import Systems, holm

N_SENTENCES, BLEU = 60, Bleu()


def mean(sums: np.ndarray) -> float:
    """Return the value of a metric that is the mean of one statistic."""
    return float(sums[0] / sums[1])


def sweep(random: np.random.Generator, seeds: tuple[int, ...], of_seed: float, of_system: float) -> list:
    """Return the statistics of systems that are equally good.

    Args:
        random: source of randomness.
        seeds: the number of runs of each system.
        of_seed: standard deviation of what a seed adds to all outputs of a run.
        of_system: standard deviation of what a system adds to all outputs for a sentence.
    """
    difficulty = random.normal(0, 0.3, N_SENTENCES)
    systems = []
    for n_runs in seeds:
        suits = difficulty + random.normal(0, of_system, N_SENTENCES)
        runs = [suits + random.normal(0, of_seed) + random.normal(0, 0.3, N_SENTENCES) for _ in range(n_runs)]
        systems.append([np.stack([run, np.ones(N_SENTENCES)], axis=1) for run in runs])
    return systems


def distance_from_uniform(p_values: list[float]) -> float:
    """Return the Kolmogorov-Smirnov distance of p-values from the uniform distribution."""
    ordered, n = np.sort(p_values), len(p_values)
    return float(max((np.arange(1, n + 1) / n - ordered).max(), (ordered - np.arange(n) / n).max()))


@pytest.mark.parametrize(
    ("seeds", "of_seed", "of_system", "tests"),
    [
        ((3, 3), 0.0, 0.0, ("p_bootstrap", "p_randomisation")),
        ((3, 3), 0.1, 0.0, ("p_bootstrap", "p_randomisation")),
        ((1, 1), 0.0, 0.0, ("p_bootstrap", "p_randomisation")),
        # The hypothesis of the randomisation is that all outputs come from the same system.
        ((2, 3), 0.0, 0.3, ("p_bootstrap",)),
    ],
)
def test_p_values_of_equal_systems_are_uniform(seeds, of_seed, of_system, tests):
    found = []
    for number in range(200):
        systems = sweep(np.random.default_rng(number), seeds, of_seed, of_system)
        found += Systems(systems, mean, resamples=100, trials=60).differences(0, [1])
    for name in tests:
        # Of 1,000 uniform samples of this size, one has a larger distance.
        assert distance_from_uniform([getattr(each, name) for each in found]) < 1.95 / np.sqrt(200), name


def bleu_run(random: np.random.Generator, quality: float, n_sentences: int = 1000) -> np.ndarray:
    """Return statistics of BLEU: lengths of output and reference, matched n-grams, and n-grams."""
    length = 6 + random.poisson(9, n_sentences)
    totals = [length - n for n in range(4)]
    correct, matches = np.clip(random.normal(quality, 0.1, n_sentences), 0, 1), []
    for n, total in enumerate(totals):
        matches.append(random.binomial(total, correct * [1.0, 0.6, 0.4, 0.3][n]))
    return np.stack([length, length, *matches, *totals], axis=1).astype(float)


def test_a_difference_of_two_bleu_is_found_and_equal_systems_are_not_told_apart():
    random = np.random.default_rng(3)
    quality = [0.5, 0.5, 0.5385, 0.4615]  # 25.9, 25.9, 27.9 and 23.9 BLEU on 100,000 such sentences
    systems = [[bleu_run(random, each + random.normal(0, 0.004)) for _ in range(3)] for each in quality]
    compared = Systems(systems, lambda sums: BLEU.score(sums.tolist()), resamples=300, trials=300)
    same, better, worse = compared.differences(0, [1, 2, 3])
    assert (same.is_found, better.is_found, worse.is_found) == (False, True, True)
    assert (better.value, worse.value) == (pytest.approx(2, abs=1), pytest.approx(-2, abs=1))
    assert abs(same.value) < same.smallest < 2.5
    smallest_p = max(better.p_bootstrap, better.p_randomisation)
    assert better.p == pytest.approx(smallest_p * 3)
    assert compared.mean(2).deviation == pytest.approx(0.3, abs=0.3)


def test_without_seeds_the_bootstrap_is_that_of_two_models():
    """Compare the standard error with that of the mean of paired differences, which is known exactly."""
    systems = sweep(np.random.default_rng(3), (1, 1), 0.0, 0.0)
    (found,) = Systems(systems, mean).differences(0, [1])
    differences = systems[1][0][:, 0] - systems[0][0][:, 0]
    assert found.error == pytest.approx(differences.std() / np.sqrt(N_SENTENCES), rel=0.05)
    assert found.margin == pytest.approx(1.96 * found.error, rel=0.05)
    assert found.smallest == pytest.approx((1.96 + 0.84) * found.error, rel=0.05)
    (first,) = [Systems(systems, mean).mean(0)]
    assert first.deviation is None
    assert first.margin == pytest.approx(1.96 * systems[0][0][:, 0].std() / np.sqrt(N_SENTENCES), rel=0.05)


def test_equal_outputs_differ_in_nothing():
    run = np.stack([np.arange(40.0), np.ones(40)], axis=1)
    for seeds in (1, 3):
        (found,) = Systems([[run] * seeds, [run] * seeds], mean, trials=50).differences(0, [1])
        assert (found.value, found.p_bootstrap, found.p_randomisation, found.p) == (0, 1, 1, 1)


def test_p_values_are_corrected_as_by_holm():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
