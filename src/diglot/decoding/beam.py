"""Beam search over any encoder-decoder that can encode a source and decode the next token."""

import copy
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from diglot.decoding.search import Search
from diglot.decoding.state import Choice, Hypothesis, State, topk


class BeamSearch(Search):
    """Extend the `beam_size` most probable prefixes of every sentence, all sentences of a batch at once.

    A hypothesis Y of |Y| tokens, its </s> counted, scores

        log P(Y) / norm(|Y|) + word_reward |Y| + coverage_penalty sum_s log(min(1, sum_t a_ts))

    where norm(|Y|) = ((5 + |Y|) / 6)^length_penalty and a_ts is how much target token t looked at source token s, the
    mean over all layers and heads (Wu et al., 2016; the reward: He et al., 2016). A sentence is done when no prefix
    that is left could still score among its `n_best`, whatever came: nothing is lost by stopping. Only a beam of 1,
    which is greedy search, ends with its first </s>. A beam as wide as the space finds the best hypothesis there is.

    Args:
        beam_size: prefixes kept for each sentence.
        n_best: hypotheses that come out, best first, each text once; fewer where no more have ended, or where
            several are segmentations of the same text.
        length_penalty: 0 compares log-probabilities, which favours short output; the paper takes 0.6; "mean" compares
            the mean log-probability of a token: norm(|Y|) = |Y|.
        word_reward: what each token adds to the score.
        coverage_penalty: weight of the penalty for source tokens that were hardly looked at.
        min_len_a, min_len_b, max_len_a, max_len_b: see Search.
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
            raise ValueError(f"length_penalty ({length_penalty}) must not be negative, and below 100")
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
        """The same search with another beam, for the best hypothesis alone."""
        if beam_size < 1:
            raise ValueError(f"beam_size ({beam_size}) must be positive")
        other = copy.copy(self)
        other.beam_size = other.n_live = beam_size
        other.n_best = 1
        return other

    def ranked(self, hypotheses: list[Hypothesis], read: Callable[[list[int]], str]) -> list[Hypothesis]:
        """Return the best hypothesis of each text: a text may be segmented in several ways."""
        if len(hypotheses) < 2:
            return hypotheses
        best_of_text: dict[str, Hypothesis] = {}
        for hypothesis in hypotheses:
            best_of_text.setdefault(read(hypothesis.tokens), hypothesis)
        return list(best_of_text.values())

    def norm(self, length: Any) -> Any:
        """What the log-probability of a hypothesis of `length` tokens, </s> counted, is divided by."""
        return length if self.length_penalty == "mean" else ((5 + length) / 6) ** float(self.length_penalty)

    def score(self, log_prob: Any, length: Any) -> Any:
        return log_prob / self.norm(length) + self.word_reward * length

    def extend(self, state: State, log_probs: Tensor, length: int) -> Choice:
        n, k = self.n_live, self.n_best
        # Each prefix can end in one way only, so the best 2 n of all extensions hold n that go on; one more says how
        # close it was.
        log_probs, tokens = topk(log_probs, 2 * n + 1)  # (R, n, 2 n + 1)
        totals = (state.scores[..., None] + log_probs).flatten(1)
        totals, places = totals.topk(min(2 * n + 1, totals.size(1)))  # (R, 2 n + 1)
        parents = places // log_probs.size(2)
        tokens, log_probs = tokens.flatten(1).gather(1, places), log_probs.flatten(1).gather(1, places)
        ends = tokens == state.eos
        state.note_near_ties(totals[:, n - 1] - totals[:, n])

        # What ends among the best n joins the hypotheses that have ended.
        ending = (ends & totals.isfinite())[:, :n]
        if ending.any():
            scores = self.score(totals[:, :n], length)
            if state.coverage is not None:
                looked_at = state.coverage.clamp(1e-10, 1.0).log().masked_fill(state.padding[:, None], 0.0).sum(-1)
                scores = scores + self.coverage_penalty * looked_at.gather(1, parents[:, :n])
            scores = scores.masked_fill(~ending, -torch.inf)
            cut = torch.zeros_like(ending)
            if state.at_limit is not None and state.wants_more is not None:
                cut = state.at_limit[:, None] & state.wants_more.gather(1, parents[:, :n])
            ranked, order = torch.cat((state.ended_scores, scores), 1).topk(k + 1)
            state.note_near_ties(ranked[:, :-1] - ranked[:, 1:])
            state.ended_scores, order = ranked[:, :k], order[:, :k]

            def merge(old: Tensor, new: Tensor) -> Tensor:
                return torch.cat((old, new), 1).gather(1, order)

            state.ended_steps = merge(state.ended_steps, torch.full_like(parents[:, :n], length - 1))
            state.ended_parents = merge(state.ended_parents, parents[:, :n])
            state.ended_log_probs = merge(state.ended_log_probs, log_probs[:, :n])
            state.ended_cut = merge(state.ended_cut, cut)

        # The best n of the rest go on.
        going, kept = totals.masked_fill(ends, -torch.inf).topk(n + 1)
        state.note_near_ties(going[:, n - 1] - going[:, n])
        state.scores, kept = going[:, :n], kept[:, :n]
        parents, tokens, log_probs = (x.gather(1, kept) for x in (parents, tokens, log_probs))

        # Log-probabilities only fall, the norm is greatest at the limit, and nothing is covered by more than one.
        last = state.limits.to(state.scores.dtype) + 1
        reward = self.word_reward * (last if self.word_reward > 0 else length + 1)
        attainable = state.scores[:, 0] / self.norm(last) + reward
        state.note_near_ties(state.ended_scores[:, -1] - attainable)
        state.done |= state.ended_scores[:, -1] >= attainable
        if n == 1:
            state.done |= ending[:, 0]
        return Choice(parents, tokens, log_probs)
