"""A translation memory: the baseline that answers with the translation of the most similar sentence it knows."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from rapidfuzz import fuzz, process

from diglot.data.forms import comparable
from diglot.system.progress import step

_CELLS_AT_ONCE = 2**22  # scores held at a time: 16 MiB
_LONG = 2**24  # comparisons from which on progress is shown, about a second's work


class Match(NamedTuple):
    """The sentence of a memory that is nearest to a query.

    Attributes:
        index: its place in the memory.
        similarity: rapidfuzz's ratio, 0 (nothing in common) to 100 (equal).
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which a match has no use for
    similarity: float


def nearest(queries: list[str], memory: list[str]) -> list[Match]:
    """Finds for each query the most similar sentence of the memory, the first one where several are.

    Texts are compared as `comparable` makes them.

    Raises:
        ValueError: there are queries and the memory is empty.
    """
    if not queries:
        return []
    if not memory:
        raise ValueError("an empty memory has no nearest sentence")
    queries, memory = list(map(comparable, queries)), list(map(comparable, memory))
    if len(queries) * len(memory) < _LONG:
        return _nearest(queries, memory, lambda done: None)
    with step(f"comparing {len(queries)} sentences with {len(memory)}", total=len(queries)) as advance:
        return _nearest(queries, memory, advance)


def _nearest(queries: list[str], memory: list[str], advance: Callable[[int], None]) -> list[Match]:
    matches = []
    n_rows = max(1, _CELLS_AT_ONCE // len(memory))
    for start in range(0, len(queries), n_rows):
        chunk = queries[start : start + n_rows]
        # float32 and not uint8: rounding would make ties that are none.
        scores = process.cdist(chunk, memory, scorer=fuzz.ratio, dtype=np.float32, workers=-1)
        best = scores.argmax(axis=1)  # the first of equals
        matches += [Match(int(index), float(scores[row, index])) for row, index in enumerate(best)]
        advance(len(chunk))
    return matches
