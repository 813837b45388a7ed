"""Tests that need a GPU; skipped without one."""

import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

import diglot
from conformance.promises import ids, mask_of
from conformance.variants import PAIRWISE, PRESETS, build_variant, variant_of
from diglot.checkpoint import container
from diglot.commands import train
from diglot.data.text import read_lines

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

ROOT = Path(__file__).parents[2]
SMALL = ["data=sample", "model.d_model=96", "model.d_ff=384", "model.dropout=0.0", "search=greedy", "data.n_workers=2"]


@pytest.mark.parametrize(
    "words",
    [
        [],  # bf16-mixed is the default
        ["trainer.precision=16-mixed", "optimizer.fused=false"],
        ["trainer.precision=32-true"],
        ["run.compile=true"],
        ["model/position=alibi", "model/residual=post_norm"],
        ["trainer=ddp", "trainer.devices=1"],  # NCCL with a world size of 1
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
    assert sum(a == b for a, b in zip(on_gpu, on_cpu, strict=True)) >= 0.97 * len(lines)  # rounding may decide ties
    references = read_lines(ROOT / "data" / "sample" / "test.bol")
    assert sum(a == b for a, b in zip(on_gpu, references, strict=True)) > 0.1 * len(lines)


@pytest.mark.parametrize("variant", [*map(variant_of, PAIRWISE), *PRESETS], ids=attrgetter("name"))
def test_every_variant_computes_on_a_gpu_what_it_does_on_a_cpu(variant):
    model, _ = build_variant(variant.overrides)
    src, tgt, mask = ids(2, 5), ids(2, 7), mask_of(5, 3)
    exact = model(src, tgt, mask)
    exact.logsumexp(-1).sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model.cuda()
    logits = model(src.cuda(), tgt.cuda(), mask.cuda())
    logits.logsumexp(-1).sum().backward()
    torch.testing.assert_close(logits.cpu(), exact, rtol=0, atol=1e-3)  # GPUs may round products to TF32
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), gradient, rtol=0, atol=1e-2)
    with torch.autocast("cuda", torch.bfloat16):  # the fused kernels
        assert (model(src.cuda(), tgt.cuda(), mask.cuda()).cpu() - exact).abs().max() < 0.2
        assert model(src.cuda(), tgt.cuda(), mask_of(0, 5).cuda()).isfinite().all()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs")
def test_two_gpus_make_the_updates_of_one(tmp_path):
    words = [*SMALL, "trainer.precision=32-true", "run.updates=40", "run.validate_every=20", "data.n_workers=0"]
    weights, scores = [], []
    for devices in (1, 2):
        command = [sys.executable, "-m", "diglot", "train", *words, "trainer=ddp", f"trainer.devices={devices}"]
        subprocess.run([*command, f"run.folder=run{devices}"], cwd=tmp_path, check=True, timeout=300)
        content = container.read(tmp_path / f"run{devices}" / "last.ckpt")
        weights.append(content["state_dict"])
        scores.append(content["diglot"]["dev_bleu"])
    assert max((weights[0][name] - weights[1][name]).abs().max().item() for name in weights[0]) < 1e-2
    assert scores[0] == pytest.approx(scores[1], abs=0.5)


def test_a_precision_that_a_gpu_lacks_is_refused(monkeypatch):
    from diglot.config import choose_precision
    from diglot.errors import UserError

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert choose_precision("auto", "cuda") == "32-true"
    with pytest.raises(UserError, match="does not compute in bfloat16"):
        choose_precision("bf16-mixed", "cuda")
