"""What the Transformer replaced: recurrent networks with additive attention between them (Bahdanau et al., 2015)."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from diglot.model.dropout import Dropout
from diglot.model.encoder_decoder import EncoderDecoder, Watchable


class AdditiveAttention(nn.Module):
    """One head that scores a query and a key by a small network: v . tanh(W q + U k).

    Args:
        d_query: width of a query.
        d_memory: width of what is looked at.
        d_attention: width A of the network.

    Attributes:
        watcher: is handed the weights (B, 1, n, S) of each call. See EncoderDecoder.attention_weights.
    """

    def __init__(self, d_query: int, d_memory: int, d_attention: int) -> None:
        super().__init__()
        self.watcher: Callable[[Tensor], None] | None = None
        self.query = nn.Linear(d_query, d_attention, bias=False)
        self.key = nn.Linear(d_memory, d_attention)
        self.score = nn.Linear(d_attention, 1, bias=False)

    def forward(self, queries: Tensor, keys: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Queries (n B, d_query), n for each sentence, look at memory (B, S, d_memory): (n B, d_memory).

        `keys` (B, S, A) is the memory after `key`, which a whole search computes once.
        """
        q = self.query(queries).view(memory.size(0), -1, 1, keys.size(-1))  # (n B, A) -> (B, n, 1, A)
        scores = self.score(torch.tanh(q + keys[:, None])).squeeze(-1)  # (B, n, S)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        if mask is not None:
            weights = weights * mask[:, None]  # of a sentence of padding alone: zero
        if self.watcher is not None:
            self.watcher(weights[:, None].float())
        return (weights.to(memory.dtype) @ memory).flatten(0, 1)


class GruCache:
    """The decoder's state (n B, d_hidden), a row a hypothesis, and the attention's keys (B, S, A), a row a sentence."""

    def __init__(self) -> None:
        self.seen = 0
        self.state: Tensor | None = None
        self.keys: Tensor | None = None

    def __len__(self) -> int:
        return self.seen

    def select(self, hypotheses: Tensor, sentences: Tensor | None = None) -> None:
        if self.state is not None and self.keys is not None:
            self.state = self.state[hypotheses]
            if sentences is not None:
                self.keys = self.keys[sentences]


class GruAttention(EncoderDecoder):
    """A GRU reads the source in both directions, another one writes, looking back before each token (RNNsearch).

    Memory is (B, S, 2 d_hidden): the states of both directions. The decoder starts from the backward state of the first
    token; before target token i it looks at memory with its state s_(i-1), its GRU takes the embedding and what it saw
    to s_i, and logits are read from s_i, the embedding and what it saw through a layer of maxout pairs. (Where the
    paper's section 3.1 says s_i its appendix says s_(i-1): this is section 3.1. The unit is torch's, whose reset gate
    acts on what the recurrent weights give, and not, as in the paper, on the state before them.)

    Args:
        src_vocab_size, tgt_vocab_size, tying: see EncoderDecoder.
        d_model: width D of the token vectors.
        d_hidden: width of each GRU's state.
        d_attention: inner width of the attention.
        dropout: share dropped of embeddings, memory and what logits are read from.

    Raises:
        ValueError: if a size is not positive, or the share none.
    """

    compiles_whole = False  # the decoder is a loop over target tokens

    def __init__(
        self,
        *,
        src_vocab_size: int,
        tgt_vocab_size: int,
        d_model: int,
        d_hidden: int,
        d_attention: int,
        dropout: float,
        tying: Literal["none", "target", "all"],
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
        """Draw all weights anew: recurrent ones orthogonal as in the paper, others by Glorot and Bengio (2010)."""
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
        forward, _ = self.reader(x)  # what is padded stands at the end, and what came before does not see it
        here = torch.arange(src.size(1), device=src.device)
        lengths = src.size(1) if src_mask is None else src_mask.sum(1, keepdim=True)
        # Where each token stands in the reversed sentence; the same turns it back. Padding stays behind it.
        reversal = ((lengths - 1 - here) % src.size(1)).expand(src.shape)[..., None]  # (B, S, 1)
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
        read_from = []
        for token in x.unbind(1):
            seen = self.attention(state, keys, memory, src_mask)
            state = self.writer(torch.cat((token, seen), -1), state)
            read_from.append(torch.cat((state, token, seen), -1))
        if cache is not None:
            cache.state, cache.keys, cache.seen = state, keys, cache.seen + tgt.size(1)
        maxout = self.readout(torch.stack(read_from, 1)).unflatten(-1, (-1, 2)).amax(-1)  # (n B, T, 2 D) -> (n B, T, D)
        return self.output(self.dropout(maxout))

    def new_cache(self) -> GruCache:
        return GruCache()

    def attentions(self) -> dict[str, Sequence[Watchable]]:
        return {"encoder": [], "decoder": [], "cross": [self.attention]}
