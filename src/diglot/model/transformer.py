"""The encoder-decoder Transformer (Vaswani et al., 2017)."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from diglot.model.attention import Attention, CrossAttention, KeyValueCache, SelfAttention, Visibility, visibility
from diglot.model.dropout import Dropout
from diglot.model.feed_forward import FeedForward
from diglot.model.position import PositionEncoding
from diglot.model.residual import Residual


class EncoderLayer(nn.Module):
    def __init__(self, self_attention: Residual, feed_forward: Residual) -> None:
        super().__init__()
        self.self_attention, self.feed_forward = self_attention, feed_forward

    def forward(self, x: Tensor, visible: Visibility, position: PositionEncoding, positions: Tensor) -> Tensor:
        x = self.self_attention(x, visible, position, positions)
        return self.feed_forward(x)


class LayerCache:
    """What one decoder layer remembers during a search."""

    def __init__(self) -> None:
        self.target = KeyValueCache()  # a row for each hypothesis
        self.source = KeyValueCache()  # a row for each sentence


class DecoderLayer(nn.Module):
    def __init__(self, self_attention: Residual, cross_attention: Residual, feed_forward: Residual) -> None:
        super().__init__()
        self.self_attention, self.cross_attention, self.feed_forward = self_attention, cross_attention, feed_forward

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        visible: Visibility,
        visible_memory: Visibility,
        position: PositionEncoding,
        positions: Tensor,
        cache: LayerCache | None = None,
    ) -> Tensor:
        x = self.self_attention(x, visible, position, positions, cache and cache.target)
        x = self.cross_attention(x, memory, visible_memory, cache and cache.source)
        return self.feed_forward(x)


class DecoderCache:
    """What the decoder remembers during a search, so that each step computes the newest token only."""

    def __init__(self, n_layers: int) -> None:
        self.layers = [LayerCache() for _ in range(n_layers)]

    def __len__(self) -> int:
        """How many target tokens it has seen."""
        return len(self.layers[0].target)

    def select(self, hypotheses: Tensor, sentences: Tensor | None = None) -> None:
        """Keep these rows, in this order: of the hypotheses and, where some sentences are done, of the sentences."""
        for layer in self.layers:
            layer.target.select(hypotheses)
            if sentences is not None:
                layer.source.select(sentences)


class AttentionWeights(NamedTuple):
    """How much each query looks at each key: for each layer a float32 tensor (B, H, Q, M), whose rows sum to one.

    Attributes:
        encoder: of source tokens looking at source tokens (B, H, S, S).
        decoder: of target tokens looking at themselves and what came before (B, H, T, T).
        cross: of target tokens looking at source tokens (B, H, T, S).
    """

    encoder: list[Tensor]
    decoder: list[Tensor]
    cross: list[Tensor]


class Transformer(nn.Module):
    """Source tokens in, logits of target tokens out.

    Args:
        src_vocab_size: number of source token ids.
        tgt_vocab_size: number V of target token ids.
        d_model: width D of the token vectors.
        n_heads: number H of attention heads.
        d_head: width K of a head; None: d_model / n_heads.
        d_ff: inner width of the feed-forward networks.
        n_encoder_layers: depth of the encoder.
        n_decoder_layers: depth of the decoder.
        dropout: share dropped of embeddings and of each sublayer's output, as in the paper.
        attention_dropout: share dropped of attention weights.
        activation_dropout: share dropped inside the feed-forward networks.
        tying: which of the three embedding matrices are one: none; the decoder's input and output (target: Press and
            Wolf, 2017); or these and the encoder's input (all).
        position: makes a position encoding, from d_model, n_heads, d_head and causal.
        residual: makes a norm placement, from sublayer, d_model, norm and dropout.
        norm: makes a norm over D.
        feed_forward: makes a feed-forward network, from d_model, d_ff and dropout.

    Raises:
        ValueError: if the sizes do not fit each other.
    """

    def __init__(
        self,
        *,
        src_vocab_size: int,
        tgt_vocab_size: int,
        d_model: int,
        n_heads: int,
        d_head: int | None = None,
        d_ff: int,
        n_encoder_layers: int,
        n_decoder_layers: int,
        dropout: float,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        tying: Literal["none", "target", "all"],
        position: Callable[..., PositionEncoding],
        residual: Callable[..., Residual],
        norm: Callable[[int], nn.Module],
        feed_forward: Callable[..., FeedForward],
    ) -> None:
        super().__init__()
        for name, value in {
            "d_model": d_model,
            "n_heads": n_heads,
            "d_head": 1 if d_head is None else d_head,
            "d_ff": d_ff,
            "n_encoder_layers": n_encoder_layers,
            "n_decoder_layers": n_decoder_layers,
        }.items():
            if value < 1:
                raise ValueError(f"{name} ({value}) must be positive")
        if d_head is None:
            if d_model % n_heads:
                raise ValueError(f"n_heads ({n_heads}) must divide d_model ({d_model}), or d_head be given")
            d_head = d_model // n_heads
        for name, share in {
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "activation_dropout": activation_dropout,
        }.items():
            if not 0 <= share < 1:
                raise ValueError(f"{name} ({share}) must be at least 0 and below 1")
        if tying not in ("none", "target", "all"):
            raise ValueError(f"tying ({tying}) must be none, target or all")
        if tying == "all" and src_vocab_size != tgt_vocab_size:
            raise ValueError(f"tying all needs one vocabulary; these have {src_vocab_size} and {tgt_vocab_size} tokens")

        def wrap(sublayer: nn.Module) -> Residual:
            return residual(sublayer=sublayer, d_model=d_model, norm=norm, dropout=dropout)

        def attention(kind: type[Attention]) -> Residual:
            return wrap(kind(d_model, n_heads, d_head, attention_dropout))

        def network() -> Residual:
            return wrap(feed_forward(d_model=d_model, d_ff=d_ff, dropout=activation_dropout))

        self.d_model = d_model
        self.encoder_position = position(d_model=d_model, n_heads=n_heads, d_head=d_head, causal=False)
        self.decoder_position = position(d_model=d_model, n_heads=n_heads, d_head=d_head, causal=True)
        self.embedding_dropout = Dropout(dropout)
        self.encoder = nn.ModuleList(EncoderLayer(attention(SelfAttention), network()) for _ in range(n_encoder_layers))
        self.decoder = nn.ModuleList(
            DecoderLayer(attention(SelfAttention), attention(CrossAttention), network())
            for _ in range(n_decoder_layers)
        )
        needs_final_norm = wrap(nn.Identity()).needs_final_norm
        self.encoder_norm = norm(d_model) if needs_final_norm else nn.Identity()
        self.decoder_norm = norm(d_model) if needs_final_norm else nn.Identity()
        self.tgt_embedding = nn.Embedding(tgt_vocab_size, d_model)
        self.src_embedding = self.tgt_embedding if tying == "all" else nn.Embedding(src_vocab_size, d_model)
        self.output = nn.Linear(d_model, tgt_vocab_size, bias=False)
        if tying != "none":
            self.output.weight = self.tgt_embedding.weight
        self.reset_parameters()

    @property
    def max_positions(self) -> int | None:
        """The longest sequence that the position encodings know; None: any length."""
        known = [p.max_positions for p in (self.encoder_position, self.decoder_position) if p.max_positions is not None]
        return min(known, default=None)

    def reset_parameters(self) -> None:
        """Draw all weights anew: projections by Glorot and Bengio (2010), embeddings with deviation d_model^-0.5."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif module is not self and not isinstance(module, nn.Embedding) and hasattr(module, "reset_parameters"):
                module.reset_parameters()  # type: ignore[operator]  # norms, and the encodings that own an embedding
        # Scaled by sqrt(d_model) on the way in, such embeddings have variance 1, and as output weights they give
        # logits of variance 1.
        for weight in (self.src_embedding.weight, self.tgt_embedding.weight, self.output.weight):
            nn.init.normal_(weight, std=self.d_model**-0.5)

    def embed(self, tokens: Tensor, embedding: nn.Embedding, position: PositionEncoding, positions: Tensor) -> Tensor:
        """Tokens (B, T) at positions (T,) to vectors (B, T, D)."""
        return self.embedding_dropout(position.embed(embedding(tokens) * self.d_model**0.5, positions))

    def encode(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """Source tokens (B, S) to memory (B, S, D). `src_mask` (B, S) is True on tokens; None: nothing is padded."""
        position, positions = self.encoder_position, torch.arange(src.size(1), device=src.device)
        x = self.embed(src, self.src_embedding, position, positions)
        bias = position.bias(positions, positions)
        visible = visibility(src_mask, bias, positions, positions, causal=False, dtype=self._attention_dtype(x))
        for layer in self.encoder:
            x = layer(x, visible, position, positions)
        return self.encoder_norm(x)

    def decode(
        self, tgt: Tensor, memory: Tensor, src_mask: Tensor | None = None, cache: DecoderCache | None = None
    ) -> Tensor:
        """Target tokens (n B, T), the new ones only when there is a cache, to logits (n B, T, V).

        `memory` (B, S, D) and `src_mask` (B, S) have a row a sentence; `tgt` has n neighbouring rows for each of them.
        """
        seen = len(cache) if cache is not None else 0
        position, keys = self.decoder_position, torch.arange(seen + tgt.size(1), device=tgt.device)
        positions = keys[seen:]
        x = self.embed(tgt, self.tgt_embedding, position, positions)
        bias = position.bias(positions, keys)
        visible = visibility(None, bias, positions, keys, causal=True, dtype=self._attention_dtype(x))
        visible_memory = Visibility(None if src_mask is None else src_mask[:, None, None, :])
        layers: Sequence[LayerCache | None] = cache.layers if cache is not None else [None] * len(self.decoder)
        for layer, layer_cache in zip(self.decoder, layers, strict=True):
            x = layer(x, memory, visible, visible_memory, position, positions, layer_cache)
        return self.output(self.decoder_norm(x))

    def new_cache(self) -> DecoderCache:
        return DecoderCache(len(self.decoder))

    def forward(self, src: Tensor, tgt_in: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """Source tokens (B, S) and the target so far (B, T) to logits (B, T, V) of each next target token."""
        return self.decode(tgt_in, self.encode(src, src_mask), src_mask)

    @torch.no_grad()
    def attention_weights(self, src: Tensor, tgt_in: Tensor, src_mask: Tensor | None = None) -> AttentionWeights:
        """Who looks at whom when source tokens (B, S) and the target so far (B, T) are read, without dropout.

        Computed aside in the weights' own precision, as translations are: the model, its mode, its gradients and the
        random numbers stay as they were.
        """
        found = AttentionWeights([], [], [])
        watched: list[tuple[Attention, list[Tensor]]] = []
        watched += [(m, found.encoder) for m in self.encoder.modules() if isinstance(m, SelfAttention)]
        watched += [(m, found.decoder) for m in self.decoder.modules() if isinstance(m, SelfAttention)]
        watched += [(m, found.cross) for m in self.decoder.modules() if isinstance(m, CrossAttention)]
        modes = [(module, module.training) for module in self.modules()]
        try:
            self.eval()
            for attention, weights in watched:
                attention.watcher = weights.append
            # The meta device, on which a model is only tried, knows no autocast.
            with nullcontext() if src.is_meta else torch.autocast(src.device.type, enabled=False):
                self.decode(tgt_in, self.encode(src, src_mask), src_mask)
        finally:
            for attention, _ in watched:
                attention.watcher = None
            for module, training in modes:
                module.training = training
        return found

    @staticmethod
    def _attention_dtype(x: Tensor) -> torch.dtype:
        """The type that queries will have: under autocast the projections change it."""
        device = x.device.type
        if x.is_meta:  # which knows no autocast
            return x.dtype
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
