"""Beam search over any encoder-decoder."""

import copy
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from diglot.decoding.search import Search
from diglot.decoding.state import Choice, Hypothesis, State, topk


class BeamSearch(Search):
    """Beam search, which extends the `beam_size` most probable prefixes of each sentence of a batch.

    A hypothesis Y of |Y| tokens, including </s>, has the score

        log P(Y) / norm(|Y|) + word_reward |Y| + coverage_penalty sum_s log(min(1, sum_t a_ts))

    where norm(|Y|) = ((5 + |Y|) / 6)^length_penalty and a_ts is the attention weight from target token t to source
    token s, averaged over all layers and heads (Wu et al., 2016; the reward: He et al., 2016). The search of a sentence
    stops as soon as no remaining prefix can still reach its `n_best`, so stopping never changes the result. The
    exception is a beam of 1 (greedy search), which stops at the first </s>. A beam as wide as the search space finds
    the best hypothesis.

    Args:
        beam_size: number of prefixes kept per sentence.
        n_best: number of hypotheses returned, best first, each text once. Fewer are returned if fewer have ended, or if
            several are segmentations of the same text.
        length_penalty: exponent of the norm. 0 compares log-probabilities, which favours short output; the paper uses
            0.6. "mean" compares the mean log-probability per token: norm(|Y|) = |Y|.
        word_reward: amount that each token adds to the score.
        coverage_penalty: weight of the penalty for source tokens that received little attention.
        min_len_a, min_len_b, max_len_a, max_len_b: see Search.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        *,
        beam_size: int = 4,
        n_best: int = 1,
        length_penalty: float | Literal["mean"] = 0.6,
        word_reward: float = 0.0,
        coverage_penalty: float = 0.0,
        min_len_a: float = 0.0,
        min_len_b: int = 0,
        max_len_a: float = 2.0,
        max_len_b: int = 20,
    ) -> None:
        if not isinstance(beam_size, int) or beam_size < 1:
            raise ValueError(f"beam_size ({beam_size}) must be positive")
        if not isinstance(n_best, int) or not 1 <= n_best <= beam_size:
            raise ValueError(f"n_best ({n_best}) must be from 1 to beam_size ({beam_size})")
        if isinstance(length_penalty, str):
            if length_penalty != "mean":
                raise ValueError(f"length_penalty ({length_penalty}) must be a number or mean")
        elif not 0 <= length_penalty < 100:
            raise ValueError(f"length_penalty ({length_penalty}) must be at least 0 and below 100")
        if not -1e6 < word_reward < 1e6:
            raise ValueError(f"word_reward ({word_reward}) must be a finite number")
        if not 0 <= coverage_penalty < 1e6:
            raise ValueError(f"coverage_penalty ({coverage_penalty}) must not be negative")
        super().__init__(
            n_live=beam_size,
            n_best=n_best,
            min_len_a=min_len_a,
            min_len_b=min_len_b,
            max_len_a=max_len_a,
            max_len_b=max_len_b,
        )
        self.beam_size, self.length_penalty, self.word_reward = beam_size, length_penalty, word_reward
        self.coverage_penalty, self.watches_source = coverage_penalty, coverage_penalty > 0

    def with_beam(self, beam_size: int) -> "BeamSearch":
        """Return a copy of this search with another beam size, which returns only the best hypothesis."""
        if beam_size < 1:
            raise ValueError(f"beam_size ({beam_size}) must be positive")
        search = copy.copy(self)
        search.beam_size = search.n_live = beam_size
        search.n_best = 1
        return search

    def ranked(self, hypotheses: list[Hypothesis], decode: Callable[[list[int]], str]) -> list[Hypothesis]:
        """Return the best hypothesis of each distinct text; several token sequences may decode to the same text."""
        if len(hypotheses) < 2:
            return hypotheses
        best_of_text: dict[str, Hypothesis] = {}
        for hypothesis in hypotheses:
            best_of_text.setdefault(decode(hypothesis.tokens), hypothesis)
        return list(best_of_text.values())

    def norm(self, length: Any) -> Any:
        """Return the divisor of the log-probability of a hypothesis of `length` tokens, including </s>."""
        return length if self.length_penalty == "mean" else ((5 + length) / 6) ** float(self.length_penalty)

    def score(self, log_prob: Any, length: Any) -> Any:
        return log_prob / self.norm(length) + self.word_reward * length

    def extend(self, state: State, log_probs: Tensor, length: int) -> Choice:
        n, k = self.n_live, self.n_best
        # Each prefix has only one extension that ends it, so the best 2 n extensions contain n that continue. One more
        # is needed to detect near ties.
        log_probs, tokens = topk(log_probs, 2 * n + 1)  # (R, n, 2 n + 1)
        totals = (state.scores[..., None] + log_probs).flatten(1)
        totals, indices = totals.topk(min(2 * n + 1, totals.size(1)))  # (R, 2 n + 1)
        parents = indices // log_probs.size(2)
        tokens, log_probs = tokens.flatten(1).gather(1, indices), log_probs.flatten(1).gather(1, indices)
        ends = tokens == state.eos
        state.note_near_ties(totals[:, n - 1] - totals[:, n])

        # Extensions among the best n that end with </s> join the ended hypotheses.
        ending = (ends & totals.isfinite())[:, :n]
        if ending.any():
            scores = self.score(totals[:, :n], length)
            if state.coverage is not None:
                coverage_term = state.coverage.clamp(1e-10, 1.0).log().masked_fill(state.padding[:, None], 0.0).sum(-1)
                scores = scores + self.coverage_penalty * coverage_term.gather(1, parents[:, :n])
            scores = scores.masked_fill(~ending, -torch.inf)
            cut = torch.zeros_like(ending)
            if state.at_limit is not None and state.prefers_to_continue is not None:
                cut = state.at_limit[:, None] & state.prefers_to_continue.gather(1, parents[:, :n])
            ranked, order = torch.cat((state.ended_scores, scores), 1).topk(k + 1)
            state.note_near_ties(ranked[:, :-1] - ranked[:, 1:])
            state.ended_scores, order = ranked[:, :k], order[:, :k]

            def merge(old: Tensor, new: Tensor) -> Tensor:
                return torch.cat((old, new), 1).gather(1, order)

            state.ended_steps = merge(state.ended_steps, torch.full_like(parents[:, :n], length - 1))
            state.ended_parents = merge(state.ended_parents, parents[:, :n])
            state.ended_log_probs = merge(state.ended_log_probs, log_probs[:, :n])
            state.ended_cut = merge(state.ended_cut, cut)

        # The best n of the rest continue.
        continuing, continuing_indices = totals.masked_fill(ends, -torch.inf).topk(n + 1)
        state.note_near_ties(continuing[:, n - 1] - continuing[:, n])
        state.scores, continuing_indices = continuing[:, :n], continuing_indices[:, :n]
        parents, tokens, log_probs = (x.gather(1, continuing_indices) for x in (parents, tokens, log_probs))

        # An upper bound of the scores still attainable: log-probabilities only decrease, the norm is greatest at the
        # limit, and the coverage term is at most 0.
        max_lengths = state.limits.to(state.scores.dtype) + 1
        reward = self.word_reward * (max_lengths if self.word_reward > 0 else length + 1)
        attainable = state.scores[:, 0] / self.norm(max_lengths) + reward
        state.note_near_ties(state.ended_scores[:, -1] - attainable)
        state.done |= state.ended_scores[:, -1] >= attainable
        if n == 1:
            state.done |= ending[:, 0]
        return Choice(parents, tokens, log_probs)
