"""Each opening of a test set is recorded once, durably, and before anything shows its scores."""

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from diglot.data.text import ParallelText
from diglot.evaluation import evaluate as evaluation
from diglot.evaluation import openings
from diglot.evaluation.evaluate import (
    Baseline,
    EvaluationSet,
    Hypotheses,
    evaluate,
    read_evaluation_set,
    table,
    write_evaluation_set,
)
from diglot.evaluation.openings import LEDGER, Ledger, openings_in, text_hash, told
from diglot.evaluation.scorer import Scorer

PAIRS = ParallelText(["a b", "c"], ["x y", "z"])
OTHER = ParallelText(["a b", "c"], ["x y", "zz"])
SCORES = [{"name": "BLEU", "value": 1.5, "signature": "s"}]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a checkpoint in a folder like a run's."""
    path = tmp_path / "run" / "best.ckpt"
    path.parent.mkdir()
    path.write_bytes(b"weights")
    return path


def ledger_of(checkpoint: Path, command: str = "diglot-evaluate") -> Ledger:
    return Ledger.of(command, checkpoint, checkpoint.parent)


def lines_of(checkpoint: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (checkpoint.parent / LEDGER).read_text().splitlines()]


def test_an_opening_is_recorded_with_its_time_command_checkpoint_text_and_scores(checkpoint, monkeypatch):
    monkeypatch.setattr("sys.argv", ["diglot-evaluate", "split=test"])
    found = ledger_of(checkpoint).record("news", PAIRS, SCORES)
    (line,) = lines_of(checkpoint)
    assert line.pop("time").endswith("Z")
    assert line == {
        "command": "diglot-evaluate",
        "arguments": ["split=test"],
        "checkpoint": "best.ckpt",
        "sha256": hashlib.sha256(b"weights").hexdigest(),
        "set": "news",
        "text": text_hash(PAIRS),
        "scores": SCORES,
    }
    assert found["times"] == 1
    assert told(found) == f"Test opened for the first time, by diglot-evaluate, see {checkpoint.parent / LEDGER}"
    assert [path.name for path in checkpoint.parent.iterdir() if path.name.startswith(".")] == []


def test_openings_are_counted_by_command_and_each_text_separately(checkpoint):
    ledger_of(checkpoint, "diglot-train").record("news", PAIRS, SCORES)
    assert ledger_of(checkpoint).record("news", OTHER, SCORES)["times"] == 1
    ledger_of(checkpoint).record("news", PAIRS, SCORES)
    found = ledger_of(checkpoint).record("renamed", PAIRS, SCORES)
    assert found["commands"] == {"diglot-train": 1, "diglot-evaluate": 2}
    assert told(found).startswith("Test opened 3 times (diglot-train 1, diglot-evaluate 2), see ")


def test_a_half_written_line_stays_as_a_line_that_counts_for_any_text(checkpoint):
    ledger_of(checkpoint).record("news", PAIRS, SCORES)
    path = checkpoint.parent / LEDGER
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    found = ledger_of(checkpoint).record("news", PAIRS, SCORES)
    assert found["commands"] == {"diglot-evaluate": 2, "unreadable": 1}
    first, half, last = path.read_bytes().splitlines(keepends=True)
    assert (first, half) == (whole, whole[:40] + b"\n")
    assert json.loads(last)["set"] == "news"


@pytest.mark.parametrize(
    "line", [b"[]", b"3", b"\xff", b'{"command": 3, "text": null}', b'{"command": "x"}', b"[" * 99999]
)
def test_any_damaged_line_counts(checkpoint, line):
    (checkpoint.parent / LEDGER).write_bytes(line + b"\n\n")
    assert openings_in(checkpoint.parent) == [(openings.UNREADABLE, None)]


def test_a_ledger_that_cannot_be_written_is_reported_and_left_as_it_was(checkpoint, monkeypatch):
    ledger_of(checkpoint).record("news", PAIRS, SCORES)
    before = (checkpoint.parent / LEDGER).read_bytes()

    @contextmanager
    def refused(_: Path) -> Iterator[None]:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        yield

    monkeypatch.setattr(openings, "atomic_file", refused)
    found = ledger_of(checkpoint).record("news", PAIRS, SCORES)
    assert (checkpoint.parent / LEDGER).read_bytes() == before
    assert found["times"] == 2
    assert told(found).endswith(
        f"2 times (diglot-evaluate 2); this time is not recorded: {checkpoint.parent / LEDGER} cannot be written "
        f"({os.strerror(errno.EROFS)})"
    )


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_a_file_is_a_ledger(checkpoint, tmp_path, kind):
    path, elsewhere = checkpoint.parent / LEDGER, tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    {"link": lambda: path.symlink_to(elsewhere), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    found = ledger_of(checkpoint).record("news", PAIRS, SCORES)
    assert found["not_recorded"].endswith("cannot be written (not a regular file)")
    assert elsewhere.read_text() == "kept"


def test_nothing_is_written_beside_a_file_that_is_no_checkpoint_of_a_run(checkpoint):
    found = Ledger.of("diglot-evaluate", checkpoint, None).record("news", PAIRS, SCORES)
    assert told(found) == "Test opened; not recorded: best.ckpt is no checkpoint in a run's folder"
    assert list(checkpoint.parent.iterdir()) == [checkpoint]


def test_results_without_a_ledger_count_as_an_opening_of_any_text(checkpoint):
    results = checkpoint.parent / "evaluation" / "test" / "results.json"
    results.parent.mkdir(parents=True)
    results.write_text("{}")
    for times in (2, 3):
        found = ledger_of(checkpoint).record("news", PAIRS, SCORES)
        assert found["commands"] == {"unrecorded": 1, "diglot-evaluate": times - 1}
    assert len(lines_of(checkpoint)) == 3


def test_commands_that_open_at_the_same_time_lose_nothing(checkpoint):
    ledger = ledger_of(checkpoint)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: ledger.record("news", PAIRS, SCORES), range(12)))
    assert len(lines_of(checkpoint)) == 12
    assert sorted(each["times"] for each in found)[-1] == 12
    assert not any(each["not_recorded"] for each in found)


def test_the_copy_of_a_text_in_a_runs_folder_has_the_same_hash(tmp_path):
    pairs = ParallelText(["\ufeffone", "two\r", "three"], ["1", "\u2028 2 ", ""])
    write_evaluation_set(tmp_path, EvaluationSet("news", "test", pairs), "de", "en")
    kept = read_evaluation_set(tmp_path, "test", "de", "en")
    assert kept is not None
    assert kept.pairs != pairs
    assert text_hash(kept.pairs) == text_hash(pairs)
    assert text_hash(ParallelText(["one"], ["two"])) != text_hash(ParallelText(["two"], ["one"]))


# In an evaluation


def score(checkpoint: Path, **options: Any) -> dict[str, Any]:
    evaluated = EvaluationSet("news", "test", PAIRS)
    options = {"ledger": ledger_of(checkpoint), **options}
    return evaluate(Hypotheses(["x y", "q"], "de", "en"), evaluated, Scorer("en"), checkpoint.parent / "out", **options)


def test_results_and_table_say_how_often_the_test_set_was_opened(checkpoint):
    score(checkpoint)
    results = score(checkpoint)
    assert results["openings"]["times"] == 2
    assert json.loads((checkpoint.parent / "out_2" / "results.json").read_text())["openings"] == results["openings"]
    assert table(results)[-1] == told(results["openings"])
    assert lines_of(checkpoint)[-1]["scores"] == results["scores"]
    del results["openings"]
    assert "opened" not in "\n".join(table(results))


def test_a_baseline_opens_the_test_set_too(checkpoint, tmp_path):
    other = tmp_path / "other" / "last.ckpt"
    other.parent.mkdir()
    other.write_bytes(b"other weights")
    baseline = Baseline("other", Hypotheses(["x y", "z"], "de", "en"), ledger_of(other))
    results = score(checkpoint, baseline=baseline)
    (ours,), (theirs,) = lines_of(checkpoint), lines_of(other)
    assert ours["scores"] == results["scores"]
    assert ours["sha256"] != theirs["sha256"]
    assert ours["scores"] != theirs["scores"]
    assert table(results)[-1].startswith("Baseline: Test opened for the first time, by ")


def test_an_opening_is_recorded_before_anything_is_written_and_only_if_there_are_scores(checkpoint, monkeypatch):
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(evaluation, "write_lines", killed)
        with pytest.raises(KeyboardInterrupt):
            score(checkpoint)
    assert len(lines_of(checkpoint)) == 1
    assert not any((checkpoint.parent / "out").iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(evaluation, "by_length", killed)
        with pytest.raises(KeyboardInterrupt):
            score(checkpoint)
    assert len(lines_of(checkpoint)) == 1


def test_a_repeated_evaluation_reuses_its_folder_and_is_an_opening_of_its_own(checkpoint):
    score(checkpoint, is_repeated=True)
    results = score(checkpoint, is_repeated=True)
    assert Path(results["folder"]).name == "out"
    assert json.loads((checkpoint.parent / "out" / "results.json").read_text())["openings"]["times"] == 2
