"""Multi-head attention (Vaswani et al., 2017), optionally grouped-query, with an optional key/value cache."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diglot.model import cpu_attention
from diglot.model.position import PositionEncoding


class AttentionMask(NamedTuple):
    """The mask arguments of `scaled_dot_product_attention`, computed once and shared by all layers of a stack.

    Attributes:
        values: boolean, True where attention is allowed, or a float bias with -inf where it is not; broadcasts to
            (B, H, Q, M). None: no restriction.
        is_causal: whether attention is causal; used instead of a mask, because the fused kernels need this flag.
    """

    values: Tensor | None = None
    is_causal: bool = False


def merge_masks(
    mask: Tensor | None, bias: Tensor | None, queries: Tensor, keys: Tensor, causal: bool, dtype: torch.dtype
) -> AttentionMask:
    """Combine mask, bias and causality into the mask arguments of a stack's self-attention.

    Args:
        mask: boolean, True where attention is allowed: (B, M), the same for all queries, or (B, Q, M). None: no
            restriction.
        bias: float (H, Q, M), added to the scores.
        queries: positions (Q,) of the queries.
        keys: positions (M,) of the keys.
        causal: whether a token may attend only to itself and earlier tokens.
        dtype: dtype of the queries; the bias must have the same.
    """
    if mask is not None:
        mask = mask[:, None, None] if mask.dim() == 2 else mask[:, None]
    if causal and len(queries) > 1:  # a single query is the newest token, which may attend to all keys
        if mask is None and bias is None and len(queries) == len(keys):
            return AttentionMask(is_causal=True)
        causal_mask = keys[None, :] <= queries[:, None]
        mask = causal_mask if mask is None else mask & causal_mask
    if bias is not None:
        bias = bias.to(dtype)
        mask = bias[None] if mask is None else bias.masked_fill(~mask, float("-inf"))
    return AttentionMask(mask)


def compute_attention_weights(q: Tensor, k: Tensor, attn_mask: AttentionMask) -> Tensor:
    """Compute the attention weights (B, H, Q, M) of `scaled_dot_product_attention`, in float32.

    Each row sums to one, or is all zeros if the query may attend to nothing. If there are fewer key heads than query
    heads, neighbouring query heads share a key head.
    """
    k = k.repeat_interleave(q.size(1) // k.size(1), 1)
    scores = q.float() @ k.float().transpose(-2, -1) / q.size(-1) ** 0.5  # (B, H, Q, K) -> (B, H, Q, M)
    mask = attn_mask.values
    if attn_mask.is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else scores + mask
    fully_masked = scores.isneginf().all(-1, keepdim=True)
    return scores.softmax(-1).masked_fill(fully_masked, 0.0)


class KeyValueCache:
    """Cache of the keys and values of one attention during decoding, each (B, n_kv_heads, M, K).

    A full buffer is replaced by one about twice as large, so that entries are rarely copied.
    """

    def __init__(self) -> None:
        self._buffers: tuple[Tensor, Tensor] | None = None
        self._seen = 0

    def __len__(self) -> int:
        return self._seen

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the newest keys and values, and return all of them."""
        n_cached, self._seen = self._seen, self._seen + keys.size(2)
        if self._buffers is None:
            self._buffers = keys, values  # no spare capacity: the keys of a source never grow
        elif self._seen > self._buffers[0].size(2):
            old_keys, old_values = (old[:, :, :n_cached] for old in self._buffers)
            self._buffers = self._with_room(old_keys), self._with_room(old_values)
        if n_cached:
            self._buffers[0][:, :, n_cached : self._seen] = keys
            self._buffers[1][:, :, n_cached : self._seen] = values
        return self.all()

    def all(self) -> tuple[Tensor, Tensor]:
        """Return all cached keys and values."""
        assert self._buffers is not None
        keys, values = self._buffers
        return keys[:, :, : self._seen], values[:, :, : self._seen]

    def _with_room(self, old: Tensor) -> Tensor:
        new = old.new_empty(*old.shape[:2], 2 * self._seen + 16, old.size(3))
        new[:, :, : old.size(2)] = old
        return new

    def select(self, rows: Tensor) -> None:
        """Keep only these batch rows, in this order."""
        if self._buffers is not None:
            keys, values = self._buffers
            self._buffers = keys[rows], values[rows]


class Attention(nn.Module):
    """Base of self- and cross-attention: four projections and scaled dot-product attention.

    Args:
        d_model: width D of input and output.
        n_heads: number H of query heads.
        d_head: width K of a head.
        dropout: dropout probability of the attention weights.
        n_kv_heads: number of key/value heads, each shared by H / n_kv_heads neighbouring query heads
            (grouped-query attention: Ainslie et al., 2023; with 1, multi-query: Shazeer, 2019); None: H.
        qk_norm: factory of a norm over K. Queries and keys each get their own norm, applied before the rotation, which
            bounds the scores (Dehghani et al., 2023). None: no norm.
        bias: whether the projections have biases.

    Attributes:
        watcher: called with the attention weights (B, H, Q, M) of each forward pass. They are computed separately,
            because the fused kernels never materialise them. See EncoderDecoder.attention_weights.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_head: int,
        dropout: float,
        n_kv_heads: int | None = None,
        qk_norm: Callable[[int], nn.Module] | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        self.d_head, self.dropout, self.is_grouped = d_head, dropout, n_kv_heads < n_heads
        self.watcher: Callable[[Tensor], None] | None = None
        self.query = nn.Linear(d_model, n_heads * d_head, bias)
        self.key = nn.Linear(d_model, n_kv_heads * d_head, bias)
        self.value = nn.Linear(d_model, n_kv_heads * d_head, bias)
        self.out = nn.Linear(n_heads * d_head, d_model, bias)
        self.query_norm = nn.Identity() if qk_norm is None else qk_norm(d_head)
        self.key_norm = nn.Identity() if qk_norm is None else qk_norm(d_head)

    def queries(self, x: Tensor) -> Tensor:
        """Project x (B, T, D) to queries (B, H, T, K)."""
        q = self.split_heads(self.query(x))
        return self.query_norm(q).to(q.dtype)  # under autocast, a norm returns float32

    def keys(self, x: Tensor) -> Tensor:
        """Project x (B, M, D) to keys (B, n_kv_heads, M, K)."""
        k = self.split_heads(self.key(x))
        return self.key_norm(k).to(k.dtype)

    def values(self, x: Tensor) -> Tensor:
        """Project x (B, M, D) to values (B, n_kv_heads, M, K)."""
        return self.split_heads(self.value(x))

    def split_heads(self, x: Tensor) -> Tensor:
        """Split the last axis of x (B, T, H K) into heads (B, H, T, K)."""
        return x.unflatten(-1, (-1, self.d_head)).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: AttentionMask) -> Tensor:
        """Attend from queries (B, H, Q, K) to keys and values (B, n_kv_heads, M, K); return (B, Q, D)."""
        if self.watcher is not None:
            self.watcher(compute_attention_weights(q, k, attn_mask))
        mask, is_causal, dropout = *attn_mask, self.dropout if self.training else 0.0
        if self.training and cpu_attention.is_faster(q, k, mask, dropout):
            heads = cpu_attention.attention(q, k, v, mask, dropout, is_causal)
        else:
            heads = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal, enable_gqa=self.is_grouped)
        return self.out(heads.transpose(1, 2).flatten(2))  # (B, H, Q, K) -> (B, Q, D)


class SelfAttention(Attention):
    """Self-attention, with an optional key/value cache for decoding."""

    def forward(
        self,
        x: Tensor,
        attn_mask: AttentionMask,
        position: PositionEncoding,
        positions: Tensor,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Map tokens x (B, T, D) at positions (T,) to (B, T, D); with a cache, x holds the new tokens only.

        With a cache, the row of a sentence holds the new tokens of all its hypotheses side by side.
        """
        q = position.rotate(self.queries(x), positions)
        k = position.rotate(self.keys(x), positions)
        v = self.values(x)
        if cache is not None:
            k, v = cache.append(k, v)
        return self.attend(q, k, v, attn_mask)


class CrossAttention(Attention):
    """Attention from target tokens to the encoded source, whose keys and values are projected once per search."""

    def forward(
        self, x: Tensor, memory: Tensor, attn_mask: AttentionMask, cache: KeyValueCache | None = None
    ) -> Tensor:
        """Attend from target tokens x (n B, T, D) to memory (B, S, D); return (n B, T, D).

        n neighbouring rows share the memory, keys and values of a sentence, without n copies of them.
        """
        if cache:
            k, v = cache.all()
        else:
            k, v = self.keys(memory), self.values(memory)
            if cache is not None:
                cache.append(k, v)
        q = self.queries(x.reshape(memory.size(0), -1, x.size(-1)))  # (n B, T, D) -> (B, H, n T, K)
        return self.attend(q, k, v, attn_mask).view_as(x)
