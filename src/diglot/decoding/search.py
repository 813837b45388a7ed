"""Beam search over any encoder-decoder that can encode a source and decode the next token."""

from typing import NamedTuple

import torch
from torch import Tensor

from diglot.model import EncoderDecoder


class SpecialIds(NamedTuple):
    """The four ids that are no text."""

    pad: int
    unk: int
    bos: int
    eos: int


class Hypothesis(NamedTuple):
    """One translation of a sentence.

    Attributes:
        tokens: ids without <s> and </s>.
        score: log-probability after length penalty, higher is better.
        cut: whether the length limit ended it against the model's will.
    """

    tokens: list[int]
    score: float
    cut: bool


class BeamSearch:
    """Extend the `beam_size` most probable prefixes of every sentence, all sentences of a batch at once.

    A hypothesis Y of |Y| tokens, its </s> counted, scores log P(Y) / ((5 + |Y|) / 6)^length_penalty (Wu et al., 2016).
    A sentence is done when `beam_size` hypotheses have ended, or earlier when no prefix left can still beat the best
    of them. So a beam of 1 is greedy search, and a beam as wide as the space finds the best hypothesis there is.
    Each sentence is searched as if it were alone: neither its neighbours nor its padding matter.

    Args:
        beam_size: prefixes kept for each sentence.
        length_penalty: 0 compares log-probabilities, which favours short output; the paper takes 0.6.
        max_len_a: a translation has at most max_len_a x (source tokens, </s> not counted) + max_len_b tokens; one that
            has not ended by then is ended there and marked `cut`.
        max_len_b: see max_len_a.
    """

    def __init__(
        self, *, beam_size: int = 4, length_penalty: float = 0.6, max_len_a: float = 2.0, max_len_b: int = 20
    ) -> None:
        if not isinstance(beam_size, int) or beam_size < 1:
            raise ValueError(f"beam_size ({beam_size}) must be positive")
        if length_penalty < 0:
            raise ValueError(f"length_penalty ({length_penalty}) must not be negative")
        if max_len_a < 0 or max_len_b < 0 or max_len_a + max_len_b == 0:
            raise ValueError(f"max_len_a ({max_len_a}) and max_len_b ({max_len_b}) must allow some output")
        self.beam_size, self.length_penalty = beam_size, length_penalty
        self.max_len_a, self.max_len_b = max_len_a, max_len_b

    def penalty(self, length: Tensor | float) -> Tensor | float:
        """What a log-probability of a hypothesis of `length` tokens, </s> counted, is divided by."""
        return ((5 + length) / 6) ** self.length_penalty

    def limits(self, src_lengths: Tensor, max_positions: int | None) -> Tensor:
        """The most tokens that each sentence's translation may have, for sources of these lengths, </s> counted."""
        limits = (self.max_len_a * (src_lengths - 1) + self.max_len_b).long().clamp(min=1)
        return limits if max_positions is None else limits.clamp(max=max_positions - 1)

    @torch.inference_mode()
    def __call__(
        self, model: EncoderDecoder, src: Tensor, src_mask: Tensor, special: SpecialIds
    ) -> list[list[Hypothesis]]:
        """Translate sources (B, S): for each its hypotheses, best first, at least one and at most `beam_size`."""
        n_all, n, device = src.size(0), self.beam_size, src.device
        memory = model.encode(src, src_mask)
        cache = model.new_cache()
        limits = self.limits(src_mask.sum(1), model.max_tgt_positions)  # (B,)
        max_len = int(limits.max())
        banned = torch.tensor([special.pad, special.unk, special.bos], device=device)

        sentences = torch.arange(n_all, device=device)  # which sentence each row of the live state belongs to
        scores = torch.full((n_all, n), -torch.inf, device=device)  # log-probability of each live prefix (B, n)
        scores[:, 0] = 0.0  # all prefixes are <s>: only one may be extended in the first step
        prefixes = torch.full((n_all, n, 1), special.bos, device=device)  # (B, n, length + 1)
        ended_scores = torch.full((n_all, n), -torch.inf, device=device)  # after length penalty, best first
        ended_tokens = torch.full((n_all, n, max_len + 1), special.eos, device=device)
        ended_cut = torch.zeros((n_all, n), dtype=torch.bool, device=device)
        n_ended = torch.zeros(n_all, dtype=torch.long, device=device)
        found: list[list[Hypothesis]] = [[] for _ in range(n_all)]

        for length in range(1, max_len + 2):  # of the hypotheses that end in this step, </s> counted
            n_live = len(sentences)
            logits = model.decode(prefixes[:, :, -1].reshape(-1, 1), memory, src_mask, cache)[:, -1]  # (B n, V)
            log_probs = logits.float().log_softmax(-1)
            vocab_size = log_probs.size(1)
            log_probs[:, banned] = -torch.inf
            log_probs = log_probs.unflatten(0, (n_live, n))  # (B, n, V)
            at_limit = limits < length
            wants_more = log_probs.argmax(-1) != special.eos
            if at_limit.any():  # only </s> may follow, and a model that gives it no chance must end too
                only_end = torch.full_like(log_probs, -torch.inf)
                only_end[:, :, special.eos] = log_probs[:, :, special.eos].clamp(min=-1e4)
                log_probs = torch.where(at_limit[:, None, None], only_end, log_probs)
            totals = (scores[:, :, None] + log_probs).flatten(1)  # (B, n V)
            # Each prefix can end in one way only, so the best 2n hold n that go on.
            best, flat = totals.topk(min(2 * n, totals.size(1)))
            parents, tokens = flat // vocab_size, flat % vocab_size
            ends = tokens == special.eos

            # What ends among the best n joins the ended hypotheses.
            ending = (ends & best.isfinite())[:, :n]
            n_ended += ending.sum(1)
            new_scores = (best[:, :n] / self.penalty(length)).masked_fill(~ending, -torch.inf)
            if ending.any():
                new_tokens = torch.full((n_live, ending.size(1), max_len + 1), special.eos, device=device)
                bodies = prefixes.gather(1, parents[:, :n, None].expand(-1, -1, length))[:, :, 1:]
                new_tokens[:, :, : length - 1] = bodies
                new_cut = (at_limit[:, None] & wants_more.gather(1, parents[:, :n])) & ending
                ended_scores, order = torch.cat((ended_scores, new_scores), 1).topk(n)
                ended_tokens = torch.cat((ended_tokens, new_tokens), 1).gather(
                    1, order[:, :, None].expand(-1, -1, max_len + 1)
                )
                ended_cut = torch.cat((ended_cut, new_cut), 1).gather(1, order)

            # The best n of the rest go on.
            scores, kept = best.masked_fill(ends, -torch.inf).topk(n)
            parents, tokens = parents.gather(1, kept), tokens.gather(1, kept)
            prefixes = torch.cat(
                (prefixes.gather(1, parents[:, :, None].expand(-1, -1, length)), tokens[:, :, None]), 2
            )

            # Log-probabilities only fall, and the penalty is greatest at the limit: no prefix can end above this.
            attainable = scores.max(1).values / self.penalty(limits.float() + 1)
            done = (n_ended >= n) | at_limit | (ended_scores[:, 0] >= attainable) | ~scores.isfinite().any(1)
            rows = (torch.arange(n_live, device=device)[:, None] * n + parents).flatten()
            if done.any():
                for row in done.nonzero().flatten().tolist():
                    found[int(sentences[row])] = self._hypotheses(
                        ended_tokens[row], ended_scores[row], ended_cut[row], special.eos
                    )
                if done.all():
                    break
                live = ~done
                rows = rows.view(n_live, n)[live].flatten()
                sentences, limits, n_ended, memory, src_mask = (
                    x[live] for x in (sentences, limits, n_ended, memory, src_mask)
                )
                scores, prefixes = scores[live], prefixes[live]
                ended_scores, ended_tokens, ended_cut = ended_scores[live], ended_tokens[live], ended_cut[live]
                cache.select(rows, live.nonzero().flatten())
            else:
                cache.select(rows)
        return found

    @staticmethod
    def _hypotheses(tokens: Tensor, scores: Tensor, cut: Tensor, eos_id: int) -> list[Hypothesis]:
        rows = zip(tokens.tolist(), scores.tolist(), cut.tolist(), strict=True)
        hypotheses = [
            Hypothesis(row[: row.index(eos_id)], score, was_cut)
            for row, score, was_cut in rows
            if score != float("-inf")
        ]
        # A model that gives no token a chance (its weights are not finite, say) has still one thing to say: nothing.
        return hypotheses or [Hypothesis([], float("-inf"), True)]
