"""Norms other than torch's LayerNorm, one class per kind, constructed from the width."""

from torch import Tensor, nn


class RMSNorm(nn.RMSNorm):
    """Division by the root mean square, without subtracting a mean or adding a bias (Zhang and Sennrich, 2019).

    It computes in the dtype of its weight, as LayerNorm does under autocast on a GPU.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if self.weight is None else x.to(self.weight.dtype))
