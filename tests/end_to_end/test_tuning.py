"""Runs that fine-tune a model: frozen parts, learning rates by part and adapters, through all commands."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import diglot
from diglot.checkpoint import container
from diglot.checkpoint import file as checkpoint
from support.commands import ROOT, SMALL, scalars, type_command

pytestmark = pytest.mark.end_to_end

BASE = (*SMALL, "trainer.precision=32-true", "run.validate_every=2", "run.test=false", "data.batches_per_update=2")
WORDS = (*BASE, "init_from=base/last.ckpt", "model.dropout=0.1", "run.updates=4")
EMA = ("callbacks=[ema]", "callbacks.ema.decay=0.5")
FROZEN = ("freeze=[encoder,decoder.norms]", "learning_rates={embeddings:0.5,decoder:2,decoder.biases:3}")
LORA = ("lora={rank:4,dropout:0.1,on:[attention,up],train:[decoder.norms]}", "learning_rates={encoder:0.5}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a base model, in base/."""
    made = tmp_path_factory.mktemp("tuning")
    type_command("diglot-train", *BASE, "run.updates=2", "run.folder=base", cwd=made)
    return made


def train(folder: Path, name: str, *words: str) -> str:
    done = type_command("diglot-train", *WORDS, *words, f"run.folder={name}", cwd=folder)
    return done.stdout.decode()


def content(folder: Path, name: str = "last.ckpt") -> dict[str, Any]:
    return container.read(folder / name)


def resumed(folder: Path, name: str, *words: str) -> None:
    """Train for two updates, resume for two more, and compare with a run of four updates."""
    first = ("run.updates=2", "scheduler=constant")  # the rates of another schedule depend on the length
    train(folder, f"{name}_parts", *words, *first)
    type_command("diglot-train", *WORDS, *words, "scheduler=constant", f"resume={name}_parts", cwd=folder)
    train(folder, f"{name}_whole", *words, "scheduler=constant")
    parts, whole = (content(folder / f"{name}_{kind}") for kind in ("parts", "whole"))
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "global_step"):
        assert str(parts[part]) == str(whole[part])
    for part in {"state_dict", "current_model_state"} & whole.keys():
        assert all(torch.equal(value, parts[part][key]) for key, value in whole[part].items())


def test_frozen_weights_keep_their_bits_and_the_others_do_not(folder: Path) -> None:
    said = train(folder, "frozen", *FROZEN, *EMA)
    results = json.loads((folder / "frozen" / "results.json").read_text())
    numbers = f"training {results['trained_parameters']:,} of {results['parameters']:,} weights"
    assert f"{numbers}; frozen: encoder, decoder.norms" in said
    assert "learning rates: embeddings x 0.5, decoder x 2, decoder.biases x 3" in said
    before, after = content(folder / "base")["state_dict"], content(folder / "frozen")
    for state in (after["state_dict"], after["current_model_state"]):
        for name, weight in state.items():
            is_frozen = name.startswith("model.encoder") or (name.startswith("model.decoder") and "norm" in name)
            assert torch.equal(before[name], weight) == is_frozen, name
    (optimizer,) = after["optimizer_states"]
    n_trained = sum(len(group["params"]) for group in optimizer["param_groups"])
    assert len(optimizer["state"]) == n_trained < len(after["state_dict"]) / 2
    state = optimizer["state"].values()
    assert sum(moments["exp_avg"].numel() for moments in state) == results["trained_parameters"]
    rates = scalars(folder / "frozen")["train/learning_rate"]
    assert rates == pytest.approx(scalars_of_schedule(folder), rel=1e-6)


def scalars_of_schedule(folder: Path) -> dict[int, float]:
    train(folder, "plain")
    return scalars(folder / "plain")["train/learning_rate"]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(FROZEN, id="frozen", marks=pytest.mark.reliability),
        pytest.param((*FROZEN, *EMA), id="frozen_ema", marks=pytest.mark.reliability),
        pytest.param((*LORA, *EMA), id="lora_ema"),
    ],
)
def test_a_resumed_run_is_the_same_bit_for_bit(
    folder: Path, words: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    resumed(folder, request.node.callspec.id, *words)


def test_a_run_with_adapters_is_read_by_all_commands(folder: Path) -> None:
    said = train(folder, "lora", *LORA, "run.keep_last=2")
    results = json.loads((folder / "lora" / "results.json").read_text())
    raw, before = content(folder / "lora")["state_dict"], content(folder / "base")["state_dict"]
    n_adapters = sum(weight.numel() for name, weight in raw.items() if "lora" in name)
    assert f"base/last.ckpt, {results['parameters']:,} weights, and {n_adapters:,} weights of adapters" in said
    assert f"{results['parameters']:,} parameters\n" in said
    assert f"training {n_adapters:,} weights of adapters: LoRA of rank 4 on attention, up\n" in said
    n_others = results["trained_parameters"] - n_adapters
    assert f"training {n_others:,} of {results['parameters']:,} weights: decoder.norms\n" in said
    for name, weight in before.items():
        assert torch.equal(weight, raw[name]) != (name.startswith("model.decoder") and "norm" in name), name
    assert any(name.endswith("lora_b") and weight.any() for name, weight in raw.items())
    model = checkpoint.load(folder / "lora" / "last.ckpt").model
    assert sum(weight.numel() for weight in model.parameters()) == results["parameters"]

    lines = (ROOT / "data/sample/dev.avi").read_text().splitlines()
    dev = (folder / "lora" / "text" / "dev.translated.bol").read_text().splitlines()
    assert diglot.load(folder / "lora" / "last.ckpt").translate(lines[:20]) == dev[:20]
    type_command("diglot-evaluate", "checkpoint=lora/last.ckpt", cwd=folder)
    evaluated = json.loads((folder / "lora" / "evaluation" / "dev" / "results.json").read_text())
    scores = {score["name"]: score["value"] for score in evaluated["scores"]}
    assert scores["chrF++"] == pytest.approx(scalars(folder / "lora")["dev/chrf"][4], abs=1e-3)
    type_command("diglot-average", "checkpoint=lora", "n=2", "output=mean.ckpt", cwd=folder)
    type_command("diglot-export", "checkpoint=lora", "format=safetensors", cwd=folder)
    train(folder, "next", "run.updates=1", "init_from=mean.ckpt", "freeze=[encoder,decoder,biases]")
    mean, after = (container.read(folder / name)["state_dict"] for name in ("mean.ckpt", "next/last.ckpt"))
    assert not any("lora" in name for name in after)
    trained = {name for name, weight in after.items() if not torch.equal(weight, mean[name])}
    assert trained == {"model.src_embedding.weight", "model.tgt_embedding.weight", "model.output.weight"}


def test_what_is_trained_cannot_change_in_a_run(folder: Path) -> None:
    train(folder, "changed", "run.updates=2", "freeze=[encoder]", "learning_rates={decoder:2}")
    words = (*WORDS, "resume=changed")
    done = type_command("diglot-train", *words, "freeze=[decoder]", cwd=folder, code=2)
    assert "these values cannot change in a run: freeze was ['encoder'] and is ['decoder']" in done.stderr.decode()
    done = type_command("diglot-train", *words, "freeze=[encoder]", "learning_rates={decoder.norms:3}", cwd=folder)
    said = done.stdout.decode()
    assert "learning_rates.decoder was 2 and is None: the new value applies from update 3 on" in said
    (optimizer,) = content(folder / "changed")["optimizer_states"]
    assert [group["factor"] for group in optimizer["param_groups"]] == [1.0, 3.0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["freeze=[encodr]"], "freeze=[encodr]: 'encodr' is no part of this model: type one of encoder, decoder,"),
        (["lora={ranc:4}"], "there is no key lora.ranc; did you mean lora.rank"),
        (["lora={}", "init_from=null"], "lora: adapters adapt a trained model: name it by init_from=CHECKPOINT"),
        (["export=peft"], "export=peft: "),
    ],
)
def test_a_mistake_is_refused_in_one_line_before_anything_is_written(
    folder: Path, words: list[str], message: str
) -> None:
    done = type_command("diglot-train", *WORDS, *words, "run.folder=wrong", cwd=folder, code=2)
    (line,) = done.stderr.decode().splitlines()
    assert message in line
    assert not (folder / "wrong").exists()
