"""Products of linear layers for inference, among them those by private operators of torch.

tests/decoding/test_kernels.py fails if torch changes one of these operators.
"""

import time
from collections.abc import Callable
from functools import cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Kind = Literal["plain", "packed", "bfloat16", "int8"]
Product = Callable[[Tensor], Tensor]  # maps x (..., D) to x W^T + b


def product(kind: Kind, weight: Tensor, bias: Tensor | None) -> Product:
    """Return a function that computes a linear layer. It keeps a copy of the weight.

    Args:
        kind: plain: torch's own product, with the weight in column-major order, which is faster for few rows. packed:
            oneDNN's product, with the weight in oneDNN's order. bfloat16: x, weight and bias rounded to bfloat16, and
            summed in float32. int8: weight and x rounded to 8 bits with a scale for each row, and summed exactly, so
            that a row of the result does not depend on other rows of x.
        weight: (outputs, D), in float32; on the CPU, unless the kind is bfloat16.
        bias: (outputs,), in float32; None: no bias.

    Raises:
        RuntimeError, AttributeError: torch cannot compute this product, on this machine or at all.
    """
    if kind == "packed":
        return _packed(weight, bias)
    if kind == "int8":
        return _int8(weight, bias)
    if kind == "plain":
        columns = weight.t().contiguous().t()
        return lambda x: F.linear(x, columns, bias)
    half_bias = None if bias is None else bias.bfloat16()
    half = _packed_or_plain(weight.bfloat16(), half_bias)
    return lambda x: half(x.bfloat16()).to(x.dtype)


def _packed(weight: Tensor, bias: Tensor | None) -> Product:
    rows = 64  # typical number of rows, for which oneDNN chooses the order
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    multiply = torch.ops.mkldnn._linear_pointwise
    return lambda x: multiply(x, packed, bias, "none", [], None)


def _packed_or_plain(weight: Tensor, bias: Tensor | None) -> Product:
    if weight.device.type == "cpu":
        try:
            return _packed(weight, bias)
        except (AttributeError, RuntimeError):  # no such operator, or not for this CPU
            pass
    return lambda x: F.linear(x, weight, bias)


def _int8(weight: Tensor, bias: Tensor | None) -> Product:
    rounded, weight_scales = _rounded(weight)
    columns, weight_scales = rounded.t(), weight_scales.t()  # (D, outputs), (1, outputs)

    def multiply(x: Tensor) -> Tensor:
        rows, row_scales = _rounded(x.flatten(0, -2))
        y = torch._int_mm(rows, columns).to(x.dtype).mul_(row_scales).mul_(weight_scales)
        if bias is not None:
            y += bias
        return y.unflatten(0, x.shape[:-1])

    return multiply


def _rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Round rows (N, D) to 8 bits, and return them with their scales (N, 1)."""
    scales = rows.abs().amax(1, keepdim=True).clamp_(min=1e-30).div_(127)
    return (rows / scales).round_().to(torch.int8), scales


@cache
def speedup(kind: Kind, over: Kind) -> float:
    """Measure how many times as fast a kind of product is as another on this CPU; 0: torch cannot compute it.

    Both kinds are timed in turn, 12 times each. The fastest time of each counts. Times are CPU times of this thread,
    which other programs hardly affect. The measurement takes a few milliseconds.
    """
    x = torch.linspace(-1, 1, 64 * 256).view(64, 256)
    weight = torch.linspace(-1, 1, 1024 * 256).view(1024, 256)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        try:
            products = [product(product_kind, weight, weight[:, 0].contiguous()) for product_kind in (kind, over)]
            seconds = [[_seconds(multiply, x) for multiply in products] for _ in range(12)]
        except (AttributeError, RuntimeError):
            return 0.0
    kind_time, over_time = map(min, zip(*seconds, strict=True))
    return over_time / kind_time


def _seconds(multiply: Product, x: Tensor) -> float:
    start = time.thread_time()
    multiply(x)
    return time.thread_time() - start
