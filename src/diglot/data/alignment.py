"""Where the lines of two sides cease to correspond: seen by lengths, and by what both languages write alike."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from diglot.data.text import ParallelText

WINDOW, REACH = 400, 10  # pairs that are looked at together, and the most lines that a side is moved by
N_WINDOWS = 2_500  # at most, spread evenly: a shift does not end by itself
_LEAST, _DEVIATIONS = 0.03, 7.0  # by how much, and how many standard deviations, a finding must exceed chance
_BUCKETS = 32


class Shift(NamedTuple):
    """Two sides that do not correspond.

    Attributes:
        split: dev, test, or a corpus of train.
        line: about where it begins, from 1.
        by: how many lines the target would have to be moved by to fit; 0: no number of lines up to REACH.
    """

    split: str
    line: int
    by: int

    def __str__(self) -> str:
        what = f"fit better when moved by {self.by:+d}: are lines missing?" if self.by else "do not fit any more"
        return f"{self.split}: from about line {self.line:,} on, the two sides {what}"


class Alignment:
    """Looks, in windows of neighbouring pairs, whether the two sides fit as they stand, and how well when moved.

    Args:
        split: what the text is called.
        n_pairs: about how many there are.
    """

    def __init__(self, split: str, n_pairs: int) -> None:
        self.split = split
        self._every = max(1, -(-n_pairs // WINDOW // N_WINDOWS))  # of the windows, one in so many is looked at
        self._number = 0  # of the next window
        self._size = WINDOW
        self._rest, self._before = ParallelText([], []), ParallelText([], [])  # not yet in a window; the last window
        self._lines: list[int] = []  # where the windows begin
        self._fits: list[np.ndarray] = []

    def look(self, block: ParallelText) -> None:
        """Take in the next pairs."""
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
        """The beginning of each stretch that fits better when moved, or does not fit though the rest does."""
        self._end()
        if not self._fits:
            return []
        fits = np.stack(self._fits)
        unmoved = fits[:, [REACH]]
        # How much better each window fits moved than as it stands; and how far it falls behind half of the best.
        findings = np.concatenate((fits - unmoved, np.quantile(unmoved, 0.9) / 2 - unmoved), axis=1)
        deviation = 1.5 / self._size**0.5  # what chance makes of such a difference in a window
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
                # A part where lines merely fit less, as in sorted text, still fits best as it stands.
                means = fits[first:last].mean(0)
                if by or means[REACH] < np.delete(means, REACH).max() + 3 * deviation / (last - first) ** 0.5:
                    found.append(Shift(self.split, self._lines[first], by))
                rest += [(start, first), (last, stop)]
        return sorted(found)

    def is_unrelated(self) -> bool:
        """Whether the sides fit as they stand no better than any other lines would; a few windows say little."""
        self._end()
        unmoved = np.array([fits[REACH] for fits in self._fits])
        if len(unmoved) < 5 or self.shifts():
            return False
        return bool(unmoved.mean() < max(_LEAST, 3 * unmoved.std() / len(unmoved) ** 0.5))

    def _end(self) -> None:
        """Look at the last lines, too."""
        n = len(self._rest)
        if not self._number and n >= WINDOW // 8:  # too small for a window: all of it is one
            self._add(1, self._rest)
            self._size = n
        elif self._number and n:
            last = ParallelText(self._before.src + self._rest.src, self._before.tgt + self._rest.tgt)
            self._add(self._number * WINDOW + n - WINDOW + 1, last.select(range(n, n + WINDOW)))
        self._rest = ParallelText([], [])

    def _add(self, line: int, window: ParallelText) -> None:
        self._lines.append(line)
        self._fits.append(_fits(window))


def _heaviest(values: np.ndarray) -> tuple[int, int]:
    """Where the stretch with the greatest sum begins and ends; nowhere, if all are negative (Kadane's algorithm)."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    gains = sums - np.minimum.accumulate(sums)
    last = int(np.argmax(gains))
    return int(np.argmin(sums[: last + 1])), last


def _fits(window: ParallelText) -> np.ndarray:
    """How well the sides fit when the target is moved by -REACH to REACH lines: correlation of lengths plus the share
    of common marks, less what any lines have (2 REACH + 1,)."""
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
        found.append(correlation + (common[has] / total[has]).sum() / (has.sum() + 40))  # marks of a few say little
    return np.array(found) - np.median(found)


def _ranks(values: Sequence[int]) -> np.ndarray:
    """Where each value stands among all, so that a few that are odd say no more than others."""
    in_order = np.sort(values)
    return (np.searchsorted(in_order, values, "left") + np.searchsorted(in_order, values, "right")) / 2


def _marks(line: str) -> list[int]:
    """What two languages write alike: numbers, marks, and words with a capital letter inside the line; counted in
    buckets by their hash."""
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
