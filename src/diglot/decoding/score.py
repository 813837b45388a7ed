"""From given targets to their log-probabilities."""

import torch
from torch import Tensor

from diglot.data.special_ids import SpecialIds
from diglot.decoding.state import log_softmax
from diglot.model import EncoderDecoder, evaluating


@torch.inference_mode()
def pair_scores(model: EncoderDecoder, src: Tensor, labels: Tensor, special: SpecialIds) -> list[list[float]]:
    """How probable each token of a target is, after the source and the tokens before it (teacher forcing).

    In evaluation mode, in float32 at least, so that what else is in the batch changes a value by no more
    than rounding (below 1e-4). Their sum is the log-probability that a search would give the same tokens.

    Args:
        model: on the tensors' device; its mode stays what it was.
        src: source ids, </s> behind each and padding behind that (B, S).
        labels: target ids in the same way, y </s> (B, T).
        special: the ids that are no text.

    Returns:
        For each pair the natural logarithms of its target tokens' probabilities, that of </s> last.

    Raises:
        ValueError: a pair is longer than the model's positions reach; it is named by its row.
    """
    for side, ids, longest in (("source", src, model.max_src_positions), ("target", labels, model.max_tgt_positions)):
        lengths = (ids != special.pad).sum(1)
        if longest is not None and int(lengths.max()) > longest:
            row = int(lengths.argmax())
            raise ValueError(f"the {side} of row {row} has {int(lengths[row])} tokens; positions reach to {longest}")
    tgt_in = labels.roll(1, 1)
    tgt_in[tgt_in == special.eos] = special.pad  # of what comes after </s> nothing is read
    tgt_in[:, 0] = special.bos
    with evaluating(model), torch.autocast(src.device.type, enabled=False):
        log_probs = log_softmax(model(src, tgt_in, src != special.pad))  # (B, T, V)
    chosen = log_probs.gather(-1, labels[:, :, None])[:, :, 0]  # (B, T)
    lengths = (labels != special.pad).sum(1)
    return [row[:length] for row, length in zip(chosen.tolist(), lengths.tolist(), strict=True)]
