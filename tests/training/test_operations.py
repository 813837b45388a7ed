"""Operations of a training step, by hand, and as a polynomial of the lengths."""

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from diglot.model import GruAttention, Transformer, cpu_attention
from diglot.training.loss import token_loss
from diglot.training.operations import Operations, count_operations, moments

SIZES = ("model.d_model=8", "model.n_heads=2", "model.d_ff=12", "model.n_encoder_layers=2", "model.n_decoder_layers=1")


def masks(*pairs: tuple[int, int]) -> tuple[Tensor, Tensor]:
    sides = [torch.tensor([pair[side] for pair in pairs])[:, None] for side in (0, 1)]
    return torch.arange(20) < sides[0], torch.arange(20) < sides[1]


def test_the_factors_are_those_that_a_hand_counts(build_model: Callable[..., Transformer]) -> None:
    found = Operations.of(build_model(*SIZES, "model.tying=none", src_vocab_size=30, tgt_vocab_size=40))
    attention, network, memory = 4 * 8 * 8, 2 * 8 * 12, 2 * 8 * 8  # weights; the memory's are those of keys and values
    assert found == pytest.approx(
        Operations(
            constant=0,
            src=6 * (2 * (attention + network) + memory),
            tgt=6 * (attention + (attention - memory) + network + 8 * 40),
            src_src=6 * 2 * 2 * 8,
            src_tgt=6 * 2 * 8,
            tgt_tgt=6 * 2 * 8,
        ),
        abs=1e-3,
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "words", ["position=alibi", "position=relative_bias", "position=learned", "feed_forward=swiglu"]
)
def test_a_transformer_has_the_operations_that_are_counted_in_a_step(
    build_model: Callable[..., Transformer], words: str
) -> None:
    model = build_model(*SIZES, f"model/{words}", src_vocab_size=30, tgt_vocab_size=30).train()
    ids = torch.randint(4, 30, (3, 7))
    with mock.patch.object(cpu_attention, "is_faster", return_value=False), FlopCounterMode(display=False) as counter:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            logits = model(ids, ids, torch.ones_like(ids, dtype=torch.bool))
        token_loss(logits, ids, ids > 0, 0.1).smoothed.backward()
    expected = counter.get_total_flops()
    assert count_operations(model, 3, 7, 7) == expected
    assert Operations.of(model).total(moments(ids > 0, ids > 0).tolist()) == pytest.approx(expected)
    assert model.training


def test_the_total_is_that_of_the_sentences_without_padding() -> None:
    model = GruAttention(
        src_vocab_size=30, tgt_vocab_size=30, d_model=6, d_hidden=5, d_attention=4, dropout=0.1, tying="all"
    )
    pairs = [(3, 9), (12, 2), (5, 5)]
    expected = sum(count_operations(model, 1, *pair) for pair in pairs)
    sums = moments(*masks(pairs[0])) + moments(*masks(*pairs[1:]))
    assert Operations.of(model).total(sums.tolist()) == pytest.approx(expected)


def test_counting_changes_neither_the_model_nor_random_numbers(build_model: Callable[..., Transformer]) -> None:
    model = build_model("model.dropout=0.5").train()
    state = torch.get_rng_state()
    count_operations(model, 1, 2, 3)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(module.training for module in model.modules())
    assert count_operations(model.to("meta"), 1, 2, 3) > 0
