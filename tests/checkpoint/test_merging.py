"""Checkpoints with adapters: every command reads the merged model."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from diglot.checkpoint import file as checkpoint
from diglot.checkpoint.averaging import average
from diglot.checkpoint.merging import adapter_record, adapters_of, merged_weights
from diglot.config import build
from diglot.data.tokenizer import Tokenizer
from diglot.errors import UserError
from diglot.model.lora import Lora, add
from support.made import checkpoint_content, write_checkpoint

QUERY = "model.encoder.0.self_attention.sublayer.query"
LORA = Lora(rank=2, alpha=6.0)
WORDS = ("data=sample", "model=tiny", "model.d_model=24", "model.n_heads=3", "model.d_ff=40")


@pytest.fixture
def adapted(compose_train: Callable[..., DictConfig], tokenizer: Tokenizer) -> Callable[[int], dict[str, Any]]:
    """Return a function that makes the content of a checkpoint with adapters."""

    def made(seed: int) -> dict[str, Any]:
        config = OmegaConf.create(OmegaConf.to_container(compose_train(*WORDS)))
        config.lora, config.init_from = {"rank": LORA.rank, "alpha": LORA.alpha}, "run"
        content = checkpoint_content(config, tokenizer, seed=1)
        model = build(config.model, "model", **tokenizer.vocab_sizes)
        model.load_state_dict({name.removeprefix("model."): w for name, w in content["state_dict"].items()})
        torch.manual_seed(seed)
        add(model, LORA)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora" in name:
                    weight += torch.randn_like(weight) * 0.1
        content["state_dict"] = {f"model.{name}": weight for name, weight in model.state_dict().items()}
        return content

    return made


def test_a_record_has_what_merging_needs(adapted: Callable[[int], dict[str, Any]]) -> None:
    record = adapted(1)["diglot"]
    assert record["lora"] == adapter_record(LORA) == {"rank": 2, "alpha": 6.0, "train": []}
    assert adapters_of(record) == LORA
    assert adapters_of({}) is None


def test_a_loaded_model_has_the_merged_weights(adapted: Callable[[int], dict[str, Any]], tmp_path: Path) -> None:
    content = adapted(1)
    model = checkpoint.load(write_checkpoint(tmp_path / "a.ckpt", content)).model
    expected = merged_weights(content)
    assert {f"model.{name}" for name in model.state_dict()} == expected.keys() < content["state_dict"].keys()
    assert all(torch.equal(weight, expected[f"model.{name}"]) for name, weight in model.state_dict().items())
    name = "encoder.0.self_attention.sublayer.query"
    state = {key: content["state_dict"][f"model.{name}.{key}"] for key in ("weight", "lora_a", "lora_b")}
    product = state["weight"] + 3 * state["lora_b"] @ state["lora_a"]
    torch.testing.assert_close(model.get_parameter(f"{name}.weight").detach(), product)


def test_the_mean_is_that_of_the_merged_models(adapted: Callable[[int], dict[str, Any]], tmp_path: Path) -> None:
    files = [write_checkpoint(tmp_path / f"{seed}.ckpt", adapted(seed)) for seed in (1, 2)]
    record = average(files, tmp_path / "mean.ckpt")
    assert "lora" not in record
    mean, *models = (checkpoint.load(file).model.state_dict() for file in (tmp_path / "mean.ckpt", *files))
    for name, weight in mean.items():
        torch.testing.assert_close(weight, (models[0][name] + models[1][name]) / 2)


@pytest.mark.parametrize(
    "node",
    [3, [], {}, {"rank": 2, "alpha": 1.0}, {"rank": 2, "alpha": 1.0, "train": [3]}]
    + [{"rank": value, "alpha": 1.0, "train": []} for value in (0, -1, True, 2.0, "2")]
    + [{"rank": 2, "alpha": value, "train": []} for value in (0.0, -1.0, float("nan"), float("inf"), None, 1, "x")],
)
def test_a_malformed_entry_is_refused_in_one_line(
    adapted: Callable[[int], dict[str, Any]], tmp_path: Path, node: object
) -> None:
    content = adapted(1)
    content["diglot"]["lora"] = node
    with pytest.raises(UserError, match=r"a\.ckpt: its lora is malformed"):
        checkpoint.rebuild(content, tmp_path / "a.ckpt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["diglot"].pop("lora"), r"lora_a is missing here"),
        (lambda c: c["state_dict"].pop("model.decoder.0.cross_attention.sublayer.value.lora_b"), "lora_b is missing"),
        (lambda c: c["state_dict"].update({"model.x.lora_a": torch.ones(2, 2)}), "x.weight is missing"),
        (
            lambda c: c["state_dict"][f"{QUERY}.lora_b"].fill_(math.inf),
            "not finite",
        ),
        (lambda c: c["state_dict"].update({f"{QUERY}.lora_b": "x"}), "wrong"),
    ],
)
def test_adapters_that_do_not_fit_are_refused_in_one_line(
    adapted: Callable[[int], dict[str, Any]], tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    content = adapted(1)
    with torch.no_grad():
        change(content)
    with pytest.raises(UserError, match=message) as raised:
        checkpoint.rebuild(content, tmp_path / "a.ckpt")
    assert "\n" not in str(raised.value)
