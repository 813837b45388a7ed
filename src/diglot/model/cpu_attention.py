"""Scaled dot-product attention for training on a CPU, as one autograd function with a backward pass by hand."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from diglot.model.dropout import drop, keep_mask

MAX_FLOAT32_KEYS = 64  # with more keys, the fused kernel of PyTorch is faster in float32 (docs/measured.md)


def is_faster(q: Tensor, k: Tensor, mask: Tensor | None, dropout: float) -> bool:
    """Return whether `attention` is faster than `F.scaled_dot_product_attention` with a backward pass.

    PyTorch has a fused kernel for CPUs, but not for dropout or for a bias that needs a gradient, and the backward pass
    of this kernel is slow in bfloat16. Under torch.compile, the compiler fuses the operations itself.

    Args:
        q, k, mask, dropout: see `attention`.
    """
    if q.device.type != "cpu" or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    has_no_fused_kernel = dropout > 0 or (mask is not None and mask.requires_grad)
    return q.dtype is not torch.float32 or has_no_fused_kernel or k.size(2) <= MAX_FLOAT32_KEYS


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, is_causal: bool = False) -> Tensor:
    """Compute the same as `F.scaled_dot_product_attention`.

    The products are computed in the dtype of the queries, the softmax in float32 or wider. A query that may attend to
    nothing gets zeros.

    Args:
        q: queries (B, H, Q, K).
        k: keys (B, G, M, K), where H is a multiple of G: neighbouring query heads share a key head.
        v: values (B, G, M, K).
        mask: boolean, True where attention is allowed, or a float bias; broadcasts to (B, H, Q, M). None: no
            restriction.
        dropout: dropout probability of the attention weights.
        is_causal: whether a query may attend only to keys up to its own position; used instead of a mask.
    """
    if is_causal:
        mask = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril()
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.zeros(mask.shape).masked_fill_(~mask, float("-inf"))
    result: Tensor = _Attention.apply(q, k, v, mask, dropout)
    return result


class _Attention(torch.autograd.Function):
    """`attention` with a float bias; the products take the queries of all heads of a key head together."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
        scores_shape = (*q.shape[:3], k.size(2))  # (B, H, Q, M)
        ctx.shapes, ctx.scale, ctx.dropout = (q.shape, k.shape, v.shape), q.size(3) ** -0.5, dropout
        # (B, H, Q, K) -> (B G, H / G Q, K); sizes are given in full, because a process may get a batch without rows
        n_queries = q.size(1) // k.size(1) * q.size(2)
        q, k, v = q.reshape(k.size(0) * k.size(1), n_queries, k.size(3)), k.flatten(0, 1), v.flatten(0, 1)
        scores = _scaled_product(q, k.transpose(1, 2), ctx.scale)
        scores = scores.to(torch.promote_types(q.dtype, torch.float32)).view(scores_shape)
        if bias is not None:
            scores += bias
        weights = scores.softmax(-1)
        if bias is not None and weights[..., 0].isnan().any():
            weights = weights.masked_fill(bias.isneginf().all(-1, keepdim=True), 0.0)
        weights = weights.to(q.dtype).view(len(q), n_queries, k.size(1))
        keep = keep_mask(weights.shape, dropout) if dropout else None
        ctx.save_for_backward(q, k, v, weights, bias, keep)
        dropped = weights if keep is None else drop(weights, keep, dropout)
        return torch.bmm(dropped, v).view(*scores_shape[:3], v.size(2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, bias, keep = ctx.saved_tensors
        grad = grad.reshape(len(q), q.size(1), v.size(2))
        dropped, grad_weights = weights, torch.bmm(grad, v.transpose(1, 2))
        if keep is not None:
            dropped, grad_weights = (drop(x, keep, ctx.dropout) for x in (weights, grad_weights))
        grad_v = torch.bmm(dropped.transpose(1, 2), grad)
        wide = torch.promote_types(q.dtype, torch.float32)
        grad_scores = torch._softmax_backward_data(grad_weights.to(wide), weights.to(wide), -1, wide)
        grad_bias = None
        if bias is not None and ctx.needs_input_grad[3]:
            grad_bias = grad_scores.view(*ctx.shapes[0][:3], k.size(1)).sum_to_size(bias.shape)
        grad_scores = grad_scores.to(q.dtype)
        grad_q = _scaled_product(grad_scores, k, ctx.scale)
        grad_k = _scaled_product(grad_scores.transpose(1, 2), q, ctx.scale)
        grads = (each.view(shape) for each, shape in zip((grad_q, grad_k, grad_v), ctx.shapes, strict=True))
        return *grads, grad_bias, None


def _scaled_product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Compute `scale * torch.bmm(a, b)` in one pass."""
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=scale)  # beta=0 ignores the first tensor
