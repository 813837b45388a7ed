"""Dropout (Srivastava et al., 2014)."""

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """Drop-in replacement for torch.nn.Dropout that takes a third of the time on a CPU.

    On a CPU, PyTorch draws one double after another, which takes a tenth of a small model's training step
    (benchmarks/training.py). This module draws 16 random bits per element, so `p` is accurate to 1 / 65,536.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0 or x.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(x)
        return drop(x, keep_mask(x.shape, self.p), self.p)


def keep_mask(shape: torch.Size, p: float) -> Tensor:
    """Draw a boolean mask on the CPU that is False with probability p, from torch's generator."""
    threshold = round(p * 2**16) - 2**15
    if threshold == 2**15:  # above the largest int16, so every element is dropped
        return torch.zeros(shape, dtype=torch.bool)
    bits = torch.empty((shape.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    return bits.view(torch.int16)[: shape.numel()].view(shape) >= threshold


def drop(x: Tensor, keep: Tensor, p: float) -> Tensor:
    """Zero the elements of x that a mask does not keep, and scale the others to the same expected sum."""
    return x * keep.to(x.dtype).mul_(1 / (1 - p))
