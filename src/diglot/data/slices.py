"""Parts of a dataset's splits, in the notation of the `datasets` library: train[:500], train[10%:], train+extra."""

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from diglot.errors import UserError

_PART = re.compile(r"([^\[\]]+)(?:\[(?:(-?\d+)(%?))?:(?:(-?\d+)(%?))?\])?")

Batch = tuple[list[Any], list[Any]]  # source and target sentences of some rows
Source = Callable[[], Iterator[Batch]]  # reads a split of the dataset from its start


class Part(NamedTuple):
    """Some rows of a split of the dataset, such as "train[10%:]"."""

    name: str
    start: int | None
    stop: int | None
    percent: bool

    def bounds(self, source: Source) -> tuple[int, int]:
        """Return the first row and the row after the last, from 0; read the split to count its rows only if needed."""
        start, stop = self.start or 0, sys.maxsize if self.stop is None else self.stop
        if start >= 0 and stop >= 0 and not self.percent:
            return start, stop
        n_rows = sum(len(src) for src, _ in source())
        if self.percent:
            start, stop = (round(min(bound, 100) * n_rows / 100) for bound in (start, stop))
        start, stop = (bound + n_rows if bound < 0 else bound for bound in (start, stop))
        return max(start, 0), max(stop, 0)


def parse_parts(name: str, key: str) -> list[Part]:
    """Return the parts in a sum of splits.

    Args:
        name: the sum, such as "train[10%:]+extra".
        key: config key, for errors.

    Raises:
        UserError: the name is invalid.
    """
    parts = []
    for text in name.split("+"):
        match = _PART.fullmatch(text.strip())
        if not match:
            raise UserError(f"{key}={name}: must be a name, or a slice such as train[:500] or train[10%:]")
        split, start, start_unit, stop, stop_unit = match.groups()
        units = {unit for bound, unit in ((start, start_unit), (stop, stop_unit)) if bound is not None}
        if len(units) > 1:
            raise UserError(f"{key}={name}: both ends must be in rows, or both in percent")
        bounds = [None if bound is None else int(bound) for bound in (start, stop)]
        if units == {"%"} and any(bound is not None and abs(bound) > 100 for bound in bounds):
            raise UserError(f"{key}={name}: must be at most 100 percent")
        parts.append(Part(split.strip(), bounds[0], bounds[1], units == {"%"}))
    return parts


def sliced(batches: Iterator[Batch], start: int, stop: int) -> Iterator[Batch]:
    """Yield the rows from `start` up to `stop`, excluded; do not read further."""
    first = 0
    while first < stop and (batch := next(batches, None)) is not None:
        n_rows = len(batch[0])
        chosen = slice(max(start - first, 0), min(stop - first, n_rows))
        if chosen.start < chosen.stop:
            yield batch[0][chosen], batch[1][chosen]
        first += n_rows
