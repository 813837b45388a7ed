"""The recurrent baseline: GRUs with additive attention (Bahdanau et al., 2015)."""

from collections.abc import Callable, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn

from diglot.model.dropout import Dropout
from diglot.model.encoder_decoder import EncoderDecoder, Tying, Watchable


class AdditiveAttention(nn.Module):
    """Single-head additive attention, with scores v . tanh(W q + U k).

    Args:
        d_query: width of a query.
        d_memory: width of the memory.
        d_attention: inner width A.

    Attributes:
        watcher: called with the attention weights (B, 1, n, S) of each forward pass. See
            EncoderDecoder.attention_weights.
    """

    def __init__(self, d_query: int, d_memory: int, d_attention: int) -> None:
        super().__init__()
        self.watcher: Callable[[Tensor], None] | None = None
        self.query = nn.Linear(d_query, d_attention, bias=False)
        self.key = nn.Linear(d_memory, d_attention)
        self.score = nn.Linear(d_attention, 1, bias=False)

    def forward(self, queries: Tensor, keys: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Attend from queries (n B, d_query), n per sentence, to memory (B, S, d_memory); return (n B, d_memory).

        `keys` (B, S, A) is the memory projected by `key`, which a search computes only once.
        """
        q = self.query(queries).view(memory.size(0), -1, 1, keys.size(-1))  # (n B, A) -> (B, n, 1, A)
        scores = self.score(torch.tanh(q + keys[:, None])).squeeze(-1)  # (B, n, S)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        if mask is not None:
            weights = weights * mask[:, None]  # all zeros for a row that is all padding
        if self.watcher is not None:
            self.watcher(weights[:, None].float())
        return (weights.to(memory.dtype) @ memory).flatten(0, 1)


class GruCache:
    """Cache of the decoder state (n B, d_hidden), one row per hypothesis, and the keys (B, S, A), one per sentence."""

    def __init__(self) -> None:
        self.length = 0
        self.state: Tensor | None = None
        self.keys: Tensor | None = None

    def __len__(self) -> int:
        return self.length

    def select(self, hypotheses: Tensor, sentences: Tensor | None = None) -> None:
        if self.state is not None and self.keys is not None:
            self.state = self.state[hypotheses]
            if sentences is not None:
                self.keys = self.keys[sentences]


class GruAttention(EncoderDecoder):
    """Bidirectional GRU encoder and GRU decoder with additive attention (RNNsearch: Bahdanau et al., 2015).

    The memory (B, S, 2 d_hidden) concatenates the encoder states of both directions. The initial decoder state is
    computed from the backward state of the first source token. At each step i, the decoder attends to the memory with
    its state s_(i-1), then updates it to s_i from the embedded target token and the context vector. The logits are
    computed from s_i, the embedding and the context vector through a maxout layer over pairs.

    For the logits, section 3.1 of the paper uses s_i and its appendix s_(i-1); this follows section 3.1. The GRU is
    torch's: its reset gate is applied after the recurrent weights, whereas the paper applies it before them.

    Args:
        src_vocab_size, tgt_vocab_size, tying: see EncoderDecoder.
        d_model: width D of the token vectors.
        d_hidden: width of each GRU's state.
        d_attention: inner width of the attention.
        dropout: dropout probability of embeddings, memory and the maxout layer's output.

    Raises:
        ValueError: a size is not positive, or dropout is not in [0, 1).
    """

    stacks = MappingProxyType(
        {"encoder": ("reader", "backward_reader"), "decoder": ("first_state", "attention", "writer", "readout")}
    )

    def __init__(
        self,
        *,
        src_vocab_size: int,
        tgt_vocab_size: int,
        d_model: int,
        d_hidden: int,
        d_attention: int,
        dropout: float,
        tying: Tying,
    ) -> None:
        for name, size in {"d_model": d_model, "d_hidden": d_hidden, "d_attention": d_attention}.items():
            if size < 1:
                raise ValueError(f"{name} ({size}) must be positive")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout ({dropout}) must be at least 0 and below 1")
        super().__init__(src_vocab_size, tgt_vocab_size, d_model, tying)
        self.dropout = Dropout(dropout)
        self.reader, self.backward_reader = (nn.GRU(d_model, d_hidden, batch_first=True) for _ in range(2))
        self.first_state = nn.Linear(d_hidden, d_hidden)
        self.attention = AdditiveAttention(d_hidden, 2 * d_hidden, d_attention)
        self.writer = nn.GRUCell(d_model + 2 * d_hidden, d_hidden)
        self.readout = nn.Linear(d_hidden + d_model + 2 * d_hidden, 2 * d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise all weights: recurrent ones orthogonal, as in the paper; others by Glorot and Bengio (2010)."""
        for name, parameter in self.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
            elif "_hh" in name:
                for gate in parameter.chunk(3):
                    nn.init.orthogonal_(gate)
            else:
                nn.init.xavier_uniform_(parameter)
        self.reset_embeddings()

    def encode(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        x = self.dropout(self.vectors(src, self.src_embedding))
        forward, _ = self.reader(x)  # padding is at the end, so it does not influence the states of tokens
        positions = torch.arange(src.size(1), device=src.device)
        lengths = src.size(1) if src_mask is None else src_mask.sum(1, keepdim=True)
        # Indices that reverse each sentence and leave the padding behind it; applied twice, they restore the order.
        reversal = ((lengths - 1 - positions) % src.size(1)).expand(src.shape)[..., None]  # (B, S, 1)
        backward, _ = self.backward_reader(x.gather(1, reversal.expand_as(x)))
        backward = backward.gather(1, reversal.expand_as(backward))
        memory = self.dropout(torch.cat((forward, backward), -1))
        return memory if src_mask is None else memory * src_mask[..., None]

    def decode(
        self, tgt: Tensor, memory: Tensor, src_mask: Tensor | None = None, cache: GruCache | None = None
    ) -> Tensor:
        if cache is not None and cache.state is not None and cache.keys is not None:
            state, keys = cache.state, cache.keys
        else:
            keys = self.attention.key(memory)
            state = torch.tanh(self.first_state(memory[:, 0].chunk(2, -1)[1]))
            state = state.repeat_interleave(tgt.size(0) // memory.size(0), 0)  # (B, d_hidden) -> (n B, d_hidden)
        x = self.dropout(self.vectors(tgt, self.tgt_embedding))
        features = []
        for token in x.unbind(1):
            context = self.attention(state, keys, memory, src_mask)
            state = self.writer(torch.cat((token, context), -1), state)
            features.append(torch.cat((state, token, context), -1))
        if cache is not None:
            cache.state, cache.keys, cache.length = state, keys, cache.length + tgt.size(1)
        maxout = self.readout(torch.stack(features, 1)).unflatten(-1, (-1, 2)).amax(-1)  # (n B, T, 2 D) -> (n B, T, D)
        return self.output(self.dropout(maxout))

    def new_cache(self) -> GruCache:
        return GruCache()

    def attentions(self) -> dict[str, Sequence[Watchable]]:
        return {"encoder": [], "decoder": [], "cross": [self.attention]}
