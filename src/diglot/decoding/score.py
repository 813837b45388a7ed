"""Log-probabilities of given targets."""

import torch
from torch import Tensor

from diglot.data.special_ids import SpecialIds
from diglot.decoding.state import log_softmax
from diglot.model import EncoderDecoder, evaluating


@torch.inference_mode()
def pair_scores(model: EncoderDecoder, src: Tensor, labels: Tensor, special: SpecialIds) -> list[list[float]]:
    """Compute the log-probability of each target token given the source and the tokens before it (teacher forcing).

    The model runs in evaluation mode and without autocast, and the log-softmax in float32 or wider. So the rest of the
    batch changes a value only by rounding (below 1e-4). The sum over a target is the log-probability that a search
    would assign to the same tokens.

    Args:
        model: on the device of the tensors; its mode is restored afterwards.
        src: source ids (B, S), each sentence followed by </s> and padding.
        labels: target ids (B, T), each sentence followed by </s> and padding.
        special: the ids of the special tokens.

    Returns:
        For each pair, the natural log-probabilities of its target tokens, </s> last.

    Raises:
        ValueError: a source or target is longer than the model's maximum; the message names its row.
    """
    for side, ids, longest in (("source", src, model.max_src_positions), ("target", labels, model.max_tgt_positions)):
        lengths = (ids != special.pad).sum(1)
        if longest is not None and int(lengths.max()) > longest:
            row = int(lengths.argmax())
            raise ValueError(f"the {side} of row {row} has {int(lengths[row])} tokens; the maximum is {longest}")
    tgt_in = labels.roll(1, 1)
    tgt_in[tgt_in == special.eos] = special.pad  # outputs after </s> are not used
    tgt_in[:, 0] = special.bos
    with evaluating(model), torch.autocast(src.device.type, enabled=False):
        log_probs = log_softmax(model(src, tgt_in, src != special.pad))  # (B, T, V)
    token_log_probs = log_probs.gather(-1, labels[:, :, None])[:, :, 0]  # (B, T)
    lengths = (labels != special.pad).sum(1)
    return [row[:length] for row, length in zip(token_log_probs.tolist(), lengths.tolist(), strict=True)]
