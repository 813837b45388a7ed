"""The encoder-decoder Transformer (Vaswani et al., 2017)."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple, TypedDict

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from diglot.model.attention import Attention, AttentionMask, CrossAttention, KeyValueCache, SelfAttention, merge_masks
from diglot.model.dropout import Dropout
from diglot.model.encoder_decoder import EncoderDecoder, Tying, Watchable
from diglot.model.feed_forward import FeedForward
from diglot.model.position import PositionEncoding
from diglot.model.residual import Depth, Residual


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network, each with a residual connection."""

    def __init__(self, self_attention: Residual, feed_forward: Residual) -> None:
        super().__init__()
        self.self_attention, self.feed_forward = self_attention, feed_forward

    def forward(self, x: Tensor, attn_mask: AttentionMask, position: PositionEncoding, positions: Tensor) -> Tensor:
        """Map x (B, S, D) at positions (S,) to (B, S, D)."""
        x = self.self_attention(x, attn_mask, position, positions)
        return self.feed_forward(x)


class LayerCache:
    """Key/value caches of one decoder layer, one row per sentence."""

    def __init__(self) -> None:
        self.target, self.source = KeyValueCache(), KeyValueCache()


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention, then a feed-forward network, each with a residual connection."""

    def __init__(self, self_attention: Residual, cross_attention: Residual, feed_forward: Residual) -> None:
        super().__init__()
        self.self_attention, self.cross_attention, self.feed_forward = self_attention, cross_attention, feed_forward

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        attn_mask: AttentionMask,
        memory_mask: AttentionMask,
        position: PositionEncoding,
        positions: Tensor,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Map x (B, T, D) at positions (T,) and memory (B, S, D) to (B, T, D).

        With a cache, x holds only the new tokens, for each sentence those of its n hypotheses side by side (B, n T, D).
        """
        x = self.self_attention(x, attn_mask, position, positions, cache and cache.target)
        x = self.cross_attention(x, memory, memory_mask, cache and cache.source)
        return self.feed_forward(x)


class DecoderCache:
    """Key/value caches of all decoder layers, and a mask from hypotheses to their keys.

    All hypotheses of a sentence share a row, to which each step appends their keys side by side. When a search drops
    some hypotheses and extends others twice, no key moves; only the mask changes.

    Attributes:
        positions: positions of the keys, in the order of the cache (M,).
        seen: (B, n, M), True on the keys of a hypothesis's own past; None: there is one hypothesis, which attends to
            all keys.
    """

    def __init__(self, n_layers: int) -> None:
        self.layers = [LayerCache() for _ in range(n_layers)]
        self.positions: Tensor | None = None
        self.seen: Tensor | None = None
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def extend(self, n: int, length: int, n_sentences: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Register `length` new tokens (T) for each of the n hypotheses of a sentence.

        Returns:
            The positions (n T,) of the new tokens, hypothesis by hypothesis, and a mask (B, n T, M) of the keys that
            each may attend to. The mask is None while there has only been one hypothesis; then causality is enough.
        """
        new = torch.arange(self._length, self._length + length, device=device).repeat(n)
        self._length += length
        old, self.positions = (
            self.positions,
            new if self.positions is None else torch.cat((self.positions, new)),
        )
        if n == 1 and self.seen is None:
            return new, None
        hypothesis = torch.arange(n, device=device).repeat_interleave(length)
        new_mask = (hypothesis[:, None] == hypothesis) & (new[:, None] >= new)  # (n T, n T)
        new_mask = new_mask.expand(n_sentences, -1, -1)
        if old is None:
            mask = new_mask
        else:
            if self.seen is None:
                self.seen = torch.ones(n_sentences, n, len(old), dtype=torch.bool, device=device)
            mask = torch.cat((self.seen.repeat_interleave(length, 1), new_mask), 2)
        self.seen = mask[:, length - 1 :: length]
        return new, mask

    def select(self, hypotheses: Tensor, sentences: Tensor | None = None) -> None:
        if sentences is not None:
            for layer in self.layers:
                layer.target.select(sentences)
                layer.source.select(sentences)
        if self.seen is not None:
            n_sentences = len(self.seen) if sentences is None else len(sentences)
            self.seen = self.seen.flatten(0, 1)[hypotheses].unflatten(0, (n_sentences, -1))


class PerAttention(TypedDict):
    """One number per kind of attention: encoder and decoder self-attention, and cross-attention."""

    encoder: int | None
    decoder: int | None
    cross: int | None


class Heads(NamedTuple):
    """The heads of one kind of attention: number of query heads, width, and number of key/value heads."""

    n_heads: int
    d_head: int
    n_kv_heads: int | None


def _check_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} ({size}) must be positive")


def _check_probabilities(**shares: float) -> None:
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise ValueError(f"{name} ({share}) must be at least 0 and below 1")


class Transformer(EncoderDecoder):
    """Encoder-decoder Transformer (Vaswani et al., 2017) whose parts are interchangeable.

    Args:
        src_vocab_size, tgt_vocab_size, tying, output_bias, scale_embeddings: see EncoderDecoder.
        d_model: width D of the token vectors.
        n_heads: number H of attention heads, for all attentions or per kind.
        d_head: width K of a head, for all attentions or per kind; None: d_model / n_heads.
        n_kv_heads: number of key/value heads, for all attentions or per kind; None: n_heads.
        qk_norm: whether to normalise queries and keys.
        bias: whether the linear layers of attention and feed-forward networks have biases; T5 (Raffel et al., 2020)
            has none.
        d_ff: inner width of the feed-forward networks.
        n_encoder_layers: number of encoder layers.
        n_decoder_layers: number of decoder layers.
        dropout: dropout probability of each sublayer's output.
        attention_dropout: dropout probability of the attention weights.
        activation_dropout: dropout probability inside the feed-forward networks.
        embedding_dropout: dropout probability of the embeddings; None: the same as `dropout`, as in the paper.
        embedding_norm: whether to normalise the sum of embeddings and positions, before dropout (BART: Lewis et al.,
            2020).
        position: factory of a position encoding, called with d_model, n_heads, d_head and causal.
        residual: factory of a norm placement, called with sublayer, d_model, norm, dropout and depth.
        norm: factory of a norm, called with d_model.
        feed_forward: factory of a feed-forward network, called with d_model, d_ff and dropout, and with bias if it is
            False.
        decoder_position, decoder_residual, decoder_norm, decoder_feed_forward: factories for the decoder; None: the
            same as for the encoder.

    Raises:
        ValueError: a size, a dropout probability or a norm's eps is out of range, or sizes are incompatible.
    """

    can_compile = True
    _compiled_layer: Callable[..., Tensor] | None = None

    def __init__(
        self,
        *,
        src_vocab_size: int,
        tgt_vocab_size: int,
        d_model: int,
        n_heads: int | PerAttention,
        d_head: int | PerAttention | None = None,
        n_kv_heads: int | PerAttention | None = None,
        qk_norm: bool = False,
        bias: bool = True,
        d_ff: int,
        n_encoder_layers: int,
        n_decoder_layers: int,
        dropout: float,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        embedding_dropout: float | None = None,
        embedding_norm: bool = False,
        scale_embeddings: bool = True,
        tying: Tying,
        output_bias: bool = False,
        position: Callable[..., PositionEncoding],
        residual: Callable[..., Residual],
        norm: Callable[[int], nn.Module],
        feed_forward: Callable[..., FeedForward],
        decoder_position: Callable[..., PositionEncoding] | None = None,
        decoder_residual: Callable[..., Residual] | None = None,
        decoder_norm: Callable[[int], nn.Module] | None = None,
        decoder_feed_forward: Callable[..., FeedForward] | None = None,
    ) -> None:
        _check_positive(
            d_model=d_model, d_ff=d_ff, n_encoder_layers=n_encoder_layers, n_decoder_layers=n_decoder_layers
        )
        embedding_dropout = dropout if embedding_dropout is None else embedding_dropout
        _check_probabilities(
            dropout=dropout,
            attention_dropout=attention_dropout,
            activation_dropout=activation_dropout,
            embedding_dropout=embedding_dropout,
        )
        heads = {kind: heads_of(kind, d_model, n_heads, d_head, n_kv_heads) for kind in PerAttention.__annotations__}
        for name, make in (("norm", norm), ("decoder_norm", decoder_norm or norm)):
            eps = getattr(make(d_model), "eps", None)  # torch's norms accept any value
            if eps is not None and eps <= 0:
                raise ValueError(f"{name}.eps ({eps}) must be positive")
        super().__init__(src_vocab_size, tgt_vocab_size, d_model, tying, output_bias, scale_embeddings)

        def stack(
            name: Literal["encoder", "decoder"],
            residual: Callable[..., Residual],
            norm: Callable[[int], nn.Module],
            feed_forward: Callable[..., FeedForward],
        ) -> nn.ModuleList:
            depth = Depth(n_encoder_layers, n_decoder_layers, name)

            def wrap(sublayer: nn.Module) -> Residual:
                return residual(sublayer=sublayer, d_model=d_model, norm=norm, dropout=dropout, depth=depth)

            def attention(cls: type[Attention], shape: Heads) -> Residual:
                norm_of_heads = norm if qk_norm else None
                return wrap(
                    cls(d_model, shape.n_heads, shape.d_head, attention_dropout, shape.n_kv_heads, norm_of_heads, bias)
                )

            def network() -> Residual:
                options = {} if bias else {"bias": False}  # a user's own network need not have the option
                return wrap(feed_forward(d_model=d_model, d_ff=d_ff, dropout=activation_dropout, **options))

            if name == "encoder":
                return nn.ModuleList(
                    EncoderLayer(attention(SelfAttention, heads["encoder"]), network()) for _ in range(n_encoder_layers)
                )
            return nn.ModuleList(
                DecoderLayer(
                    attention(SelfAttention, heads["decoder"]), attention(CrossAttention, heads["cross"]), network()
                )
                for _ in range(n_decoder_layers)
            )

        def positions(make: Callable[..., PositionEncoding], shape: Heads, causal: bool) -> PositionEncoding:
            return make(d_model=d_model, n_heads=shape.n_heads, d_head=shape.d_head, causal=causal)

        self.encoder_position = positions(position, heads["encoder"], causal=False)
        self.decoder_position = positions(decoder_position or position, heads["decoder"], causal=True)
        self.encoder_embedding_norm, self.decoder_embedding_norm = (
            make(d_model) if embedding_norm else nn.Identity() for make in (norm, decoder_norm or norm)
        )
        self.embedding_dropout = Dropout(embedding_dropout)
        self.encoder = stack("encoder", residual, norm, feed_forward)
        self.decoder = stack(
            "decoder", decoder_residual or residual, decoder_norm or norm, decoder_feed_forward or feed_forward
        )
        self.encoder_norm = final_norm(self.encoder, norm, d_model)
        self.decoder_norm = final_norm(self.decoder, decoder_norm or norm, d_model)
        self.max_src_positions = self.encoder_position.max_positions
        self.max_tgt_positions = self.decoder_position.max_positions
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise all weights: projections by Glorot and Bengio (2010) unless the norm placement overrides it."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif module is not self and not isinstance(module, nn.Embedding) and hasattr(module, "reset_parameters"):
                module.reset_parameters()  # type: ignore[operator]  # norms, and the encodings that own an embedding
        for module in self.modules():
            if isinstance(module, Residual):
                module.reset_sublayer()
        self.reset_embeddings()

    def embed_source(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Embed source tokens (B, S) at positions (S,) as vectors (B, S, D)."""
        x = self.encoder_position.embed(self.vectors(tokens, self.src_embedding), positions)
        return self.embedding_dropout(self.encoder_embedding_norm(x))

    def embed_target(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Embed target tokens (B, T) at positions (T,) as vectors (B, T, D)."""
        x = self.decoder_position.embed(self.vectors(tokens, self.tgt_embedding), positions)
        return self.embedding_dropout(self.decoder_embedding_norm(x))

    def encode(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        position, positions = self.encoder_position, torch.arange(src.size(1), device=src.device)
        x = self.embed_source(src, positions)
        bias = position.bias(positions, positions)
        attn_mask = merge_masks(src_mask, bias, positions, positions, causal=False, dtype=self._attention_dtype(x))
        for layer in self.encoder:
            x = self._apply_layer(layer, x, attn_mask, position, positions)
        return self.encoder_norm(x)

    def decode(
        self, tgt: Tensor, memory: Tensor, src_mask: Tensor | None = None, cache: DecoderCache | None = None
    ) -> Tensor:
        position, shape, mask = self.decoder_position, tgt.shape, None
        layers: Sequence[LayerCache | None] = [None] * len(self.decoder)
        if cache is None:
            keys = positions = torch.arange(tgt.size(1), device=tgt.device)
        else:
            n_sentences = memory.size(0)
            positions, mask = cache.extend(len(tgt) // n_sentences, tgt.size(1), n_sentences, tgt.device)
            assert cache.positions is not None
            keys, layers = cache.positions, cache.layers
            tgt = tgt.reshape(n_sentences, -1)  # (n B, T) -> (B, n T)
        x = self.embed_target(tgt, positions)
        bias = position.bias(positions, keys)
        attn_mask = merge_masks(mask, bias, positions, keys, causal=mask is None, dtype=self._attention_dtype(x))
        memory_mask = AttentionMask(None if src_mask is None else src_mask[:, None, None, :])
        for layer, layer_cache in zip(self.decoder, layers, strict=True):
            x = self._apply_layer(layer, x, memory, attn_mask, memory_mask, position, positions, layer_cache)
        return self.output(self.decoder_norm(x)).view(*shape, -1)

    def compile_layers(self, backend: str | Callable[..., Any] = "inductor") -> int:
        self._compiled_layer = torch.compile(_call, dynamic=False, backend=backend)
        return 2  # encoder and decoder layers

    def _apply_layer(self, layer: nn.Module, *args: Any) -> Tensor:
        # Lengths vary too much in evaluation for one graph per shape.
        if self._compiled_layer is None or not self.training:
            return _call(layer, *args)
        # On a CPU, the math kernel lets the compiler fuse attention with other operations.
        with sdpa_kernel(SDPBackend.MATH) if args[0].device.type == "cpu" else nullcontext():
            return self._compiled_layer(layer, *args)

    def new_cache(self) -> DecoderCache:
        return DecoderCache(len(self.decoder))

    def attentions(self) -> dict[str, Sequence[Watchable]]:
        return {
            "encoder": [m for m in self.encoder.modules() if isinstance(m, SelfAttention)],
            "decoder": [m for m in self.decoder.modules() if isinstance(m, SelfAttention)],
            "cross": [m for m in self.decoder.modules() if isinstance(m, CrossAttention)],
        }

    @staticmethod
    def _attention_dtype(x: Tensor) -> torch.dtype:
        """Return the dtype of the queries, which the projections change under autocast."""
        device = x.device.type
        if x.is_meta:  # the meta device does not support autocast
            return x.dtype
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def _call(layer: nn.Module, *args: Any) -> Tensor:
    return layer(*args)  # type: ignore[no-any-return]


def heads_of(
    kind: str,
    d_model: int,
    n_heads: int | PerAttention,
    d_head: int | PerAttention | None,
    n_kv_heads: int | PerAttention | None,
) -> Heads:
    """Return the heads of one kind of attention.

    Raises:
        ValueError: a number is not positive, or does not divide another; the message names it.
    """

    def of_kind(name: str, value: int | PerAttention | None) -> tuple[str, int | None]:
        if value is None or isinstance(value, int):
            number = value
        else:
            values: Mapping[str, Any] = value
            name, number = f"{name}.{kind}", values[kind]
        if number is not None and number < 1:
            raise ValueError(f"{name} ({number}) must be positive")
        return name, number

    heads_name, heads = of_kind("n_heads", n_heads)
    _, width = of_kind("d_head", d_head)
    kv_name, kv_heads = of_kind("n_kv_heads", n_kv_heads)
    if heads is None:
        raise ValueError(f"{heads_name} must be given")
    if width is None:
        if d_model % heads:
            raise ValueError(f"{heads_name} ({heads}) must divide d_model ({d_model}), or d_head must be given")
        width = d_model // heads
    if kv_heads is not None and heads % kv_heads:
        raise ValueError(f"{kv_name} ({kv_heads}) must divide {heads_name} ({heads})")
    return Heads(heads, width, kv_heads)


def final_norm(stack: nn.ModuleList, norm: Callable[[int], nn.Module], d_model: int) -> nn.Module:
    """Return the norm at the end of a stack if its layers need one, else the identity."""
    last_sublayer = stack[-1].feed_forward
    return norm(d_model) if isinstance(last_sublayer, Residual) and last_sublayer.needs_final_norm else nn.Identity()
