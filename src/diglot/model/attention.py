"""Multi-head attention (Vaswani et al., 2017), grouped or not, with an optional key-value cache."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diglot.model.position import PositionEncoding


class Visibility(NamedTuple):
    """Who may look at whom in one attention, as `scaled_dot_product_attention` takes it; made once for a whole stack.

    Attributes:
        mask: boolean, True where information may flow, or a float bias with -inf where it may not; broadcasts to
            (B, H, Q, M). None: everything may be seen.
        is_causal: instead of a mask, each token sees itself and what came before; the fused kernels need it said so.
    """

    mask: Tensor | None = None
    is_causal: bool = False


def visibility(
    padding: Tensor | None, bias: Tensor | None, queries: Tensor, keys: Tensor, causal: bool, dtype: torch.dtype
) -> Visibility:
    """Merge all that restricts one stack's self-attention.

    Args:
        padding: boolean (B, M), True on tokens; None where nothing is padded.
        bias: float (H, Q, M), added to the scores.
        queries: positions (Q,) of the tokens that look.
        keys: positions (M,) of the tokens looked at.
        causal: whether a token may only look at itself and what came before.
        dtype: the type of the queries, which a bias must share.
    """
    mask = None if padding is None else padding[:, None, None, :]
    if causal and len(queries) > 1:  # a single query is the newest token: it may see all keys there are
        if mask is None and bias is None and len(queries) == len(keys):
            return Visibility(is_causal=True)
        past = keys[None, :] <= queries[:, None]
        mask = past if mask is None else mask & past
    if bias is not None:
        bias = bias.to(dtype)
        mask = bias[None] if mask is None else bias.masked_fill(~mask, float("-inf"))
    return Visibility(mask)


def weights_of(q: Tensor, k: Tensor, visible: Visibility) -> Tensor:
    """What `scaled_dot_product_attention` weighs the values with, in float32: (B, H, Q, M).

    Each row sums to one; that of a query that may see nothing is zero. Where there are fewer heads of keys than of
    queries, neighbouring heads of queries share one.
    """
    k = k.repeat_interleave(q.size(1) // k.size(1), 1)
    scores = q.float() @ k.float().transpose(-2, -1) / q.size(-1) ** 0.5  # (B, H, Q, K) -> (B, H, Q, M)
    mask = visible.mask
    if visible.is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else scores + mask
    blind = scores.isneginf().all(-1, keepdim=True)
    return scores.softmax(-1).masked_fill(blind, 0.0)


class KeyValueCache:
    """The keys and values that one attention has seen while decoding, each (B, n_kv_heads, M, K)."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def __len__(self) -> int:
        return 0 if self.keys is None else self.keys.size(2)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add the newest keys and values and return all."""
        if self.keys is not None and self.values is not None:
            keys, values = torch.cat((self.keys, keys), 2), torch.cat((self.values, values), 2)
        self.keys, self.values = keys, values
        return keys, values

    def select(self, rows: Tensor) -> None:
        """Keep these batch rows, in this order."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[rows], self.values[rows]


class Attention(nn.Module):
    """What self- and cross-attention share: four projections and the weighted sum between them.

    Args:
        d_model: width D of input and output.
        n_heads: number H of heads.
        d_head: width K of a head.
        dropout: share of the attention weights that training drops.
        n_kv_heads: number of heads of keys and values, each shared by H / n_kv_heads neighbouring heads of queries
            (grouped-query attention: Ainslie et al., 2023; with 1, multi-query: Shazeer, 2019); None: H.
        qk_norm: makes a norm over K; queries pass one and keys another before they are rotated, so that scores stay in
            bounds (Dehghani et al., 2023); None: no norm.

    Attributes:
        watcher: is handed the weights (B, H, Q, M) of each call. The call itself does not use them: the fused kernels
            never form them. See EncoderDecoder.attention_weights.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_head: int,
        dropout: float,
        n_kv_heads: int | None = None,
        qk_norm: Callable[[int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        self.d_head, self.dropout, self.is_grouped = d_head, dropout, n_kv_heads < n_heads
        self.watcher: Callable[[Tensor], None] | None = None
        self.query = nn.Linear(d_model, n_heads * d_head)
        self.key = nn.Linear(d_model, n_kv_heads * d_head)
        self.value = nn.Linear(d_model, n_kv_heads * d_head)
        self.out = nn.Linear(n_heads * d_head, d_model)
        self.query_norm = nn.Identity() if qk_norm is None else qk_norm(d_head)
        self.key_norm = nn.Identity() if qk_norm is None else qk_norm(d_head)

    def queries(self, x: Tensor) -> Tensor:
        q = self.split_heads(self.query(x))
        return self.query_norm(q).to(q.dtype)  # under autocast a norm gives float32

    def keys(self, x: Tensor) -> Tensor:
        k = self.split_heads(self.key(x))
        return self.key_norm(k).to(k.dtype)

    def values(self, x: Tensor) -> Tensor:
        return self.split_heads(self.value(x))

    def split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.d_head)).transpose(1, 2)  # (B, T, H K) -> (B, H, T, K)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Visibility) -> Tensor:
        """Queries (B, H, Q, K) look at keys and values (B, n_kv_heads, M, K): (B, Q, D)."""
        if self.watcher is not None:
            self.watcher(weights_of(q, k, visible))
        dropout = self.dropout if self.training else 0.0
        heads = F.scaled_dot_product_attention(
            q, k, v, visible.mask, dropout, visible.is_causal, enable_gqa=self.is_grouped
        )
        return self.out(heads.transpose(1, 2).flatten(2))  # (B, H, Q, K) -> (B, Q, D)


class SelfAttention(Attention):
    """Each token looks at its own sequence."""

    def forward(
        self,
        x: Tensor,
        visible: Visibility,
        position: PositionEncoding,
        positions: Tensor,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Tokens x (B, T, D) at positions (T,), the new ones only when there is a cache, to (B, T, D)."""
        q = position.rotate(self.queries(x), positions)
        k = position.rotate(self.keys(x), positions)
        v = self.values(x)
        if cache is not None:
            k, v = cache.append(k, v)
        return self.attend(q, k, v, visible)


class CrossAttention(Attention):
    """Target tokens look at the encoded source, whose keys and values are projected once for a whole search."""

    def forward(self, x: Tensor, memory: Tensor, visible: Visibility, cache: KeyValueCache | None = None) -> Tensor:
        """Target tokens x (n B, T, D) look at memory (B, S, D): (n B, T, D).

        n is 1 in training; in a search it is the number of hypotheses of a sentence, which stand in neighbouring rows
        and share the sentence's memory, keys and values instead of holding n copies of them.
        """
        if cache is not None and cache.keys is not None and cache.values is not None:
            k, v = cache.keys, cache.values
        else:
            k, v = self.keys(memory), self.values(memory)
            if cache is not None:
                cache.append(k, v)
        q = self.queries(x.reshape(memory.size(0), -1, x.size(-1)))  # (n B, T, D) -> (B, H, n T, K)
        return self.attend(q, k, v, visible).view_as(x)
