"""A trace names the module, the pair and the token where values stop being finite."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from diglot.data.batch import Batch
from diglot.data.tokenizer import BOS, EOS, PAD
from diglot.model import Transformer
from diglot.training.loss import batch_loss
from diglot.training.tracing import PairLoss, Trace, greatest, norms_by_module


@pytest.fixture
def batch() -> Batch:
    src = torch.tensor([[5, 6, 7, EOS], [8, 9, EOS, PAD]])
    labels = torch.tensor([[11, 12, 13, 14, EOS], [21, 22, EOS, PAD, PAD]])
    tgt_in = torch.tensor([[BOS, 11, 12, 13, 14], [BOS, 21, 22, PAD, PAD]])
    return Batch(src, src != PAD, tgt_in, labels, labels != PAD, torch.tensor([40, 41]), 8, 0, 0.5)


def traced(model: Transformer, batch: Batch, dtype: torch.dtype | None = None, scale: float = 1.0) -> Trace:
    trace = Trace(model.train())
    trace.follow(batch)
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        loss = batch_loss(model, batch, 0.1).smoothed
    (loss * scale).backward()
    return trace


def test_a_trace_changes_nothing_and_finds_nothing_in_a_healthy_model(
    build_model: Callable[..., Transformer], batch: Batch
) -> None:
    model, other = build_model(), build_model().train()
    trace = traced(model, batch)
    batch_loss(other, batch, 0.1).smoothed.backward()
    assert trace.forward is trace.backward is None
    for parameter, same in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(gradient(parameter), gradient(same))


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def test_an_infinite_weight_is_named_with_its_token(build_model: Callable[..., Transformer], batch: Batch) -> None:
    model = build_model("model.tying=none")
    with torch.no_grad():
        model.src_embedding.weight[9, 3] = torch.inf
    trace = traced(model, batch)
    assert trace.forward is not None
    assert (trace.forward.module, trace.forward.is_own) == ("src_embedding", True)
    assert trace.forward.token == (41, "src", 1, 9)


def test_an_overflow_in_half_precision_is_named(build_model: Callable[..., Transformer], batch: Batch) -> None:
    model = build_model()
    layer = model.get_submodule("decoder.1.feed_forward.sublayer.down")
    with torch.no_grad():
        layer.weight *= 1e7  # type: ignore[operator]
    assert traced(model, batch).forward is None  # float32 has the range
    trace = traced(model, batch, torch.float16)
    assert trace.forward is not None
    assert (trace.forward.module, trace.forward.is_own) == ("decoder.1.feed_forward.sublayer.down", True)
    assert trace.forward.token is not None
    assert trace.forward.token[:2] == (40, "tgt")


def test_values_that_are_computed_between_modules_are_not_blamed_on_one(
    build_model: Callable[..., Transformer], batch: Batch
) -> None:
    model = build_model()
    with torch.no_grad():
        for name in ("query", "key"):
            model.get_submodule(f"encoder.0.self_attention.sublayer.{name}").weight.fill_(1e30)  # type: ignore[operator]
    trace = traced(model, batch)
    assert trace.forward is not None
    assert (trace.forward.module, trace.forward.is_own) == ("encoder.0.self_attention.sublayer.out", False)


def test_a_gradient_that_overflows_on_the_way_back_is_named(
    build_model: Callable[..., Transformer], batch: Batch
) -> None:
    model = build_model()
    with torch.no_grad():
        model.get_submodule("decoder.1.feed_forward.sublayer.down").weight *= 1e4  # type: ignore[operator]
    trace = traced(model, batch, scale=1e36)
    assert trace.forward is None
    assert trace.backward is not None
    assert trace.backward.module.startswith("decoder.1.feed_forward")


def test_the_losses_of_pairs_add_up_and_the_greatest_come_first(
    build_model: Callable[..., Transformer], batch: Batch
) -> None:
    model = build_model()
    trace = traced(model, batch)
    nll = float(batch_loss(model, batch, 0.0).nll)
    assert sum(pair.loss * pair.tokens for pair in trace.pairs[:2]) == pytest.approx(nll)
    assert [(pair.pair, pair.tokens) for pair in trace.pairs[:2]] == [(40, 5), (41, 3)]
    pairs = [PairLoss(1, 2.0, 1, 0, 2.0), PairLoss(2, float("nan"), 1, 0, 2.0), PairLoss(3, 5.0, 1, 0, 5.0)]
    assert [pair.pair for pair in greatest(pairs, 2)] == [2, 3]


def test_the_norms_of_modules_add_up_to_that_of_the_gradient(
    build_model: Callable[..., Transformer], batch: Batch
) -> None:
    model = build_model("model.tying=all")
    traced(model, batch)
    total = torch.nn.utils.get_total_norm([gradient(parameter) for parameter in model.parameters()])
    norms = norms_by_module(model)
    assert sum(norm**2 for norm in norms.values()) ** 0.5 == pytest.approx(float(total))
    assert "decoder.0.feed_forward.sublayer.down" in norms
