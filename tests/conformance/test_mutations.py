"""Mutation tests of the promises: typical mistakes, introduced into a model, break a promise."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conformance import promises
from conformance.promises import Promise
from conformance.variants import build_variant, small
from diglot.decoding import layout
from diglot.model import GruAttention, Transformer, attention, transformer
from diglot.model.attention import Attention, AttentionMask, CrossAttention, KeyValueCache
from diglot.model.position import Alibi, RelativeBias, Rotary, Sinusoidal
from diglot.model.residual import DeepNorm, PostNorm, PreNorm, SandwichNorm
from diglot.model.transformer import DecoderCache, DecoderLayer

Mutation = Callable[[pytest.MonkeyPatch], None]
MUTATIONS: list[tuple[Mutation, Promise, tuple[str, ...], type[Exception]]] = []
ALIBI, ROTARY = "model/position=alibi", "model/position=rotary"
POST = "model/residual=post_norm"
GROUPED = ("model.n_heads=6", "model.n_kv_heads=2")


def breaks(
    promise: Promise, *overrides: str, preset: str = "base", by: type[Exception] = AssertionError
) -> Callable[[Mutation], Mutation]:
    """Register a mistake with a promise that it breaks, and a model for which it does."""

    def register(mutation: Mutation) -> Mutation:
        MUTATIONS.append((mutation, promise, small(preset) + overrides, by))
        return mutation

    return register


def before(original: Callable, change: Callable[..., tuple]) -> Callable:
    """Return the original function with its arguments changed first."""
    return lambda *args, **kwargs: original(*change(*args, **kwargs))


# ----------------------------------------------------------------------------------------------------------- masks


@breaks(promises.the_future_is_invisible, ALIBI)
@breaks(promises.no_gradient_comes_from_the_future, ALIBI)
def the_causal_mask_is_lost_where_there_is_a_bias(patch: pytest.MonkeyPatch) -> None:
    def change(padding: Any, bias: Any, queries: Any, keys: Any, causal: bool, dtype: Any) -> tuple:
        return padding, bias, queries, keys, causal and bias is None, dtype

    patch.setattr(transformer, "merge_masks", before(transformer.merge_masks, change))


@breaks(promises.step_by_step_equals_all_at_once)
def the_causal_mask_is_lost_where_there_is_a_cache(patch: pytest.MonkeyPatch) -> None:
    def change(padding: Any, bias: Any, queries: Any, keys: Any, causal: bool, dtype: Any) -> tuple:
        return padding, bias, queries, keys, causal and len(queries) == len(keys), dtype

    patch.setattr(transformer, "merge_masks", before(transformer.merge_masks, change))


@breaks(promises.step_by_step_equals_all_at_once)
def the_causal_mask_of_a_cache_is_aligned_to_the_first_token(patch: pytest.MonkeyPatch) -> None:
    original = transformer.merge_masks

    def merge_masks(padding: Any, bias: Any, queries: Tensor, keys: Tensor, causal: bool, dtype: Any) -> AttentionMask:
        if causal and len(queries) > 1:
            return AttentionMask(is_causal=True)
        return original(padding, bias, queries, keys, causal, dtype)

    patch.setattr(transformer, "merge_masks", merge_masks)


@breaks(promises.the_future_is_invisible)
def the_causal_mask_is_lost_where_weights_are_asked_for(patch: pytest.MonkeyPatch) -> None:
    def change(self: Attention, q: Tensor, k: Tensor, v: Tensor, attn_mask: AttentionMask) -> tuple:
        return self, q, k, v, attn_mask._replace(is_causal=self.watcher is None and attn_mask.is_causal)

    patch.setattr(Attention, "attend", before(Attention.attend, change))


@breaks(promises.weights_do_not_look_at_the_future)
def the_weights_that_are_shown_are_not_causal(patch: pytest.MonkeyPatch) -> None:
    def change(q: Tensor, k: Tensor, attn_mask: AttentionMask) -> tuple:
        return q, k, attn_mask._replace(is_causal=False)

    patch.setattr(attention, "compute_attention_weights", before(attention.compute_attention_weights, change))


@breaks(promises.padding_changes_nothing)
@breaks(promises.padding_changes_nothing, ALIBI)
def self_attention_sees_padding(patch: pytest.MonkeyPatch) -> None:
    def change(padding: Any, bias: Any, queries: Any, keys: Any, causal: bool, dtype: Any) -> tuple:
        return None, bias, queries, keys, causal, dtype

    patch.setattr(transformer, "merge_masks", before(transformer.merge_masks, change))


@breaks(promises.padding_changes_nothing)
def cross_attention_sees_padding(patch: pytest.MonkeyPatch) -> None:
    def change(self: CrossAttention, x: Tensor, memory: Tensor, attn_mask: AttentionMask, cache: Any = None) -> tuple:
        return self, x, memory, AttentionMask(), cache

    patch.setattr(CrossAttention, "forward", before(CrossAttention.forward, change))


@breaks(promises.padding_changes_nothing, preset="gru_attention")
def the_backward_reader_begins_with_padding(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GruAttention, "encode", before(GruAttention.encode, lambda self, src, src_mask=None: (self, src)))


@breaks(promises.a_source_of_padding_alone_gives_finite_numbers)
def a_row_that_sees_nothing_is_divided_by_zero(patch: pytest.MonkeyPatch) -> None:
    def attend(self: Attention, q: Tensor, k: Tensor, v: Tensor, attn_mask: AttentionMask) -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_head)
        if attn_mask.values is not None:
            scores = scores.masked_fill(~attn_mask.values, float("-inf"))
        if attn_mask.is_causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    patch.setattr(Attention, "attend", attend)


# ------------------------------------------------------------------------------------------------------- positions


@breaks(promises.a_model_computes_what_the_papers_say, ALIBI, "model.n_heads=6")
def one_formula_gives_the_slopes_of_any_number_of_heads(patch: pytest.MonkeyPatch) -> None:
    def slopes(self: Alibi) -> list[float]:
        return [2.0 ** (-8 * (head + 1) / self.n_heads) for head in range(self.n_heads)]

    patch.setattr(Alibi, "slopes", slopes)


@breaks(promises.the_order_of_the_source_matters, ALIBI)
@breaks(promises.a_model_computes_what_the_papers_say, ALIBI)
def alibi_is_the_same_to_the_left_and_to_the_right(patch: pytest.MonkeyPatch) -> None:
    def bias(self: Alibi, queries: Tensor, keys: Tensor) -> Tensor:
        return -torch.tensor(self.slopes())[:, None, None] * (keys[None, :] - queries[:, None]).abs()

    patch.setattr(Alibi, "bias", bias)


def turned(x: Tensor, angles: Tensor) -> Tensor:
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


@breaks(promises.positions_survive_bfloat16, ROTARY)
def angles_are_computed_in_the_model_s_type(patch: pytest.MonkeyPatch) -> None:
    def rotate(self: Rotary, x: Tensor, positions: Tensor) -> Tensor:
        frequencies = self.base ** -(torch.arange(0, self.d_head, 2, dtype=x.dtype) / self.d_head)
        return turned(x, positions[:, None].to(x.dtype) * frequencies)

    patch.setattr(Rotary, "rotate", rotate)


@breaks(promises.positions_survive_bfloat16, ROTARY)
def frequencies_are_a_buffer_that_is_cast_with_the_model(patch: pytest.MonkeyPatch) -> None:
    original = Rotary.__init__

    def init(self: Rotary, **sizes: Any) -> None:
        original(self, **sizes)
        frequencies = self.base ** -(torch.arange(0, self.d_head, 2) / self.d_head)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def rotate(self: Rotary, x: Tensor, positions: Tensor) -> Tensor:
        return turned(x, positions[:, None].float() * self.frequencies.float())

    patch.setattr(Rotary, "__init__", init)
    patch.setattr(Rotary, "rotate", rotate)


@breaks(promises.a_model_in_bfloat16_is_near_itself, by=RuntimeError)
def sinusoids_are_not_cast(patch: pytest.MonkeyPatch) -> None:
    original = Sinusoidal.embed
    patch.setattr(Sinusoidal, "embed", lambda self, x, positions: x + original(self, torch.zeros(x.shape), positions))


@breaks(promises.step_by_step_equals_all_at_once, ROTARY)
def positions_begin_anew_at_each_step(patch: pytest.MonkeyPatch) -> None:
    def change(self: Rotary, x: Tensor, positions: Tensor) -> tuple:
        return self, x, positions - positions[0]

    patch.setattr(Rotary, "rotate", before(Rotary.rotate, change))


# ----------------------------------------------------------------------------------------------------- norms, heads


@breaks(promises.every_stack_ends_normalised_once, "model/residual=pre_norm")
@breaks(promises.every_stack_ends_normalised_once, "model/residual=sandwich_norm")
@breaks(promises.every_stack_ends_normalised_once, POST, "model/residual@model.decoder_residual=pre_norm")
def stacks_end_without_a_norm_of_their_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PreNorm, "needs_final_norm", False)


@breaks(promises.a_model_computes_what_the_papers_say, "model/residual=deep_norm")
def the_skip_of_deep_norm_is_not_heavier(patch: pytest.MonkeyPatch) -> None:
    def forward(self: DeepNorm, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.norm(x + self.dropout(self.sublayer(x, *args, **kwargs)))

    patch.setattr(DeepNorm, "forward", forward)


@breaks(promises.a_model_computes_what_the_papers_say, *GROUPED)
def distant_heads_share_keys_and_values(patch: pytest.MonkeyPatch) -> None:
    def change(self: Attention, q: Tensor, k: Tensor, v: Tensor, attn_mask: AttentionMask) -> tuple:
        n = q.size(1) // k.size(1)
        return self, q, k.repeat(1, n, 1, 1), v.repeat(1, n, 1, 1), attn_mask

    patch.setattr(Attention, "attend", before(Attention.attend, change))


@breaks(promises.every_stack_ends_normalised_once, POST)
def post_norm_stacks_get_a_norm_of_their_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PostNorm, "needs_final_norm", True)


@breaks(promises.every_weight_gets_a_finite_gradient)
def no_gradient_goes_through_the_values(patch: pytest.MonkeyPatch) -> None:
    original = Attention.values
    patch.setattr(Attention, "values", lambda self, x: original(self, x).detach())


# ------------------------------------------------------------------------------------------------------------ search


@breaks(promises.a_cache_follows_its_rows)
def a_cache_keeps_its_rows_in_their_places(patch: pytest.MonkeyPatch) -> None:
    original = DecoderCache.select

    def select(self: DecoderCache, hypotheses: Tensor, sentences: Tensor | None = None) -> None:
        original(self, torch.arange(len(hypotheses)), sentences)

    patch.setattr(DecoderCache, "select", select)


@breaks(promises.a_cache_follows_its_rows)
def sentences_keep_the_keys_of_others(patch: pytest.MonkeyPatch) -> None:
    original = KeyValueCache.select
    patch.setattr(KeyValueCache, "select", lambda self, rows: original(self, torch.arange(len(rows))))


@breaks(promises.hypotheses_share_a_memory_as_if_each_had_its_own)
def hypotheses_are_counted_the_other_way_round(patch: pytest.MonkeyPatch) -> None:
    original = CrossAttention.forward

    def forward(self: CrossAttention, x: Tensor, memory: Tensor, *rest: Any) -> Tensor:
        n = x.size(0) // memory.size(0)
        mixed = x.unflatten(0, (n, -1)).transpose(0, 1).reshape(x.shape)
        return original(self, mixed, memory, *rest).unflatten(0, (-1, n)).transpose(0, 1).reshape(x.shape)

    patch.setattr(CrossAttention, "forward", forward)


@breaks(promises.a_packed_model_decodes_the_same)
@breaks(promises.a_packed_model_decodes_the_same, preset="gru_attention")
def packed_weights_are_rounded(patch: pytest.MonkeyPatch) -> None:
    original = layout.product
    patch.setattr(layout, "product", lambda kind, weight, bias: original(kind, weight.bfloat16().float(), bias))


# ---------------------------------------------------------------------------------------------------- ties, capture


@breaks(promises.only_declared_ties_share_storage, "model.tying=target")
@breaks(promises.only_declared_ties_share_storage, "model.tying=all")
def loading_gives_the_output_weights_of_its_own(patch: pytest.MonkeyPatch) -> None:
    original = Transformer.load_state_dict

    def load_state_dict(self: Transformer, state: dict[str, Tensor]) -> None:
        original(self, state)
        self.output.weight = nn.Parameter(state["output.weight"].clone())

    patch.setattr(Transformer, "load_state_dict", load_state_dict)


@breaks(promises.only_declared_ties_share_storage, "model.tying=none")
def one_network_serves_all_layers(patch: pytest.MonkeyPatch) -> None:
    original, made = DecoderLayer.__init__, []

    def init(self: DecoderLayer, *parts: nn.Module) -> None:
        original(self, *parts)
        made.append(self.feed_forward)
        self.feed_forward = made[0]

    patch.setattr(DecoderLayer, "__init__", init)


@breaks(promises.a_model_is_captured_whole, by=RuntimeError)
def a_branch_depends_on_a_value(patch: pytest.MonkeyPatch) -> None:
    def change(self: Attention, q: Tensor, k: Tensor, v: Tensor, attn_mask: AttentionMask) -> tuple:
        return self, q if q.isfinite().all() else q.nan_to_num(), k, v, attn_mask

    patch.setattr(Attention, "attend", before(Attention.attend, change))


# --------------------------------------------------------------------------------------------------------- dropout


def without_dropout(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    dropout, self.dropout = self.dropout, nn.Identity()
    try:
        return type(self).drops(self, x, *args, **kwargs)
    finally:
        self.dropout = dropout


@breaks(promises.dropout_is_where_the_papers_have_it, "model/residual=deep_norm")
def deep_norm_forgets_dropout(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeepNorm, "drops", DeepNorm.forward, raising=False)
    patch.setattr(DeepNorm, "forward", without_dropout)


@breaks(promises.dropout_is_where_the_papers_have_it, "model/residual=sandwich_norm")
def sandwich_norm_forgets_dropout(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SandwichNorm, "drops", SandwichNorm.forward, raising=False)
    patch.setattr(SandwichNorm, "forward", without_dropout)


@breaks(promises.dropout_is_where_the_papers_have_it)
def cross_attention_drops_no_weights(patch: pytest.MonkeyPatch) -> None:
    original = CrossAttention.__init__

    def init(self: CrossAttention, d_model: int, n_heads: int, d_head: int, dropout: float, *more: Any) -> None:
        original(self, d_model, n_heads, d_head, 0.0, *more)

    patch.setattr(CrossAttention, "__init__", init)


@breaks(promises.dropout_is_where_the_papers_have_it)
def embeddings_of_the_target_are_not_dropped(patch: pytest.MonkeyPatch) -> None:
    def embed_target(self: Transformer, tokens: Tensor, positions: Tensor) -> Tensor:
        return self.decoder_position.embed(self.vectors(tokens, self.tgt_embedding), positions)

    patch.setattr(Transformer, "embed_target", embed_target)


@breaks(promises.dropout_is_where_the_papers_have_it, "model.embedding_norm=true")
def the_norm_of_embeddings_follows_dropout(patch: pytest.MonkeyPatch) -> None:
    def embed_source(self: Transformer, tokens: Tensor, positions: Tensor) -> Tensor:
        x = self.encoder_position.embed(self.vectors(tokens, self.src_embedding), positions)
        return self.encoder_embedding_norm(self.embedding_dropout(x))

    patch.setattr(Transformer, "embed_source", embed_source)


# --------------------------------------------------------------------------------------------------------- settings


@breaks(
    promises.a_model_computes_what_the_papers_say,
    "model/position=relative_bias",
    "model.position.n_buckets=8",
    "model.position.max_distance=6",
)
def the_decoder_has_buckets_for_both_directions(patch: pytest.MonkeyPatch) -> None:
    def init(self: RelativeBias, d_model: int, n_heads: int, d_head: int, causal: bool, **more: int) -> None:
        original(self, d_model, n_heads, d_head, False, **more)

    original = RelativeBias.__init__
    patch.setattr(RelativeBias, "__init__", init)


@breaks(promises.a_model_computes_what_the_papers_say, ROTARY, "model.position.base=50")
def the_base_of_angles_is_always_the_same(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rotary, "base", property(lambda self: 10_000.0, lambda self, base: None), raising=False)


@breaks(promises.a_model_computes_what_the_papers_say, "model.position.offset=2")
def the_first_position_is_always_zero(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sinusoidal, "offset", property(lambda self: 0, lambda self, offset: None), raising=False)


@breaks(promises.a_model_computes_what_the_papers_say, "model.scale_embeddings=false")
def embeddings_are_always_scaled(patch: pytest.MonkeyPatch) -> None:
    scaled = property(lambda self: True, lambda self, scale: None)
    patch.setattr(Transformer, "scale_embeddings", scaled, raising=False)


@breaks(promises.a_model_computes_what_the_papers_say, "model/residual=deep_norm", "model.residual.alpha=1.7")
def a_given_alpha_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = DeepNorm.__init__

    def init(self: DeepNorm, **parts: Any) -> None:
        original(self, **(parts | {"alpha": None}))

    patch.setattr(DeepNorm, "__init__", init)


# ------------------------------------------------------------------------------------------------------------- tests


@pytest.mark.reliability
@pytest.mark.parametrize(
    ("mutation", "promise", "overrides", "by"),
    MUTATIONS,
    ids=[f"{mutation.__name__}-{promise.__name__}" for mutation, promise, *_ in MUTATIONS],
)
def test_a_mistake_breaks_a_promise(
    monkeypatch: pytest.MonkeyPatch,
    mutation: Mutation,
    promise: Promise,
    overrides: tuple[str, ...],
    by: type[Exception],
) -> None:
    promise(*build_variant(overrides))
    mutation(monkeypatch)
    with pytest.raises(by):
        promise(*build_variant(overrides))


def test_every_promise_is_broken_by_some_mistake() -> None:
    registered = [*promises.OF_ALL, *promises.OF_TRANSFORMERS, *promises.OF_THE_CAPTURED]
    assert {promise for _, promise, *_ in MUTATIONS} == set(registered)
