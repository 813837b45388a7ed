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
        threshold = round(self.p * 2**16) - 2**15
        if threshold == 2**15:  # above the largest int16, so every element is dropped
            return x * 0.0
        bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        keep = bits.view(torch.int16)[: x.numel()].view(x.shape) >= threshold
        return x * keep.to(x.dtype).mul_(1 / (1 - self.p))
