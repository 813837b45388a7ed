"""Translation memory, a baseline that returns the translation of the most similar training sentence."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from rapidfuzz import fuzz, process

from diglot.data.forms import comparable
from diglot.system.progress import step

_CELLS_AT_ONCE = 2**22  # greatest number of scores in memory, 16 MiB
_LONG = 2**24  # number of comparisons from which progress is shown; they take about a second


class Match(NamedTuple):
    """Sentence of a memory that is most similar to a query.

    Attributes:
        index: index of the sentence in the memory.
        similarity: rapidfuzz's ratio, from 0 (nothing in common) to 100 (equal).
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed
    similarity: float


def nearest(queries: list[str], memory: list[str]) -> list[Match]:
    """Find the most similar sentence of the memory for each query; the first one if several are equally similar.

    Texts are compared in the form of `comparable`.

    Args:
        queries: sentences to look up.
        memory: sentences of the memory.

    Raises:
        ValueError: there are queries, but the memory is empty.
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
        # float32, because rounding to uint8 would create false ties.
        scores = process.cdist(chunk, memory, scorer=fuzz.ratio, dtype=np.float32, workers=-1)
        best = scores.argmax(axis=1)  # the first maximum
        matches += [Match(int(index), float(scores[row, index])) for row, index in enumerate(best)]
        advance(len(chunk))
    return matches
