"""The memory layout of the weights does not change the output of a model."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from diglot.decoding.layout import pack_for_decoding
from diglot.model import Transformer


@pytest.mark.parametrize("tying", ["all", "target", "none"])
def test_a_model_packed_for_decoding_gives_the_same_results(
    build_model: Callable[..., Transformer], tying: str
) -> None:
    model = build_model(f"model.tying={tying}")
    src, tgt = torch.tensor([[5, 6, 7, 3]]), torch.tensor([[2, 9, 8]])
    with torch.no_grad():
        before, state = model(src, tgt), {name: value.clone() for name, value in model.state_dict().items()}
        pack_for_decoding(model)
        assert torch.allclose(model(src, tgt), before, atol=1e-5)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert model.src_embedding.weight.is_contiguous()
    assert model.tgt_embedding.weight.is_contiguous()
    is_tied = model.output.weight is model.tgt_embedding.weight
    assert is_tied == (tying != "none")
    others = [m for m in model.modules() if isinstance(m, nn.Linear) and not (is_tied and m is model.output)]
    assert len(others) > 10
    assert all(m.weight.t().is_contiguous() for m in others)
