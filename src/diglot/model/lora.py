"""Low-rank adaptation of linear layers (LoRA: Hu et al., 2022)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diglot.model.dropout import Dropout
from diglot.model.encoder_decoder import EncoderDecoder
from diglot.model.parts import Parts

A, B = "lora_a", "lora_b"  # names of an adapter's two matrices


def is_adapter(name: str) -> bool:
    """Return whether the weight with a name belongs to an adapter."""
    return name.rpartition(".")[2] in (A, B)


@dataclass(frozen=True)
class Lora:
    """The adapters of a model. Beside each chosen layer W x, an adapter adds alpha / rank B A x.

    Args:
        rank: number of rows of A and of columns of B.
        alpha: numerator of the factor.
        dropout: dropout probability of an adapter's input.
        on: the parts whose linear layers get an adapter; see `Parts`.
        train: the parts whose own weights are trained, too.

    Raises:
        ValueError: a value is out of range.
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    on: Sequence[str] = ("query", "value")
    train: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank ({self.rank}) must be positive")
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"alpha ({self.alpha}) must be positive")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout ({self.dropout}) must be at least 0 and below 1")
        if not self.on:
            raise ValueError("on must name at least one part, such as query")

    @property
    def factor(self) -> float:
        """Return the factor of an update B A."""
        return self.alpha / self.rank


class LoraLinear(nn.Linear):
    """Linear layer with an adapter, which shares its parameters with another layer.

    B is zero at first, so that the layer computes the same as the other one.

    Args:
        linear: the other layer.
        lora: the options.
    """

    def __init__(self, linear: nn.Linear, lora: Lora) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.factor, self.dropout = lora.factor, Dropout(lora.dropout)
        self.lora_a = nn.Parameter(linear.weight.new_empty(lora.rank, linear.in_features))
        self.lora_b = nn.Parameter(linear.weight.new_zeros(linear.out_features, lora.rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))  # as nn.Linear initialises its weight

    def forward(self, x: Tensor) -> Tensor:
        update = F.linear(F.linear(self.dropout(x), self.lora_a), self.lora_b)
        return F.linear(x, self.weight, self.bias) + self.factor * update

    def merged(self) -> nn.Linear:
        """Return a linear layer that computes the same without an adapter."""
        with torch.device("meta"):
            linear = nn.Linear(self.in_features, self.out_features, bias=False)
        weight = _merged(self.weight.detach(), self.lora_a.detach(), self.lora_b.detach(), self.factor)
        linear.weight, linear.bias = nn.Parameter(weight, requires_grad=False), self.bias
        return linear


def _merged(weight: Tensor, a: Tensor, b: Tensor, factor: float) -> Tensor:
    # In float64, so that the result is the same on each device, except for rare roundings.
    dtype = torch.float32 if weight.device.type == "mps" else torch.float64
    return (weight.to(dtype) + factor * (b.to(dtype) @ a.to(dtype))).to(weight.dtype)


def add(model: EncoderDecoder, lora: Lora) -> None:
    """Add adapters to a model, in place. All other weights are frozen, except for those of `lora.train`.

    Raises:
        ValueError: a part contains no weight or no linear layer of its own, or the rank exceeds that of a layer.
    """
    parts = Parts(model)
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if type(layer) is nn.Linear and len(parts.names.get(f"{name}.weight", ())) == 1
    }
    chosen: dict[str, nn.Linear] = {}
    for part in lora.on:
        weights = parts[part]
        found = {name: layer for name, layer in layers.items() if f"{name}.weight" in weights}
        if not found:
            raise ValueError(f"{part!r} contains no linear layer with a matrix of its own")
        chosen |= found
    for name, layer in chosen.items():
        if lora.rank > (largest := min(layer.weight.shape)):
            raise ValueError(f"rank ({lora.rank}) must be at most {largest}, the smaller size of the matrix {name}")
    trained = parts.union(lora.train)
    for name, weight in model.named_parameters():
        weight.requires_grad_(name in trained)
    for name, layer in layers.items():
        if name in chosen:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, LoraLinear(layer, lora))


@contextmanager
def merged(model: nn.Module) -> Iterator[None]:
    """Replace all layers with adapters by merged ones, and put them back on exit.

    So a model computes the same bits as one that was loaded from its checkpoint.
    """
    replaced = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, LoraLinear)
    ]
    try:
        for parent, name, child in replaced:
            setattr(parent, name, child.merged())
        yield
    finally:
        for parent, name, child in replaced:
            setattr(parent, name, child)


def merge(weights: Mapping[str, Tensor], factor: float) -> dict[str, Tensor]:
    """Return the weights of a model without adapters that computes the same as a model with them.

    Args:
        weights: weights by name, those of adapters included.
        factor: see `Lora.factor`.

    Raises:
        ValueError: an adapter is incomplete, or its matrices do not fit its layer. The message names it.
    """
    without = {name: weight for name, weight in weights.items() if not is_adapter(name)}
    for layer in dict.fromkeys(name.rpartition(".")[0] for name in weights if name not in without):
        names = [f"{layer}.{name}" for name in ("weight", A, B)]
        if missing := [name for name in names if name not in weights]:
            raise ValueError(f"{missing[0]} is missing")
        weight, a, b = (weights[name] for name in names)
        is_matrix = all(each.dim() == 2 and each.is_floating_point() for each in (weight, a, b))
        if not is_matrix or b.size(1) != a.size(0) or weight.shape != (b.size(0), a.size(1)):
            raise ValueError(f"{layer} has an adapter of another shape")
        without[f"{layer}.weight"] = _merged(weight, a, b, factor)
    return without
