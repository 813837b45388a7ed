"""Many id sequences in one array."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from diglot.data.tokenizer import EOS, PAD


class FlatIds:
    """Id sequences without special ids, concatenated in one array, which may be a memory-mapped file.

    Args:
        ids: ids of all sequences.
        offsets: start of each sequence, and end of the last one (N + 1,).
    """

    def __init__(self, ids: np.ndarray, offsets: np.ndarray) -> None:
        self.ids, self.offsets = ids, offsets

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], vocab_size: int) -> "FlatIds":
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
        """Number of tokens of each sequence, including </s>."""
        return FlatLengths(self.offsets)

    def ended(self, numbers: np.ndarray, n_rows: int | None = None, width: int | None = None) -> np.ndarray:
        """Return sequences, each followed by </s>, as one padded int64 array (n_rows, width).

        Padding fills the rest of each row, and all rows below the sequences. A dimension that is not given is as small
        as possible.
        """
        n_rows = len(numbers) if n_rows is None else n_rows
        width = int(self.lengths[numbers].max()) if width is None else width
        starts = self.offsets[numbers]
        lengths = np.zeros(n_rows, np.int64)
        lengths[: len(numbers)] = self.offsets[numbers + 1] - starts
        before = np.cumsum(lengths) - lengths
        total = int(lengths.sum())
        # Copy all sequences at once: a loader spends most of its time here.
        rows = np.full((n_rows, width), PAD, np.int64)
        at = np.arange(total)
        sources = np.repeat(starts - before[: len(numbers)], lengths[: len(numbers)]) + at
        cells = np.repeat(np.arange(n_rows) * width - before, lengths) + at
        rows.reshape(-1)[cells] = self.ids[sources]
        real = np.arange(len(numbers))
        rows[real, lengths[real]] = EOS
        return rows


class FlatLengths:
    """Number of tokens of each sequence of a FlatIds, including </s>, looked up without computing them all."""

    def __init__(self, offsets: np.ndarray) -> None:
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, numbers: np.ndarray) -> np.ndarray:
        numbers = np.asarray(numbers)
        return self.offsets[numbers + 1] - self.offsets[numbers] + 1

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return (np.diff(self.offsets) + 1).astype(dtype or np.int64, copy=False)

    def max(self) -> int:
        """Return the greatest length, in constant memory; 0 if there are no sequences."""
        return max((int(part.max()) for part in self._parts()), default=0)

    def min(self) -> int:
        """Return the smallest length, in constant memory; 0 if there are no sequences."""
        return min((int(part.min()) for part in self._parts()), default=0)

    def _parts(self) -> Iterator[np.ndarray]:
        step = 2**20
        return (np.diff(self.offsets[i : i + step + 1]) + 1 for i in range(0, len(self), step))


def id_type(vocab_size: int) -> type[np.unsignedinteger]:
    """Return the smaller of two types that holds all ids."""
    return np.uint16 if vocab_size <= 2**16 else np.uint32
