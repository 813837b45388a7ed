"""Detection of misaligned lines in parallel text, from line lengths and from marks that both languages write alike."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from diglot.data.text import ParallelText, UnequalLinesError, read_blocks

WINDOW, REACH = 400, 10  # pairs per window, and the largest shift that is tried, in lines
N_WINDOWS = 2_500  # maximum, spread evenly; a sample suffices, because a shift affects all lines after it
_LEAST, _DEVIATIONS = 0.03, 7.0  # how far a finding must exceed chance: in fit, and in standard deviations
_BUCKETS = 32


class Shift(NamedTuple):
    """A stretch of text whose two sides do not correspond.

    Attributes:
        split: dev, test, or the name of a train corpus.
        line: approximate first line of the stretch, counted from 1.
        by: number of lines by which the target would have to be moved to fit; 0 if no number up to REACH fits.
    """

    split: str
    line: int
    by: int

    def __str__(self) -> str:
        what = f"match better when shifted by {self.by:+d}: are lines missing?" if self.by else "no longer match"
        return f"{self.split}: from about line {self.line:,} on, source and target {what}"


class Alignment:
    """Detector of shifts in a text.

    For each window of neighbouring pairs, it compares the fit of the two sides as they are with the fit when the target
    is moved by some lines.

    Args:
        split: name of the text, for reports.
        n_pairs: approximate number of pairs.
    """

    def __init__(self, split: str, n_pairs: int) -> None:
        self.split = split
        self._every = max(1, -(-n_pairs // WINDOW // N_WINDOWS))  # one window in this many is examined
        self._number = 0  # index of the next window
        self._size = WINDOW
        self._rest, self._before = ParallelText([], []), ParallelText([], [])  # not yet in a window; the last window
        self._lines: list[int] = []  # first line of each window
        self._fits: list[np.ndarray] = []

    def look(self, block: ParallelText) -> None:
        """Add the next pairs."""
        pairs = ParallelText(self._rest.src + block.src, self._rest.tgt + block.tgt)
        start = 0
        while len(pairs) - start >= WINDOW:
            self._before = pairs.select(range(start, start + WINDOW))
            if self._number % self._every == 0:
                self._add(self._number * WINDOW + 1, self._before)
            start += WINDOW
            self._number += 1
        self._rest = pairs.select(range(start, len(pairs)))

    def shifts(self) -> list[Shift]:
        """Return the stretches that fit better when moved, or that do not fit although the rest does."""
        self._end()
        if not self._fits:
            return []
        fits = np.stack(self._fits)
        unmoved = fits[:, [REACH]]
        # How much better each window fits moved than unmoved. Last column: how far the unmoved fit is below half of its
        # 90th percentile.
        findings = np.concatenate((fits - unmoved, np.quantile(unmoved, 0.9) / 2 - unmoved), axis=1)
        deviation = 1.5 / self._size**0.5  # standard deviation of such a difference in one window
        found: list[Shift] = []
        rest = [(0, len(findings))]
        while rest:
            start, stop = rest.pop()
            best, where = _DEVIATIONS, (0, 0, 0)
            for k in range(findings.shape[1]):
                first, last = _heaviest(findings[start:stop, k] - _LEAST)
                sure = findings[start + first : start + last, k].sum() / (deviation * max(1, last - first) ** 0.5)
                if sure > best:
                    best, where = sure, (start + first, start + last, k)
            first, last, k = where
            if last:
                by = k - REACH if k <= 2 * REACH else 0
                # A stretch where lines merely fit less well, as in sorted text, still fits best unmoved.
                means = fits[first:last].mean(0)
                if by or means[REACH] < np.delete(means, REACH).max() + 3 * deviation / (last - first) ** 0.5:
                    found.append(Shift(self.split, self._lines[first], by))
                rest += [(start, first), (last, stop)]
        return sorted(found)

    def is_unrelated(self) -> bool:
        """Return whether the sides fit no better than arbitrary lines would.

        The result is False for fewer than five windows, which prove little, and for a text with shifts.
        """
        self._end()
        unmoved = np.array([fits[REACH] for fits in self._fits])
        if len(unmoved) < 5 or self.shifts():
            return False
        return bool(unmoved.mean() < max(_LEAST, 3 * unmoved.std() / len(unmoved) ** 0.5))

    def _end(self) -> None:
        """Add the remaining lines as a last window."""
        n = len(self._rest)
        if not self._number and n >= WINDOW // 8:  # less than one window: take all of it as one
            self._add(1, self._rest)
            self._size = n
        elif self._number and n:
            last = ParallelText(self._before.src + self._rest.src, self._before.tgt + self._rest.tgt)
            self._add(self._number * WINDOW + n - WINDOW + 1, last.select(range(n, n + WINDOW)))
        self._rest = ParallelText([], [])

    def _add(self, line: int, window: ParallelText) -> None:
        self._lines.append(line)
        self._fits.append(_fits(window))


def with_drift(error: UnequalLinesError) -> str:
    """Return the message of an error about unequal files, with the place from which on their lines do not match."""
    if error.n_pairs is None:
        return str(error)
    alignment = Alignment("", error.n_pairs)
    for src, tgt in zip(read_blocks(error.src_path), read_blocks(error.tgt_path)):
        n = min(len(src), len(tgt))
        alignment.look(ParallelText(src[:n], tgt[:n]))
    if shifts := alignment.shifts():
        return f"{error} (from about line {shifts[0].line:,} on, they no longer match)"
    return str(error)


def _heaviest(values: np.ndarray) -> tuple[int, int]:
    """Return the bounds of the stretch with the greatest sum, empty if all are negative (Kadane's algorithm)."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    gains = sums - np.minimum.accumulate(sums)
    last = int(np.argmax(gains))
    return int(np.argmin(sums[: last + 1])), last


def _fits(window: ParallelText) -> np.ndarray:
    """Return how well the sides fit when the target is moved by -REACH to REACH lines (2 REACH + 1,).

    The fit is the rank correlation of line lengths plus the share of common marks, less the median over all moves.
    """
    lengths = [_ranks([len(line) for line in side]) for side in (window.src, window.tgt)]
    marks = [np.array([_marks(line) for line in side]) for side in (window.src, window.tgt)]
    counts = [side.sum(1) for side in marks]
    n = len(window)
    found = []
    for by in range(-REACH, REACH + 1):
        src, tgt = slice(max(0, -by), n - max(0, by)), slice(max(0, by), n - max(0, -by))
        a, b = lengths[0][src], lengths[1][tgt]
        spread = a.std() * b.std()
        correlation = float(((a - a.mean()) * (b - b.mean())).mean() / spread) if spread > 1e-9 else 0.0
        common = 2 * np.minimum(marks[0][src], marks[1][tgt]).sum(1)
        total = counts[0][src] + counts[1][tgt]
        has = total > 0
        found.append(correlation + (common[has] / total[has]).sum() / (has.sum() + 40))  # few marks prove little
    return np.array(found) - np.median(found)


def _ranks(values: Sequence[int]) -> np.ndarray:
    """Return the rank of each value, so that outliers weigh no more than other values."""
    in_order = np.sort(values)
    return (np.searchsorted(in_order, values, "left") + np.searchsorted(in_order, values, "right")) / 2


def _marks(line: str) -> list[int]:
    """Count the marks in a line, which two languages tend to write alike, in buckets by hash.

    Marks are digits, punctuation and symbols except full stops and commas, and capitalised words after the first word.
    """
    counts = [0] * _BUCKETS
    for mark in line:
        if not (mark.isalpha() or mark.isspace() or mark in ".,"):
            counts[_bucket(mark)] += 1
    for word in line.split()[1:]:
        if word[0].isupper():
            counts[_bucket(word.strip(".,;:!?()\"'"))] += 1
    return counts


def _bucket(mark: str) -> int:
    return zlib.crc32(mark.encode("utf-8", "surrogatepass")) % _BUCKETS
