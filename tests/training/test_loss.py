"""Label-smoothed cross-entropy, against torch's and by hand."""

import math

import pytest
import torch
from torch.nn import functional as F

from diglot.training.loss import token_loss

B, T, V = 2, 7, 11


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(B, T, V, generator=generator) * 3
    labels = torch.randint(V, (B, T), generator=generator)
    return logits, labels, torch.arange(T)[None, :] < torch.tensor([T, T - 3])[:, None]


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.9])
def test_the_loss_is_the_sum_of_torch_s(eps: float) -> None:
    logits, labels, mask = tensors()
    loss = token_loss(logits, labels, mask, eps)
    torch.testing.assert_close(
        loss.smoothed, F.cross_entropy(logits[mask], labels[mask], label_smoothing=eps, reduction="sum")
    )
    torch.testing.assert_close(loss.nll, F.cross_entropy(logits[mask], labels[mask], reduction="sum"))
    assert loss.tokens == 2 * T - 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_the_gradient_is_that_of_torch_s(eps: float, dtype: torch.dtype) -> None:
    logits, labels, mask = tensors()
    logits = logits.to(dtype).requires_grad_()
    (found,) = torch.autograd.grad(token_loss(logits, labels, mask, eps).smoothed * 0.37, logits)
    expected = F.cross_entropy(logits[mask].float(), labels[mask], label_smoothing=eps, reduction="sum") * 0.37
    torch.testing.assert_close(found, torch.autograd.grad(expected, logits)[0])
    assert found.dtype == dtype


def test_the_loss_is_what_a_hand_computes() -> None:
    """Compare the loss with its closed form.

    Two of four tokens have e times the weight of the others, so p is e / (2 e + 2) or 1 / (2 e + 2).
    """
    logits, labels, mask = torch.tensor([[[1.0, 1.0, 0.0, 0.0]]]), torch.tensor([[1]]), torch.tensor([[True]])
    norm = math.log(2 * math.e + 2)
    loss = token_loss(logits, labels, mask, 0.2)
    assert loss.nll.item() == pytest.approx(norm - 1)
    assert loss.smoothed.item() == pytest.approx(0.8 * (norm - 1) + 0.2 * (norm - 0.5))


def test_padding_has_no_loss_and_no_gradient() -> None:
    logits, labels, mask = tensors()
    logits.requires_grad_()
    loss = token_loss(logits, labels, mask, 0.1)
    (gradient,) = torch.autograd.grad(loss.smoothed, logits)
    assert gradient[mask].abs().sum(-1).min() > 0
    assert torch.count_nonzero(gradient[~mask]) == 0
    other = torch.where(mask[..., None], logits.detach(), 100.0)
    torch.testing.assert_close(token_loss(other, labels.masked_fill(~mask, 0), mask, 0.1), loss)


def test_parts_add_up_to_the_whole() -> None:
    logits, labels, mask = tensors()
    parts = [token_loss(logits[i : i + 1], labels[i : i + 1], mask[i : i + 1], 0.1) for i in range(B)]
    for whole, *shares in zip(token_loss(logits, labels, mask, 0.1), *parts, strict=True):
        torch.testing.assert_close(sum(shares), whole)


def test_half_precision_logits_lose_nothing_more() -> None:
    logits, labels, mask = tensors()
    half = logits.bfloat16()
    loss = token_loss(half, labels, mask, 0.1)
    assert loss.smoothed.dtype == loss.nll.dtype == torch.float32
    torch.testing.assert_close(loss, token_loss(half.float(), labels, mask, 0.1))


def test_the_likelihood_is_only_watched() -> None:
    logits, labels, mask = tensors()
    loss = token_loss(logits.requires_grad_(), labels, mask, 0.1)
    assert loss.smoothed.requires_grad
    assert not loss.nll.requires_grad
