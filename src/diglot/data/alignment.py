"""Detection of misaligned lines in parallel text, by line lengths and by marks that both languages have in common."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from diglot.data.text import ParallelText, UnequalLinesError, read_blocks

WINDOW = 400  # number of pairs per window
MAX_OFFSET = 10  # greatest offset of the target that is tried, in lines
MAX_WINDOWS = 2_500  # in a text, spread evenly; a sample suffices, because a shift affects all lines after it
_MIN_GAIN = 0.03  # gain in fit that is subtracted from each window, because smaller gains are not reported
_MIN_DEVIATIONS = 7.0  # least score of a stretch, in standard deviations
_N_BUCKETS = 32  # number of counters for the marks of a line


class Shift(NamedTuple):
    """A stretch of text whose two sides do not correspond.

    Attributes:
        split: dev, test, or the name of a train corpus.
        line: approximate first line of the stretch, from 1.
        offset: number of lines by which the target would have to be moved to correspond; 0 if no number up to
            MAX_OFFSET fits.
    """

    split: str
    line: int
    offset: int

    def __str__(self) -> str:
        start = f"{self.split}: from about line {self.line:,} on, source and target"
        if not self.offset:
            return f"{start} no longer match"
        return f"{start} match better when shifted by {self.offset:+d}: are lines missing?"


class Alignment:
    """Detector of shifts in a text.

    It divides the text into windows of neighbouring pairs. For each window, it compares the fit of the two sides with
    their fit when the target is moved by some lines.

    Args:
        split: name of the text in reports.
        n_pairs: approximate number of pairs.
    """

    def __init__(self, split: str, n_pairs: int) -> None:
        self.split = split
        self._window_step = max(1, -(-n_pairs // WINDOW // MAX_WINDOWS))  # one window in this many is examined
        self._n_windows = 0  # number of complete windows
        self._window_size = WINDOW
        self._last_window = ParallelText([], [])
        self._pending = ParallelText([], [])  # pairs after the last window
        self._first_lines: list[int] = []  # number of the first line of each examined window, from 1
        self._fits: list[np.ndarray] = []  # fit of each examined window by offset

    def add(self, block: ParallelText) -> None:
        """Add the next pairs of the text."""
        pairs = ParallelText(self._pending.src + block.src, self._pending.tgt + block.tgt)
        start = 0
        while len(pairs) - start >= WINDOW:
            self._last_window = pairs.select(range(start, start + WINDOW))
            if self._n_windows % self._window_step == 0:
                self._add_window(self._n_windows * WINDOW + 1, self._last_window)
            start += WINDOW
            self._n_windows += 1
        self._pending = pairs.select(range(start, len(pairs)))

    def shifts(self) -> list[Shift]:
        """Return the stretches that fit better with an offset, or that do not fit although other stretches do."""
        self._finish()
        if not self._fits:
            return []
        fits = np.stack(self._fits)
        unmoved = fits[:, [MAX_OFFSET]]
        # For each window and offset, the gain in fit over no offset. In the last column, the amount by which the fit
        # without an offset is below half of its 90th percentile.
        findings = np.concatenate((fits - unmoved, np.quantile(unmoved, 0.9) / 2 - unmoved), axis=1)
        deviation = 1.5 / self._window_size**0.5  # standard deviation of such a gain in one window
        shifts: list[Shift] = []
        ranges = [(0, len(findings))]
        while ranges:
            start, stop = ranges.pop()
            best_score, best_range = _MIN_DEVIATIONS, (0, 0, 0)
            for column in range(findings.shape[1]):
                first, last = _max_sum_range(findings[start:stop, column] - _MIN_GAIN)
                score = findings[start + first : start + last, column].sum() / (deviation * max(1, last - first) ** 0.5)
                if score > best_score:
                    best_score, best_range = score, (start + first, start + last, column)
            first, last, column = best_range
            if last:
                offset = column - MAX_OFFSET if column <= 2 * MAX_OFFSET else 0
                # A stretch whose lines only fit less well, as in sorted text, still fits best without an offset.
                means = fits[first:last].mean(0)
                margin = 3 * deviation / (last - first) ** 0.5
                if offset or means[MAX_OFFSET] < np.delete(means, MAX_OFFSET).max() + margin:
                    shifts.append(Shift(self.split, self._first_lines[first], offset))
                ranges += [(start, first), (last, stop)]
        return sorted(shifts)

    def is_unrelated(self) -> bool:
        """Return whether the sides fit no better than arbitrary lines.

        The result is False for a text with fewer than five windows, which prove little, and for a text with shifts.
        """
        self._finish()
        unmoved = np.array([fits[MAX_OFFSET] for fits in self._fits])
        if len(unmoved) < 5 or self.shifts():
            return False
        return bool(unmoved.mean() < max(_MIN_GAIN, 3 * unmoved.std() / len(unmoved) ** 0.5))

    def _finish(self) -> None:
        """Add the remaining pairs as a last window, which may overlap with the one before."""
        n_pending = len(self._pending)
        if not self._n_windows and n_pending >= WINDOW // 8:  # a text shorter than a window becomes a smaller window
            self._add_window(1, self._pending)
            self._window_size = n_pending
        elif self._n_windows and n_pending:
            pairs = ParallelText(self._last_window.src + self._pending.src, self._last_window.tgt + self._pending.tgt)
            window = pairs.select(range(n_pending, n_pending + WINDOW))
            self._add_window((self._n_windows - 1) * WINDOW + n_pending + 1, window)
        self._pending = ParallelText([], [])

    def _add_window(self, first_line: int, window: ParallelText) -> None:
        self._first_lines.append(first_line)
        self._fits.append(_fit_by_offset(window))


def add_shift(error: UnequalLinesError) -> str:
    """Return the message of an error about unequal files, with the line from which they no longer match, if found."""
    if error.n_pairs is None:
        return str(error)
    alignment = Alignment("", error.n_pairs)
    for src, tgt in zip(read_blocks(error.src_path), read_blocks(error.tgt_path)):
        n_lines = min(len(src), len(tgt))
        alignment.add(ParallelText(src[:n_lines], tgt[:n_lines]))
    if shifts := alignment.shifts():
        return f"{error} (from about line {shifts[0].line:,} on, they no longer match)"
    return str(error)


def _max_sum_range(values: np.ndarray) -> tuple[int, int]:
    """Return the bounds (start, stop) of the range with the greatest sum; it is empty if all values are negative."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    gains = sums - np.minimum.accumulate(sums)
    stop = int(np.argmax(gains))
    return int(np.argmin(sums[: stop + 1])), stop


def _fit_by_offset(window: ParallelText) -> np.ndarray:
    """Return the fit of the sides with the target moved by -MAX_OFFSET to MAX_OFFSET lines (2 MAX_OFFSET + 1,).

    The fit is the rank correlation of line lengths plus the share of common marks, minus the median over all offsets.
    """
    ranks = [_ranks([len(line) for line in side]) for side in (window.src, window.tgt)]
    marks = [np.array([_count_marks(line) for line in side]) for side in (window.src, window.tgt)]
    counts = [side.sum(1) for side in marks]
    n_pairs = len(window)
    fits = []
    for offset in range(-MAX_OFFSET, MAX_OFFSET + 1):
        src, tgt = slice(max(0, -offset), n_pairs - max(0, offset)), slice(max(0, offset), n_pairs - max(0, -offset))
        n_common = 2 * np.minimum(marks[0][src], marks[1][tgt]).sum(1)
        n_total = counts[0][src] + counts[1][tgt]
        has_marks = n_total > 0
        # The constant reduces the share if few lines have marks, which then prove little.
        share = (n_common[has_marks] / n_total[has_marks]).sum() / (has_marks.sum() + 40)
        fits.append(_correlation(ranks[0][src], ranks[1][tgt]) + share)
    return np.array(fits) - np.median(fits)


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation coefficient of two arrays; 0 if one of them is constant."""
    scale = a.std() * b.std()
    return float(((a - a.mean()) * (b - b.mean())).mean() / scale) if scale > 1e-9 else 0.0


def _ranks(values: Sequence[int]) -> np.ndarray:
    """Return the rank of each value. With ranks, outliers have no more weight than other values."""
    ordered = np.sort(values)
    return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / 2


def _count_marks(line: str) -> list[int]:
    """Count the marks in a line, in buckets by hash. Marks are what two languages often have in common.

    These are digits, punctuation and symbols except full stops and commas, and capitalised words after the first word.
    """
    counts = [0] * _N_BUCKETS
    for mark in line:
        if not (mark.isalpha() or mark.isspace() or mark in ".,"):
            counts[_bucket(mark)] += 1
    for word in line.split()[1:]:
        if word[0].isupper():
            counts[_bucket(word.strip(".,;:!?()\"'"))] += 1
    return counts


def _bucket(mark: str) -> int:
    """Return the index of a mark's counter."""
    return zlib.crc32(mark.encode("utf-8", "surrogatepass")) % _N_BUCKETS
