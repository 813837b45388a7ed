"""The interface that training, search and evaluation use, and the base class of all models."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor, nn

Tying = Literal["none", "target", "inputs", "all"]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and restore the mode of each of its modules on exit."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


class AttentionWeights(NamedTuple):
    """Attention weights: one float32 tensor (B, H, Q, M) per layer.

    Each row sums to one, or is all zeros if the query may attend to nothing. A kind of attention that the model does
    not have is an empty list.

    Attributes:
        encoder: self-attention of the source tokens (B, H, S, S).
        decoder: causal self-attention of the target tokens (B, H, T, T).
        cross: attention from target to source tokens (B, H, T, S).
    """

    encoder: list[Tensor]
    decoder: list[Tensor]
    cross: list[Tensor]


class Watchable(Protocol):
    """An attention module whose weights can be observed.

    Attributes:
        watcher: called with the attention weights (B, H, Q, M) of each forward pass.
    """

    watcher: Callable[[Tensor], None] | None


class Cache(Protocol):
    """The state that a decoder keeps during a search, so that each step computes only the newest token."""

    def __len__(self) -> int:
        """Return the number of target tokens seen."""

    def select(self, hypotheses: Tensor, sentences: Tensor | None = None) -> None:
        """Keep only these rows, in this order. The number n of hypotheses per sentence may change.

        Args:
            hypotheses: rows (n B,) of the hypotheses to keep; each stays within the rows of its sentence.
            sentences: rows of the sentences to keep, if some are done; None: all.
        """


class EncoderDecoder(nn.Module):
    """Base class of all models, which map source tokens to logits of target tokens.

    A subclass implements encode, decode, new_cache and attentions; the commands need no other methods of it.

    Args:
        src_vocab_size: number of source token ids.
        tgt_vocab_size: number V of target token ids.
        d_model: width D of the token vectors.
        tying: which embedding matrices are shared: "none"; "target", the decoder's input and output (Press and Wolf,
            2017); "inputs", the encoder's and the decoder's input, as in T5 1.1 (Shazeer, 2020; Xue et al., 2021); or
            "all", the encoder's input and the decoder's input and output (Vaswani et al., 2017).
        output_bias: whether the output projection has a bias, as in Marian (Junczys-Dowmunt et al., 2018).
        scale_embeddings: whether token vectors are multiplied by sqrt(d_model) (Vaswani et al., 2017, section 3.4).

    Raises:
        ValueError: tying is unknown, or it ties the inputs of vocabularies of different sizes.
    """

    max_src_positions: int | None = None  # the longest source that the model accepts, in tokens; None: any length
    max_tgt_positions: int | None = None  # the longest target
    can_compile = False  # whether the model has `compile_layers`
    # Patterns of the names of the children that make up encoder and decoder, without embeddings and output.
    stacks: Mapping[str, Sequence[str]] = MappingProxyType(
        {"encoder": ("encoder", "encoder_*"), "decoder": ("decoder", "decoder_*")}
    )

    def __init__(
        self,
        src_vocab_size: int,
        tgt_vocab_size: int,
        d_model: int,
        tying: Tying,
        output_bias: bool = False,
        scale_embeddings: bool = True,
    ) -> None:
        super().__init__()
        if tying not in get_args(Tying):
            raise ValueError(f"tying ({tying}) must be none, target, inputs or all")
        ties_inputs = tying in ("inputs", "all")
        if ties_inputs and src_vocab_size != tgt_vocab_size:
            raise ValueError(
                f"tying {tying} needs one vocabulary; these have {src_vocab_size} and {tgt_vocab_size} tokens"
            )
        self.d_model, self.scale_embeddings = d_model, scale_embeddings
        self.tgt_embedding = nn.Embedding(tgt_vocab_size, d_model)
        self.src_embedding = self.tgt_embedding if ties_inputs else nn.Embedding(src_vocab_size, d_model)
        self.output = nn.Linear(d_model, tgt_vocab_size, bias=output_bias)
        if tying in ("target", "all"):
            self.output.weight = self.tgt_embedding.weight

    def reset_embeddings(self) -> None:
        """Initialise the embeddings so that vectors and logits have variance 1, and the output bias with zeros.

        The standard deviation is d_model^-0.5 where vectors are multiplied by sqrt(d_model), and for output weights. If
        vectors are not multiplied, it is 1 for an embedding of its own; one that is also the output keeps d_model^-0.5.
        """
        std = self.d_model**-0.5
        for embedding in (self.src_embedding, self.tgt_embedding):
            nn.init.normal_(embedding.weight, std=std if self.scale_embeddings else 1.0)
        nn.init.normal_(self.output.weight, std=std)
        if self.output.bias is not None:
            nn.init.zeros_(self.output.bias)

    def vectors(self, tokens: Tensor, embedding: nn.Embedding) -> Tensor:
        """Embed tokens (B, T) as vectors (B, T, D)."""
        vectors: Tensor = embedding(tokens)
        return vectors * self.d_model**0.5 if self.scale_embeddings else vectors

    def encode(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """Encode source tokens (B, S) into memory (B, S, ...).

        Args:
            src: source tokens, padded at the end.
            src_mask: (B, S), True on tokens and False on padding; None: no padding.
        """
        raise NotImplementedError

    def decode(self, tgt: Tensor, memory: Tensor, src_mask: Tensor | None = None, cache: Any = None) -> Tensor:
        """Map target tokens (n B, T) to logits (n B, T, V); with a cache, `tgt` holds the new tokens only.

        `memory` (B, S, ...) and `src_mask` (B, S) have one row per sentence; `tgt` has n neighbouring rows for each.
        """
        raise NotImplementedError

    def compile_layers(self, backend: str | Callable[..., Any] = "inductor") -> int:
        """Compile the repeated layers, each on its own, for training; in evaluation mode they stay uncompiled.

        A graph is compiled for each kind of layer and each shape that it meets.

        Args:
            backend: see torch.compile.

        Returns:
            The number of kinds of layers.
        """
        raise NotImplementedError

    def new_cache(self) -> Cache:
        """Return an empty cache, which decode fills during a search."""
        raise NotImplementedError

    def attentions(self) -> dict[str, Sequence[Watchable]]:
        """Return the attentions of each kind (see AttentionWeights), from the first layer to the last."""
        raise NotImplementedError

    def forward(self, src: Tensor, tgt_in: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """Map source tokens (B, S) and decoder inputs (B, T) to logits (B, T, V) of each next target token."""
        return self.decode(tgt_in, self.encode(src, src_mask), src_mask)

    @torch.no_grad()
    def attention_weights(self, src: Tensor, tgt_in: Tensor, src_mask: Tensor | None = None) -> AttentionWeights:
        """Compute the attention weights for source tokens (B, S) and decoder inputs (B, T), without dropout.

        They are computed in the dtype of the parameters, without autocast, as in translation. The model, its mode, its
        gradients and the random number generators are left unchanged.
        """
        weights: dict[str, list[list[Tensor]]] = {kind: [] for kind in AttentionWeights._fields}
        attentions = self.attentions()
        try:
            for kind, layers in attentions.items():
                for attention in layers:
                    calls: list[Tensor] = []  # one call for all target tokens, or one per token
                    weights[kind].append(calls)
                    attention.watcher = calls.append
            # The meta device, used to try out a model, does not support autocast.
            autocast = nullcontext() if src.is_meta else torch.autocast(src.device.type, enabled=False)
            with evaluating(self), autocast:
                self.decode(tgt_in, self.encode(src, src_mask), src_mask)
        finally:
            for layers in attentions.values():
                for attention in layers:
                    attention.watcher = None
        return AttentionWeights(**{kind: [torch.cat(calls, 2) for calls in layers] for kind, layers in weights.items()})
