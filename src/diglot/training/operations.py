"""Operations of a training step, counted from the shapes of a model without computing anything."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from diglot.model import EncoderDecoder, evaluating


@torch.no_grad()
def count_operations(model: EncoderDecoder, rows: int, src_length: int, tgt_length: int) -> int:
    """Count the operations of the matrix products of a forward and a backward pass, without the optimizer.

    A product of (n, k) and (k, m) has 2 n k m operations. Only the forward pass is computed, on zeros, on the device of
    the model, which may be the meta device. The backward pass has two products of the same size for each of its own.
    """
    device = model.tgt_embedding.weight.device
    src, tgt = (torch.zeros(rows, length, dtype=torch.long, device=device) for length in (src_length, tgt_length))
    # In evaluation mode, compiled layers run uncompiled, and the math kernel consists of products that are counted.
    with evaluating(model), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(src, tgt, torch.ones_like(src, dtype=torch.bool))
    return 3 * counter.get_total_flops()


def moments(src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
    """Return the sums over a batch that determine its operations, without waiting for the device.

    Args:
        src_mask: (B, S), True on tokens.
        tgt_mask: (B, T), True on tokens.

    Returns:
        The matrix of the sums over sentences of a_i a_j (3, 3), where a is 1 and the lengths of source and target.
    """
    lengths = src_mask.sum(1), tgt_mask.sum(1)
    rows = torch.stack((torch.ones_like(lengths[0]), *lengths)).double()
    return rows @ rows.T


class Operations(NamedTuple):
    """Operations of a training step by the lengths s and t of a pair: a polynomial of degree two.

    Attributes:
        constant: operations that do not depend on the lengths.
        src, tgt: factors of s and t: linear layers.
        src_src, src_tgt, tgt_tgt: factors of s^2, s t and t^2: attention.
    """

    constant: float
    src: float
    tgt: float
    src_src: float
    src_tgt: float
    tgt_tgt: float

    @classmethod
    def of(cls, model: EncoderDecoder) -> "Operations":
        """Count the operations of six pairs, and solve for the factors."""
        lengths = [(2, 2), (3, 2), (2, 3), (3, 3), (4, 2), (2, 4)]
        terms = torch.tensor([[1, s, t, s * s, s * t, t * t] for s, t in lengths], dtype=torch.float64)
        counts = torch.tensor([count_operations(model, 1, s, t) for s, t in lengths], dtype=torch.float64)
        return cls(*torch.linalg.solve(terms, counts).tolist())

    def total(self, sums: Sequence[Sequence[float]]) -> float:
        """Return the operations on the real tokens of batches, given the sum of their `moments`."""
        (n, s, t), (_, ss, st), (_, _, tt) = sums
        terms = (n, s, t, ss, st, tt)
        return sum(factor * term for factor, term in zip(self, terms, strict=True))
