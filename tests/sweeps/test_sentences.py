"""The sentences of a report are those where two rows differ most, and their text is bounded."""

from pathlib import Path

import numpy as np
import pytest
from omegaconf import DictConfig

from diglot.evaluation.metrics import Cer
from diglot.sweeps import sentences
from diglot.sweeps.comparison import Comparison
from diglot.sweeps.judgement import Judgement
from diglot.sweeps.sentences import choose, differing_sentences
from support.jobs import REFERENCES, keep_outputs, make_job, outputs

N = len(REFERENCES)


@pytest.fixture
def accuracy(compose_train) -> DictConfig:
    return compose_train("data=sample", "metric=[accuracy,cer]")


def test_each_pair_gets_its_most_different_sentences_first(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.array([[0.0, 50.0, 20.0, 9.0], [90.0, 40.0, 20.0, 9.0], [90.0, 45.0, 80.0, 9.0]])
    lines = [["a", "b", "c", "d"], ["A", "B", "c", "D"], ["A", "B", "C", "d"]]
    lengths = np.array([10, 10, 10, 10])
    assert choose(scores, lines, lengths) == [0, 1, 2, 3]
    monkeypatch.setattr(sentences, "PER_PAIR", 1)
    assert choose(scores, lines, lengths) == [0, 2]
    monkeypatch.setattr(sentences, "PER_PAIR", 4)
    monkeypatch.setattr(sentences, "MAX_CHARACTERS", 25)
    assert choose(scores, lines, lengths) == [0, 2]
    assert choose(scores[:1], lines[:1], lengths) == []
    assert choose(scores[[0, 0]], [lines[0]] * 2, lengths) == []


def test_the_best_seed_of_each_row_is_shown_with_its_scores(tmp_path: Path, accuracy: DictConfig) -> None:
    jobs = []
    for override, seed, n_correct in (("a=1", 1, 10), ("a=1", 2, 20), ("a=2", 1, 40), ("a=3", 1, 30)):
        job = make_job(tmp_path, len(jobs) + 1, override, seed, {"accuracy": 100 * n_correct / N})
        keep_outputs(job, accuracy, outputs(n_correct))
        jobs.append(job)
    keep_outputs(jobs[3], accuracy, ["another text", *outputs(30)[1:]], ["another text", *REFERENCES[1:]])
    jobs.append(make_job(tmp_path, 5, "a=4", 1, {"accuracy": 50.0}))
    jobs.append(make_job(tmp_path, 6, "a=5", 1, None, "failed"))
    found = differing_sentences(Comparison(jobs))
    assert (found.rows, found.jobs) == ([1, 3], [2, 3])
    assert [note.partition(":")[0] for note in found.notes] == [
        "No outputs of job 4",
        "No dev outputs of job 5 can be read",
    ]
    content = found.content
    assert (content["metric"], content["higher"], content["unit"], content["total"]) == ("accuracy", True, "words", N)
    assert [line["line"] for line in content["lines"]] == list(range(21, 41))
    assert content["lines"][0] == {"line": 21, "source": "source 20", "references": ["reference 20"]}
    assert content["outputs"] == [["something else"] * 20, REFERENCES[20:40]]
    assert content["scores"] == [[0.0] * 20, [100.0] * 20]


def test_the_lowest_error_rate_is_the_best_score(tmp_path: Path, accuracy: DictConfig) -> None:
    jobs, cer = [], Cer()
    for override, n_correct in (("a=1", 10), ("a=1", 20), ("a=2", 40)):
        lines = outputs(n_correct)
        rows = [cer.statistics(line, [reference]) for line, reference in zip(lines, REFERENCES, strict=True)]
        job = make_job(tmp_path, len(jobs) + 1, override, len(jobs), {"cer": cer.score(np.sum(rows, axis=0).tolist())})
        keep_outputs(job, accuracy, lines)
        jobs.append(job)
    found = differing_sentences(Comparison(jobs, Judgement(1, "cer", higher_is_better=False)))
    assert found.jobs == [2, 3]
    assert (found.content["metric"], found.content["higher"]) == ("CER", False)


def test_rows_and_lines_are_bounded(tmp_path: Path, accuracy: DictConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = []
    for number in range(1, 5):
        job = make_job(tmp_path, number, f"a={number}", 1, {"accuracy": 100 * number / N})
        keep_outputs(job, accuracy, [*outputs(number)[:-1], "long " * 900])
        jobs.append(job)
    monkeypatch.setattr(sentences, "MAX_ROWS", 2)
    monkeypatch.setattr(sentences, "MAX_LINE", 7)
    found = differing_sentences(Comparison(jobs, Judgement(1, "accuracy")))
    assert found.rows == [1, 4]
    assert found.notes == ["Outputs of the baseline and of the best rows, 2 in all, of 4 rows"]
    assert {line for lines in found.content["outputs"] for line in lines} <= {"somethi…", "referen…"}
    assert differing_sentences(Comparison([])).content == {}


def test_bleu_is_replaced_by_chrf_for_single_sentences(tmp_path: Path, compose_train) -> None:
    jobs = [make_job(tmp_path, i, f"a={i}", 1, {"chrf": 1.0}) for i in (1, 2)]
    for job, lines in zip(jobs, (REFERENCES, ["x"] * N), strict=True):
        keep_outputs(job, compose_train("data=sample"), lines)
    for job in jobs:  # no recorded BLEU, so none has to match
        (job.folder / "results.json").write_text('{"finished": true, "best": {"other": 1.0}}')
    content = differing_sentences(Comparison(jobs, Judgement(1, "bleu"))).content
    assert content["metric"] == "chrF++"
    assert content["scores"][0] == [100.0] * len(content["lines"])
    assert max(content["scores"][1]) < 50
