"""Position-wise feed-forward networks, one class per kind."""

from collections.abc import Callable

from torch import Tensor, nn

from diglot.model.dropout import Dropout


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, applied to each token separately (Vaswani et al., 2017).

    Args:
        d_model: width D of input and output.
        d_ff: inner width.
        dropout: dropout probability of the inner activations.
        activation: factory of the activation module.
        bias: whether the linear layers have biases.
    """

    def __init__(
        self, d_model: int, d_ff: int, dropout: float, activation: Callable[[], nn.Module], bias: bool = True
    ) -> None:
        super().__init__()
        self.up, self.activation = nn.Linear(d_model, d_ff, bias), activation()
        self.dropout, self.down = Dropout(dropout), nn.Linear(d_ff, d_model, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        return self.down(self.dropout(self.activation(self.up(x))))


class GatedFeedForward(FeedForward):
    """Feed-forward network with a gate: a second, activated projection multiplies the first (GLU: Shazeer, 2020).

    The inner width is 2/3 of d_ff, rounded to a multiple of 8, so that the three matrices together have about as many
    parameters as the two of an ungated network.
    """

    def __init__(
        self, d_model: int, d_ff: int, dropout: float, activation: Callable[[], nn.Module], bias: bool = True
    ) -> None:
        width = max(8, round(2 * d_ff / 3 / 8) * 8)
        super().__init__(d_model, width, dropout, activation, bias)
        self.gate = nn.Linear(d_model, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.dropout(self.activation(self.gate(x)) * self.up(x)))
