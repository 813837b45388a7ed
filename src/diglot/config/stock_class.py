"""Checks whether a model can be exported as a stock class of the library transformers, as it is in version 5.24."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from diglot.config.exportable import CHOICES, MODELS

PEGASUS, MARIAN = "PegasusForConditionalGeneration", "MarianMTModel"
BART, MBART = "BartForConditionalGeneration", "MBartForConditionalGeneration"
M2M100, T5 = "M2M100ForConditionalGeneration", "T5ForConditionalGeneration"
OFFSET_SINUSOIDS = "sinusoidal with offset 2"  # the positions of M2M100


class StockClass(NamedTuple):
    """A class of transformers.

    Attributes:
        model_type: its name in config.json.
        accepts: by key of a model's config, the values that the class can hold; the first is the nearest to all others.
    """

    model_type: str
    accepts: Mapping[str, tuple[Any, ...]]


# The keys that a config from before they existed lacks, with the values that it stands for.
_OPTIONS = {"bias": True, "output_bias": False, "embedding_norm": False, "scale_embeddings": True, "qk_norm": False}
_PER_STACK = ("position", "residual", "norm", "feed_forward")
_BART_LIKE: dict[str, tuple[Any, ...]] = {
    **{"residual": ("pre_norm",), "position": ("sinusoidal", "learned"), "norm": ("layer_norm",)},
    **{"feed_forward": ("plain",), "tying": ("all",), "bias": (True,), "output_bias": (False, True)},
    **{"embedding_norm": (False,), "scale_embeddings": (True, False), "qk_norm": (False,)},
}
# If several classes differ from a model by equally many keys, the first counts as the nearest.
CLASSES = {
    PEGASUS: StockClass("pegasus", _BART_LIKE),
    MARIAN: StockClass(
        "marian",
        {
            **{**_BART_LIKE, "residual": ("post_norm",), "tying": ("all", "target", "none")},
            "position": ("sinusoidal", "learned", OFFSET_SINUSOIDS),  # any table, as in PEGASUS
        },
    ),
    MBART: StockClass("mbart", {**_BART_LIKE, "position": ("learned",), "embedding_norm": (True,)}),
    BART: StockClass(
        "bart", {**_BART_LIKE, "residual": ("post_norm",), "position": ("learned",), "embedding_norm": (True,)}
    ),
    M2M100: StockClass("m2m_100", {**_BART_LIKE, "position": (OFFSET_SINUSOIDS,), "output_bias": (False,)}),
    T5: StockClass(
        "t5",
        {
            **{"residual": ("pre_norm",), "position": ("relative_bias",), "norm": ("rms_norm",)},
            **{"feed_forward": ("plain", "gated"), "tying": ("all", "inputs"), "bias": (False,)},
            **{"output_bias": (False,), "embedding_norm": (False,), "scale_embeddings": (False,), "qk_norm": (False,)},
        },
    ),
}
# Activations by the name of their class and of their approximation, with their names in transformers. The first name is
# written; the others are read, too.
ACTIVATIONS = {
    "torch.nn.ReLU": ("relu",),
    "torch.nn.GELU": ("gelu", "gelu_python"),
    "torch.nn.GELU tanh": ("gelu_pytorch_tanh", "gelu_new", "gelu_fast"),
    "torch.nn.SiLU": ("silu", "swish"),
    "torch.nn.Tanh": ("tanh",),
    "torch.nn.Sigmoid": ("sigmoid",),
}
NEAREST = {"plain": "relu", "gated": "swiglu", OFFSET_SINUSOIDS: "sinusoidal"}  # choices, if their names differ
EPS = 1e-5  # eps of all norms in all classes but T5, which has a key for it
BUCKETS = {"n_buckets": 32, "max_distance": 128}  # relative positions of T5
M2M100_OFFSET = 2  # number of the first position of M2M100


def without_stock_class(model: Mapping[str, Any]) -> list[str]:
    """Return the reasons why no stock class can hold a model, or an empty list if there is one.

    Args:
        model: the config of an `EncoderDecoder`, as plain data.

    Returns:
        One line per reason, with the key, its value, and the nearest value with a stock class.
    """
    if (target := model["_target_"]) not in MODELS:
        return [f"model._target_={target}: there is no stock class for this model; nearest: model=tiny, a Transformer"]
    name = class_name(model)
    return [*_unlike(model, name), *_settings(model, name), *_stacks(model), *_heads(model, name)]


def class_name(model: Mapping[str, Any]) -> str:
    """Return the name of the stock class that differs from a model by the fewest keys."""
    return min(CLASSES, key=lambda name: sum(1 for _ in _unlike(model, name)))


def m2m100_base(d_model: int) -> float:
    """Return the base of the frequencies of M2M100's sinusoids, whose last frequency is 1 / 10,000."""
    return float(10_000 ** (d_model / (d_model - 2)))


def _value(model: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key; for a part, the name of its choice, or its class if it is not one of diglot's."""
    if key not in _PER_STACK:
        return model.get(key, _OPTIONS.get(key))
    node = model[key]
    choice = CHOICES[key].get(node["_target_"], node["_target_"])
    if choice == "sinusoidal" and node.get("offset", 0) == M2M100_OFFSET and model["d_model"] > 2:
        base = m2m100_base(model["d_model"])
        return OFFSET_SINUSOIDS if abs(node.get("base", 10_000.0) / base - 1) < 1e-6 else choice
    return choice


def _unlike(model: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a reason for each key whose value a class does not accept."""
    for key, accepted in CLASSES[name].accepts.items():
        value = _value(model, key)
        if value in accepted:
            continue
        is_known = any(value in each.accepts[key] for each in CLASSES.values())
        problem = f"{name} does not have it" if is_known else "no stock class has it"
        typed = f"model/{key}" if key in _PER_STACK else f"model.{key}"
        nearest = NEAREST.get(accepted[0], accepted[0])
        yield f"model.{key}={_spelled(value)}: {problem}; nearest: {typed}={_spelled(nearest)}"


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _settings(model: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a reason for each value inside a part that a class does not accept."""
    norm, position, activation = model["norm"], model["position"], model["feed_forward"].get("activation")
    eps = norm.get("eps", EPS if name != T5 else None)
    if CHOICES["norm"].get(norm["_target_"]) in CLASSES[name].accepts["norm"]:
        if name == T5 and eps is None:
            yield "model.norm.eps=null: T5 has a number; nearest: model.norm.eps=1e-6"
        elif name != T5 and eps != EPS:
            yield f"model.norm.eps={eps}: the stock classes have {EPS}; nearest: model.norm.eps={EPS}"
    if activation is not None and activation_name(activation) is None:
        yield (
            f"model.feed_forward.activation={activation['_target_']}: no stock class has it; "
            "nearest: model/feed_forward=relu"
        )
    if _value(model, "position") == "relative_bias":
        for key, value in BUCKETS.items():
            if position.get(key, value) != value:
                yield f"model.position.{key}={position[key]}: T5 has {value}; nearest: model.position.{key}={value}"


def activation_name(node: Mapping[str, Any]) -> str | None:
    """Return the name of an activation in transformers, given its config; None: it has none."""
    approximate = node.get("approximate", "none")
    names = ACTIVATIONS.get(node["_target_"] + ("" if approximate == "none" else f" {approximate}"))
    return None if names is None else names[0]


def _stacks(model: Mapping[str, Any]) -> Iterator[str]:
    """Yield a reason for each part of the decoder that differs from the encoder's."""
    for part in _PER_STACK:
        node = model.get(f"decoder_{part}")
        if node is not None and node != model[part]:
            yield f"model.decoder_{part}: a stock class has the same in both stacks; nearest: model.decoder_{part}=null"


def _heads(model: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a reason for each number of heads, and each width, that a class does not accept."""
    heads = model["n_heads"]
    counts = heads if isinstance(heads, Mapping) else dict.fromkeys(("encoder", "decoder", "cross"), heads)
    if counts["decoder"] != counts["cross"]:
        yield (
            f"model.n_heads.cross={counts['cross']}: a stock class has as many in the decoder's self-attention; "
            f"nearest: model.n_heads.cross={counts['decoder']}"
        )
    elif name == T5 and counts["encoder"] != counts["decoder"]:
        yield (
            f"model.n_heads.decoder={counts['decoder']}: T5 has as many in the encoder; "
            f"nearest: model.n_heads={counts['encoder']}"
        )
    widths = _per_kind(model, "d_head", {kind: model["d_model"] // n for kind, n in counts.items()})
    if name == T5 and len(set(widths.values())) > 1:
        yield f"model.d_head={model.get('d_head')}: T5 has one width; nearest: model.d_head={widths['encoder']}"
    elif name != T5 and any(widths[kind] != model["d_model"] // n for kind, n in counts.items()):
        yield f"model.d_head={model['d_head']}: a stock class derives it from n_heads; nearest: model.d_head=null"
    if _per_kind(model, "n_kv_heads", counts) != counts:
        yield (
            f"model.n_kv_heads={model['n_kv_heads']}: a stock class derives it from n_heads; "
            "nearest: model.n_kv_heads=null"
        )


def _per_kind(model: Mapping[str, Any], key: str, defaults: Mapping[str, int]) -> dict[str, int]:
    """Return a number for each kind of attention; a missing one has its default."""
    value = model.get(key)
    values = value if isinstance(value, Mapping) else dict.fromkeys(defaults, value)
    return {kind: default if (number := values[kind]) is None else number for kind, default in defaults.items()}
