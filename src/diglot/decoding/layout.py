"""Memory layout of a model's weights for decoding on a CPU."""

from torch import nn


def pack_for_decoding(model: nn.Module) -> None:
    """Store the weights of linear layers in column-major order, in place.

    Each step of a search multiplies them with only a few rows, which a CPU does faster in this layout
    (benchmarks/decode.py). Shapes, names and values do not change. A weight shared with an embedding stays row-major,
    because an embedding reads complete rows.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for module in model.modules():
        if isinstance(module, nn.Linear) and id(module.weight) not in tables:
            module.weight.data = module.weight.data.t().contiguous().t()
