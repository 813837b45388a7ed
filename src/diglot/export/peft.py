"""Export of low-rank adapters alone, in the layout of the library peft, for a stock class of transformers.

The base model is the model that the run started with, exported by format=huggingface. Nothing here imports peft.
"""

from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from diglot.checkpoint import file as checkpoints
from diglot.checkpoint.file import Checkpoint
from diglot.checkpoint.merging import adapters_of
from diglot.config.exportable import check_adapters
from diglot.data.text import write_bytes, write_json
from diglot.huggingface import families, hub_models
from diglot.model import Transformer
from diglot.model.lora import A, B, Lora


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
    config = content["diglot"]["config"]
    check_adapters(lora, config.get("tokenizer"), key)
    assert lora is not None
    adapters = adapter_weights(loaded.model, content["diglot"]["model"], content["state_dict"])
    write_bytes(folder / "adapter_model.safetensors", save(adapters, metadata={"format": "pt"}))
    layers = list(dict.fromkeys(name.rpartition(".lora_")[0].removeprefix("base_model.model.") for name in adapters))
    write_json(folder / "adapter_config.json", adapter_config(lora, layers, config.get("init_from")))


def adapter_config(lora: Lora, layers: list[str], init_from: Any) -> dict[str, Any]:
    """Return the content of adapter_config.json.

    Only a name of the Hugging Face Hub is written. peft would look up the name of any other checkpoint there.

    Args:
        lora: the adapters.
        layers: the layers with an adapter, by their names in the stock class.
        init_from: name of the checkpoint that the run started with, as the run's config has it.
    """
    is_on_hub = isinstance(init_from, str) and hub_models.is_commit(init_from)
    base, _, revision = init_from.partition("@") if is_on_hub else (None, "", None)
    return {
        "peft_type": "LORA",
        "task_type": "SEQ_2_SEQ_LM",
        "base_model_name_or_path": base,
        "revision": revision,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": layers,
        "bias": "none",
        "fan_in_fan_out": False,
        "modules_to_save": None,
    }


def adapter_weights(model: Transformer, node: dict[str, Any], weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the matrices of all adapters by their names in peft, in float32.

    Args:
        model: the adapted model.
        node: its config.
        weights: the weights of the checkpoint.
    """
    layers = [name.removesuffix(f".{A}") for name in weights if name.endswith(f".{A}")]
    pairs = {name.removeprefix("model."): (weights[f"{name}.{A}"], weights[f"{name}.{B}"]) for name in layers}
    found = {}
    for name, matrices in families.adapter_weights(model, node, pairs).items():
        for letter, matrix in zip("AB", matrices, strict=True):
            found[f"base_model.model.{name}.lora_{letter}.weight"] = matrix
    return found
