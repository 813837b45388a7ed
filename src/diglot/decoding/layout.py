"""Layout of a model's linear layers for decoding, and the products that compute them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from diglot.decoding.kernels import Kind, product, speedup
from diglot.errors import UserError

Precision = Literal["float32", "bfloat16", "int8"]
LINEAR = "DIGLOT_LINEAR"  # environment variable that chooses the product of float32
MIN_SPEEDUP = 1.25  # required speedup of packed products, so that the choice is the same in each run on a machine


class PackedLinear(nn.Linear):
    """Linear layer for inference, which shares its parameters with another and multiplies by a copy in another layout.

    Args:
        linear: the other layer.
        kind: the product; see diglot.decoding.kernels.
    """

    def __init__(self, linear: nn.Linear, kind: Kind) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.multiply = product(kind, linear.weight.detach(), None if linear.bias is None else linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply(x)


def pack_for_decoding(model: nn.Module, precision: Precision = "float32") -> list[tuple[nn.Module, str, nn.Module]]:
    """Replace the float32 linear layers of a model by ones that are faster in a search, in place.

    Names, parameters and their values do not change; later changes of the values are not seen. On a GPU, float32 stays
    as it is. Subclasses of nn.Linear are not replaced.

    On a CPU, float32 is computed by torch's product, or by oneDNN's if that is at least MIN_SPEEDUP times as fast in a
    measurement. The environment variable DIGLOT_LINEAR=packed or =plain chooses without a measurement.

    Args:
        model: the model on its device.
        precision: of the products: float32; bfloat16; or int8, on a CPU only. All else stays in float32.

    Returns:
        What was replaced: the parent, the name and the former module.

    Raises:
        UserError: DIGLOT_LINEAR has an unknown value, or one that cannot be computed on this machine.
    """
    if precision == "float32" and all(parameter.device.type != "cpu" for parameter in model.parameters()):
        return []
    return list(_replace(model, float32_kind() if precision == "float32" else precision))


def _replace(parent: nn.Module, kind: Kind) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for name, child in list(parent.named_children()):
        if type(child) is nn.Linear and child.weight.dtype is torch.float32:
            setattr(parent, name, PackedLinear(child, kind))
            yield parent, name, child
        else:
            yield from _replace(child, kind)


@contextmanager
def packed_for_decoding(model: nn.Module) -> Iterator[None]:
    """Pack a model as `pack_for_decoding` does, and put its own modules back on exit."""
    replaced = pack_for_decoding(model)
    try:
        yield
    finally:
        for parent, name, child in replaced:
            setattr(parent, name, child)


def float32_kind() -> Kind:
    """Return the kind of product to compute float32 by on a CPU; see `pack_for_decoding`."""
    setting = os.environ.get(LINEAR, "")
    if setting not in ("", "packed", "plain"):
        raise UserError(f"{LINEAR}={setting}: must be packed or plain")
    if setting == "packed" and not speedup("packed", over="plain"):
        raise UserError(f"{LINEAR}=packed: this PyTorch cannot compute it on this machine")
    is_packed = setting == "packed" or (setting == "" and speedup("packed", over="plain") >= MIN_SPEEDUP)
    return "packed" if is_packed else "plain"


def check_precision(precision: Precision, device: torch.device) -> None:
    """Check that a device supports a precision, and that a CPU is faster in it than in float32.

    Raises:
        UserError: the device does not support it, or a CPU is slower in it.
    """
    if precision == "float32" or (precision == "bfloat16" and device.type != "cpu"):
        return
    if device.type != "cpu":
        raise UserError(f"precision={precision}: only a CPU supports it, but device is {device}")
    if speedup(precision, over="plain") < 1:
        raise UserError(
            f"precision={precision}: on this CPU, PyTorch is not faster in it than in float32; leave it out"
        )
