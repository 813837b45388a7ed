"""Slices and sums of a dataset's splits, in the notation of the `datasets` library: train[:500], train+extra."""

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from diglot.errors import UserError

_PART = re.compile(r"([^\[\]]+)(?:\[(?:(-?\d+)(%?))?:(?:(-?\d+)(%?))?\])?")

Batch = tuple[list[Any], list[Any]]  # source and target sentences of consecutive rows
Source = Callable[[], Iterator[Batch]]  # returns an iterator over the rows of a split, from its start


class Part(NamedTuple):
    """Consecutive rows of a split of a dataset, such as "train[10%:]".

    Attributes:
        name: name of the split in the dataset.
        start: first row; negative: counted from the end; None: 0.
        stop: row after the last one; negative: counted from the end; None: the end.
        percent: whether `start` and `stop` are percentages.
    """

    name: str
    start: int | None
    stop: int | None
    percent: bool

    def bounds(self, source: Source) -> tuple[int, int]:
        """Return the index of the first row and that of the row after the last.

        The split is read only if its number of rows is needed.
        """
        start, stop = self.start or 0, sys.maxsize if self.stop is None else self.stop
        if start >= 0 and stop >= 0 and not self.percent:
            return start, stop
        n_rows = sum(len(src) for src, _ in source())
        if self.percent:
            start, stop = (round(min(bound, 100) * n_rows / 100) for bound in (start, stop))
        start, stop = (bound + n_rows if bound < 0 else bound for bound in (start, stop))
        return max(start, 0), max(stop, 0)


def parse_parts(name: str, key: str) -> list[Part]:
    """Parse a sum of splits.

    Args:
        name: the sum, such as "train[10%:]+extra".
        key: config key in errors.

    Raises:
        UserError: the sum is invalid.
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


def slice_rows(batches: Iterator[Batch], start: int, stop: int) -> Iterator[Batch]:
    """Yield the rows from `start` to before `stop`, and read no batch after them."""
    n_before = 0
    while n_before < stop and (batch := next(batches, None)) is not None:
        n_rows = len(batch[0])
        rows = slice(max(start - n_before, 0), min(stop - n_before, n_rows))
        if rows.start < rows.stop:
            yield batch[0][rows], batch[1][rows]
        n_before += n_rows
