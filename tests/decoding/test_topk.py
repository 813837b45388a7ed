"""The k greatest values, searched in groups, are those of torch.topk."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from diglot.decoding.state import topk


@given(st.integers(1, 700), st.integers(1, 12), st.integers(0, 10_000), st.booleans())
def test_the_greatest_are_those_that_topk_finds(size: int, k: int, seed: int, forbid: bool) -> None:
    values = torch.randn(2, 3, size, generator=torch.Generator().manual_seed(seed))
    if forbid:
        values[torch.rand(values.shape, generator=torch.Generator().manual_seed(seed)) < 0.9] = -torch.inf
    found, places = topk(values, k)
    assert torch.equal(found, values.topk(min(k, size), -1).values)
    assert torch.equal(values.gather(-1, places), found)
    assert all(len(set(row)) == len(row) for row in places.flatten(0, 1).tolist())
