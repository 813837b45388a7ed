"""Many sequences of token ids in one array."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from diglot.data.tokenizer import EOS, PAD


class FlatIds:
    """Sequences of token ids without special ids, concatenated in one array, which may be a memory-mapped file.

    Args:
        ids: ids of all N sequences.
        offsets: start of each sequence in `ids`, and end of the last one (N + 1,).
    """

    def __init__(self, ids: np.ndarray, offsets: np.ndarray) -> None:
        self.ids, self.offsets = ids, offsets

    @classmethod
    def from_sequences(cls, sequences: Sequence[Sequence[int]], vocab_size: int) -> "FlatIds":
        """Create an instance from sequences in memory."""
        offsets = np.zeros(len(sequences) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, sequences), np.int64, len(sequences)), out=offsets[1:])
        flat = chain.from_iterable(sequences)
        return cls(np.fromiter(flat, id_type(vocab_size), int(offsets[-1])), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    @property
    def lengths(self) -> "FlatLengths":
        """Number of tokens of each sequence, including </s> (N,)."""
        return FlatLengths(self.offsets)

    def padded(self, indices: np.ndarray, n_rows: int | None = None, width: int | None = None) -> np.ndarray:
        """Return sequences, each followed by </s>, as one padded int64 array (n_rows, width).

        Args:
            indices: indices of the sequences.
            n_rows: number of rows; the rows below the sequences are padding. None: one row per sequence.
            width: number of columns; None: that of the longest sequence.
        """
        n_rows = len(indices) if n_rows is None else n_rows
        width = int(self.lengths[indices].max()) if width is None else width
        starts = self.offsets[indices]
        lengths = self.offsets[indices + 1] - starts
        # Copy all sequences at once, because a loader spends most of its time here. `numbers` counts the ids of all
        # sequences from 0; `firsts` has the number of the first id of each sequence.
        firsts = np.cumsum(lengths) - lengths
        numbers = np.arange(int(lengths.sum()))
        rows = np.full((n_rows, width), PAD, np.int64)
        filled = np.arange(len(indices))
        sources = np.repeat(starts - firsts, lengths) + numbers
        targets = np.repeat(filled * width - firsts, lengths) + numbers
        rows.reshape(-1)[targets] = self.ids[sources]
        rows[filled, lengths] = EOS
        return rows


class FlatLengths:
    """Numbers of tokens of the sequences of a FlatIds, including </s>, which are computed when they are looked up.

    Args:
        offsets: offsets of the FlatIds (N + 1,).
    """

    def __init__(self, offsets: np.ndarray) -> None:
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        indices = np.asarray(indices)
        return self.offsets[indices + 1] - self.offsets[indices] + 1

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return (np.diff(self.offsets) + 1).astype(dtype or np.int64, copy=False)

    def max(self) -> int:
        """Return the greatest length, in constant memory; 0 if there are no sequences."""
        return max((int(chunk.max()) for chunk in self._chunks()), default=0)

    def min(self) -> int:
        """Return the smallest length, in constant memory; 0 if there are no sequences."""
        return min((int(chunk.min()) for chunk in self._chunks()), default=0)

    def _chunks(self) -> Iterator[np.ndarray]:
        step = 2**20
        return (np.diff(self.offsets[i : i + step + 1]) + 1 for i in range(0, len(self), step))


def id_type(vocab_size: int) -> type[np.unsignedinteger]:
    """Return the smallest of the types uint16 and uint32 that can store all ids of a vocabulary."""
    return np.uint16 if vocab_size <= 2**16 else np.uint32
