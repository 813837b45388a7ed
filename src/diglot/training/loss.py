"""Label-smoothed cross-entropy, in sums: whoever knows the update divides."""

from typing import NamedTuple

from torch import Tensor


class TokenLoss(NamedTuple):
    """Sums over the real target tokens of a batch, in nats, and how many there are (all scalars)."""

    smoothed: Tensor
    nll: Tensor
    tokens: Tensor


def token_loss(logits: Tensor, labels: Tensor, mask: Tensor, label_smoothing: float) -> TokenLoss:
    """Cross-entropy with a target of 1 - eps on the label and eps spread over all V tokens (Szegedy et al., 2016).

    Args:
        logits: (B, T, V), of any floating type; computed on in float32.
        labels: (B, T).
        mask: (B, T), True on real tokens.
        label_smoothing: eps.
    """
    logits = logits.float()
    norm = logits.logsumexp(-1)  # (B, T)
    nll = (norm - logits.gather(-1, labels[..., None]).squeeze(-1)) * mask
    uniform = (norm - logits.mean(-1)) * mask
    smoothed = (1 - label_smoothing) * nll + label_smoothing * uniform
    return TokenLoss(smoothed.sum(), nll.detach().sum(), mask.sum())
