"""Where a sublayer's normalisation and skip connection stand: one class per norm placement."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from diglot.model.dropout import Dropout


class Residual(nn.Module):
    """A sublayer in its norm, dropout and skip connection. Extra arguments pass through to the sublayer.

    Args:
        sublayer: maps (B, T, D) to (B, T, D).
        d_model: width D.
        norm: makes a norm over D.
        dropout: share of the sublayer's output that training drops.
    """

    needs_final_norm = False  # whether a stack of these ends on a stream that no norm has seen

    def __init__(self, sublayer: nn.Module, d_model: int, norm: Callable[[int], nn.Module], dropout: float) -> None:
        super().__init__()
        self.sublayer = sublayer
        self.norm = norm(d_model)
        self.dropout = Dropout(dropout)


class PostNorm(Residual):
    """Norm after the sum, as first published (Vaswani et al., 2017)."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.norm(x + self.dropout(self.sublayer(x, *args, **kwargs)))


class PreNorm(Residual):
    """Norm before the sublayer: stable with little warm-up (Xiong et al., 2020)."""

    needs_final_norm = True

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x + self.dropout(self.sublayer(self.norm(x), *args, **kwargs))
