"""The reported attention weights are those that attention uses, and computing them has no side effects.

Position encodings and norm placements are read from conf/model, so a new one is tested without a change here.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from diglot.config import CONF
from diglot.model import AttentionWeights, EncoderDecoder, GruAttention, Transformer
from diglot.model.attention import Attention, AttentionMask, CrossAttention, SelfAttention, compute_attention_weights
from diglot.model.recurrent import AdditiveAttention
from diglot.model.transformer import DecoderCache

POSITIONS, RESIDUALS = (
    sorted(file.stem for file in (CONF / "model" / group).glob("*.yaml")) for group in ("position", "residual")
)
VARIANTS = [
    *((f"model/position={position}", f"model/residual={residual}") for position in POSITIONS for residual in RESIDUALS),
    ("model.d_head=10", "model/position=rotary"),
    ("model.n_encoder_layers=1", "model.n_decoder_layers=3"),
    ("model.d_head=8", "model.n_heads={encoder:6,decoder:4,cross:2}", "model.n_kv_heads={encoder:2,decoder:1,cross:2}"),
    ("model.n_kv_heads=1", "model.qk_norm=true", "model/position=alibi", "model.bias=false"),
]
B, S, T, H, V = 2, 5, 7, 3, 37

built: dict[tuple[str, ...], Transformer] = {}


@pytest.fixture(params=VARIANTS, ids=lambda overrides: " ".join(o.removeprefix("model") for o in overrides))
def model(request: pytest.FixtureRequest, build_model: Callable[..., Transformer]) -> Transformer:
    if request.param not in built:
        # Enough dropout to make a difference, and query weights large enough for attention that is not uniform.
        built[request.param] = build_model(*request.param, "model.dropout=0.3", "model.attention_dropout=0.3")
        with torch.no_grad():
            for module in built[request.param].modules():
                if isinstance(module, Attention):
                    module.query.weight *= 4
    return copy.deepcopy(built[request.param])


def ids(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(4, V, shape, generator=torch.Generator().manual_seed(seed))


SRC, TGT = ids(B, S), ids(B, T, seed=2)
MASK = torch.arange(S)[None, :] < torch.tensor([S, S - 2])[:, None]


class Call(NamedTuple):
    values: Tensor
    out: Tensor


def calls_of(model: Transformer, src_mask: Tensor | None) -> tuple[AttentionWeights, list[tuple[Attention, Call]]]:
    """Return the reported weights, and the values and output of each attention in a normal forward pass."""
    seen: list[tuple[Attention, Call]] = []
    original = Attention.attend

    def attend(self: Attention, q: Tensor, k: Tensor, v: Tensor, visible: AttentionMask) -> Tensor:
        out = original(self, q, k, v, visible)
        seen.append((self, Call(v, out)))
        return out

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(Attention, "attend", attend)
        model(SRC, TGT, src_mask)
    return model.attention_weights(SRC, TGT, src_mask), seen


@pytest.mark.sampled(4)
@pytest.mark.parametrize("src_mask", [MASK, None], ids=["padded", "whole"])
def test_weights_times_values_are_what_attention_gives(model: Transformer, src_mask: Tensor | None) -> None:
    weights, seen = calls_of(model, src_mask)
    assert [len(of_kind) for of_kind in weights] == [len(model.encoder), len(model.decoder), len(model.decoder)]
    in_order = [*weights.encoder, *(w for pair in zip(weights.decoder, weights.cross, strict=True) for w in pair)]
    assert len(in_order) == len(seen)
    for found, (attention, call) in zip(in_order, seen, strict=True):
        assert found.dtype == torch.float32
        values = call.values.repeat_interleave(found.size(1) // call.values.size(1), 1)
        expected = attention.out((found @ values).transpose(1, 2).flatten(2))
        torch.testing.assert_close(expected, call.out, rtol=0, atol=1e-5)


def test_rows_sum_to_one_over_unmasked_keys(model: Transformer) -> None:
    weights = model.attention_weights(SRC, TGT, MASK)
    past = torch.ones(T, T, dtype=torch.bool).tril()
    for maps, visible, n_queries in (
        (weights.encoder, MASK[:, None, None, :], S),
        (weights.decoder, past, T),
        (weights.cross, MASK[:, None, None, :], T),
    ):
        for found in maps:
            assert found.shape == (B, found.size(1), n_queries, visible.size(-1))
            torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:3]), rtol=0, atol=1e-6)
            seen = visible.expand_as(found)
            assert torch.count_nonzero(found[~seen]) == 0
            assert (found[seen] > 0).all()
            assert found.var(1).max() > 1e-4  # the heads differ


def test_there_are_as_many_heads_as_the_config_says(build_model: Callable[..., Transformer]) -> None:
    model = build_model("model.d_head=8", "model.n_heads={encoder:6,decoder:4,cross:2}", "model.n_kv_heads=2")
    weights = model.attention_weights(SRC, TGT, MASK)
    assert [maps[0].size(1) for maps in weights] == [6, 4, 2]
    assert {m.size(1) for maps in build_model().attention_weights(SRC, TGT, MASK) for m in maps} == {H}


@pytest.mark.sampled(3)
def test_reading_attention_weights_changes_nothing(model: Transformer) -> None:
    asking_changes_nothing(model, model.encoder[0])


def asking_changes_nothing(model: EncoderDecoder, part: nn.Module) -> None:
    model.train()
    part.eval()
    modes = {name: module.training for name, module in model.named_modules()}

    def step() -> tuple[Tensor, list[Tensor]]:
        torch.manual_seed(3)
        logits = model(SRC, TGT, MASK)
        return logits, list(torch.autograd.grad(logits.square().sum(), list(model.parameters())))

    before = step()
    model(SRC, TGT, MASK).sum().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    first = model.attention_weights(SRC, TGT, MASK)
    assert torch.equal(torch.get_rng_state(), random)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(torch.equal(a, b.grad) for a, b in zip(gradients, model.parameters(), strict=True))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not any(found.requires_grad for maps in first for found in maps)
    after = step()
    assert torch.equal(before[0], after[0])
    assert all(torch.equal(a, b) for a, b in zip(before[1], after[1], strict=True))
    # The weights depend neither on the mode nor on the forward passes in between.
    again = model.eval().attention_weights(SRC, TGT, MASK)
    assert all(torch.equal(a, b) for one, other in zip(first, again, strict=True) for a, b in zip(one, other))


def test_the_mode_comes_back_when_reading_fails(tiny_model: Transformer) -> None:
    tiny_model.train()
    with pytest.raises(IndexError):
        tiny_model.attention_weights(SRC, torch.full((B, T), V), MASK)
    assert tiny_model.training
    assert all(m.watcher is None for m in tiny_model.modules() if isinstance(m, Attention))


@pytest.mark.parametrize("position", POSITIONS)
def test_autocast_changes_neither_the_weights_nor_what_is_trained_under_it(
    build_model: Callable[..., Transformer], position: str
) -> None:
    model = build_model(f"model/position={position}")
    plain = model.attention_weights(SRC, TGT, MASK)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = model.attention_weights(SRC, TGT, MASK)
        model(SRC, TGT, MASK).sum().backward()
    assert all(torch.equal(a, b) for one, other in zip(plain, cast, strict=True) for a, b in zip(one, other))
    assert all(p.grad is not None and p.grad.any() for p in model.decoder.parameters() if p.dim() > 1)


def test_weights_of_bfloat16_models_are_float32(model: Transformer) -> None:
    weights, exact = model.to(torch.bfloat16).attention_weights(SRC, TGT, MASK), model.float()
    reference = exact.attention_weights(SRC, TGT, MASK)
    for found, expected in zip(weights.cross + weights.encoder, reference.cross + reference.encoder, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:-1]), rtol=0, atol=1e-5)
        torch.testing.assert_close(found, expected, rtol=0, atol=0.2)


@pytest.mark.parametrize("bias", [None, torch.randn(1, 1, 2, 3)], ids=["mask", "bias"])
def test_a_query_with_all_keys_masked_has_weights_of_zero(bias: Tensor | None) -> None:
    q, k, v = torch.randn(1, 2, 2, 4), torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4)
    seen = torch.tensor([[[[False, False, False], [True, False, True]]]])
    visible = AttentionMask(seen if bias is None else bias.masked_fill(~seen, float("-inf")))
    found = compute_attention_weights(q, k, visible)
    assert torch.count_nonzero(found[:, :, 0]) == 0
    torch.testing.assert_close(found[:, :, 1].sum(-1), torch.ones(1, 2))
    with sdpa_kernel(SDPBackend.MATH):
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, visible.values)
    torch.testing.assert_close(found @ v, expected)


def test_a_source_of_padding_alone_has_cross_attention_of_zero(model: Transformer) -> None:
    mask = torch.tensor([[True] * S, [False] * S])
    cross = model.attention_weights(SRC, TGT, mask).cross
    assert all(torch.count_nonzero(found[1]) == 0 and found[0].sum() > 0 for found in cross)


def test_a_watcher_sees_cached_decoding_too(tiny_model: Transformer) -> None:
    whole = tiny_model.attention_weights(SRC, TGT, MASK)
    steps: dict[type[Attention], list[Tensor]] = {SelfAttention: [], CrossAttention: []}
    for kind, kept in steps.items():
        last: Any = [m for m in tiny_model.decoder.modules() if isinstance(m, kind)][-1]
        last.watcher = kept.append
    cache: DecoderCache = tiny_model.new_cache()
    with torch.no_grad():
        memory = tiny_model.encode(SRC, MASK)
        for t in range(T):
            tiny_model.decode(TGT[:, t : t + 1], memory, MASK, cache)
    torch.testing.assert_close(torch.cat(steps[CrossAttention], 2), whole.cross[-1], rtol=0, atol=1e-5)
    for t, found in enumerate(steps[SelfAttention]):
        torch.testing.assert_close(found[:, :, 0], whole.decoder[-1][:, :, t, : t + 1], rtol=0, atol=1e-5)


# ------------------------------------------------------------------------------------------------ recurrent networks


@pytest.fixture
def gru() -> GruAttention:
    torch.manual_seed(1)
    model = GruAttention(
        src_vocab_size=V, tgt_vocab_size=V, d_model=24, d_hidden=10, d_attention=14, dropout=0.3, tying="all"
    )
    with torch.no_grad():
        model.attention.score.weight *= 4
    return model


def test_reading_attention_weights_of_a_recurrent_model_changes_nothing(gru: GruAttention) -> None:
    asking_changes_nothing(gru, gru.reader)


@torch.no_grad()
def test_weights_of_additive_attention_times_memory_are_what_it_gives(gru: GruAttention) -> None:
    gru.eval()
    seen: list[Tensor] = []
    gru.attention.register_forward_hook(lambda module, inputs, output: seen.append(output))
    weights = gru.attention_weights(SRC, TGT, MASK)
    assert weights.encoder == weights.decoder == []
    (cross,) = weights.cross
    assert cross.shape == (B, 1, T, S)
    assert cross.dtype == torch.float32
    torch.testing.assert_close(cross.sum(-1), torch.ones(B, 1, T), rtol=0, atol=1e-6)
    assert torch.count_nonzero(cross[1, ..., S - 2 :]) == 0
    torch.testing.assert_close(cross[:, 0] @ gru.encode(SRC, MASK), torch.stack(seen, 1), rtol=0, atol=1e-6)


@torch.no_grad()
def test_additive_attention_scores_by_a_small_network() -> None:
    attention = AdditiveAttention(d_query=3, d_memory=4, d_attention=5)
    query, memory = torch.randn(1, 3), torch.randn(1, 2, 4)
    scores = [
        torch.tanh(attention.query.weight @ query[0] + attention.key.weight @ h + attention.key.bias)
        @ attention.score.weight[0]
        for h in memory[0]
    ]
    expected = torch.stack(scores).softmax(0) @ memory[0]
    torch.testing.assert_close(attention(query, attention.key(memory), memory, None)[0], expected)


# -------------------------------------------------------------------------------------------------------------------


@pytest.mark.reliability
def test_a_compiled_model_stays_one_graph_and_is_not_compiled_anew(tiny_model: Transformer) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    tiny_model.compile(fullgraph=True, backend=backend)
    with torch.no_grad():
        before = tiny_model(SRC, TGT, MASK)
        tiny_model.attention_weights(SRC, TGT, MASK)
        assert torch.equal(tiny_model(SRC, TGT, MASK), before)
    assert len(graphs) == 1
