"""The rows of a sweep's comparison."""

from pathlib import Path

import pytest

from diglot.evaluation.repeated import Difference, Mean
from diglot.sweeps.comparison import Comparison, pareto_front
from diglot.sweeps.judgement import Judgement
from support.jobs import make_job


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ([(10.0, 1.0), (20.0, 2.0), (15.0, 3.0)], {0, 1}),
        ([(10.0, 1.0), (10.0, 1.0), (10.0, 2.0)], {0, 1}),
        ([(10.0, None), (None, 1.0), (5.0, 9.0)], {2}),
        ([], set()),
    ],
)
def test_no_point_of_the_front_is_dominated(points, front) -> None:
    assert pareto_front(points, higher_is_better=True) == front
    assert pareto_front([(None if a is None else -a, b) for a, b in points], higher_is_better=False) == front
    speeds = [(a, None if b is None else -b) for a, b in points]
    assert pareto_front(speeds, higher_is_better=True, higher_cost_is_better=True) == front


def test_rows_have_the_means_of_their_jobs_and_what_was_found(tmp_path: Path) -> None:
    speeds = [{"minutes": 1.0, "dev_sentences_per_second": 20.0}, {"minutes": 3.0, "dev_sentences_per_second": 40.0}]
    faster = {"minutes": 3.0, "dev_sentences_per_second": 50.0}
    jobs = [
        make_job(tmp_path, 1, "a=1", 1, {"bleu": 10.0, "chrf": 7.0, "perplexity": 4.0}, parameters=10, **speeds[0]),
        make_job(tmp_path, 2, "a=1", 2, {"bleu": 12.0, "chrf": 9.0, "perplexity": 6.0}, parameters=10, **speeds[1]),
        make_job(tmp_path, 3, "a=2", 1, {"bleu": 12.0, "chrf": 5.0, "perplexity": 6.0}, parameters=10, **faster),
        make_job(tmp_path, 4, "a=3", 1),
    ]
    difference = Difference(1.0, 0.2, 0.4, 0.6, 0.001, 0.002, 0.004)
    judgement = Judgement(1, "chrf", True, 1000, {1: Mean(8.0, 1.4, 0.5)}, {3: difference}, ["a note"])
    comparison = Comparison(jobs, judgement)
    assert list(comparison.metrics.values()) == ["dev chrF++", "BLEU"]
    first, second, third = comparison.rows
    assert first.scores == {"chrf": 8.0, "bleu": 11.0}
    assert first.numbers == {
        **{"perplexity": 5.0, "parameters": 10, "tokens/s": None, "minutes": 2.0},
        **{"sentences/s": 30.0, "updates": None},
    }
    assert (first.fronts, second.fronts) == ({"parameters", "minutes", "sentences/s"}, {"sentences/s"})
    assert [row.finding for row in (first, second, third)] == ["baseline", "better", ""]
    assert (second.difference, third.difference) == (difference, None)
    notes = "\n".join(comparison.notes())
    assert "difference from jobs 1-2" in notes
    assert "chrF++ on 1,000 dev sentences, corrected for 1 comparison (Holm)" in notes
    assert notes.endswith("a note\nTest opened by no run of this sweep")
    assert "With one seed" not in notes
    assert "With one seed" in "\n".join(Comparison(jobs[:1] + jobs[2:], judgement).notes())
    assert Comparison(jobs).notes() == [
        "± after a score: standard deviation over the seeds",
        *comparison.notes()[-3::2],
    ]
