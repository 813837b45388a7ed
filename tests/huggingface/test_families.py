"""Random models of transformers compute the same in diglot, and again after they were written out."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from torch import Tensor

from diglot.config import build
from diglot.config.stock_class import BART, M2M100, MARIAN, MBART, PEGASUS, T5, class_name, without_stock_class
from diglot.config.storable import check_parts
from diglot.errors import UserError
from diglot.huggingface.configs import stock_config
from diglot.huggingface.families import model_node, read_weights, written_weights
from diglot.model import Transformer
from diglot.model.position import RelativeBias

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")

V, W = 41, 37  # vocabulary sizes
SRC, TGT = (7, 3, 5), (4, 6, 2)  # lengths of a padded batch
SIZES = {"vocab_size": V, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "max_position_embeddings": 20}
SIZES |= {"encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "encoder_attention_heads": 2, "decoder_attention_heads": 3}
T5_SIZES = {"vocab_size": V, "d_model": 24, "d_kv": 10, "num_heads": 3, "d_ff": 40, "num_layers": 2}
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "marian": ("Marian", {**SIZES, "pad_token_id": V - 1, "scale_embedding": True}, MARIAN),
    "marian-silu": ("Marian", {**SIZES, "pad_token_id": 0, "activation_function": "swish"}, MARIAN),
    "marian-two-vocabularies": (
        "Marian",
        {**SIZES, "share_encoder_decoder_embeddings": False, "decoder_vocab_size": W, "pad_token_id": W - 1},
        MARIAN,
    ),
    "marian-untied": (
        "Marian",
        {
            **{**SIZES, "share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
            **{"decoder_vocab_size": W, "pad_token_id": W - 1, "decoder_layers": 1},
        },
        MARIAN,
    ),
    "pegasus": ("Pegasus", {**SIZES, "scale_embedding": True, "activation_function": "relu"}, PEGASUS),
    "pegasus-gelu": ("Pegasus", {**SIZES, "activation_function": "gelu_new"}, PEGASUS),
    "m2m100": ("M2M100", {**SIZES, "encoder_layerdrop": 0.05}, M2M100),
    "m2m100-unscaled": ("M2M100", {**SIZES, "scale_embedding": False, "encoder_layers": 1}, M2M100),
    "bart": ("Bart", SIZES, BART),
    "bart-scaled": ("Bart", {**SIZES, "scale_embedding": True, "activation_function": "relu"}, BART),
    "mbart": ("MBart", {**SIZES, "scale_embedding": True}, MBART),
    "t5": ("T5", T5_SIZES, T5),
    "t5-other-depth": ("T5", {**T5_SIZES, "num_decoder_layers": 1, "layer_norm_epsilon": 1e-3}, T5),
    "t5-gated": ("T5", {**T5_SIZES, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, T5),
    "t5-gated-silu": ("T5", {**T5_SIZES, "feed_forward_proj": "gated-silu"}, T5),
    "mt5": ("MT5", {**T5_SIZES, "num_decoder_layers": 3}, T5),
}


def folder_of(family: str, folder: Path) -> Path:
    """Save a model of random weights as transformers does."""
    name, options, _ = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**options)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        if name == "MT5" or (name == "T5" and options.get("tie_word_embeddings") is False):  # an output of its own
            model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.3, generator=random)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(generator=random)
    model.save_pretrained(folder)
    return folder


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Any, dict[str, Any], dict[str, Tensor]]:
    """Return transformers' model of a folder, its config, and its tensors."""
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True, dtype=dtype).eval()
    config = json.loads((folder / "config.json").read_text())
    return theirs, config, load_file(folder / "model.safetensors")


def rows_of(size: int, seed: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed))


def built(config: dict[str, Any]) -> tuple[Transformer, Tensor, Tensor]:
    """Return an empty model for a config.json, and random orders of its source and target ids."""
    node = model_node(config)
    check_parts({"model": node, "search": {"_target_": "diglot.decoding.BeamSearch"}})
    n_src, n_tgt = config["vocab_size"], config.get("decoder_vocab_size") or config["vocab_size"]
    src_rows, tgt_rows = rows_of(n_src, 1), rows_of(n_tgt, 1)
    model = build(OmegaConf.create(node), "model", src_vocab_size=n_src, tgt_vocab_size=n_tgt)
    return model.eval(), src_rows, tgt_rows


def padded(lengths: tuple[int, ...], size: int, pad: int) -> tuple[Tensor, Tensor]:
    """Return random ids of theirs without pad, padded at the end, and the mask of tokens."""
    random = torch.Generator().manual_seed(2)
    ids = torch.randint(size - 1, (len(lengths), max(lengths)), generator=random)
    ids = ids + (ids >= pad)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return ids.masked_fill(~mask, pad), mask


@torch.no_grad()
def greatest_difference(theirs: Any, ours: Transformer, src_rows: Tensor, tgt_rows: Tensor) -> float:
    """Return the greatest difference of log-probabilities for a padded batch."""
    pad = theirs.config.pad_token_id
    (src, src_mask), (tgt, tgt_mask) = padded(SRC, len(src_rows), pad), padded(TGT, len(tgt_rows), pad)
    wanted = theirs(input_ids=src, attention_mask=src_mask.long(), decoder_input_ids=tgt).logits.log_softmax(-1)
    found = ours(src_rows.argsort()[src], tgt_rows.argsort()[tgt], src_mask).log_softmax(-1)
    return (found - wanted[..., tgt_rows])[tgt_mask].abs().max().item()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_computes_the_same_here_and_again_when_it_is_written(family: str, tmp_path: Path) -> None:
    theirs, config, tensors = loaded(folder_of(family, tmp_path))
    ours, src_rows, tgt_rows = built(config)
    read_weights(ours, config, tensors, src_rows, tgt_rows)
    assert greatest_difference(theirs, ours, src_rows, tgt_rows) < 1e-4

    node = model_node(config)
    assert (without_stock_class(node), class_name(node)) == ([], FAMILIES[family][2])
    n_positions = config.get("max_position_embeddings", 0)
    again = stock_config(node, ours, n_positions)
    kept = ("vocab_size", "decoder_vocab_size", "pad_token_id", "eos_token_id", "decoder_start_token_id")
    again |= {key: config[key] for key in kept if config.get(key) is not None}
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text(json.dumps(again))
    save_file(written_weights(ours, node, src_rows, tgt_rows, n_positions), out / "model.safetensors", {"format": "pt"})
    theirs, config, tensors = loaded(out)
    assert greatest_difference(theirs, ours, src_rows, tgt_rows) < 1e-4
    assert model_node(config) == node


@pytest.mark.parametrize(
    ("family", "within"),
    [("bart", 1e-10), ("mbart", 1e-10), ("marian", 1e-5), ("m2m100", 1e-5), ("t5-gated", 1e-5)],
)
def test_the_computation_is_the_same_in_float64(family: str, within: float, tmp_path: Path) -> None:
    """Check the formulas without rounding; T5's norm and all sinusoids are computed in float32 there, too."""
    theirs, config, tensors = loaded(folder_of(family, tmp_path), torch.float64)
    ours, src_rows, tgt_rows = built(config)
    read_weights(ours.double(), config, tensors, src_rows, tgt_rows)
    assert greatest_difference(theirs, ours, src_rows, tgt_rows) < within


@pytest.mark.parametrize("causal", [False, True])
def test_the_buckets_of_all_distances_are_those_of_transformers(causal: bool) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    offsets = torch.arange(-300, 301)
    ours = RelativeBias(8, 2, 4, causal).bucket(offsets)
    assert torch.equal(ours, T5Attention._relative_position_bucket(offsets, bidirectional=not causal))


def test_a_tied_tensor_is_found_under_each_of_its_names(tmp_path: Path) -> None:
    theirs, config, tensors = loaded(folder_of("bart", tmp_path))
    ours, src_rows, tgt_rows = built(config)
    shared = tensors.pop("model.shared.weight")
    for name in ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"):
        read_weights(ours, config, {**tensors, name: shared}, src_rows, tgt_rows)
        assert greatest_difference(theirs, ours, src_rows, tgt_rows) < 1e-4
        ours.tgt_embedding.weight.data.zero_()
    without_prefix = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    read_weights(ours, config, {**without_prefix, "shared.weight": shared}, src_rows, tgt_rows)
    assert greatest_difference(theirs, ours, src_rows, tgt_rows) < 1e-4


def test_an_output_that_is_missing_is_a_copy_of_the_input(tmp_path: Path) -> None:
    _, config, tensors = loaded(folder_of("mt5", tmp_path))
    ours, src_rows, tgt_rows = built(config)
    tensors.pop("lm_head.weight")
    read_weights(ours, config, tensors, src_rows, tgt_rows)
    assert torch.equal(ours.output.weight, ours.tgt_embedding.weight)
    assert ours.output.weight is not ours.tgt_embedding.weight


def shorten(tensors: dict[str, Tensor]) -> None:
    tensors["model.encoder.layers.1.fc1.bias"] = torch.zeros(39)


@pytest.mark.parametrize(
    ("family", "change", "wanted"),
    [
        ("bart", lambda t: t.pop("model.decoder.layers.2.fc1.bias"), "have no model.decoder.layers.2.fc1.bias"),
        ("bart", lambda t: t.pop("model.shared.weight"), "have no model.shared.weight"),
        ("bart", lambda t: t.update(extra=torch.zeros(1)), "have extra, which no BartForConditionalGeneration has"),
        ("bart", shorten, "model.encoder.layers.1.fc1.bias has the shape [39], but config.json describes [40]"),
        (
            "bart",
            lambda t: t.update({"lm_head.weight": torch.zeros(V, 24)}),
            "lm_head.weight and model.shared.weight differ, but config.json says that they are the same",
        ),
        (
            "bart",
            lambda t: t.update({"final_logits_bias": torch.zeros(1, V, dtype=torch.int8)}),
            "final_logits_bias has the type torch.int8: quantised weights cannot be read",
        ),
        (
            "marian",
            lambda t: t.update({"model.encoder.embed_positions.weight": torch.zeros(20, 24)}),
            "config.json needs static_position_embeddings=false",
        ),
    ],
)
def test_other_tensors_are_refused_by_name(
    family: str, change: Callable[[dict[str, Tensor]], Any], wanted: str, tmp_path: Path
) -> None:
    _, config, tensors = loaded(folder_of(family, tmp_path))
    change(tensors)
    ours, src_rows, tgt_rows = built(config)
    with pytest.raises(UserError) as refused:
        read_weights(ours, config, tensors, src_rows, tgt_rows)
    assert wanted in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_learned_table_of_marian_is_read(tmp_path: Path) -> None:
    _, config, tensors = loaded(folder_of("marian", tmp_path))
    table = torch.randn(20, 24)
    tensors |= {f"model.{stack}.embed_positions.weight": table.clone() for stack in ("encoder", "decoder")}
    out = tmp_path / "learned"
    out.mkdir()
    (out / "config.json").write_text(json.dumps({**config, "static_position_embeddings": False}))
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    theirs, config, tensors = loaded(out)
    ours, src_rows, tgt_rows = built(config)
    read_weights(ours, config, tensors, src_rows, tgt_rows)
    assert ours.max_src_positions == 20
    assert greatest_difference(theirs, ours, src_rows, tgt_rows) < 1e-4
