"""From numbered pairs to padded tensors."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from diglot.data.batching import MicroBatch
from diglot.data.tokenizer import BOS, EOS, PAD


class Batch(NamedTuple):
    """What the model computes at once. Masks are True on tokens and False on padding.

    Attributes:
        src: source ids, </s> at the end (B, S).
        src_mask: (B, S).
        tgt_in: what the decoder is given, <s> y (B, T).
        labels: what it should say, y </s> (B, T).
        tgt_mask: (B, T); False everywhere in a batch that counts nowhere.
        pairs: numbers of the pairs (B,).
        update_target_tokens: target tokens of its whole update, on all processes together.
        position: the micro-batch's number in the run's stream.
        passes: how often the data have been seen after it, as a fraction.
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


class FlatIds:
    """Many id sequences, without special ids, in one flat array."""

    def __init__(self, sequences: Sequence[Sequence[int]], vocab_size: int) -> None:
        lengths = np.fromiter((len(s) for s in sequences), dtype=np.int64, count=len(sequences))
        self.ends = np.cumsum(lengths)
        self.ids = np.fromiter(
            (i for s in sequences for i in s),
            dtype=np.uint16 if vocab_size <= 2**16 else np.uint32,
            count=int(lengths.sum()),
        )

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i: int) -> np.ndarray:
        return self.ids[self.ends[i - 1] if i else 0 : self.ends[i]]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each, </s> counted."""
        return np.diff(self.ends, prepend=0) + 1


def pad(rows: Sequence[np.ndarray], first: int | None = None, last: int | None = None) -> Tensor:
    """Sequences to one (B, longest) tensor, each between `first` and `last` where given, padding behind."""
    before = int(first is not None)
    width = max(len(row) for row in rows) + before + (last is not None)
    padded = np.full((len(rows), width), PAD, dtype=np.int64)
    if first is not None:
        padded[:, 0] = first
    for i, row in enumerate(rows):
        padded[i, before : before + len(row)] = row
        if last is not None:
            padded[i, before + len(row)] = last
    return torch.from_numpy(padded)


class Pairs(torch.utils.data.Dataset):
    """Tokenised pairs, fetched a batch at a time: `pairs[micro_batch]` is a Batch."""

    def __init__(self, src: FlatIds, tgt: FlatIds) -> None:
        self.src, self.tgt = src, tgt

    def __len__(self) -> int:
        return len(self.src)

    def __getitem__(self, micro_batch: MicroBatch) -> Batch:
        numbers = micro_batch.pairs.tolist()
        sources, targets = [self.src[i] for i in numbers], [self.tgt[i] for i in numbers]
        src, labels = pad(sources, last=EOS), pad(targets, last=EOS)
        return Batch(
            src=src,
            src_mask=src != PAD,
            tgt_in=pad(targets, first=BOS),
            labels=labels,
            tgt_mask=torch.zeros_like(labels, dtype=torch.bool) if micro_batch.is_spare else labels != PAD,
            pairs=torch.from_numpy(micro_batch.pairs),
            update_target_tokens=micro_batch.update_target_tokens,
            position=micro_batch.position,
            passes=micro_batch.pass_number + micro_batch.progress,
        )
