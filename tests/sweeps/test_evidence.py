"""The rule of sweep.stop=evidence ends a job that cannot win, and in simulated sweeps seldom one that could."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from diglot.sweeps.evidence import LEVEL, Point, Run, deficit, student_quantile

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CHANCE = np.random.default_rng(1).standard_normal((20, 400))  # of 400 sentences: a standard error of 0.05


def run(*scores: float, finished: bool = True, number: int = 0) -> Run:
    points = {100 * (i + 1): Point(score, CHANCE[number + i]) for i, score in enumerate(scores)}
    return Run(points, finished)


def found(candidate, *others, update=200, n_tests=10, has_seeds=False, catch_up=2.0):
    return deficit(candidate, others, update, n_tests, has_seeds, catch_up)


def test_a_run_is_ended_if_its_deficit_is_larger_than_it_can_catch_up():
    best = run(10, 20, 25, number=5)  # gained 5 from update 200 on, so 10 is the most, of which it makes 5 itself
    ended = found([run(5, 14.5, finished=False)], [best])
    assert ended.is_final
    assert (ended.value, ended.margin, ended.best) == (5.5, 5.0, 0)
    assert found([run(5, 15.5, finished=False)], [best]) is None
    uncertain = found([run(5, 14.9, finished=False)], [best])
    assert uncertain is not None
    assert not uncertain.is_final, "the difference may be chance"


def test_the_largest_improvement_of_any_finished_run_counts():
    late = run(0, 4, 20, number=9)  # gained 16, more than the best one
    assert found([run(5, 2, finished=False)], [run(10, 20, 25)], [late]) is None
    assert found([run(5, 2, finished=False)], [run(10, 20, 25, number=5)]).is_final
    assert found([run(5, 2, finished=False)], [run(10, 20, 25, number=5)], [run(0, 4, finished=False)]).is_final


def test_the_factor_is_the_assumption():
    candidate, best = [run(5, 16, finished=False)], [run(10, 20, 25, number=5)]
    assert found(candidate, best) is None
    assert found(candidate, best, catch_up=1.5).is_final


def test_a_run_is_compared_with_the_best_finished_configuration():
    ended = found([run(0, 1, finished=False)], [run(9, 9, 9)], [run(10, 20, 25)], [run(50, 60, finished=False)])
    assert ended.best == 1
    assert found([run(0, 1, finished=False)], [run(50, 60, finished=False)]) is None
    assert found([run(0, 1, finished=False)]) is None


def test_more_tests_need_more_evidence():
    candidate, best = [run(5, 14.8, finished=False)], [run(10, 20, 25, number=5)]
    assert found(candidate, best, n_tests=1).is_final
    assert not found(candidate, best, n_tests=1000).is_final


def test_with_several_seeds_nothing_is_ended_before_their_deviation_is_known():
    candidate, best = [run(5, 10, finished=False)], run(10, 20, 25, number=5)
    assert found(candidate, [best], has_seeds=True) is None
    near, far = run(10, 20.2, 25, number=7), run(10, 28, 33, number=7)
    assert found(candidate, [best, near], [near, best], [near, best], has_seeds=True).is_final
    assert not found(candidate, [best, far], has_seeds=True).is_final


def test_with_few_sentences_nothing_is_ended():
    few = [Run({200: Point(score, np.ones(20)), 300: Point(score, np.ones(20))}) for score in (0.0, 20.0)]
    assert found([few[0]], [few[1]]) is None


@pytest.mark.parametrize(
    ("level", "freedom", "wanted"), [(0.05, 10, 1.812), (0.001, 5, 5.893), (0.0005, 30, 3.646), (0.001, 0, 3.090)]
)
def test_the_quantiles_of_student_s_t(level, freedom, wanted):
    assert student_quantile(level, freedom) == pytest.approx(wanted, rel=0.02)


def test_the_approximate_quantile_is_never_too_small():
    assert [student_quantile(0.001, n) >= t for n, t in ((1, 318.3), (2, 22.33), (3, 10.21), (4, 7.173))] == [True] * 4


@pytest.mark.parametrize(("spread", "seeds"), [(0.0, 1), (8.0, 1), (8.0, 2)])
def test_in_simulated_sweeps_few_winners_are_ended_and_updates_are_saved(monkeypatch, spread, seeds):
    monkeypatch.syspath_prepend(BENCHMARKS)
    simulation = importlib.import_module("early_stopping")
    kind = simulation.Kind(spread, crossing=0.2, seeds=seeds, rows=6)
    outcome = simulation.simulate(kind, 100)
    assert outcome.is_false <= LEVEL
    assert outcome.keeps_winner >= 1 - LEVEL
    assert outcome.saved > (0.1 if spread else -1)
    if spread and seeds == 1:  # without the margin, the rule would be wrong too often
        assert simulation.simulate(kind, 100, catch_up=0.0).is_false > LEVEL
