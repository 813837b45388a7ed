"""The maps of heads show each head's value, and the statistics behind them are right."""

import numpy as np
import pytest
import torch
from torch import Tensor

from diglot.training.figures import pixels
from diglot.training.head_maps import draw_heads
from diglot.training.heads import HeadSums


def sums(*weights: Tensor, causal: bool = False, is_cross: bool = False) -> HeadSums:
    found = HeadSums(causal, is_cross)
    for each in weights:
        found.add(each)
    return found


def onto(*keys: int, n: int) -> Tensor:
    """Return the weights (Q, M) of a head whose queries each attend to one key."""
    return torch.nn.functional.one_hot(torch.tensor(keys), n).float()


def test_the_distance_is_that_of_the_attended_keys() -> None:
    heads = torch.stack((onto(0, 1, 2, n=3), onto(1, 0, 0, n=3), torch.full((3, 3), 1 / 3)))
    assert sums(heads).distance.tolist() == pytest.approx([0, 4 / 3, (1 + 2 / 3 + 1) / 3])
    causal = torch.stack((onto(0, 0, 0, n=3), onto(0, 1, 2, n=3)))
    assert sums(causal, causal=True).distance.tolist() == pytest.approx([1.5, 0])  # the first query has no choice
    diagonal = torch.stack((onto(0, 2, 4, n=5), onto(4, 2, 0, n=5)))
    assert sums(diagonal, is_cross=True).distance.tolist() == pytest.approx([0, 8 / 3])


def test_a_key_is_covered_by_the_weight_of_one_query() -> None:
    heads = torch.stack((onto(0, 1, 2, n=3), onto(1, 1, 1, n=3), torch.full((3, 3), 1 / 3)))
    assert sums(heads, is_cross=True).coverage.tolist() == pytest.approx([1, 1 / 3, 1])
    short = torch.stack((onto(0, n=2), onto(0, n=2), onto(1, n=2)))
    assert sums(heads, short, is_cross=True).coverage.tolist() == pytest.approx([4 / 5, 2 / 5, 4 / 5])


def test_doubles_attend_to_the_same_keys() -> None:
    heads = torch.stack((onto(0, 1, 2, n=3), onto(0, 1, 1, n=3), onto(2, 2, 1, n=3)))
    assert sums(heads).doubles.tolist() == pytest.approx([2 / 3, 2 / 3, 1 / 3])
    assert sums(heads[:1]).doubles.tolist() == [0]


def test_a_map_has_a_cell_for_each_head_and_frames_the_marked_ones() -> None:
    values = np.array([[0.1, 0.25], [0.5, np.nan], [1.0, 12.0]])
    figure = draw_heads(
        {"encoder": values, "cross": values[:1]}, "title", None, {"encoder": values > 1, "cross": values[:1] > 1}
    )
    first, second = [axes for axes in figure.axes if axes.images]
    assert [text.get_text() for text in first.texts] == [".10", ".25", ".50", "1.00", "12"]
    assert len(first.patches) == 1
    assert not second.patches
    assert [label.get_text() for label in first.get_yticklabels()] == ["1", "2", "3"]
    assert first.images[0].get_clim() == (0, 12)
    height, width, _ = pixels(figure).shape
    assert max(height, width) < 600


def test_a_large_model_has_a_picture_of_limited_size_without_numbers() -> None:
    values = {kind: np.random.default_rng(1).random((24, 16)) for kind in ("encoder", "decoder")}
    figure = draw_heads(values, "title")
    assert not figure.axes[0].texts
    assert max(figure.get_size_inches()) < 25
