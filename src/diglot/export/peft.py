"""Export of low-rank adapters alone, in the layout of the library peft, for a stock class of transformers.

The base model is the model that the run started with, exported by format=huggingface. Nothing here imports peft.
"""

import re
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from diglot.checkpoint import file as checkpoints
from diglot.checkpoint.file import Checkpoint
from diglot.checkpoint.merging import adapters_of
from diglot.data.text import write_bytes, write_json
from diglot.errors import UserError
from diglot.export.huggingface import plain, residual_order
from diglot.model import Transformer
from diglot.model.lora import A, B, Lora

_LAYER = re.compile(r"model\.(encoder|decoder)\.(\d+)\.(\w+)\.sublayer\.(\w+)")
# The names of a stock class.
_SUBLAYERS = {"self_attention": "self_attn.", "cross_attention": "encoder_attn.", "feed_forward": ""}
_LINEAR = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj", "up": "fc1", "down": "fc2"}
_WRITES = ("out", "down")  # layers that write to the residual stream; the others read from it


def write(loaded: Checkpoint, folder: Path, key: str) -> None:
    """Write adapter_config.json and adapter_model.safetensors into a folder.

    Args:
        loaded: a checkpoint whose model a stock class can hold (see diglot.config.stock_class).
        folder: an existing folder.
        key: the config key that selects the format, for messages.

    Raises:
        UserError: the checkpoint has no adapters, or the run trained other weights, too.
    """
    assert isinstance(loaded.model, Transformer)
    content = checkpoints.read(loaded.path)
    lora = adapters_of(content["diglot"])
    if lora is None:
        raise UserError(f"{key}=peft: the checkpoint has no adapters; {key}=huggingface exports the model")
    if lora.train:
        raise UserError(
            f"{key}=peft: besides adapters, the run has trained {', '.join(lora.train)}, which an adapter cannot hold; "
            f"{key}=huggingface exports the model"
        )
    adapters = adapter_weights(loaded.model, content["state_dict"])
    write_bytes(folder / "adapter_model.safetensors", save(adapters, metadata={"format": "pt"}))
    layers = list(dict.fromkeys(name.rpartition(".lora_")[0].removeprefix("base_model.model.") for name in adapters))
    base = content["diglot"]["config"].get("init_from")
    write_json(folder / "adapter_config.json", adapter_config(lora, layers, base if isinstance(base, str) else None))


def adapter_config(lora: Lora, layers: list[str], base: str | None) -> dict[str, Any]:
    """Return the content of adapter_config.json.

    Args:
        lora: the adapters.
        layers: the layers with an adapter, by their names in the stock class.
        base: name of the base model; None: unknown.
    """
    return {
        "peft_type": "LORA",
        "task_type": "SEQ_2_SEQ_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": layers,
        "bias": "none",
        "fan_in_fan_out": False,
        "modules_to_save": None,
    }


def adapter_weights(model: Transformer, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the matrices of all adapters by their names in peft, in float32.

    The dimensions of the residual stream are in the order of the stock class, as in the exported base model.
    """
    order, found = residual_order(model), {}
    for name, weight in weights.items():
        layer, _, matrix = name.rpartition(".")
        if matrix not in (A, B):
            continue
        stack, number, sublayer, linear = _LAYER.fullmatch(layer).groups()  # type: ignore[union-attr]
        if matrix == A and linear not in _WRITES:
            weight = weight[:, order]
        elif matrix == B and linear in _WRITES:
            weight = weight[order]
        stock_name = f"model.{stack}.layers.{number}.{_SUBLAYERS[sublayer]}{_LINEAR[linear]}"
        found[f"base_model.model.{stock_name}.lora_{'A' if matrix == A else 'B'}.weight"] = plain(weight)
    return found
