"""The products of linear layers, and the private operators of torch that compute some of them."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from diglot.decoding import kernels
from diglot.decoding.kernels import Kind, product, speedup

X, WEIGHT, BIAS = (
    torch.randn(*shape, generator=torch.Generator().manual_seed(1)) for shape in ((5, 3, 48), (20, 48), (20,))
)


def bound(kind: Kind) -> float:
    """Return the greatest error of a product: a sum of 48 terms whose factors are rounded."""
    return {"plain": 1e-5, "packed": 1e-5, "bfloat16": 48 * 2**-7, "int8": 48 / 127}[kind]


@pytest.mark.parametrize("bias", [BIAS, None], ids=["bias", "no bias"])
@pytest.mark.parametrize("kind", ["plain", "packed", "bfloat16", "int8"])
def test_a_product_is_that_of_a_linear_layer(kind: Kind, bias: Tensor | None) -> None:
    if kind == "packed" and not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    try:
        multiply = product(kind, WEIGHT, bias)
        found = multiply(X), multiply(X[:, 0]), multiply(X.transpose(0, 1))
    except (AttributeError, RuntimeError, TypeError) as error:
        pytest.fail(f"torch changed mkldnn._reorder_linear_weight, mkldnn._linear_pointwise or _int_mm: {error}")
    for y, x in zip(found, (X, X[:, 0], X.transpose(0, 1)), strict=True):
        assert y.dtype is torch.float32
        torch.testing.assert_close(y, F.linear(x, WEIGHT, bias), rtol=0, atol=bound(kind))


def test_low_precision_rounds_but_the_sums_are_exact() -> None:
    exact = F.linear(X.bfloat16().float(), WEIGHT.bfloat16().float())
    torch.testing.assert_close(product("bfloat16", WEIGHT, None)(X), exact, rtol=2**-8, atol=1e-4)

    integers = torch.randint(-127, 128, (9, 40)).float()
    integers[:, 0] = 127.0  # so that the scales are 1
    y = product("int8", integers, None)(integers)
    assert torch.equal(y, integers @ integers.t())
    assert not torch.equal(product("int8", WEIGHT, None)(X), F.linear(X, WEIGHT))


def test_a_row_of_int8_does_not_depend_on_other_rows() -> None:
    rows = X.flatten(0, 1)
    multiply = product("int8", WEIGHT, BIAS)
    assert torch.equal(multiply(rows), torch.cat([multiply(row[None]) for row in rows]))
    assert torch.equal(multiply(torch.cat((rows, 1000 * rows)))[: len(rows)], multiply(rows))
    assert torch.equal(multiply(torch.zeros(2, 48)), BIAS.expand(2, -1))
    assert multiply(torch.full((1, 48), torch.nan)).isnan().all()


def test_the_faster_product_is_found_by_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": 0.0}

    def timed(seconds: float) -> Any:
        def multiply(x: Tensor) -> None:
            clock["now"] += seconds

        return multiply

    def slow_or_fast(kind: Kind, weight: Tensor, bias: Tensor | None) -> Any:
        if kind == "int8":
            raise RuntimeError("this CPU cannot")
        return timed({"plain": 3.0, "packed": 2.0}[kind])

    monkeypatch.setattr(kernels, "product", slow_or_fast)
    monkeypatch.setattr(kernels.time, "thread_time", lambda: clock["now"])
    speedup.cache_clear()
    before = torch.get_rng_state()
    try:
        assert speedup("packed", over="plain") == 1.5
        assert speedup("int8", over="plain") == 0.0
    finally:
        speedup.cache_clear()
    assert torch.equal(before, torch.get_rng_state())
