"""Checks whether a model can be exported as a stock class of the library transformers, as it is in version 5.24."""

from collections.abc import Iterator, Mapping
from typing import Any

from diglot.config.exportable import CHOICES, MODELS

PEGASUS, MARIAN = "PegasusForConditionalGeneration", "MarianMTModel"
CLASSES = {"pre_norm": PEGASUS, "post_norm": MARIAN}  # by norm placement
# Activations by the name of their class and of their approximation, with their names in transformers.
ACTIVATIONS = {
    "torch.nn.ReLU": "relu",
    "torch.nn.GELU": "gelu",
    "torch.nn.GELU tanh": "gelu_pytorch_tanh",
    "torch.nn.SiLU": "silu",
    "torch.nn.Tanh": "tanh",
    "torch.nn.Sigmoid": "sigmoid",
}
SUPPORTED = {
    "position": ("sinusoidal", "learned"),
    "residual": ("pre_norm", "post_norm"),
    "norm": ("layer_norm",),
    "feed_forward": ("plain",),
}
NEAREST = {"position": "sinusoidal", "residual": "pre_norm", "norm": "layer_norm", "feed_forward": "relu"}
EPS = 1e-5  # eps of all norms in both classes
_PER_STACK = ("position", "residual", "norm", "feed_forward")


def without_stock_class(model: Mapping[str, Any]) -> list[str]:
    """Return the reasons why no stock class can hold a model, or an empty list if there is one.

    Args:
        model: the config of an `EncoderDecoder`, as plain data.

    Returns:
        One line per reason, with the key, its value, and the nearest value with a stock class.
    """
    if (target := model["_target_"]) not in MODELS:
        return [f"model._target_={target}: there is no stock class for this model; nearest: model=tiny, a Transformer"]
    return [*_parts(model), *_stacks(model), *_heads(model), *_tying(model)]


def _parts(model: Mapping[str, Any]) -> Iterator[str]:
    for part in _PER_STACK:
        for prefix in ("", "decoder_"):
            node = model.get(f"{prefix}{part}")
            if node is None:
                continue
            key, target = f"model.{prefix}{part}", node["_target_"]
            choice = CHOICES[part].get(target)
            nearest = f"nearest: {f'model/{part}@{key}' if prefix else f'model/{part}'}={NEAREST[part]}"
            if choice not in SUPPORTED[part]:
                yield f"{key}={choice or target}: no stock class has it; {nearest}"
            elif part == "norm" and node.get("eps", EPS) != EPS:
                yield f"{key}.eps={node['eps']}: the stock classes have {EPS}; nearest: {key}.eps={EPS}"
            elif part == "feed_forward" and activation_name(node["activation"]) is None:
                yield f"{key}.activation={node['activation']['_target_']}: no stock class has it; {nearest}"


def activation_name(node: Mapping[str, Any]) -> str | None:
    """Return the name of an activation in transformers, given its config; None: it has none."""
    approximate = node.get("approximate", "none")
    return ACTIVATIONS.get(node["_target_"] + ("" if approximate == "none" else f" {approximate}"))


def _stacks(model: Mapping[str, Any]) -> Iterator[str]:
    """Yield a reason for each part of the decoder that differs from the encoder's."""
    for part in _PER_STACK:
        node = model.get(f"decoder_{part}")
        if node is not None and node != model[part]:
            yield f"model.decoder_{part}: a stock class has the same in both stacks; nearest: model.decoder_{part}=null"


def _heads(model: Mapping[str, Any]) -> Iterator[str]:
    heads = model["n_heads"]
    if isinstance(heads, Mapping):
        if heads["decoder"] != heads["cross"]:
            yield (
                f"model.n_heads.cross={heads['cross']}: a stock class has as many in the decoder's self-attention; "
                f"nearest: model.n_heads.cross={heads['decoder']}"
            )
        counts = heads
    else:
        counts = dict.fromkeys(("encoder", "decoder", "cross"), heads)
    for name, default in (("d_head", lambda n: model["d_model"] // n), ("n_kv_heads", lambda n: n)):
        value = model.get(name)
        values = value if isinstance(value, Mapping) else dict.fromkeys(counts, value)
        if any(values[kind] not in (None, default(n)) for kind, n in counts.items()):
            yield f"model.{name}={value}: a stock class derives it from n_heads; nearest: model.{name}=null"
    if model.get("qk_norm"):
        yield "model.qk_norm=true: no stock class has it; nearest: model.qk_norm=false"


def _tying(model: Mapping[str, Any]) -> Iterator[str]:
    if CHOICES["residual"].get(model["residual"]["_target_"]) == "pre_norm" and model["tying"] != "all":
        yield (
            f"model.tying={model['tying']}: the stock class for pre_norm has one matrix; "
            "nearest: model.tying=all, or model/residual=post_norm"
        )
