"""Norms beside torch's LayerNorm: one class per kind, made from the width."""

from torch import Tensor, nn


class RMSNorm(nn.RMSNorm):
    """Divide by the root mean square; no mean is taken off, no bias added (Zhang and Sennrich, 2019).

    As LayerNorm under autocast on a GPU, it computes in its weights' own type.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if self.weight is None else x.to(self.weight.dtype))
