"""Position-wise feed-forward networks: one class per kind."""

from collections.abc import Callable

from torch import Tensor, nn

from diglot.model.dropout import Dropout


class FeedForward(nn.Module):
    """Widen, bend, narrow: each token for itself (Vaswani et al., 2017).

    Args:
        d_model: width D of input and output.
        d_ff: width in between.
        dropout: share of the inner activations that training drops.
        activation: makes the module in between.
    """

    def __init__(self, d_model: int, d_ff: int, dropout: float, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.up, self.activation = nn.Linear(d_model, d_ff), activation()
        self.dropout, self.down = Dropout(dropout), nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        return self.down(self.dropout(self.activation(self.up(x))))


class GatedFeedForward(FeedForward):
    """A second, bent projection says how much of each inner value passes (GLU variants: Shazeer, 2020).

    Its three matrices are 2/3 as wide, to a multiple of 8, so that it has as many weights as a plain network of d_ff.
    """

    def __init__(self, d_model: int, d_ff: int, dropout: float, activation: Callable[[], nn.Module]) -> None:
        width = max(8, round(2 * d_ff / 3 / 8) * 8)
        super().__init__(d_model, width, dropout, activation)
        self.gate = nn.Linear(d_model, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.dropout(self.activation(self.gate(x)) * self.up(x)))
