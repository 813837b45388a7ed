"""Tests that a sample of lines is random, within its limits, and independent of how the text is read."""

from collections.abc import Iterator, Sequence

import pytest

from diglot.data.line_sample import LineSample, Side, draw_lines
from diglot.data.text import ParallelText

SOURCES = [f"source {i} " + "a" * (i % 7) for i in range(500)]
TARGETS = [f"target {i} " + "b" * (i % 5) for i in range(500)]


class InBlocks:
    """The text in blocks of a size."""

    def __init__(self, size: int) -> None:
        self.size = size

    def blocks(self) -> Iterator[ParallelText]:
        for i in range(0, len(SOURCES), self.size):
            yield ParallelText(SOURCES[i : i + self.size], TARGETS[i : i + self.size])


def draw(
    max_lines: int = 10_000,
    max_characters: int = 10**6,
    seed: int = 1,
    size: int = 500,
    sides: Sequence[Side] = ("src",),
) -> LineSample:
    return draw_lines(InBlocks(size), sides, lambda line: "13" not in line, max_lines, max_characters, seed)  # type: ignore[arg-type]


def test_without_limits_all_usable_lines_are_drawn_in_order() -> None:
    sample = draw(sides=("src", "tgt"))
    usable = [[line for line in lines if "13" not in line] for lines in (SOURCES, TARGETS)]
    assert sample.lines == [("src", line) for line in usable[0]] + [("tgt", line) for line in usable[1]]
    assert (sample.n_lines, sample.n_usable) == (1000, 2 * len(usable[0]))


@pytest.mark.parametrize(
    "limits", [{"max_lines": 40}, {"max_characters": 600}, {"max_lines": 30, "max_characters": 200}]
)
def test_the_limits_hold_and_are_used(limits: dict[str, int]) -> None:
    sample = draw(**limits)  # type: ignore[arg-type]
    n_characters = sum(len(line) for _, line in sample.lines)
    assert len(sample.lines) <= limits.get("max_lines", 10_000)
    assert n_characters <= limits.get("max_characters", 10**6)
    # One more line would exceed a limit.
    assert len(sample.lines) == limits.get("max_lines") or n_characters > limits["max_characters"] - 20


@pytest.mark.parametrize("limits", [{"max_lines": 20}, {"max_characters": 300}])
@pytest.mark.parametrize("size", [7, 50, 499])
def test_the_sample_does_not_depend_on_the_blocks(limits: dict[str, int], size: int) -> None:
    assert draw(size=size, **limits) == draw(**limits)  # type: ignore[arg-type]


def test_a_smaller_sample_is_part_of_a_larger_one() -> None:
    assert set(draw(max_characters=300).lines) < set(draw(max_characters=900).lines)


def test_another_seed_draws_other_lines() -> None:
    assert draw(max_lines=20, seed=2).lines != draw(max_lines=20).lines


def test_a_line_longer_than_the_limit_is_drawn_alone() -> None:
    assert len(draw(max_characters=1).lines) == 1


def test_the_share_of_drawn_lines_is_even_over_the_text() -> None:
    counts = [0] * 5
    for seed in range(200):
        for _, line in draw(max_lines=20, seed=seed, size=50).lines:
            counts[int(line.split()[1]) // 100] += 1
    assert min(counts) > 0.8 * max(counts)
