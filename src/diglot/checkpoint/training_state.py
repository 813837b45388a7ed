"""Whether a run can resume from the content of a checkpoint."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from diglot.checkpoint.weights import FLOATS, check_finite
from diglot.errors import UserError


def check_training_state(content: dict[str, Any], file: Path, *, may_have_failed: bool = False) -> None:
    """Check that a run can resume from the content of a checkpoint.

    Counts must be non-negative integers, and weights must be finite. Moments must not be NaN. They must be of
    a floating type, because converting others to the weight's type could take several times their memory.

    Args:
        content: the content.
        file: the checkpoint, for messages.
        may_have_failed: whether numbers that are not finite are accepted, to find out where they come from.

    Raises:
        UserError: a part is wrong; the message names it.
    """
    record = content["diglot"]
    position = record.get("place") or []
    due_since = record.get("validation_due_since")
    is_valid = {
        "global_step": _is_count(content.get("global_step")),
        "loops": isinstance(content.get("loops"), dict) and _counts_only(content["loops"]),
        "optimizer_states": isinstance(content.get("optimizer_states"), list)
        and len(content["optimizer_states"]) == 1
        and all(_has_float_dtype(tensor) for tensor in _tensors(content["optimizer_states"])),
        "lr_schedulers": isinstance(content.get("lr_schedulers"), list),
        "place": isinstance(position, list) and len(position) in (0, 3) and all(map(_is_count, position)),
        "validation_due_since": isinstance(due_since, (float, type(None))),
        "has_stopped": isinstance(record.get("has_stopped", False), bool),
    }
    if malformed := [name for name, valid in is_valid.items() if not valid]:
        raise UserError(f"checkpoint {file}: no run can resume from it, because its {malformed[0]} is malformed")
    if may_have_failed:
        return
    try:
        for part in ("state_dict", "current_model_state"):  # the latter exists beside a weight average
            check_finite(content.get(part, {}))
    except UserError as error:
        raise UserError(f"checkpoint {file}: no run can resume from it: {error}") from None
    if any(tensor.isnan().any() for tensor in _tensors(content["optimizer_states"])):
        raise UserError(f"checkpoint {file}: no run can resume from it, because its optimizer's moments contain NaN")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _counts_only(node: Any) -> bool:
    """Return whether the state of Lightning's loops holds only counts, flags and None."""
    if isinstance(node, dict):
        return all(map(_counts_only, node.values()))
    return node is None or isinstance(node, bool) or _is_count(node)


def _tensors(node: Any) -> Iterator[torch.Tensor]:
    if isinstance(node, torch.Tensor):
        yield node
    elif isinstance(node, (dict, list, tuple)):
        for value in node.values() if isinstance(node, dict) else node:
            yield from _tensors(value)


def _has_float_dtype(tensor: torch.Tensor) -> bool:
    """Return whether an optimizer's tensor takes little more memory when it is converted to its weight's type."""
    return tensor.numel() <= 1 or tensor.dtype in FLOATS
