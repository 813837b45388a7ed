"""Attention for training on a CPU, against PyTorch's in float64 and against numerical gradients."""

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from diglot.model import Transformer, cpu_attention
from diglot.model.cpu_attention import MAX_FLOAT32_KEYS, attention, is_faster

B, H, Q, M, K = 2, 4, 3, 5, 6
CASES = ["none", "causal", "padding", "rows", "bias", "bias of a batch", "learned", "learned of a batch", "empty rows"]


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(n_key_heads: int = H, queries: int = Q, keys: int = M) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values that need a gradient."""
    sizes = [(B, H, queries, K), (B, n_key_heads, keys, K), (B, n_key_heads, keys, K)]
    q, k, v = (normal(*size, seed=seed).requires_grad_() for seed, size in enumerate(sizes))
    return q, k, v


def mask_of(case: str, queries: int = Q, keys: int = M) -> Tensor | None:
    seen = normal(B, 1, queries, keys, seed=7) > -0.5
    seen[..., 0] = True
    if case == "empty rows":
        seen[0, :, 1] = False
    infinite = torch.zeros_like(seen, dtype=torch.float64).masked_fill(~seen, -torch.inf)
    masks: dict[str, Tensor | None] = {
        "none": None,
        "causal": None,
        "padding": torch.arange(keys) < torch.tensor([keys, keys - 2])[:, None, None, None],
        "rows": seen,
        "bias": normal(1, H, queries, keys, seed=8),
        "bias of a batch": normal(1, H, queries, keys, seed=8) + infinite,
        "learned": normal(1, H, queries, keys, seed=8).requires_grad_(),
        "learned of a batch": (normal(1, H, queries, keys, seed=8) + infinite).requires_grad_(),
        "empty rows": seen,
    }
    return masks[case]


def torch_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, enable_gqa=True)


def result(apply: Callable[..., Tensor], case: str, dtype: torch.dtype, n_key_heads: int, *more: float) -> list[Tensor]:
    """Return the output and the gradients of all inputs that need one."""
    given = inputs(n_key_heads)
    mask = mask_of(case)
    needed = [*given, *([mask] if mask is not None and mask.requires_grad else [])]
    cast = [x.to(dtype) if x.is_floating_point() else x for x in (*given, *([] if mask is None else [mask]))]
    out = apply(*cast, *([None] if mask is None else []), *more, case == "causal")
    return [out, *torch.autograd.grad((out * normal(*out.shape, seed=9).to(dtype)).sum(), needed)]


@pytest.mark.parametrize("n_key_heads", [H, 2, 1])
@pytest.mark.parametrize("case", CASES)
def test_it_computes_what_torch_does(case: str, n_key_heads: int) -> None:
    expected = result(torch_attention, case, torch.float64, n_key_heads)
    for dtype, within in ((torch.float64, 1e-12), (torch.float32, 2e-6), (torch.bfloat16, 0.06)):
        found = result(attention, case, dtype, n_key_heads, 0.0)
        assert found[0].dtype == dtype
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x.double(), y, rtol=within, atol=within)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("n_key_heads", [H, 2])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_finite_differences(case: str, n_key_heads: int, dropout: float) -> None:
    mask = mask_of(case)

    def compute(*args: Tensor | None) -> Tensor:
        torch.manual_seed(5)
        return attention(*args, dropout, case == "causal")

    assert torch.autograd.gradcheck(compute, (*inputs(n_key_heads), mask))


def test_a_query_that_may_attend_to_nothing_gets_zeros_and_no_gradient() -> None:
    q, k, v = inputs()
    out = attention(q, k, v, mask_of("empty rows"), 0.0)
    (gradient,) = torch.autograd.grad(out.sum(), q)
    assert torch.count_nonzero(out[0, :, 1]) == torch.count_nonzero(gradient[0, :, 1]) == 0
    assert torch.count_nonzero(out) == out.numel() - H * K


@pytest.mark.parametrize("n_key_heads", [H, 2])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("bias", [None, torch.zeros(1, H, Q, M, dtype=torch.float64, requires_grad=True)])
def test_a_batch_without_rows_has_an_empty_result(n_key_heads: int, dropout: float, bias: Tensor | None) -> None:
    """Several processes may share so few pairs that one of them gets none."""
    q, k, v = (x.detach()[:0].requires_grad_() for x in inputs(n_key_heads))
    out = attention(q, k, v, bias, dropout)
    assert out.shape == q.shape
    out.sum().backward()
    assert (q.grad.shape, k.grad.shape, v.grad.shape) == (q.shape, k.shape, v.shape)
    if bias is not None:
        assert torch.count_nonzero(bias.grad) == 0


def test_scores_that_are_not_finite_are_not_hidden() -> None:
    q, k, v = inputs()
    q.data[1, 0, 0, 0] = torch.nan
    out = attention(q, k, v, mask_of("empty rows"), 0.0)
    assert out[1, 0, 0].isnan().all()


def test_dropout_scales_what_it_keeps_and_depends_on_the_seed_alone() -> None:
    q, k = torch.zeros(1, 1, 400, K), torch.zeros(1, 1, 500, K)
    v = torch.eye(500)[None, None]
    torch.manual_seed(1)
    weights = 500 * attention(q, k, v, None, 0.3)
    assert sorted(weights.unique().tolist()) == pytest.approx([0.0, 1 / 0.7])
    assert (weights == 0).float().mean().item() == pytest.approx(0.3, abs=0.003)
    assert not torch.equal(500 * attention(q, k, v, None, 0.3), weights)
    torch.manual_seed(1)
    assert torch.equal(500 * attention(q, k, v, None, 0.3), weights)


def test_it_is_used_where_it_is_faster() -> None:
    short, long = (torch.zeros(1, 1, n, K) for n in (MAX_FLOAT32_KEYS, MAX_FLOAT32_KEYS + 1))
    bias = torch.zeros(1, 1, 1, 1)
    assert is_faster(long, short, None, 0.0)
    assert not is_faster(short, long, None, 0.0)
    assert not is_faster(short, long, bias, 0.0)
    assert is_faster(short, long, None, 0.1)
    assert is_faster(short, long, bias.clone().requires_grad_(), 0.0)
    assert is_faster(long.bfloat16(), long.bfloat16(), None, 0.0)
    assert not is_faster(short.to("meta"), short.to("meta"), None, 0.1)
    with torch.no_grad():
        assert not is_faster(short, short, None, 0.1)


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("position", ["rotary", "relative_bias", "alibi"])
def test_a_model_trains_with_it_as_exactly_as_without_it(
    build_model: Callable[..., Transformer], position: str, bfloat16: bool
) -> None:
    """Compare the errors of a model's gradients with those by PyTorch's attention; the truth is in float64."""
    model = build_model(f"model/position={position}", "model.n_kv_heads=1", "model.dropout=0.0").train()
    ids, mask = torch.arange(14).view(B, 7), torch.arange(7) < torch.tensor([[7], [4]])

    def gradient(autocast: bool) -> Tensor:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(ids, ids, mask)
        F.cross_entropy(logits.flatten(0, 1).double(), ids.flatten()).backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double()  # type: ignore[union-attr]

    with mock.patch.object(cpu_attention, "attention", wraps=attention) as calls:
        found = gradient(bfloat16)
    assert calls.call_count == len([layer for kind in model.attentions().values() for layer in kind])
    with mock.patch.object(cpu_attention, "is_faster", return_value=False):
        by_torch = gradient(bfloat16)
        model.double()
        expected = gradient(False)
    factor = 3 if bfloat16 else 1.5  # in bfloat16, PyTorch computes this attention in float32
    assert (found - expected).norm() < factor * (by_torch - expected).norm() < 0.1 * expected.norm()


def test_a_model_in_evaluation_does_not_use_it(tiny_model: Transformer) -> None:
    with mock.patch.object(cpu_attention, "attention", side_effect=AssertionError):
        tiny_model.eval()(torch.full((1, 3), 5), torch.full((1, 3), 5))


def test_compiled_code_has_pytorch_s_attention_instead() -> None:
    found = []

    def compute(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found.append(is_faster(q, k, None, 0.1))
        return q + is_faster(q, k, None, 0.1)

    q, k, v = inputs()
    torch.testing.assert_close(torch.compile(compute, backend="eager", fullgraph=True)(q, k, v), q)
    torch.testing.assert_close(compute(q, k, v), q + 1)
    torch.compiler.reset()
