"""What CTranslate2 cannot hold of the models there are, each found by comparing it with ours."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from diglot.model.position import RelativeBias

# The classes that have a counterpart, as a config may spell them, by the name of their choice.
MODELS = {"diglot.model.Transformer", "diglot.model.transformer.Transformer"}
CHOICES = {
    "position": {
        "diglot.model.position.Sinusoidal": "sinusoidal",
        "diglot.model.position.Learned": "learned",
        "diglot.model.position.Rotary": "rotary",
        "diglot.model.position.Alibi": "alibi",
        "diglot.model.position.RelativeBias": "relative_bias",
        "diglot.model.position.PositionEncoding": "none",
    },
    "residual": {
        "diglot.model.residual.PreNorm": "pre_norm",
        "diglot.model.residual.PostNorm": "post_norm",
        "diglot.model.residual.SandwichNorm": "sandwich_norm",
        "diglot.model.residual.DeepNorm": "deep_norm",
    },
    "norm": {
        "torch.nn.LayerNorm": "layer_norm",
        "torch.nn.RMSNorm": "rms_norm",
        "diglot.model.RMSNorm": "rms_norm",
        "diglot.model.norm.RMSNorm": "rms_norm",
    },
    "feed_forward": {
        "diglot.model.feed_forward.FeedForward": "plain",
        "diglot.model.feed_forward.GatedFeedForward": "gated",
    },
}
NEAREST = {"position": "rotary", "residual": "pre_norm", "norm": "layer_norm", "feed_forward": "relu"}
ACTIVATIONS = tuple(f"torch.nn.{name}" for name in ("ReLU", "GELU", "SiLU", "Tanh", "Sigmoid"))
# CTranslate2's own, by the kind of norm, where a model does not say one for all.
EPS = {"layer_norm": 1e-5, "rms_norm": 1e-6}


def unrepresentable(model: Mapping[str, Any]) -> list[str]:
    """Why CTranslate2 (4.8) cannot compute what a model does; empty: it can.

    Args:
        model: the config of an `EncoderDecoder`, as plain data.

    Returns:
        A line for each reason, with the key, its value, and the nearest value that can be represented.
    """
    if (target := model["_target_"]) not in MODELS:
        return [f"model._target_={target}: CTranslate2 has no such model; nearest: model=tiny, a Transformer"]
    return [*_parts(model), *_norms(model), *_heads(model)]


def _parts(model: Mapping[str, Any]) -> Iterator[str]:
    for part, choices in CHOICES.items():
        for prefix in ("", "decoder_"):
            node = model.get(f"{prefix}{part}")
            if node is None:
                continue
            key, target = f"model.{prefix}{part}", node["_target_"]
            group = f"model/{part}@{key}" if prefix else f"model/{part}"
            if target not in choices:
                yield f"{key}._target_={target}: CTranslate2 has no such {part}; nearest: {group}={NEAREST[part]}"
            elif choices[target] == "alibi" and not prefix:
                kept = "" if model.get("decoder_position") else ", and model/position@model.decoder_position=alibi"
                yield f"{group}=alibi: CTranslate2's encoder knows no such bias; nearest: {group}=relative_bias{kept}"
            elif choices[target] == "relative_bias":
                stacks = (True,) if prefix else (False,) if model.get("decoder_position") else (False, True)
                yield from _buckets(key, node, stacks)
            elif part == "feed_forward" and (activation := node["activation"]["_target_"]) not in ACTIVATIONS:
                yield f"{key}.activation._target_={activation}: CTranslate2 has {', '.join(ACTIVATIONS)}"


def _buckets(key: str, node: Mapping[str, Any], stacks: tuple[bool, ...]) -> Iterator[str]:
    """CTranslate2 counts buckets in float32 all through, which puts some distances into the bucket beside ours.

    Args:
        key: of the position encoding.
        node: its config.
        stacks: that have it; whether each is causal.
    """
    options = {name: value for name, value in node.items() if not name.startswith("_")}
    max_distance = options.get("max_distance", 128)

    def moved(max_distance: int) -> list[int]:
        """The distances that change their bucket."""
        found: list[int] = []
        for causal in stacks:
            position = RelativeBias(1, 1, 1, causal, **{**options, "max_distance": max_distance})
            n_buckets = position.table.num_embeddings // (1 if causal else 2)
            n_exact = n_buckets // 2
            distances = np.arange(n_exact, max_distance + 1)
            share = np.log(np.float32(distances) / np.float32(n_exact)) / np.log(np.float32(max_distance / n_exact))
            theirs = (np.float32(n_exact) + share * np.float32(n_buckets - n_exact)).astype(int).clip(max=n_buckets - 1)
            found += distances[theirs != position.bucket(-torch.from_numpy(distances)).numpy()].tolist()
        return found

    if found := moved(max_distance):
        nearest = next(value for value in range(max_distance + 1, 2**31) if not moved(value))
        yield (
            f"{key}.max_distance={max_distance}: CTranslate2 rounds the bucket of distance {found[0]} otherwise; "
            f"nearest: {key}.max_distance={nearest}"
        )


def _norms(model: Mapping[str, Any]) -> Iterator[str]:
    """There is one eps for all norms, or one for each kind that is CTranslate2's own."""
    eps: list[tuple[str, float]] = []
    for node in (model["norm"], model.get("decoder_norm") or model["norm"]):
        kind = CHOICES["norm"].get(node["_target_"])
        if kind is None:  # refused as a part
            return
        default = 1e-5 if kind == "layer_norm" else None  # torch's
        value = node.get("eps", default)
        eps.append((kind, float(torch.finfo(torch.float32).eps) if value is None else value))
    (_, first), (kind, second) = eps
    if first != second and any(value != EPS[kind] for kind, value in eps):
        yield (
            f"model.decoder_norm.eps={second}: CTranslate2 has one eps for both stacks, or {EPS['layer_norm']} for "
            f"layer_norm and {EPS['rms_norm']} for rms_norm; nearest: model.decoder_norm.eps={first}"
        )


def _heads(model: Mapping[str, Any]) -> Iterator[str]:
    heads = model["n_heads"]
    own, cross = (heads, heads) if isinstance(heads, int) else (heads["decoder"], heads["cross"])
    if own != cross:
        yield (
            f"model.n_heads.cross={cross}: CTranslate2's decoder has one number of heads; "
            f"nearest: model.n_heads.cross={own}"
        )
    if model.get("qk_norm") and cross > 1:
        yield (
            "model.qk_norm=true: CTranslate2 norms the queries of cross-attention before it parts them into heads; "
            "nearest: model.qk_norm=false"
        )
