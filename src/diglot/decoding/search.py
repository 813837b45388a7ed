"""Base of all searches: length limits, forced and forbidden tokens, and the decoding loop."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from diglot.data.special_ids import SpecialIds
from diglot.decoding.state import Choice, History, Hypothesis, State, log_softmax
from diglot.model import EncoderDecoder

MAX_LEN_A, MAX_LEN_B = 1_000, 1_000_000  # a greater value is almost certainly a typing error


class Search:
    """Base class of all searches.

    The result for a sentence does not depend on the rest of the batch or on padding, except for rounding.

    Args:
        n_live: number of hypotheses per sentence that are extended in parallel.
        n_best: number of hypotheses per sentence that are returned.
        min_len_a: a translation has at least min_len_a x (source tokens without </s>) + min_len_b tokens.
        min_len_b: see min_len_a.
        max_len_a: a translation has at most max_len_a x (source tokens without </s>) + max_len_b tokens. A longer one
            is ended at this length and marked as `cut`. The maximum takes precedence over the minimum.
        max_len_b: see max_len_a.

    Raises:
        ValueError: a length limit is out of range.
    """

    watches_source = False  # whether the search needs the cross-attention weights
    n_first = 1  # how many of the initially identical hypotheses the first step extends

    def __init__(
        self, *, n_live: int, n_best: int, min_len_a: float, min_len_b: int, max_len_a: float, max_len_b: int
    ) -> None:
        if not (max_len_a >= 0 and max_len_b >= 0 and max_len_a + max_len_b > 0):
            raise ValueError(f"max_len_a ({max_len_a}) and max_len_b ({max_len_b}) must allow some output")
        if not (max_len_a <= MAX_LEN_A and max_len_b <= MAX_LEN_B):
            raise ValueError(
                f"max_len_a ({max_len_a}) must be at most {MAX_LEN_A}, and max_len_b ({max_len_b}) {MAX_LEN_B}"
            )
        if not 0 <= min_len_a <= max_len_a:
            raise ValueError(f"min_len_a ({min_len_a}) must be from 0 to max_len_a ({max_len_a})")
        if not 0 <= min_len_b <= max_len_b:
            raise ValueError(f"min_len_b ({min_len_b}) must be from 0 to max_len_b ({max_len_b})")
        self.n_live, self.n_best = n_live, n_best
        self.min_len_a, self.min_len_b, self.max_len_a, self.max_len_b = min_len_a, min_len_b, max_len_a, max_len_b

    @property
    def options(self) -> dict[str, Any]:
        """Return the arguments of the search and the name of its class, as plain data."""
        return {"search": type(self).__name__} | {
            name: getattr(self, name) for name in signature(type(self)).parameters
        }

    def limits(self, src_lengths: Tensor, max_positions: int | None = None) -> Tensor:
        """Return the maximum number of tokens of each translation without </s>, for source lengths with </s>."""
        limits = (self.max_len_a * (src_lengths - 1) + self.max_len_b).long().clamp(min=1)
        return limits if max_positions is None else limits.clamp(max=max_positions - 1)

    def n_positions(self, src_lengths: Tensor, max_positions: int | None = None) -> Tensor:
        """Return the maximum number of target positions held for each sentence, which determines memory use."""
        return self.n_live * (self.limits(src_lengths, max_positions) + 1)

    def score(self, log_prob: Any, length: Any) -> Any:
        """Return the score of a hypothesis of `length` tokens, including </s>; accepts numbers and tensors.

        Terms that depend on more than log-probability and length, such as coverage, are not included.
        """
        return log_prob

    def ranked(self, hypotheses: list[Hypothesis], decode: Callable[[list[int]], str]) -> list[Hypothesis]:
        """Filter and sort the hypotheses of a sentence by their texts, given by `decode`; by default, keep them."""
        return hypotheses

    def start(self, state: State, src: Tensor) -> None:
        """Prepare the state for sources (B, S)."""

    def extend(self, state: State, log_probs: Tensor, length: int) -> Choice:
        """Choose the extensions of the hypotheses, and record ended hypotheses and finished sentences in the state.

        Args:
            state: state before the step; updated in place.
            log_probs: log-probability of each next token (R, n, V); -inf for forbidden tokens.
            length: number of tokens, including </s>, of a hypothesis that ends in this step.
        """
        raise NotImplementedError

    @torch.inference_mode()
    def __call__(
        self,
        model: EncoderDecoder,
        src: Tensor,
        src_mask: Tensor,
        special: SpecialIds,
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate sources (B, S) and return, for each, at least one and at most `n_best` hypotheses.

        Args:
            model: a model in evaluation mode.
            src: sources, each followed by </s> and padding.
            src_mask: True on tokens (B, S).
            special: the ids of the four special tokens.
            prefixes: token ids that each translation must begin with, whose log-probabilities count like those of other
                tokens; None: no prefixes.

        Raises:
            ValueError: a prefix is longer than its translation may be or contains a special token, or the search needs
                cross-attention and the model has none.
        """
        n_all, n, device = src.size(0), self.n_live, src.device
        limits = self.limits(src_mask.sum(1), model.max_tgt_positions)
        minima = (self.min_len_a * (src_mask.sum(1) - 1) + self.min_len_b).long().minimum(limits)
        rules = _TokenConstraints(special, prefixes, limits)
        n_steps = int(limits.max()) + 1
        memory, cache = model.encode(src, src_mask), model.new_cache()
        tgt = torch.cat((torch.full((n_all, 1), special.bos, device=device), rules.shared), 1)
        n_shared = rules.shared.size(1)
        with _watching(model, self.watches_source) as cross_weights:
            log_probs = log_softmax(model.decode(tgt, memory, src_mask, cache))  # (B, n_shared + 1, V)
            # In float32, the sums of long outputs would vary in the fourth decimal between batches.
            dtype = torch.float32 if device.type == "mps" else torch.float64
            state = State(n, self.n_best, limits, minima, ~src_mask, special.eos, dtype)
            state.scores[:, : self.n_first] = 0.0
            self.start(state, src)
            history = History(n_all, n, n_steps, log_probs)
            for i in range(n_shared):
                token = tgt[:, i + 1 : i + 2]
                forced_choice = Choice(torch.zeros_like(token), token, log_probs[:, i].gather(1, token))
                history.add(state, i, forced_choice)
                state.scores += forced_choice.log_probs
            log_probs = log_probs[:, -1:].expand(-1, n, -1).clone()
            cache.select(torch.arange(n_all, device=device).repeat_interleave(n))
            for length in range(n_shared + 1, n_steps + 1):
                if self.watches_source:
                    _update_coverage(state, cross_weights, n)
                choice = self.extend(state, rules.apply(state, log_probs, length), length)
                history.add(state, length - 1, choice)
                state.done |= ~state.scores.isfinite().any(1)
                state.scores.masked_fill_(state.done[:, None], -torch.inf)

                n_rows, n_open = len(state.done), int((~state.done).sum())
                if n_open == 0:
                    break
                rows = (torch.arange(n_rows, device=device)[:, None] * n + choice.parents).flatten()
                tokens = choice.tokens
                if state.coverage is not None:
                    state.coverage = state.coverage.flatten(0, 1)[rows].unflatten(0, (n_rows, n))
                # Remove finished sentences only when half are done, so that rows are rarely copied and kernels see few
                # different shapes.
                if 2 * n_open <= n_rows:
                    history.keep(state)
                    open_rows = (~state.done).nonzero().flatten()
                    state.keep(open_rows)
                    rows, tokens = rows.view(n_rows, n)[open_rows].flatten(), tokens[open_rows]
                    memory, src_mask = memory[open_rows], src_mask[open_rows]
                    cache.select(rows, open_rows)
                else:
                    cache.select(rows)
                logits = model.decode(tokens.reshape(-1, 1), memory, src_mask, cache)[:, -1]  # (R n, V)
                log_probs = log_softmax(logits).unflatten(0, (-1, n))
        history.keep(state)
        return history.hypotheses()


class _TokenConstraints:
    """Constraints on the next token. Log-probabilities are not renormalised after tokens are forbidden.

    Args:
        special: the special tokens; pad, unk and bos are forbidden, unless bos is eos, and except for an unk in a
            prefix.
        prefixes: token ids that each translation must begin with; None: no prefixes.
        limits: maximum number of tokens of each translation (B,).

    Attributes:
        shared: the prefixes up to the length of the shortest (B, P).

    Raises:
        ValueError: a prefix is too long, or contains pad, bos or eos.
    """

    def __init__(self, special: SpecialIds, prefixes: Sequence[Sequence[int]] | None, limits: Tensor) -> None:
        device = limits.device
        prefixes = [()] * len(limits) if prefixes is None else prefixes
        for i, (prefix, limit) in enumerate(zip(prefixes, limits.tolist(), strict=True)):
            if len(prefix) > limit:
                raise ValueError(f"prefix {i} has {len(prefix)} tokens, but its translation is limited to {limit}")
            if {special.pad, special.bos, special.eos} & set(prefix):
                raise ValueError(f"prefix {i} has a special token")
        self.eos = special.eos
        self.banned = torch.tensor(sorted({special.pad, special.unk, special.bos} - {special.eos}), device=device)
        width = max(map(len, prefixes), default=0)
        padded = [[*prefix, *[-1] * (width - len(prefix))] for prefix in prefixes]
        self.forced = torch.tensor(padded, dtype=torch.long, device=device).view(len(limits), width)
        self.shared = self.forced[:, : min(map(len, prefixes), default=0)]
        # Kept on the host, so that a step can skip this rule without synchronising with the device.
        self.soonest_limit = int(limits.min())

    def apply(self, state: State, log_probs: Tensor, length: int) -> Tensor:
        """Return log_probs (R, n, V) with forbidden tokens set to -inf; the input is overwritten.

        `length` is the number of tokens, including </s>, of a hypothesis that ends in this step.
        """
        state.at_limit = None
        if length <= self.forced.size(1):  # before tokens are banned, because a prefix may contain <unk>
            token = self.forced[state.sentences, length - 1]
            index = token.clamp(min=0)[:, None, None].expand(-1, log_probs.size(1), 1)
            forced_log_probs = torch.full_like(log_probs, -torch.inf).scatter_(2, index, log_probs.gather(2, index))
        log_probs[:, :, self.banned] = -torch.inf
        if length > self.soonest_limit:
            state.at_limit = state.limits < length
            state.prefers_to_continue = log_probs.argmax(-1) != self.eos
            ending = log_probs[:, :, self.eos].nan_to_num(-1e4, neginf=-1e4)  # must end even if </s> has probability 0
            log_probs = log_probs.masked_fill(state.at_limit[:, None, None], -torch.inf)
            log_probs[:, :, self.eos] = ending
        if length <= state.latest_minimum:
            log_probs[:, :, self.eos].masked_fill_((state.minima >= length)[:, None], -torch.inf)
        if length <= self.forced.size(1):
            log_probs = torch.where((token >= 0)[:, None, None], forced_log_probs, log_probs)
        return log_probs


@contextmanager
def _watching(model: EncoderDecoder, enabled: bool) -> Iterator[list[Tensor]]:
    """Collect the cross-attention weights of the model's calls, averaged over heads (B, Q, S)."""
    cross_weights: list[Tensor] = []
    if not enabled:
        yield cross_weights
        return
    attentions = model.attentions()["cross"]
    if not attentions:
        raise ValueError("coverage_penalty needs a model with cross-attention")
    for attention in attentions:
        attention.watcher = lambda weights: cross_weights.append(weights.mean(1))
    try:
        yield cross_weights
    finally:
        for attention in attentions:
            attention.watcher = None


def _update_coverage(state: State, cross_weights: list[Tensor], n: int) -> None:
    """Add the attention weights of the last call, averaged over layers, to the coverage of each hypothesis."""
    mean_weights = torch.stack(cross_weights).mean(0)  # (R, Q, S)
    cross_weights.clear()
    if state.coverage is None:  # the first call decodes one hypothesis per sentence
        state.coverage = mean_weights.sum(1, keepdim=True).expand(-1, n, -1).clone()
    else:
        state.coverage = state.coverage + mean_weights
