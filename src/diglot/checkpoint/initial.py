"""The initial weights of a run that starts from a checkpoint."""

from torch import Tensor, cat, stack

from diglot.checkpoint.file import Checkpoint
from diglot.data.extension import added_ids
from diglot.data.line_sample import Side
from diglot.data.tokenizer import Tokenizer

# The side of the vocabulary whose tokens have a row each in the weights of a module of `EncoderDecoder`.
_SIDES: dict[str, Side] = {"src_embedding": "src", "tgt_embedding": "tgt", "output": "tgt"}


def initial_weights(initial: Checkpoint, tokenizer: Tokenizer) -> dict[str, Tensor]:
    """Return the weights of a checkpoint's model, with rows for the pieces that a tokenizer adds to the checkpoint's.

    A new row is the mean of the rows of the old pieces that spell the new one. Therefore its logit is at most the
    greatest of theirs, and the model translates as before. If there are no such pieces, it is the mean of all rows.

    Args:
        initial: the checkpoint.
        tokenizer: the tokenizer of the run.
    """
    weights: dict[str, Tensor] = initial.model.state_dict()
    added = {side: added_ids(initial.tokenizer, tokenizer, side) for side in ("src", "tgt")}
    for name, weight in weights.items():
        side = _SIDES.get(name.partition(".")[0])
        if side is not None and added[side]:
            rows = stack([(weight[ids] if ids else weight).mean(dim=0) for ids in added[side]])
            weights[name] = cat((weight, rows))
    return weights
