"""The config.json of Marian, Pegasus, M2M100 (NLLB), BART, mBART, T5 and mT5 as a config of a Transformer, and back.

The classes are those of the library transformers, version 5.24.
"""

from collections.abc import Mapping
from typing import Any

from diglot.config.exportable import CHOICES
from diglot.config.stock_class import (
    ACTIVATIONS,
    BART,
    BUCKETS,
    CLASSES,
    EPS,
    M2M100,
    MARIAN,
    MBART,
    PEGASUS,
    T5,
    activation_name,
    class_name,
    m2m100_base,
)
from diglot.errors import UserError
from diglot.model import Transformer
from diglot.system.masking import shortened
from diglot.system.quoting import spelled

# The classes by the names of their types in config.json. The classes of mT5 and T5 differ in defaults alone.
TYPES = {each.model_type: name for name, each in CLASSES.items()} | {"mt5": T5}
# The keys that each class has, by diglot's.
_SIZES = {"d_model": "d_model", "n_encoder_layers": "encoder_layers", "n_decoder_layers": "decoder_layers"}
_T5_SIZES = {"d_model": "d_model", "n_encoder_layers": "num_layers", "n_heads": "num_heads", "d_head": "d_kv"}
_DROPOUTS = {key: key for key in ("dropout", "attention_dropout", "activation_dropout")}
_DEFAULTS: dict[str, Any] = {
    **{"activation_function": "gelu", "scale_embedding": False, "dropout": 0.1, "attention_dropout": 0.0},
    **{"activation_dropout": 0.0, "share_encoder_decoder_embeddings": True, "tie_word_embeddings": True},
    **{"max_position_embeddings": 1024},
}
_M2M100_DEFAULTS = {"activation_function": "relu", "scale_embedding": True, "attention_dropout": 0.1}
_T5_DEFAULTS = {"dropout_rate": 0.1, "layer_norm_epsilon": 1e-6, "relative_attention_num_buckets": 32}
_T5_DEFAULTS |= {"relative_attention_max_distance": 128}
_T5_BUCKETS = {"relative_attention_num_buckets": "n_buckets", "relative_attention_max_distance": "max_distance"}
_GATED_ROUNDING = 8  # the inner width of a gated network is a multiple of it


def stock_class_of(config: Mapping[str, Any]) -> str:
    """Return the name of the class that a config.json describes.

    Raises:
        UserError: diglot cannot represent the type of model.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in TYPES:
        raise _unknown("model_type", model_type, f"must be one of {', '.join(sorted(TYPES))}")
    return TYPES[model_type]


def model_node(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the Transformer that a config.json describes, as a checkpoint stores it.

    LayerDrop is left out: diglot drops no layers in training.

    Args:
        config: the content of config.json.

    Raises:
        UserError: a value is missing, invalid, or one that diglot cannot represent. The message names its key.
    """
    name = stock_class_of(config)
    for key, needed in {"is_encoder_decoder": True, "is_decoder": False, "add_cross_attention": False}.items():
        _require(config, key, needed)
    own = _t5_node(config) if name == T5 else _bart_node(config, name)
    return {
        "_target_": "diglot.model.Transformer",
        **{"d_head": None, "n_kv_heads": None, "qk_norm": False, "embedding_dropout": None},
        **own,
        **{f"decoder_{part}": None for part in ("position", "residual", "norm", "feed_forward")},
    }


def scales_output(config: Mapping[str, Any]) -> bool:
    """Return whether T5 multiplies the decoder's states by d_model^-0.5, as it does if the output is tied."""
    scales = config.get("scale_decoder_outputs", config.get("tie_word_embeddings") is not False)
    return config["model_type"] == "t5" and bool(scales)


def has_own_positions(config: Mapping[str, Any]) -> bool:
    """Return whether a model has learned positions, in the place of the sinusoids of its class if it has some."""
    name = TYPES[config["model_type"]]
    return name in (BART, MBART) or (name in (PEGASUS, MARIAN) and config.get("static_position_embeddings") is False)


def stock_config(node: Mapping[str, Any], model: Transformer, n_positions: int) -> dict[str, Any]:
    """Return the part of config.json that describes a model, without vocabularies and special tokens.

    Args:
        node: the config of the model, which has a stock class.
        model: the model.
        n_positions: number of positions that are written.
    """
    name = class_name(node)
    common = {"architectures": [name], "model_type": CLASSES[name].model_type}
    return common | (_t5_config(node, model) if name == T5 else _bart_config(node, name, n_positions))


# ------------------------------------------------------------------------------------------- Marian, ..., mBART


def _bart_node(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    values = _DEFAULTS | (_M2M100_DEFAULTS if name == M2M100 else {}) | dict(config)
    accepts = CLASSES[name].accepts
    residual, embedding_norm = accepts["residual"][0], accepts["embedding_norm"][0]
    _require(config, "normalize_before", residual == "pre_norm")
    _require(config, "normalize_embedding", embedding_norm)
    if name not in (MARIAN, PEGASUS):  # both save their tables, so that these may hold anything
        _require(config, "static_position_embeddings", name == M2M100)
    heads = [_size(values, f"{stack}_attention_heads") for stack in ("encoder", "decoder")]
    widths = [_size(values, f"{stack}_ffn_dim") for stack in ("encoder", "decoder")]
    if widths[0] != widths[1]:
        raise _unknown("decoder_ffn_dim", widths[1], f"encoder_ffn_dim is {widths[0]}, and diglot has one d_ff")
    return {
        **{ours: _size(values, theirs) for ours, theirs in _SIZES.items()},
        "n_heads": heads[0] if heads[0] == heads[1] else dict(zip(("encoder", "decoder", "cross"), [*heads, heads[1]])),
        "bias": True,
        "d_ff": widths[0],
        **{ours: _share(values, theirs) for ours, theirs in _DROPOUTS.items()},
        "embedding_norm": embedding_norm,
        "scale_embeddings": _flag(values, "scale_embedding"),
        "tying": _tying(values, name),
        "output_bias": True in accepts["output_bias"],
        "position": _position(values, name),
        "residual": _part("residual", residual),
        "norm": _part("norm", "layer_norm", eps=EPS),
        "feed_forward": _part("feed_forward", "plain", activation=_activation(values, "activation_function")),
    }


def _tying(values: Mapping[str, Any], name: str) -> str:
    ties_output, ties_inputs = _flag(values, "tie_word_embeddings"), True
    if name == MARIAN:
        ties_inputs = _flag(values, "share_encoder_decoder_embeddings")
    if ties_inputs and not ties_output:
        return "inputs"
    return "all" if ties_inputs else "target" if ties_output else "none"


def _position(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    if has_own_positions(values):
        return _part("position", "learned", max_positions=_size(values, "max_position_embeddings"))
    if name != M2M100:
        return _part("position", "sinusoidal")
    width, pad = _size(values, "d_model"), values.get("pad_token_id", 1)
    if width < 4 or width % 2:
        raise _unknown("d_model", width, "must be even and at least 4 for sinusoids")
    if not _is_integer(pad) or not 0 <= pad < 2**31:
        raise _unknown("pad_token_id", pad, "must be the id of a token, after which M2M100's positions begin")
    return _part("position", "sinusoidal", base=m2m100_base(width), offset=pad + 1)


def _bart_config(node: Mapping[str, Any], name: str, n_positions: int) -> dict[str, Any]:
    heads = node["n_heads"]
    counts = heads if isinstance(heads, Mapping) else dict.fromkeys(("encoder", "decoder"), heads)
    embedding_norm = CLASSES[name].accepts["embedding_norm"][0]
    position = {key: value for key, value in node["position"].items() if not key.startswith("_")}
    has_own_table = bool(position) and name in (PEGASUS, MARIAN)
    return {
        **{theirs: node[ours] for ours, theirs in _SIZES.items()},
        **{f"{stack}_attention_heads": counts[stack] for stack in ("encoder", "decoder")},
        **{f"{stack}_ffn_dim": node["d_ff"] for stack in ("encoder", "decoder")},
        "activation_function": activation_name(node["feed_forward"]["activation"]),
        **{theirs: node.get(ours) or 0.0 for ours, theirs in _DROPOUTS.items()},
        "max_position_embeddings": n_positions,
        "scale_embedding": node.get("scale_embeddings", True),
        "tie_word_embeddings": node["tying"] != "none",
        # Keys of older versions, which CTranslate2's converter and diglot read.
        "normalize_before": CLASSES[name].accepts["residual"] == ("pre_norm",),
        "normalize_embedding": embedding_norm,
        **({"static_position_embeddings": False} if has_own_table else {}),
        **({"share_encoder_decoder_embeddings": node["tying"] == "all"} if name == MARIAN else {}),
    }


# ------------------------------------------------------------------------------------------------------ T5, mT5


def _t5_node(config: Mapping[str, Any]) -> dict[str, Any]:
    values = _T5_DEFAULTS | dict(config)
    if values.get("num_decoder_layers") is None:
        values["num_decoder_layers"] = values.get("num_layers")
    for key, ours in _T5_BUCKETS.items():
        _require(values, key, BUCKETS[ours])
    is_gated, activation = _projection(values)
    width = _size(values, "d_ff")
    if is_gated and width % _GATED_ROUNDING:
        raise _unknown("d_ff", width, f"a gated network's width must be a multiple of {_GATED_ROUNDING}")
    eps = values["layer_norm_epsilon"]
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise _unknown("layer_norm_epsilon", eps, "must be a number between 0 and 1")
    dropout = _share(values, "dropout_rate")
    return {
        **{ours: _size(values, theirs) for ours, theirs in _T5_SIZES.items()},
        "n_decoder_layers": _size(values, "num_decoder_layers"),
        "bias": False,
        "d_ff": width * 3 // 2 if is_gated else width,
        **dict.fromkeys(_DROPOUTS, dropout),
        "embedding_norm": False,
        "scale_embeddings": False,
        "tying": "all" if scales_output(config) else "inputs",
        "output_bias": False,
        "position": _part("position", "relative_bias", **BUCKETS),
        "residual": _part("residual", "pre_norm"),
        "norm": _part("norm", "rms_norm", eps=eps),
        "feed_forward": _part("feed_forward", "gated" if is_gated else "plain", activation=activation),
    }


def _projection(values: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Return whether T5's feed-forward network is gated, and the config of its activation."""
    default = "relu" if values["model_type"] == "t5" else "gated-gelu"
    text = values.get("feed_forward_proj", default)
    gate, _, activation = text.rpartition("-") if isinstance(text, str) else (None, "", "")
    if gate not in ("", "gated"):
        raise _unknown("feed_forward_proj", text, "must be an activation, or gated- and an activation")
    if text == "gated-gelu":  # means this approximation there
        activation = "gelu_new"
    return gate == "gated", _activation({"feed_forward_proj": activation}, "feed_forward_proj")


def _t5_config(node: Mapping[str, Any], model: Transformer) -> dict[str, Any]:
    first: Any = model.encoder[0]
    network, attention = first.feed_forward.sublayer, first.self_attention.sublayer
    is_gated = CHOICES["feed_forward"][node["feed_forward"]["_target_"]] == "gated"
    activation = activation_name(node["feed_forward"]["activation"])
    if is_gated:
        # "gated-gelu" means the approximation by tanh, whose own name is not known to older versions.
        activation = {"gelu_pytorch_tanh": "gelu", "gelu": "gelu_python"}.get(str(activation), activation)
    return {
        "d_model": model.d_model,
        "d_kv": attention.d_head,
        "num_heads": attention.query.out_features // attention.d_head,
        "d_ff": network.up.out_features,
        "num_layers": len(model.encoder),
        "num_decoder_layers": len(model.decoder),
        **{key: BUCKETS[ours] for key, ours in _T5_BUCKETS.items()},
        "dropout_rate": node["dropout"],
        "layer_norm_epsilon": node["norm"]["eps"],
        "feed_forward_proj": f"gated-{activation}" if is_gated else activation,
        "tie_word_embeddings": node["tying"] == "all",
        "scale_decoder_outputs": node["tying"] == "all",
    }


# ------------------------------------------------------------------------------------------------------- values


def _part(part: str, choice: str, **options: Any) -> dict[str, Any]:
    """Return the config of a part of a model."""
    target = next(target for target, name in CHOICES[part].items() if name == choice and not _is_torch_rms(target))
    return {"_target_": target, "_partial_": True, **options}


def _is_torch_rms(target: str) -> bool:
    return target in ("torch.nn.RMSNorm", "diglot.model.RMSNorm")  # conf has diglot.model.norm.RMSNorm


def _activation(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    for target, names in ACTIVATIONS.items():
        if values[key] in names:
            module, _, approximate = target.partition(" ")
            return {"_target_": module, "_partial_": True, **({"approximate": approximate} if approximate else {})}
    known = ", ".join(sorted(name for names in ACTIVATIONS.values() for name in names))
    raise _unknown(key, values[key], f"must be one of {known}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _size(values: Mapping[str, Any], key: str) -> int:
    value = values.get(key)
    if not _is_integer(value) or not 0 < value < 2**31:  # type: ignore[operator]
        raise _unknown(key, value, "must be a positive integer")
    return int(value)  # type: ignore[arg-type]


def _share(values: Mapping[str, Any], key: str) -> float:
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise _unknown(key, value, "must be at least 0 and below 1")
    return float(value)


def _flag(values: Mapping[str, Any], key: str) -> bool:
    value = values[key]
    if not isinstance(value, bool):
        raise _unknown(key, value, "must be true or false")
    return value


def _require(config: Mapping[str, Any], key: str, needed: Any) -> None:
    """Check that a key has a value, unless the config does not have it.

    Raises:
        UserError: it has another value.
    """
    value = config.get(key)
    if value is not None and value != needed:
        raise _unknown(key, value, f"diglot reads this type of model only with {_spelled(needed)}")


def _unknown(key: str, value: Any, reason: str) -> UserError:
    return UserError(f"config.json: {key}={shortened(_spelled(value), 60)}: {reason}")


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else spelled(value)
