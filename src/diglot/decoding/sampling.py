"""Sampling of translations."""

import hashlib
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from diglot.decoding.bayes_risk import mbr_rerank
from diglot.decoding.search import Search
from diglot.decoding.state import Choice, Hypothesis, State, topk


class SamplingSearch(Search):
    """Ancestral sampling of `n_samples` independent translations per sentence.

    The random numbers of a sentence depend only on `seed` and its tokens, so its samples do not depend on its place in
    the corpus or batch. Each token is drawn by the Gumbel-max trick: Gumbel noise is added to the log-probabilities and
    the maximum taken. The two greatest sums are rarely so close that rounding decides, even with a large vocabulary.

    Hypotheses are returned in the order in which they were drawn. Their scores are log-probabilities under the
    unmodified model, regardless of temperature, top_k and top_p. With a utility, each text is returned once, sorted by
    expected utility (minimum Bayes risk: Eikema and Aziz, 2020), at the cost of up to n_samples^2 comparisons per
    sentence.

    Args:
        n_samples: number of hypotheses per sentence.
        temperature: divisor of the log-probabilities before sampling; below 1 it favours probable tokens.
        top_k: sample from the k most probable tokens only (Fan et al., 2018); None: from all.
        top_p: sample from the smallest set of most probable tokens whose total probability reaches this value
            (nucleus sampling: Holtzman et al., 2020), after top_k and the temperature; None: from all.
        seed: seed of the random numbers.
        utility: chrf (sacrebleu's chrF2) or bleu (its sentence BLEU), both from 0 to 100; None: no reranking.
        min_len_a, min_len_b, max_len_a, max_len_b: see Search.

    Raises:
        ValueError: an argument is out of range.
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

    def ranked(self, hypotheses: list[Hypothesis], decode: Callable[[list[int]], str]) -> list[Hypothesis]:
        return hypotheses if self.utility is None else mbr_rerank(hypotheses, decode, self.utility)

    def start(self, state: State, src: Tensor) -> None:
        # Drawn by the CPU's generator, so that a GPU uses the same keys.
        keys = torch.zeros((len(src), self.n_samples, int(state.limits.max()) + 1), dtype=torch.long)
        limits = state.limits.tolist()
        for row, (tokens, padding, limit) in enumerate(zip(src.cpu(), state.padding.cpu(), limits, strict=True)):
            seed_text = repr((self.seed, tokens[~padding].tolist())).encode()
            generator = torch.Generator().manual_seed(
                int.from_bytes(hashlib.blake2b(seed_text, digest_size=8).digest())
            )
            row_keys = torch.randint(2**63 - 1, (limit + 1, self.n_samples), generator=generator)
            keys[row, :, : limit + 1] = row_keys.T
        state.keys = keys.to(src.device)

    def extend(self, state: State, log_probs: Tensor, length: int) -> Choice:
        assert state.keys is not None
        tokens, margin = self.draw(log_probs, state.keys[:, :, length - 1], state.scores.dtype)
        state.note_near_ties(margin.masked_fill(state.scores.isinf(), torch.inf))
        log_probs = log_probs.gather(2, tokens[..., None])[..., 0]
        totals = state.scores + log_probs
        ends = (tokens == state.eos) & totals.isfinite()
        state.ended_scores = torch.where(ends, totals, state.ended_scores)
        state.ended_steps = state.ended_steps.masked_fill(ends, length - 1)
        state.ended_log_probs = torch.where(ends, log_probs, state.ended_log_probs)
        slots = torch.arange(self.n_samples, device=tokens.device).expand_as(tokens)
        state.ended_parents = slots
        if state.at_limit is not None and state.prefers_to_continue is not None:
            state.ended_cut = state.ended_cut | (ends & state.at_limit[:, None] & state.prefers_to_continue)
        state.scores = totals.masked_fill(ends, -torch.inf)
        return Choice(slots, tokens, log_probs)

    def draw(self, log_probs: Tensor, keys: Tensor, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """Draw one token from each distribution in log_probs (R, n, V).

        Args:
            log_probs: log-probabilities, possibly unnormalised; -inf for tokens that must not be drawn.
            keys: random number keys (R, n), int64.
            dtype: dtype of the computation.

        Returns:
            The tokens (R, n), and the margin of each over the runner-up.
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
        values, indices = topk(noisy, 2)
        margin = values[..., 0] - values[..., 1] if values.size(-1) > 1 else torch.full_like(values[..., 0], torch.inf)
        return ids.expand_as(noisy).gather(-1, indices[..., :1])[..., 0], margin


def gumbel(keys: Tensor, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """Return standard Gumbel noise that depends only on `keys` and `indices`, on every device.

    The noise is computed from the outputs with these `indices` of the generator SplitMix64 (Steele et al., 2014),
    seeded with `keys`.
    """
    bits = indices * _STEP + keys + _STEP  # int64 wraps around
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        bits = (bits ^ _shifted(bits, shift)) * factor
    bits = bits ^ _shifted(bits, 31)
    n_bits = 52 if dtype == torch.float64 else 23  # few enough that the result rounds neither to 0 nor to 1
    uniform = (_shifted(bits, 64 - n_bits).to(dtype) + 0.5) * 2.0**-n_bits
    return -(-uniform.log()).log()


_STEP = -0x61C8864680B583EB  # the increment of SplitMix64, as a signed integer


def _shifted(bits: Tensor, n: int) -> Tensor:
    """Shift int64 values right logically, i.e. without sign extension."""
    return (bits >> n) & ((1 << (64 - n)) - 1)
