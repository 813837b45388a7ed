"""Merging of low-rank adapters into the weights of a checkpoint."""

from contextlib import suppress
from typing import Any

from torch import Tensor

from diglot.errors import UserError
from diglot.model.lora import Lora, merge


def adapter_record(lora: Lora) -> dict[str, Any]:
    """Return what a checkpoint's record needs to merge adapters, and what else was trained. It is stored as `lora`."""
    return {"rank": lora.rank, "alpha": float(lora.alpha), "train": list(lora.train)}


def adapters_of(record: dict[str, Any]) -> Lora | None:
    """Return the adapters of a checkpoint's record, as far as it holds them; None if it has none.

    Raises:
        UserError: the entry is malformed.
    """
    node = record.get("lora")
    if node is None:
        return None
    rank, alpha, train = map(node.get, ("rank", "alpha", "train")) if isinstance(node, dict) else (None, None, None)
    is_list = isinstance(train, list) and all(isinstance(part, str) for part in train)
    if type(rank) is int and isinstance(alpha, float) and is_list:
        with suppress(ValueError):  # of Lora's own checks
            return Lora(rank, alpha, train=train or ())
    raise UserError("its lora is malformed")


def merged_weights(content: dict[str, Any]) -> dict[str, Tensor]:
    """Return the weights in the content of a checkpoint, with its adapters merged.

    Raises:
        UserError: an adapter is malformed. The message names it.
    """
    weights: dict[str, Tensor] = content["state_dict"]
    lora = adapters_of(content["diglot"])
    if lora is None:
        return weights
    try:
        return merge(weights, lora.factor)
    except ValueError as error:
        raise UserError(f"its {error}") from None
