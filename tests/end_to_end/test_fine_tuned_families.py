"""Small models of each family of Hugging Face learn, with all weights and with adapters, and are exported again."""

import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import diglot
from diglot.checkpoint import container
from diglot.data.text import read_lines
from support.commands import ROOT, type_command
from support.fine_tuned import FAMILIES, KINDS, dev_loss, training_words, unigram_loss
from support.huggingface import trainable_folder

os.environ["HF_HUB_OFFLINE"] = "1"
pytest.importorskip("transformers")
pytestmark = [pytest.mark.end_to_end, pytest.mark.reliability]

UPDATES = 80
MORE_UPDATES = {("t5", "LoRA"): 160, ("mt5", "LoRA"): 160}  # which learn slowly
N_LINES = 20
Made = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return a function that returns the folder of a family's model."""
    folder = tmp_path_factory.mktemp("families")
    return cache(lambda family: trainable_folder(family, folder / family))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_each_family_is_fine_tuned_and_goes_out_again(
    family: str, kind: str, folder_of: Made, tmp_path: Path
) -> None:
    shutil.copytree(folder_of(family), tmp_path / "base")
    updates = MORE_UPDATES.get((family, kind), UPDATES)
    words = [*training_words(family, kind, updates), "init_from=base"]
    type_command("diglot-train", *words, "run.folder=run", cwd=tmp_path)
    run = tmp_path / "run"
    results = json.loads((run / "results.json").read_text())
    assert results["trained_parameters"] < results["parameters"] or kind == "all weights"
    before = dev_loss(tmp_path / "base", family)
    bound = 0.75 * unigram_loss(diglot.load(run / "best.ckpt", "cpu").tokenizer)
    assert dev_loss(run / "best.ckpt", family) < bound < before
    names = container.read(run / "last.ckpt")["state_dict"]
    assert any("lora" in name for name in names) == (kind == "LoRA")

    # The run resumes without the folder, and its checkpoint goes out again and translates as it did.
    shutil.rmtree(tmp_path / "base")
    resumed = [word for word in words if not word.startswith("run.updates=")]
    resumed += [f"run.updates={updates + 1}", "export=huggingface"]
    done = type_command("diglot-train", *resumed, "resume=run", cwd=tmp_path)
    assert f"update {updates + 1:,} of {updates + 1:,}" in done.stdout.decode()
    source = "".join(f"{line}\n" for line in read_lines(ROOT / "data/sample/dev.avi")[:N_LINES])
    outputs = []
    for checkpoint in ("run", "run/huggingface"):  # whose default limits of the length differ
        limit = ("device=cpu", "search.max_len_a=0.0", "search.max_len_b=20")
        done = type_command("diglot-translate", f"checkpoint={checkpoint}", *limit, cwd=tmp_path, stdin=source)
        outputs.append(done.stdout.decode().splitlines())
    equal = [line == other for line, other in zip(*outputs, strict=True)]
    assert sum(equal) >= N_LINES - 2  # in another order of the computation, rounding may decide between two tokens
