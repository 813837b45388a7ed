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
