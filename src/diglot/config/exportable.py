"""Checks whether an export format can represent a model; the limits of CTranslate2 were found by comparison."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from decimal import Decimal, localcontext
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from diglot.config.check import EXTENSION
from diglot.errors import UserError
from diglot.model.lora import Lora
from diglot.model.meta import meta_device
from diglot.model.position import RelativeBias, bucket_starts

# The classes with a counterpart in CTranslate2, in each spelling that a config may use, with the name of their choice.
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
# The packages that compute with a format, if their names differ. For peft, only a user of the export needs it.
PACKAGES = {"huggingface": "transformers", "peft": "safetensors"}
# CTranslate2's defaults by kind of norm, for a model without one eps for all.
EPS = {"layer_norm": 1e-5, "rms_norm": 1e-6}


def unrepresentable(model: Mapping[str, Any]) -> list[str]:
    """Return the reasons why CTranslate2 (4.8) cannot compute a model, or an empty list if it can.

    Args:
        model: the config of an `EncoderDecoder`, as plain data.

    Returns:
        One line per reason, with the key, its value, and the nearest value that CTranslate2 can represent.
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
                nearest = f"{group}=relative_bias"
                if not model.get("decoder_position"):
                    nearest += ", and model/position@model.decoder_position=alibi"
                yield f"{group}=alibi: CTranslate2's encoder does not support it; nearest: {nearest}"
            elif choices[target] == "relative_bias":
                stacks = (True,) if prefix else (False,) if model.get("decoder_position") else (False, True)
                yield from _buckets(key, node, stacks)
            elif part == "feed_forward" and (activation := node["activation"]["_target_"]) not in ACTIVATIONS:
                yield f"{key}.activation._target_={activation}: CTranslate2 supports {', '.join(ACTIVATIONS)}"


def _buckets(key: str, node: Mapping[str, Any], stacks: tuple[bool, ...]) -> Iterator[str]:
    """Yield a reason if CTranslate2, which computes buckets in float32, might put a distance into another bucket.

    Args:
        key: the key of the position encoding.
        node: its config.
        stacks: for each stack that has it, whether the stack is causal.
    """
    options = {name: value for name, value in node.items() if not name.startswith("_")}
    max_distance = options.get("max_distance", 128)

    def moved(max_distance: int) -> Iterator[int]:
        """Yield the distances whose bucket may differ."""
        for causal in stacks:
            with meta_device():
                position = RelativeBias(1, 1, 1, causal, **{**options, "max_distance": max_distance})
            n_buckets = position.table.num_embeddings // (1 if causal else 2)
            n_exact = n_buckets // 2
            starts = bucket_starts(n_exact, n_buckets - n_exact, max_distance)
            for distance in sorted(
                {candidate for start in starts for candidate in (start - 1, start) if candidate > n_exact}
            ):
                expected = n_exact + bisect_right(starts, distance)
                if _ctranslate2_buckets(distance, n_exact, n_buckets, max_distance) != {expected}:
                    yield distance

    if (moved_distance := next(moved(max_distance), None)) is not None:
        nearest = next(value for value in range(max_distance + 1, 2**31) if next(moved(value), None) is None)
        yield (
            f"{key}.max_distance={max_distance}: CTranslate2 may put distance {moved_distance} into another bucket; "
            f"nearest: {key}.max_distance={nearest}"
        )


def _ctranslate2_buckets(distance: int, n_exact: int, n_buckets: int, max_distance: int) -> set[int]:
    """Return the buckets that CTranslate2 may compute for a distance, on any machine.

    Division, multiplication and addition of float32 give the same result everywhere. The logarithm does not. A compiler
    may also fuse the multiplication and the addition.
    """
    distance32, exact, n_logarithmic = np.float32(distance), np.float32(n_exact), np.float32(n_buckets - n_exact)
    buckets = set()
    for numerator in _logarithms(distance32 / exact):
        for denominator in _logarithms(np.float32(max_distance) / exact):
            share = numerator / denominator
            fused = np.float32(float(exact) + float(share) * float(n_logarithmic))
            buckets |= {min(int(value), n_buckets - 1) for value in (exact + share * n_logarithmic, fused)}
    return buckets


def _logarithms(x: np.float32) -> list[np.float32]:
    """Return the values that a library may compute for the natural logarithm of x > 1 in float32.

    Libraries err by less than 0.9 units in the last place (glibc by up to 0.82). So the result is one of the two
    float32 values around the exact value, or the only one if the exact value is very close to it.
    """
    with localcontext(prec=30):
        exact = Decimal(float(x)).ln()
        nearest = np.float32(float(exact))
        around = (np.nextafter(nearest, np.float32(0)), nearest, np.nextafter(nearest, np.float32(np.inf)))
        return [
            value
            for value in around
            if abs(Decimal(float(value)) - exact) < Decimal(float(np.spacing(nearest))) * 9 / 10
        ]


def _norms(model: Mapping[str, Any]) -> Iterator[str]:
    """Yield a reason if the two stacks' norms have different eps and these are not CTranslate2's defaults.

    CTranslate2 has one eps for all norms, or else its own default for each kind of norm.
    """
    eps: list[tuple[str, float]] = []
    for node in (model["norm"], model.get("decoder_norm") or model["norm"]):
        norm = CHOICES["norm"].get(node["_target_"])
        if norm is None:  # `_parts` reports it
            return
        default = 1e-5 if norm == "layer_norm" else None  # torch's defaults
        value = node.get("eps", default)
        eps.append((norm, float(torch.finfo(torch.float32).eps) if value is None else value))
    (_, first), (norm, second) = eps
    if first != second and any(value != EPS[norm] for norm, value in eps):
        yield (
            f"model.decoder_norm.eps={second}: CTranslate2 has one eps for both stacks, or {EPS['layer_norm']} for "
            f"layer_norm and {EPS['rms_norm']} for rms_norm; nearest: model.decoder_norm.eps={first}"
        )


def _heads(model: Mapping[str, Any]) -> Iterator[str]:
    heads = model["n_heads"]
    self_heads, cross = (heads, heads) if isinstance(heads, int) else (heads["decoder"], heads["cross"])
    if self_heads != cross:
        yield (
            f"model.n_heads.cross={cross}: CTranslate2's decoder has the same number of heads for both attentions; "
            f"nearest: model.n_heads.cross={self_heads}"
        )
    if model.get("qk_norm") and cross > 1:
        yield (
            "model.qk_norm=true: CTranslate2 normalises the queries of cross-attention before it splits them into "
            "heads; nearest: model.qk_norm=false"
        )


def check_format(form: str, model: Mapping[str, Any], key: str) -> None:
    """Check that a format can hold a model, and that the package for it is installed.

    Args:
        form: ctranslate2, huggingface, peft or safetensors.
        model: the model's config.
        key: the config key that selects the format, for messages.

    Raises:
        UserError: the format cannot hold the model, or the package is missing. The message names each key whose value
            is unsupported, with the nearest supported value.
    """
    from diglot.config.stock_class import without_stock_class

    checks = {"ctranslate2": unrepresentable, "huggingface": without_stock_class, "peft": without_stock_class}
    reasons = checks.get(form, lambda model: [])(model)
    if reasons:
        raise UserError(f"{key}={form}: {'; '.join(reasons)}")
    package = PACKAGES.get(form, form)
    if find_spec(package) is None:
        extra = "huggingface" if form == "huggingface" else "export"
        advice = f"pip install 'diglot[{extra}]', or in a checkout .venv/bin/pip install -e '.[{extra}]'"
        raise UserError(f"{key}={form}: {package} is not installed: {advice}")


def check_adapters(lora: Lora | None, tokenizer: Any, key: str) -> None:
    """Check that adapters are all that a run trains and adds, as the format peft needs.

    Args:
        lora: the adapters of the run; None: it has none.
        tokenizer: the config of its tokenizer.
        key: the config key that selects the format, for messages.

    Raises:
        UserError: there are no adapters, or the run trains or adds other weights, too.
    """
    reason = None
    if lora is None:
        reason = "there are no adapters, which lora trains"
    elif lora.train:
        reason = f"besides adapters, lora.train has {', '.join(lora.train)}, which an adapter cannot hold"
    elif isinstance(tokenizer, dict) and tokenizer.get("_target_") == EXTENSION:
        reason = "tokenizer=extend adds pieces, whose embeddings an adapter cannot hold"
    if reason is not None:
        raise UserError(f"{key}=peft: {reason}; {key}=huggingface exports the model")
