"""Fine-tuning as docs/fine_tuning.md shows it: mixed text, a further dev set and an extended tokenizer."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import diglot
from diglot.checkpoint import container
from diglot.data.text import read_lines
from diglot.evaluation.scorer import Scorer
from support.commands import ROOT, SMALL, scalars, type_command

pytestmark = pytest.mark.end_to_end

PAGE = (ROOT / "docs/fine_tuning.md").read_text(encoding="utf-8")
SHORT = (*SMALL[1:], "run.updates=2", "run.validate_every=2", "data.vocab_size=600")
EXAMPLE = re.search(r"^## Example$.*?^```$(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)[1].strip().splitlines()


def typed(line: str, cwd: Path) -> str:
    """Run a line of the page, a training with a small model, and return what it says."""
    if not line.startswith("make "):
        subprocess.run(["bash", "-c", line], cwd=cwd, check=True)
        return ""
    command, *words = shlex.split(line.removeprefix("make "))
    if command == "train":
        words += [word for word in SHORT if "init_from" not in line or "vocab_size" not in word]
    return type_command(f"diglot-{command}", *words, cwd=cwd).stdout.decode()


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return the folder in which the example of the page was typed, and what each of its lines has said."""
    folder = tmp_path_factory.mktemp("example")
    shutil.copytree(ROOT / "data" / "sample", folder / "data" / "sample")
    return folder, [typed(line, folder) for line in EXAMPLE]


def test_the_example_of_the_page(adapted: tuple[Path, list[str]]) -> None:
    folder, said = adapted
    run = folder / "runs" / "adapted"
    assert "tokenizer: the checkpoint's, 1 of 1 given pieces and 0 learned pieces added" in said[3]
    assert re.search(r"new: 2,000 pairs in a pass \(weight 4\)", said[3])
    log = (run / "log.txt").read_text()
    assert re.search(r"dev BLEU [\d.]+, chrF\+\+ [\d.]+, perplexity [\d.]+.*; dev_old BLEU [\d.]+, chrF", log), log
    assert "dev 100, dev_old " in said[3]
    old, new = (container.read(folder / "runs" / name / "best.ckpt") for name in ("general", "adapted"))
    size = len(old["state_dict"]["model.src_embedding.weight"])
    assert len(new["state_dict"]["model.src_embedding.weight"]) == size + 1
    assert diglot.load(run, device="cpu").tokenizer.pieces([size], "src") == ["mRNA-7"]

    scores = scalars(run)
    best = json.loads((run / "results.json").read_text())["best"]
    for name in ("bleu", "chrf", "loss", "perplexity", "cut"):
        assert scores[f"dev_old/{name}"][2] == pytest.approx(best[f"dev_old/{name}"], rel=1e-6)
    outputs = read_lines(run / "text" / "dev_old.best.bol")
    assert outputs == read_lines(run / "text" / "dev_old.translated.bol")
    references = read_lines(folder / "data" / "sample" / "dev.bol")
    assert Scorer("bol")(outputs, references)[1].value == pytest.approx(best["dev_old/chrf"])
    assert outputs == diglot.load(run, device="cpu").translate(read_lines(folder / "data" / "sample" / "dev.avi"))
    evaluated = json.loads((run / "evaluation" / "dev_old" / "results.json").read_text())
    assert evaluated["split"] == "dev_old"
    assert evaluated["scores"][1]["value"] == pytest.approx(best["dev_old/chrf"])
    assert evaluated["baseline"]["name"] == "runs/general"
    there = type_command("diglot-evaluate", "checkpoint=runs/adapted", "split=news", cwd=folder, code=2).stderr.decode()
    assert "split=news: there is no such text; the texts beside runs/adapted/best.ckpt are dev, dev_old" in there


def test_a_run_that_fine_tunes_goes_on(adapted: tuple[Path, list[str]]) -> None:
    """The extended tokenizer and the sets are those of the run, and a run with a changed set does not resume."""
    folder, _ = adapted
    line = EXAMPLE[3].replace("runs/adapted", "runs/longer")
    words = [word for word in shlex.split(line)[2:] if not word.startswith(("run.updates", "run.validate_every"))]
    words += [*SHORT[:-3], "scheduler=constant", "run.monitor=dev_old/chrf", "run.validate_every=2"]
    type_command("diglot-train", *words, "run.updates=2", cwd=folder)
    (old_dev,) = (folder / "data" / "sample").glob("dev.bol")
    text = old_dev.read_text()
    old_dev.write_text(text.replace("Sog", "Sag"))
    again = [*words, "run.updates=4", "resume=runs/longer"]
    changed = type_command("diglot-train", *again, cwd=folder, code=2).stderr.decode()
    assert "the text of data.further_dev.old is no longer the one that the run began with" in changed
    old_dev.write_text(text)
    type_command("diglot-train", *again, cwd=folder)
    once = [word.replace("runs/longer", "runs/once") for word in words]
    type_command("diglot-train", *once, "run.updates=4", cwd=folder)
    found, expected = (container.read(folder / "runs" / name / "last.ckpt") for name in ("longer", "once"))
    assert all(torch.equal(found["state_dict"][name], weight) for name, weight in expected["state_dict"].items())
    for key in ("dev_old/chrf", "dev_rank"):
        assert found["diglot"][key] == expected["diglot"][key]
    results = [json.loads((folder / "runs" / name / "results.json").read_text()) for name in ("longer", "once")]
    assert results[0]["best"] == results[1]["best"]
    logged = scalars(folder / "runs" / "once")["dev_old/chrf"][4]
    assert found["diglot"]["dev_old/chrf"] == pytest.approx(logged, rel=1e-6)
