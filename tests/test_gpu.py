"""What only a GPU can show; skipped where there is none."""

import sys
from pathlib import Path

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

import diglot
from diglot import train
from diglot.data.text import read_lines

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

ROOT = Path(__file__).parents[1]
SMALL = ["data=sample", "model.d_model=96", "model.d_ff=384", "model.dropout=0.0", "search=greedy", "data.n_workers=2"]


@pytest.mark.parametrize(
    "words",
    [
        [],  # bf16-mixed by itself
        ["trainer.precision=16-mixed", "optimizer.fused=false"],
        ["trainer.precision=32-true"],
        ["run.compile=true"],
        ["model/position=alibi", "model/residual=post_norm"],
    ],
)
def test_a_gpu_learns_and_translates_as_the_cpu_does(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = ["run.updates=600", "run.validate_every=300", "scheduler.lr=3e-3", "scheduler.warmup=50", "run.folder=run"]
    monkeypatch.setattr(sys, "argv", ["diglot-train", *SMALL, *recipe, *words])
    GlobalHydra.instance().clear()
    train.main()
    lines = read_lines(ROOT / "data" / "sample" / "test.avi")
    on_gpu = diglot.load("run", device="cuda").translate(lines)
    on_cpu = diglot.load("run", device="cpu").translate(lines)
    assert sum(a == b for a, b in zip(on_gpu, on_cpu, strict=True)) >= 0.97 * len(lines)  # rounding may turn a tie
    references = read_lines(ROOT / "data" / "sample" / "test.bol")
    assert sum(a == b for a, b in zip(on_gpu, references, strict=True)) > 0.1 * len(lines)


def test_a_precision_that_a_gpu_lacks_is_refused(monkeypatch):
    from diglot.config import choose_precision
    from diglot.errors import UserError

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert choose_precision("auto", "cuda") == "32-true"
    with pytest.raises(UserError, match="does not compute in bfloat16"):
        choose_precision("bf16-mixed", "cuda")
