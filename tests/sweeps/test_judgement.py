"""The dev outputs of a sweep's jobs are compared with those of the baseline."""

from pathlib import Path

import pytest
from omegaconf import DictConfig

from diglot.data.text import write_lines
from diglot.sweeps.configuration import configurations
from diglot.sweeps.judgement import Judgement, judge
from support.jobs import REFERENCES, keep_outputs, make_job, outputs

N = len(REFERENCES)


@pytest.fixture
def accuracy(compose_train) -> DictConfig:
    """Return a config whose first metric needs no tokenizer."""
    return compose_train("data=sample", "metric=[accuracy,cer]")


def judged(folder: Path, config: DictConfig, correct: dict[str, list[int]], **keys) -> Judgement:
    """Return the judgement of configurations, given the number of correct outputs of each seed."""
    jobs = []
    for override, counts in correct.items():
        for seed, n_correct in enumerate(counts, 1):
            job = make_job(folder, len(jobs) + 1, override, seed, {"accuracy": 100 * n_correct / N})
            keep_outputs(job, config, outputs(n_correct, first=7 * len(jobs)))
            jobs.append(job)
    return judge(configurations(jobs), **{"baseline": None, "objective": "dev/accuracy"} | keys)


def test_better_worse_and_equal_configurations_are_told_apart(tmp_path: Path, accuracy: DictConfig) -> None:
    correct = {"a=1": [30, 31, 29], "a=2": [30, 29, 32], "a=3": [50, 51, 52], "a=4": [8, 9, 10]}
    found = judged(tmp_path, accuracy, correct)
    assert not found.notes
    assert (found.baseline, found.metric, found.n_sentences) == (1, "accuracy", N)
    assert [found.finding(number) for number in (1, 4, 7, 10)] == ["baseline", "no difference found", "better", "worse"]
    assert found.differences[7].value == pytest.approx(100 * 21 / N)
    assert found.means[1].score == pytest.approx(50)
    assert found.finding(2) == ""


def test_a_lower_error_rate_is_better_and_any_job_names_the_baseline(tmp_path: Path, accuracy: DictConfig) -> None:
    found = judged(tmp_path, accuracy, {"a=1": [10, 11, 12], "a=2": [50, 51, 52]}, baseline=5, objective="dev/cer")
    assert (found.baseline, found.metric, found.higher_is_better) == (4, "cer", False)
    assert (found.finding(1), found.finding(4)) == ("worse", "baseline")
    assert found.differences[1].value > 0


def test_an_objective_that_no_outputs_have_is_replaced_by_the_monitored_metric(tmp_path, accuracy) -> None:
    assert judged(tmp_path, accuracy, {"a=1": [10], "a=2": [50]}, objective="dev/loss").metric == "accuracy"


def test_a_missing_baseline_is_named(tmp_path: Path, accuracy: DictConfig) -> None:
    found = judged(tmp_path, accuracy, {"a=1": [10]}, baseline=7)
    assert found.notes == ["not compared: sweep.baseline=7: there is no job 7"]
    assert judge([], None, "dev/bleu").notes == []


def test_jobs_that_cannot_be_compared_are_named(tmp_path: Path, accuracy: DictConfig, compose_train) -> None:
    lines = outputs(30)
    jobs = [make_job(tmp_path, i, f"a={i}", 1, {"accuracy": 100 * 30 / N}) for i in range(1, 8)]
    for job in jobs[:6]:
        keep_outputs(job, accuracy, lines)
    write_lines(jobs[1].folder / "text" / "dev.best.bol", outputs(31))
    write_lines(jobs[2].folder / "text" / "dev.best.bol", lines[1:])
    other = ["another text", *REFERENCES[1:]]
    keep_outputs(jobs[3], accuracy, [*outputs(29, 1), "x"][:N], other)
    keep_outputs(jobs[4], compose_train("data=sample", "metric=[per,accuracy]"), lines)
    (jobs[5].folder / "text" / "dev.best.bol").unlink()
    found = judge(configurations(jobs), None, "dev/loss")
    told = "\n".join(found.notes)
    assert f"job 2 is not compared: {jobs[1].folder}/text/dev.best.bol has accuracy 51.67, but results.json has" in told
    assert "job 3 is not compared: " in told
    assert f"has {N - 1} lines, but dev has {N} sentences" in told
    assert "job 4 is not compared: " in told
    assert "job 5 not compared: the metric or its settings are not those of the baseline" in told
    assert "jobs 6, 7 not compared: the folders contain no dev outputs of best.ckpt" in told
    assert found.differences == {}
    write_lines(jobs[3].folder / "text" / "dev.best.bol", [other[0], *outputs(29, 1)[1:]])
    found = judge(configurations(jobs), None, "dev/loss")
    assert "job 4 not compared: the dev text is not that of the baseline" in found.notes


def test_without_outputs_of_the_baseline_or_with_few_sentences_nothing_is_compared(tmp_path, accuracy) -> None:
    jobs = [make_job(tmp_path, i, f"a={i}", 1, {"accuracy": 50.0}) for i in (1, 2)]
    keep_outputs(jobs[1], accuracy, outputs(30))
    notes = judge(configurations(jobs), None, "dev/accuracy").notes
    assert notes[-1] == "not compared: there are no dev outputs of the baseline (job 1)"
    for job in jobs:
        keep_outputs(job, accuracy, REFERENCES[:10] + ["x"] * 10, REFERENCES[:20])
    found = judge(configurations(jobs), None, "dev/accuracy")
    assert found.notes == ["not compared: dev has 20 sentences; at least 30 are needed to resample"]
    assert (found.finding(1), found.finding(2)) == ("", "")
