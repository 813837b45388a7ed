"""How a model's weights lie in memory while it translates on a CPU."""

from torch import nn


def pack_for_decoding(model: nn.Module) -> None:
    """Store the weights of projections with the outputs of an input side by side, in place.

    A step of a search multiplies them by as few rows as there are sentences in a batch: so laid out, a CPU is sooner
    done with it (benchmarks/decode.py). Shapes, names and values stay. A table that is an embedding, too, stays as it
    is, for of that whole rows are read.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for module in model.modules():
        if isinstance(module, nn.Linear) and id(module.weight) not in tables:
            module.weight.data = module.weight.data.t().contiguous().t()
