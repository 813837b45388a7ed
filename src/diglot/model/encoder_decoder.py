"""The small interface that training, search and evaluation know a model by, and what all such models share."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Let a model compute without dropout, and leave each of its modules in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


class AttentionWeights(NamedTuple):
    """How much each query looks at each key: for each layer a float32 tensor (B, H, Q, M), whose rows sum to one.

    A model that lacks a kind of attention has no layers of it.

    Attributes:
        encoder: of source tokens looking at source tokens (B, H, S, S).
        decoder: of target tokens looking at themselves and what came before (B, H, T, T).
        cross: of target tokens looking at source tokens (B, H, T, S).
    """

    encoder: list[Tensor]
    decoder: list[Tensor]
    cross: list[Tensor]


class Watchable(Protocol):
    """An attention that can be watched.

    Attributes:
        watcher: is handed the weights (B, H, Q, M) of each call.
    """

    watcher: Callable[[Tensor], None] | None


class Cache(Protocol):
    """What a decoder remembers during a search, so that each step computes the newest token only."""

    def __len__(self) -> int:
        """How many target tokens it has seen."""

    def select(self, hypotheses: Tensor, sentences: Tensor | None = None) -> None:
        """Keep these rows, in this order: of the hypotheses (n B,), each again in a row of its own sentence, and, where
        some sentences are done, of the sentences. n may change."""


class EncoderDecoder(nn.Module):
    """Source tokens in, logits of target tokens out: the base of all models.

    A model says how to encode, how to decode against a memory, what a decoder's cache is, and where its attentions are;
    all commands use nothing else of it.

    Args:
        src_vocab_size: number of source token ids.
        tgt_vocab_size: number V of target token ids.
        d_model: width D of the token vectors.
        tying: which of the three embedding matrices are one: none; the decoder's input and output (target: Press and
            Wolf, 2017); or these and the encoder's input (all: Vaswani et al., 2017).

    Raises:
        ValueError: if one matrix is to serve two vocabularies of different sizes.
    """

    max_src_positions: int | None = None  # the longest source that the model knows, in tokens; None: any length
    max_tgt_positions: int | None = None  # the longest target
    compiles_whole = True  # whether torch.compile makes one graph of it, whatever the lengths

    def __init__(
        self, src_vocab_size: int, tgt_vocab_size: int, d_model: int, tying: Literal["none", "target", "all"]
    ) -> None:
        super().__init__()
        if tying not in ("none", "target", "all"):
            raise ValueError(f"tying ({tying}) must be none, target or all")
        if tying == "all" and src_vocab_size != tgt_vocab_size:
            raise ValueError(f"tying all needs one vocabulary; these have {src_vocab_size} and {tgt_vocab_size} tokens")
        self.d_model = d_model
        self.tgt_embedding = nn.Embedding(tgt_vocab_size, d_model)
        self.src_embedding = self.tgt_embedding if tying == "all" else nn.Embedding(src_vocab_size, d_model)
        self.output = nn.Linear(d_model, tgt_vocab_size, bias=False)
        if tying != "none":
            self.output.weight = self.tgt_embedding.weight

    def reset_embeddings(self) -> None:
        """Draw the embeddings with deviation d_model^-0.5: scaled by sqrt(d_model) on the way in they have variance 1,
        and as output weights they give logits of variance 1."""
        for weight in (self.src_embedding.weight, self.tgt_embedding.weight, self.output.weight):
            nn.init.normal_(weight, std=self.d_model**-0.5)

    def vectors(self, tokens: Tensor, embedding: nn.Embedding) -> Tensor:
        """Tokens (B, T) to vectors (B, T, D)."""
        return embedding(tokens) * self.d_model**0.5

    def encode(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """Source tokens (B, S) to memory (B, S, ...). `src_mask` (B, S) is True on tokens, and what is padded stands at
        the end; None: nothing is padded."""
        raise NotImplementedError

    def decode(self, tgt: Tensor, memory: Tensor, src_mask: Tensor | None = None, cache: Any = None) -> Tensor:
        """Target tokens (n B, T), the new ones only when there is a cache (see new_cache), to logits (n B, T, V).

        `memory` (B, S, ...) and `src_mask` (B, S) have a row a sentence; `tgt` has n neighbouring rows for each.
        """
        raise NotImplementedError

    def new_cache(self) -> Cache:
        """What decode fills during a search."""
        raise NotImplementedError

    def attentions(self) -> dict[str, Sequence[Watchable]]:
        """The attentions of each kind (see AttentionWeights), from the first layer to the last."""
        raise NotImplementedError

    def forward(self, src: Tensor, tgt_in: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """Source tokens (B, S) and the target so far (B, T) to logits (B, T, V) of each next target token."""
        return self.decode(tgt_in, self.encode(src, src_mask), src_mask)

    @torch.no_grad()
    def attention_weights(self, src: Tensor, tgt_in: Tensor, src_mask: Tensor | None = None) -> AttentionWeights:
        """Who looks at whom when source tokens (B, S) and the target so far (B, T) are read, without dropout.

        Computed aside in the weights' own precision, as translations are: the model, its mode, its gradients and the
        random numbers stay as they were.
        """
        found: dict[str, list[list[Tensor]]] = {kind: [] for kind in AttentionWeights._fields}
        attentions = self.attentions()
        try:
            for kind, layers in attentions.items():
                for attention in layers:
                    calls: list[Tensor] = []  # one for all target tokens, or one for each
                    found[kind].append(calls)
                    attention.watcher = calls.append
            # The meta device, on which a model is only tried, knows no autocast.
            autocast = nullcontext() if src.is_meta else torch.autocast(src.device.type, enabled=False)
            with evaluating(self), autocast:
                self.decode(tgt_in, self.encode(src, src_mask), src_mask)
        finally:
            for layers in attentions.values():
                for attention in layers:
                    attention.watcher = None
        return AttentionWeights(**{kind: [torch.cat(calls, 2) for calls in layers] for kind, layers in found.items()})
