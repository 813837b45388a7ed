"""A run opens its test set once, at its end, and says so. Nothing is chosen by it."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from diglot.checkpoint import container
from diglot.checkpoint.averaging import average, members_of
from diglot.data.text import read_lines, write_lines
from diglot.evaluation.openings import LEDGER
from diglot.runs.conclusion import why_closed
from diglot.training.run import Budget
from support.commands import ROOT, SMALL, type_command

pytestmark = pytest.mark.end_to_end

# A callback that writes the names of all files that the process opens, with the part of the run, into opened.txt.
SPY = """\
import os
import sys
from pathlib import Path

import lightning as L


class Spy(L.Callback):
    def __init__(self):
        self.part = "before"
        descriptor = os.open("opened.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

        def hook(event, args):
            if event == "open" and not isinstance(args[0], int):
                os.write(descriptor, f"{self.part} {Path(os.fsdecode(args[0])).name}\\n".encode())

        sys.addaudithook(hook)

    def on_fit_start(self, *_):
        self.part = "fit"

    def on_fit_end(self, *_):
        self.part = "after"
"""
SIDES = ("avi", "bol")
WORDS = (*SMALL[1:], "run.updates=2", "run.validate_every=1", "run.keep_best=2")


def text(folder: Path, name: str) -> list[str]:
    """Return the words for the sample corpus with a test set of ten pairs in the files test.avi and test.bol."""
    (folder / name).mkdir()
    words = ["data=files", "data.vocab_size=500"]
    for side, language in zip(("src", "tgt"), SIDES, strict=True):
        for split, n in (("train", 400), ("dev", 5), ("test", 10)):
            lines = read_lines(ROOT / f"data/sample/{split}.{language}")[:n]
            write_lines(folder / name / f"{split}.{language}", lines)
            words.append(f"data.{split}.{side}={name}/{split}.{language}")
    return words


def openings(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's ledger."""
    path = folder / LEDGER
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run that has opened its test set, and one with another test text that must not."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "spy.py").write_text(SPY)
    done = type_command("diglot-train", *WORDS, *text(folder, "a"), "run.folder=opened", cwd=folder)
    (folder / "opened.said").write_bytes(done.stdout)
    words = [*text(folder, "b"), "run.folder=closed", "run.test=false", "+callbacks.spy._target_=spy.Spy"]
    write_lines(folder / "b" / "test.bol", read_lines(ROOT / "data/sample/test.bol")[10:20])
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(folder))
        done = type_command("diglot-train", *WORDS, *words, cwd=folder)
    (folder / "closed.said").write_bytes(done.stdout)
    return folder


def test_a_run_opens_its_test_set_once_and_says_so(work):
    said, results = (work / "opened.said").read_text(), json.loads((work / "opened" / "results.json").read_text())
    assert "Opening the test set, 10 sentences (with run.test=false, it stays closed)" in said
    assert f"Test opened for the first time, by diglot-train, see opened/{LEDGER}" in said
    assert "Translations by best.ckpt (test):" in said
    (opening,) = openings(work / "opened")
    assert opening["scores"] == results["test"]["scores"]
    assert opening["text"] == results["test"]["openings"]["text"]
    # A finished run does not open it again.
    done = type_command("diglot-train", *WORDS, *text_again("a"), "resume=opened", cwd=work)
    assert done.stdout.decode().endswith("opened: this run is finished; its results are in opened/results.json\n")
    assert openings(work / "opened") == [opening]


def text_again(name: str) -> list[str]:
    """Return the words for a text that exists."""
    sides = zip(("src", "tgt"), SIDES, strict=True)
    files = [f"data.{split}.{side}={name}/{split}.{end}" for side, end in sides for split in ("train", "dev", "test")]
    return ["data=files", "data.vocab_size=500", *files]


def test_with_run_test_false_the_test_set_stays_closed(work, monkeypatch):
    folder, said = work / "closed", (work / "closed.said").read_text()
    command = "make evaluate trust=spy checkpoint=closed/best.ckpt split=test"
    assert f"Test not opened: run.test=false. To open it, type: {command}\n" in said
    assert "Translations by best.ckpt (dev):" in said
    assert json.loads((folder / "results.json").read_text())["test"] is None
    assert not (folder / LEDGER).exists()
    assert not (folder / "evaluation").exists()
    monkeypatch.setenv("PYTHONPATH", str(work))
    words = [*text_again("b"), "resume=closed", "+callbacks.spy._target_=spy.Spy"]
    done = type_command("diglot-train", *WORDS, *words, cwd=work)  # with run.test=true
    assert "this run is finished; " in done.stdout.decode()
    assert (
        "The test set was not opened; type make evaluate trust=spy checkpoint=closed split=test\n"
        in done.stdout.decode()
    )


def test_neither_training_nor_the_choice_of_the_best_checkpoint_depends_on_the_test_set(work):
    opened = [line.split(" ", 1) for line in (work / "opened.txt").read_text().splitlines()]
    of_test = {part for part, name in opened if name.startswith("test.")}
    assert of_test == {"before"}  # its hash, the checks of the data, and the copy in the run's folder
    assert {part for part, _ in opened} == {"before", "fit", "after"}
    one, two = (container.read(work / name / "best.ckpt") for name in ("opened", "closed"))
    assert all(torch.equal(weights, two["state_dict"][name]) for name, weights in one["state_dict"].items())
    assert one["diglot"]["dev_rank"] == two["diglot"]["dev_rank"]
    best = [json.loads((work / name / "results.json").read_text())["best"] for name in ("opened", "closed")]
    assert best[0] == best[1]


def test_an_average_does_not_open_the_test_set(work, tmp_path):
    names: list[str] = []
    sys.addaudithook(lambda event, args: names.append(str(args[0])) if event == "open" and counts else None)
    counts = True
    try:
        average(members_of(str(work / "opened"), "best", 2), tmp_path / "mean.ckpt")
    finally:
        counts = False
    assert any(name.endswith(".ckpt") for name in names)
    assert not [name for name in names if Path(name).name.startswith("test.")]


def test_an_evaluation_is_counted_and_says_so(work, tmp_path):
    folder = work / "evaluated"
    shutil.copytree(work / "opened", folder)
    type_command("diglot-evaluate", "checkpoint=evaluated", cwd=work)  # dev
    assert len(openings(folder)) == 1
    done = type_command("diglot-evaluate", "checkpoint=evaluated/last.ckpt", "split=test", cwd=work)
    told = f"Test opened 2 times (diglot-train 1, diglot-evaluate 1), see evaluated/{LEDGER}\n"
    assert told in done.stdout.decode()
    results = json.loads((folder / "evaluation" / "test_2" / "results.json").read_text())
    assert results["openings"]["commands"] == {"diglot-train": 1, "diglot-evaluate": 1}
    # Another text counts separately, a baseline has its own ledger, and outside of a run's folder there is none.
    other = ["data=files", "data.test.src=b/test.avi", "data.test.tgt=b/test.bol", f"output={tmp_path}/scored"]
    shutil.copy(folder / "best.ckpt", tmp_path / "moved.ckpt")
    words = [f"checkpoint={tmp_path}/moved.ckpt", "split=test", "baseline=evaluated", *other]
    done = type_command("diglot-evaluate", *words, cwd=work)
    assert "\nTest opened; not recorded: moved.ckpt is no checkpoint in a run's folder\n" in done.stdout.decode()
    assert f"\nBaseline: Test opened for the first time, by diglot-evaluate, see evaluated/{LEDGER}\n" in (
        done.stdout.decode()
    )
    assert len(openings(folder)) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["moved.ckpt", "scored"]


def test_a_run_that_was_killed_at_its_end_records_each_computation_and_a_job_of_a_sweep_none(work):
    folder = work / "killed"
    shutil.copytree(work / "opened", folder)
    (folder / "results.json").unlink()
    words = ("diglot-train", *WORDS, *text_again("a"), "resume=killed")
    done = type_command(*words, cwd=work)
    assert "Test opened 2 times (diglot-train 2)" in done.stdout.decode()
    first, second = openings(folder)
    assert first["sha256"] == second["sha256"]
    assert first["scores"] == second["scores"]
    assert not (folder / "evaluation" / "test_2").exists()
    (folder / "results.json").unlink()
    (folder / "job.json").write_text("{}")
    done = type_command(*words, "run.test=true", cwd=work)
    assert "Test not opened: a job of a sweep never opens it. To open it, type: make eval" in done.stdout.decode()
    assert openings(folder) == [first, second]
    assert json.loads((folder / "results.json").read_text())["test"] is None


def test_only_a_single_run_may_open_its_test_set(tmp_path):
    assert why_closed(tmp_path, Budget(updates=1)) is None
    assert why_closed(tmp_path, Budget(updates=1, test=False)) == "run.test=false"
    (tmp_path / "job.json").touch()
    assert why_closed(tmp_path, Budget(updates=1, test=True)) == "a job of a sweep never opens it"
