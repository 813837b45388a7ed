"""Adapters in the layout of the library peft compute the same with the exported base model as the merged model."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import load_file
from torch import Tensor

from diglot.checkpoint import file as checkpoint
from diglot.config import build, trial_build
from diglot.data.tokenizer import Tokenizer
from diglot.errors import UserError
from diglot.export import huggingface
from diglot.export.writing import export
from diglot.huggingface.stock_tokenizer import stock_tokenizer
from diglot.model import Transformer
from diglot.model.lora import Lora, add
from support.made import checkpoint_content, write_checkpoint

os.environ["HF_HUB_OFFLINE"] = "1"
WORDS = ("data=sample", "model=tiny", "model.d_model=24", "model.n_heads=3", "model.d_ff=40", "model.tying=all")
SINUSOIDAL, LEARNED = "model/position=sinusoidal", "model/position=learned"
PRE_NORM, POST_NORM = "model/residual=pre_norm", "model/residual=post_norm"


class Made:
    """A base model and the checkpoint of a run that has adapted it.

    Args:
        config: the config of the run.
        tokenizer: the tokenizer.
        folder: an empty folder.
    """

    def __init__(self, config: DictConfig, tokenizer: Tokenizer, folder: Path) -> None:
        self.folder = folder
        content = checkpoint_content(config, tokenizer)
        base = write_checkpoint(folder / "base.ckpt", content | {"diglot": without_lora(content["diglot"])})
        self.base = checkpoint.load(base)
        model: Transformer = build(config.model, "model", **tokenizer.vocab_sizes)
        model.load_state_dict(self.base.model.state_dict())
        add(model, Lora(**OmegaConf.to_container(config.lora)))  # type: ignore[arg-type]
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora" in name:
                    weight += torch.randn_like(weight) * 0.3
        content["state_dict"] = {f"model.{name}": weight for name, weight in model.state_dict().items()}
        self.adapted = checkpoint.load(write_checkpoint(folder / "adapted.ckpt", content))


def without_lora(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "lora"}


@pytest.fixture
def made(compose_train: Callable[..., DictConfig], tokenizer: Tokenizer, tmp_path: Path) -> Callable[..., Made]:
    def make(lora: dict[str, Any], *words: str, init_from: str = "base.ckpt") -> Made:
        config = OmegaConf.create(OmegaConf.to_container(compose_train(*WORDS, *words)))
        config.lora, config.init_from = lora, init_from
        return Made(config, tokenizer, tmp_path)

    return make


CASES = [
    ({"rank": 3, "alpha": 5.0}, PRE_NORM, SINUSOIDAL),
    ({"rank": 2, "on": ["attention", "feed_forward"]}, PRE_NORM, SINUSOIDAL),
    ({"rank": 2, "on": ["attention", "feed_forward"]}, POST_NORM, SINUSOIDAL),
    ({"rank": 2, "on": ["encoder.0.out", "decoder.1.cross_attention", "decoder.down"]}, POST_NORM, LEARNED),
]


@pytest.mark.parametrize(("lora", "residual", "position"), CASES)
def test_the_product_of_each_pair_is_what_merging_adds_to_the_exported_base(
    made: Callable[..., Made], lora: dict[str, Any], residual: str, position: str
) -> None:
    """Check the layout by hand: peft adds lora_alpha / r B A to the weight of the module that a name refers to."""
    run = made(lora, residual, position)
    (line,) = export(run.adapted, "peft", run.folder / "out", "format")
    assert line.startswith(f"Written: {run.folder / 'out'}/ (adapters for peft")
    about = json.loads((run.folder / "out" / "adapter_config.json").read_text())
    adapters = load_file(run.folder / "out" / "adapter_model.safetensors")
    base, merged = (stock_weights(loaded) for loaded in (run.base, run.adapted))
    targets = [f"{module}.weight" for module in about["target_modules"]]
    assert len(adapters) == 2 * len(targets) > 0
    for name, weight in base.items():
        if name in targets:
            module = f"base_model.model.{name.removesuffix('.weight')}"
            a, b = (adapters[f"{module}.lora_{matrix}.weight"] for matrix in "AB")
            assert a.size(0) == b.size(1) == about["r"] == lora["rank"]
            weight = weight + about["lora_alpha"] / about["r"] * b @ a
        torch.testing.assert_close(merged[name], weight, rtol=1e-5, atol=1e-6)
    assert {about[key] for key in ("peft_type", "task_type")} == {"LORA", "SEQ_2_SEQ_LM"}


def stock_weights(loaded: checkpoint.Checkpoint) -> dict[str, Tensor]:
    assert isinstance(loaded.model, Transformer)
    stock = stock_tokenizer(loaded.tokenizer, loaded.record["model"], "format")
    return huggingface.state_dict(loaded.model, loaded.record["model"], loaded.tokenizer, stock)


@pytest.mark.parametrize(("lora", "residual", "position"), CASES)
def test_peft_computes_the_same(made: Callable[..., Made], lora: dict[str, Any], residual: str, position: str) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    run = made(lora, residual, position)
    export(run.adapted, "peft", run.folder / "out", "format")
    src = torch.tensor([[8, 9, 10, 11, 3], [12, 13, 3, 0, 0]])
    tgt = torch.tensor([[0, 14, 15, 16], [0, 17, 18, 19]])  # the stock classes begin a target with <pad>
    logits = []
    for loaded in (run.base, run.adapted):
        folder = run.folder / loaded.path.stem
        folder.mkdir()
        stock = stock_tokenizer(loaded.tokenizer, loaded.record["model"], "format")
        huggingface.write_model(loaded.model, loaded.record, loaded.tokenizer, stock, loaded.search, folder)
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True).eval()
        if loaded is run.base:
            with torch.no_grad():
                before = model(input_ids=src, attention_mask=(src != 0).long(), decoder_input_ids=tgt).logits
            model = peft.PeftModel.from_pretrained(model, run.folder / "out").eval()
        with torch.no_grad():
            logits.append(model(input_ids=src, attention_mask=(src != 0).long(), decoder_input_ids=tgt).logits)
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=5e-5)
    assert not torch.allclose(before, logits[0], atol=1e-2)


@pytest.mark.parametrize(
    ("lora", "words", "message"),
    [
        ({"train": ["norms"]}, [SINUSOIDAL], "besides adapters, lora.train has norms"),
        ({}, [SINUSOIDAL, "tokenizer=extend"], "tokenizer=extend adds pieces"),
        ({}, ["model/position=rotary"], "format=peft: model.position=rotary: no stock class has it"),
    ],
)
def test_what_adapters_cannot_hold_is_refused(
    made: Callable[..., Made], lora: dict[str, Any], words: list[str], message: str
) -> None:
    run = made(lora, *words)
    with pytest.raises(UserError, match=message):
        export(run.adapted, "peft", run.folder / "out", "format")
    assert not (run.folder / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there are no adapters, which lora trains"),
        (["lora={train:[norms]}"], "besides adapters, lora.train has norms"),
        (["lora={}", "tokenizer=extend"], "tokenizer=extend adds pieces"),
    ],
)
def test_what_adapters_cannot_hold_is_refused_before_training(
    compose_train: Callable[..., DictConfig], words: list[str], message: str
) -> None:
    config = compose_train(*WORDS, SINUSOIDAL, "init_from=base.ckpt", "export=peft", *words)
    with pytest.raises(UserError, match=f"^export=peft: {message}.*; export=huggingface exports the model$"):
        trial_build(config)


@pytest.mark.parametrize(
    ("init_from", "base", "revision"),
    [
        (f"Helsinki-NLP/opus-mt-de-en@{'0a' * 20}", "Helsinki-NLP/opus-mt-de-en", "0a" * 20),
        ("gpt2", None, None),  # the name of a run's folder; peft would fetch the model of this name
        ("runs/general", None, None),
        ("runs/general@home", None, None),
    ],
)
def test_only_a_name_of_the_hub_is_written_as_that_of_the_base(
    made: Callable[..., Made], init_from: str, base: str | None, revision: str | None
) -> None:
    run = made({}, SINUSOIDAL, init_from=init_from)
    export(run.adapted, "peft", run.folder / "out", "format")
    about = json.loads((run.folder / "out" / "adapter_config.json").read_text())
    assert (about["base_model_name_or_path"], about["revision"]) == (base, revision)


def test_a_checkpoint_without_adapters_is_refused(made: Callable[..., Made]) -> None:
    run = made({}, SINUSOIDAL)
    with pytest.raises(UserError, match=r"format=peft: there are no adapters, .*; format=huggingface exports"):
        export(run.base, "peft", run.folder / "out", "format")


def test_an_earlier_export_is_replaced(made: Callable[..., Made]) -> None:
    run = made({}, SINUSOIDAL)
    for _ in range(2):
        export(run.adapted, "peft", run.folder / "out", "format")
    names = {file.name for file in (run.folder / "out").iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors", "diglot.json"}
