"""Residual connections around sublayers, one class per norm placement."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from diglot.model.dropout import Dropout


class Depth(NamedTuple):
    """The numbers of encoder and decoder layers, and the stack that a sublayer belongs to."""

    encoder: int
    decoder: int
    stack: Literal["encoder", "decoder"]


class Residual(nn.Module):
    """Base of the norm placements: a sublayer with norm, dropout and skip connection.

    Extra arguments of the forward pass are passed to the sublayer.

    Args:
        sublayer: maps (B, T, D) to (B, T, D).
        d_model: width D.
        norm: factory of a norm over D.
        dropout: dropout probability of the sublayer's output.
        depth: the numbers of layers, and this sublayer's stack.
    """

    needs_final_norm = False  # whether the stack needs a norm after its last layer

    def __init__(
        self, sublayer: nn.Module, d_model: int, norm: Callable[[int], nn.Module], dropout: float, depth: Depth
    ) -> None:
        super().__init__()
        self.sublayer = sublayer
        self.norm = norm(d_model)
        self.dropout = Dropout(dropout)

    def reset_sublayer(self) -> None:
        """Reinitialise the sublayer's weights if the placement prescribes its own initialisation."""


class PostNorm(Residual):
    """Norm after the sum, as in the original Transformer (Vaswani et al., 2017)."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.norm(x + self.dropout(self.sublayer(x, *args, **kwargs)))


class PreNorm(Residual):
    """Norm before the sublayer: stable with little warm-up (Xiong et al., 2020)."""

    needs_final_norm = True

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x + self.dropout(self.sublayer(self.norm(x), *args, **kwargs))


class SandwichNorm(PreNorm):
    """Pre-norm with a second norm on the sublayer's output, before the sum (Ding et al., 2021)."""

    def __init__(
        self, sublayer: nn.Module, d_model: int, norm: Callable[[int], nn.Module], dropout: float, depth: Depth
    ) -> None:
        super().__init__(sublayer, d_model, norm, dropout, depth)
        self.out_norm = norm(d_model)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x + self.dropout(self.out_norm(self.sublayer(self.norm(x), *args, **kwargs)))


class DeepNorm(Residual):
    """Post-norm with an up-weighted skip and down-scaled sublayers, for very deep stacks (Wang et al., 2022).

    Args:
        sublayer, d_model, norm, dropout, depth: see Residual.
        alpha: factor of the skip connection. None: for N encoder and M decoder layers, 0.81 (N^4 M)^(1/16) in the
            encoder and (3 M)^(1/4) in the decoder.
        beta: gain of the initialisation of feed-forward, value and output projections. None: 0.87 (N^4 M)^(-1/16) in
            the encoder and (12 M)^(-1/4) in the decoder.

    Raises:
        ValueError: alpha or beta is out of range.
    """

    def __init__(
        self,
        sublayer: nn.Module,
        d_model: int,
        norm: Callable[[int], nn.Module],
        dropout: float,
        depth: Depth,
        alpha: float | None = None,
        beta: float | None = None,
    ) -> None:
        super().__init__(sublayer, d_model, norm, dropout, depth)
        for name, value in (("alpha", alpha), ("beta", beta)):
            if value is not None and not 0 < value <= 1000:
                raise ValueError(f"{name} ({value}) must be above 0 and at most 1000")
        if depth.stack == "encoder":
            depth_product = depth.encoder**4 * depth.decoder
            defaults = 0.81 * depth_product ** (1 / 16), 0.87 * depth_product ** (-1 / 16)
        else:
            defaults = (3 * depth.decoder) ** (1 / 4), (12 * depth.decoder) ** (-1 / 4)
        self.alpha = defaults[0] if alpha is None else alpha
        self.beta = defaults[1] if beta is None else beta

    def reset_sublayer(self) -> None:
        for name, module in self.sublayer.named_modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight, gain=1.0 if name in ("query", "key") else self.beta)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.norm(self.alpha * x + self.dropout(self.sublayer(x, *args, **kwargs)))
