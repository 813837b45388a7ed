"""Draw translations instead of looking for the most probable one."""

import hashlib
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from diglot.decoding.bayes_risk import by_expected_utility
from diglot.decoding.search import Search
from diglot.decoding.state import Choice, Hypothesis, State, topk


class SamplingSearch(Search):
    """Draw each token from what the model thinks of it, `n_samples` times independently.

    A sentence's random numbers come from `seed` and its own tokens, so that its samples are the same wherever it
    stands. Each token is the one with the greatest sum of log-probability and a number of its own from the Gumbel
    distribution: the two greatest are seldom so close that rounding decides, however large the vocabulary. Hypotheses
    come out in the order in which they were drawn; their scores are log-probabilities under the model itself, whatever
    they were drawn from. With a utility they come out by their expected utility, each text once (minimum Bayes risk:
    Eikema and Aziz, 2020), which costs n_samples^2 comparisons a sentence.

    Args:
        n_samples: hypotheses of a sentence.
        temperature: what logits are divided by before tokens are drawn; below 1 the probable become more so.
        top_k: draw from the k most probable tokens only (Fan et al., 2018); None: from all.
        top_p: draw from the fewest most probable tokens that have this probability together (the nucleus: Holtzman et
            al., 2020); None: from all. With top_k: of those.
        seed: with another one, other samples.
        utility: chrf (sacrebleu's chrF2) or bleu (its sentence BLEU, 13a), both from 0 to 100; None: none.
        min_len_a, min_len_b, max_len_a, max_len_b: see Search.
    """

    def __init__(
        self,
        *,
        n_samples: int = 1,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 1,
        utility: Literal["chrf", "bleu"] | None = None,
        min_len_a: float = 0.0,
        min_len_b: int = 0,
        max_len_a: float = 2.0,
        max_len_b: int = 20,
    ) -> None:
        if not isinstance(n_samples, int) or n_samples < 1:
            raise ValueError(f"n_samples ({n_samples}) must be positive")
        if not 1e-3 <= temperature <= 1e3:
            raise ValueError(f"temperature ({temperature}) must be from 0.001 to 1000")
        if top_k is not None and (not isinstance(top_k, int) or top_k < 1):
            raise ValueError(f"top_k ({top_k}) must be positive")
        if top_p is not None and not 0 < top_p <= 1:
            raise ValueError(f"top_p ({top_p}) must be above 0 and at most 1")
        if utility not in (None, "chrf", "bleu"):
            raise ValueError(f"utility ({utility}) must be chrf or bleu")
        super().__init__(
            n_live=n_samples,
            n_best=n_samples,
            min_len_a=min_len_a,
            min_len_b=min_len_b,
            max_len_a=max_len_a,
            max_len_b=max_len_b,
        )
        self.n_samples, self.temperature, self.top_k, self.top_p, self.seed = n_samples, temperature, top_k, top_p, seed
        self.utility, self.n_first = utility, n_samples

    def ranked(self, hypotheses: list[Hypothesis], read: Callable[[list[int]], str]) -> list[Hypothesis]:
        return hypotheses if self.utility is None else by_expected_utility(hypotheses, read, self.utility)

    def start(self, state: State, src: Tensor) -> None:
        # From the CPU's generator, so that a GPU gets the same ones.
        keys = torch.zeros((len(src), self.n_samples, int(state.limits.max()) + 1), dtype=torch.long)
        limits = state.limits.tolist()
        for row, (tokens, padding, limit) in enumerate(zip(src.cpu(), state.padding.cpu(), limits, strict=True)):
            own = repr((self.seed, tokens[~padding].tolist())).encode()
            generator = torch.Generator().manual_seed(int.from_bytes(hashlib.blake2b(own, digest_size=8).digest()))
            drawn = torch.randint(2**63 - 1, (limit + 1, self.n_samples), generator=generator)
            keys[row, :, : limit + 1] = drawn.T
        state.keys = keys.to(src.device)

    def extend(self, state: State, log_probs: Tensor, length: int) -> Choice:
        assert state.keys is not None
        tokens, lead = self.draw(log_probs, state.keys[:, :, length - 1], state.scores.dtype)
        state.note_near_ties(lead.masked_fill(state.scores.isinf(), torch.inf))
        log_probs = log_probs.gather(2, tokens[..., None])[..., 0]
        totals = state.scores + log_probs
        ends = (tokens == state.eos) & totals.isfinite()
        state.ended_scores = torch.where(ends, totals, state.ended_scores)
        state.ended_steps = state.ended_steps.masked_fill(ends, length - 1)
        state.ended_log_probs = torch.where(ends, log_probs, state.ended_log_probs)
        slots = torch.arange(self.n_samples, device=tokens.device).expand_as(tokens)
        state.ended_parents = slots
        if state.at_limit is not None and state.wants_more is not None:
            state.ended_cut = state.ended_cut | (ends & state.at_limit[:, None] & state.wants_more)
        state.scores = totals.masked_fill(ends, -torch.inf)
        return Choice(slots, tokens, log_probs)

    def draw(self, log_probs: Tensor, keys: Tensor, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """Draw a token from each of log_probs (R, n, V).

        Args:
            log_probs: unnormalised, too; -inf: cannot come.
            keys: of whose random numbers they are drawn (R, n), int64.
            dtype: to compute in.

        Returns:
            The tokens (R, n), and by how much each was ahead of the next.
        """
        ids = torch.arange(log_probs.size(-1), device=keys.device)
        if self.top_k is not None:
            log_probs, ids = topk(log_probs, min(self.top_k, log_probs.size(-1)))
        values = log_probs.to(dtype) / self.temperature
        if self.top_p is not None:
            weights, order = values.softmax(-1).sort(-1, descending=True)
            values, ids = values.gather(-1, order), ids.expand_as(order).gather(-1, order)
            values = values.masked_fill(weights.cumsum(-1) - weights >= self.top_p, -torch.inf)
        noisy = values + gumbel(keys[..., None], ids, dtype)
        values, places = topk(noisy, 2)
        lead = values[..., 0] - values[..., 1] if values.size(-1) > 1 else torch.full_like(values[..., 0], torch.inf)
        return ids.expand_as(noisy).gather(-1, places[..., :1])[..., 0], lead


def gumbel(keys: Tensor, numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers from the standard Gumbel distribution, which depend on a key and a number alone, on every device.

    The number-th of those that the generator SplitMix64 (Steele et al., 2014) makes from the key.
    """
    bits = numbers * _STEP + keys + _STEP  # int64 wraps around
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        bits = (bits ^ _shifted(bits, shift)) * factor
    bits = bits ^ _shifted(bits, 31)
    n_bits = 52 if dtype == torch.float64 else 23  # so that neither 0 nor 1 comes out
    chances = (_shifted(bits, 64 - n_bits).to(dtype) + 0.5) * 2.0**-n_bits
    return -(-chances.log()).log()


_STEP = -0x61C8864680B583EB


def _shifted(bits: Tensor, n: int) -> Tensor:
    """Shifted to the right without regard to a sign."""
    return (bits >> n) & ((1 << (64 - n)) - 1)
