"""Weights of a checkpoint: whether they fit a model, are finite, and are loaded into it."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from diglot.config import different_values
from diglot.errors import UserError
from diglot.model import EncoderDecoder

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@contextmanager
def limit_parameters(weights: dict[str, Any]) -> Iterator[None]:
    """Refuse to build a model with more parameters than there are weights, before it becomes large."""
    tensors = [weight for weight in weights.values() if isinstance(weight, torch.Tensor)]
    n = len({tensor.data_ptr() for tensor in tensors})
    n_remaining = n + 50  # a few parameters may be tied, replaced or temporary

    def count(*_: Any) -> None:
        nonlocal n_remaining
        n_remaining -= 1
        if n_remaining < 0:
            raise UserError(f"its model has more parameters than the {n:,} weights in the file")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def check_weights(model: EncoderDecoder, state_dict: dict[str, Any]) -> None:
    """Check weights before a model is allocated for them.

    They must have the model's shapes and types, hold as many numbers as it needs, and be finite.

    Raises:
        UserError: some weights do not fit; the message names them.
    """
    weights = _fitting_weights(model, state_dict)
    expected = model.state_dict(keep_vars=True)
    for name, weight in weights.items():
        if weight.dtype != expected[name].dtype and not (weight.dtype in FLOATS and expected[name].dtype in FLOATS):
            raise UserError(f"its weight {name} is {weight.dtype}, but the model's is {expected[name].dtype}")
    n_needed = sum({id(weight): weight.numel() for weight in expected.values()}.values())
    n_stored = sum({weight.data_ptr(): weight.numel() for weight in weights.values()}.values())
    if n_needed > n_stored:
        raise UserError(f"its model needs {n_needed:,} numbers, but the file has {n_stored:,}: other weights are tied")
    check_finite(weights)


def check_finite(weights: dict[str, Any]) -> None:
    """Check that all weights are finite.

    Raises:
        UserError: a weight is not finite; the message names it.
    """
    for name, weight in weights.items():
        if isinstance(weight, torch.Tensor) and weight.dtype in FLOATS and weight.numel():
            minimum, maximum = (float(extreme) for extreme in weight.aminmax())  # allocates no memory
            if not math.isfinite(minimum) or not math.isfinite(maximum):
                raise UserError(f"its weight {name} is not finite: the training had failed when it was written")


def load_weights(model: EncoderDecoder, state_dict: dict[str, Any]) -> None:
    """Load the weights of a task's state into a model.

    Raises:
        UserError: some weights do not fit; the message names them.
    """
    model.load_state_dict(_fitting_weights(model, state_dict))


def _fitting_weights(model: EncoderDecoder, state_dict: dict[str, Any]) -> dict[str, torch.Tensor]:
    weights = {name.removeprefix("model."): value for name, value in state_dict.items()}
    expected = model.state_dict()
    differences = [f"{name} is not a tensor" for name in weights if not isinstance(weights[name], torch.Tensor)]
    differences += [
        f"{name} is {tuple(weights[name].shape)} in the checkpoint, but {tuple(expected[name].shape)} here"
        for name in expected
        if isinstance(weights.get(name), torch.Tensor) and weights[name].shape != expected[name].shape
    ]
    differences += [f"{name} is missing in the checkpoint" for name in expected if name not in weights]
    differences += [f"{name} is missing here" for name in weights if name not in expected]
    if differences:
        remainder = f", and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise UserError(f"its weights do not fit this model: {'; '.join(differences[:3])}{remainder}")
    return weights


def refuse_other_model(current: dict[str, Any], stored: dict[str, Any]) -> None:
    """Check that two configs describe the same model, apart from dropout.

    Weights can be loaded into any model with the same shapes, but another model would compute something else with them.

    Raises:
        UserError: the configs differ; the message names the first key.
    """
    for key, a, b in different_values(stored, current, "model"):
        if "dropout" not in key:
            raise UserError(f"{key} is {a} in the checkpoint, but {b} here")
