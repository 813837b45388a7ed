"""Label-smoothed cross-entropy as sums; the caller divides them by the update's number of tokens."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diglot.data.batch import Batch


class TokenLoss(NamedTuple):
    """Sums over the real target tokens of a batch, in nats, and the number of these tokens (all scalars).

    Attributes:
        smoothed: the loss to train on; the only field with a gradient.
        nll: negative log-likelihood, without label smoothing.
        tokens: number of real target tokens.
    """

    smoothed: Tensor
    nll: Tensor
    tokens: Tensor


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Both sums of a `TokenLoss` from one log-softmax, whose memory is reused for the gradient.

    Tensors of the logits' size are the largest of a training step. Only one of them is held.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, mask: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        log_probs = F.log_softmax(logits, -1, dtype=torch.float32)
        nll = -log_probs.gather(-1, labels[..., None]).squeeze(-1) * mask
        uniform = -log_probs.mean(-1) * mask
        ctx.save_for_backward(log_probs, labels, mask)
        ctx.eps, ctx.dtype = eps, logits.dtype
        nll_sum = nll.sum()
        ctx.mark_non_differentiable(nll_sum)
        return (1 - eps) * nll_sum + eps * uniform.sum(), nll_sum

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        log_probs, labels, mask = ctx.saved_tensors
        grad = log_probs.exp_().sub_(ctx.eps / log_probs.size(-1))
        grad.scatter_add_(-1, labels[..., None], torch.full_like(labels[..., None], ctx.eps - 1, dtype=grad.dtype))
        return grad.mul_((mask * gradients[0])[..., None]).to(ctx.dtype), None, None, None


def token_loss(logits: Tensor, labels: Tensor, mask: Tensor, label_smoothing: float) -> TokenLoss:
    """Compute the label-smoothed cross-entropy (Szegedy et al., 2016).

    The target distribution puts 1 - eps on the label and spreads eps evenly over all V tokens.

    Args:
        logits: (B, T, V), of any floating type; the loss is computed in float32.
        labels: (B, T).
        mask: (B, T), True on real tokens.
        label_smoothing: eps.
    """
    smoothed, nll = _SmoothedCrossEntropy.apply(logits, labels, mask, label_smoothing)
    return TokenLoss(smoothed, nll, mask.sum())


def batch_loss(model: nn.Module, batch: Batch, label_smoothing: float) -> TokenLoss:
    """Compute a training batch's loss with teacher forcing: each target token is predicted from those before it."""
    logits = model(batch.src, batch.tgt_in, batch.src_mask)
    return token_loss(logits, batch.labels, batch.tgt_mask, label_smoothing)
