"""Collation of pairs into batches of padded tensors."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from diglot.data.batching import MicroBatch, widths
from diglot.data.flat import FlatIds
from diglot.data.tokenizer import BOS, EOS, PAD


class Batch(NamedTuple):
    """A micro-batch of padded tensors. Masks are True on tokens and False on padding.

    Attributes:
        src: source ids, followed by </s> (B, S).
        src_mask: mask of the sources (B, S).
        tgt_in: decoder input: the start token (see `SpecialIds`), followed by the target ids (B, T).
        labels: target ids, followed by </s> (B, T).
        tgt_mask: mask of the labels (B, T). It is also False in a dummy batch and in rows that do not count.
        pairs: indices of the pairs; fewer than B if the last rows are padding that fills a fixed shape.
        update_target_tokens: number of target tokens of the complete update, over all processes.
        position: number of the micro-batch in the stream, from 0.
        passes: fractional number of passes over the data after this micro-batch.
        place: position of the stream after the update (see StreamPosition).
        ends_update: whether this is the last micro-batch of its update on this process.
    """

    src: Tensor
    src_mask: Tensor
    tgt_in: Tensor
    labels: Tensor
    tgt_mask: Tensor
    pairs: Tensor
    update_target_tokens: int
    position: int
    passes: float
    place: tuple[int, ...] = ()
    ends_update: bool = True

    def on(self, device: torch.device) -> "Batch":
        """Return the batch with its tensors on a device."""
        tensors: dict[str, Any] = {
            name: value.to(device) for name, value in self._asdict().items() if isinstance(value, Tensor)
        }
        return self._replace(**tensors)


class Pairs(torch.utils.data.Dataset):
    """Dataset of tokenised pairs that is indexed by micro-batches: `pairs[micro_batch]` is a Batch.

    Args:
        src: sources.
        tgt: their targets.
        width_step: step of the width of the shorter side; see `widths`.
        counts: for each pair, whether its target counts in sums (N,); None: all targets count.
        bos: id with which a decoder input starts.
    """

    def __init__(
        self, src: FlatIds, tgt: FlatIds, width_step: int = 1, counts: np.ndarray | None = None, bos: int = BOS
    ) -> None:
        self.src, self.tgt, self.width_step, self.counts, self.bos = src, tgt, width_step, counts, bos

    def __len__(self) -> int:
        return len(self.src)

    def __getitem__(self, micro_batch: MicroBatch) -> Batch:
        indices = micro_batch.pairs
        if micro_batch.shape:
            n_rows, src_width = micro_batch.shape
            tgt_width = src_width
        else:
            n_rows = len(indices)
            src_longest, tgt_longest = (int(side.lengths[indices].max()) for side in (self.src, self.tgt))
            src_width, tgt_width = widths(src_longest, tgt_longest, self.width_step)
        src = torch.from_numpy(self.src.padded(indices, n_rows, src_width))
        labels = torch.from_numpy(self.tgt.padded(indices, n_rows, tgt_width))
        tgt_in = labels.roll(1, 1)  # the last column is now column 0, which is overwritten below
        tgt_in[tgt_in == EOS] = PAD
        tgt_in[: len(indices), 0] = self.bos
        tgt_in[len(indices) :, 0] = PAD
        tgt_mask = torch.zeros_like(labels, dtype=torch.bool) if micro_batch.is_dummy else labels != PAD
        if self.counts is not None:
            tgt_mask[: len(indices)] &= torch.from_numpy(self.counts[indices])[:, None]
        return Batch(
            src=src,
            src_mask=src != PAD,
            tgt_in=tgt_in,
            labels=labels,
            tgt_mask=tgt_mask,
            pairs=torch.from_numpy(indices),
            update_target_tokens=micro_batch.update_target_tokens,
            position=micro_batch.position,
            passes=micro_batch.pass_number + micro_batch.progress,
            place=tuple(micro_batch.place),
            ends_update=micro_batch.ends_update,
        )
