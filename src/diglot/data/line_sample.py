"""A random sample of the lines of a text, drawn in one pass and with limited memory."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

import numpy as np

from diglot.data.text import Parallel

Side = Literal["src", "tgt"]


class LineSample(NamedTuple):
    """A random sample of the lines of a text.

    Attributes:
        lines: side and text of each line; the lines of the first side come first, in the order of the text.
        n_lines: number of lines of the text.
        n_usable: number of lines that the sample was drawn from.
    """

    lines: list[tuple[Side, str]]
    n_lines: int
    n_usable: int


class _Drawn(NamedTuple):
    """A line with a random number. The lines with the smallest numbers form the sample."""

    draw: float
    side: int
    number: int
    line: str


def draw_lines(
    text: Parallel,
    sides: Sequence[Side],
    is_usable: Callable[[str], bool],
    max_lines: int,
    max_characters: int,
    seed: int,
) -> LineSample:
    """Draw lines of a text at random, as many as the limits permit, but at least one.

    Args:
        text: the text.
        sides: sides of the text.
        is_usable: returns whether a line may be drawn.
        max_lines: greatest number of lines.
        max_characters: greatest number of characters in all these lines.
        seed: seed of the draw.
    """
    random = np.random.default_rng(seed)
    drawn: list[_Drawn] = []
    threshold, n_pairs, n_usable, n_characters = 1.0, 0, 0, 0
    for pairs in text.blocks():
        for side, name in enumerate(sides):
            lines = pairs.src if name == "src" else pairs.tgt
            for number, (line, draw) in enumerate(zip(lines, random.random(len(lines)).tolist()), start=n_pairs):
                if is_usable(line):
                    n_usable += 1
                    if draw < threshold:
                        drawn.append(_Drawn(draw, side, number, line))
                        n_characters += len(line)
        n_pairs += len(pairs)
        if len(drawn) > 2 * max_lines or n_characters > 2 * max_characters:
            drawn = _within_limits(drawn, max_lines, max_characters)
            threshold, n_characters = drawn[-1].draw, sum(len(item.line) for item in drawn)
    in_order = sorted(item[1:] for item in _within_limits(drawn, max_lines, max_characters))
    return LineSample([(sides[side], line) for side, _, line in in_order], n_pairs * len(sides), n_usable)


def _within_limits(drawn: list[_Drawn], max_lines: int, max_characters: int) -> list[_Drawn]:
    """Return the lines with the smallest random numbers, as many as the limits permit, but at least one if there is."""
    drawn = sorted(drawn)[:max_lines]
    n_characters = list(accumulate(len(item.line) for item in drawn))
    return drawn[: max(1, bisect_right(n_characters, max_characters))]
