"""The translation that is most like all others that the model might have given."""

from collections import Counter
from collections.abc import Callable
from typing import Literal

import sacrebleu

from diglot.decoding.sampling import Sampling
from diglot.decoding.search import Hypothesis


class MinimumBayesRisk(Sampling):
    """Draw samples and take the one with the greatest expected utility (Eikema and Aziz, 2020).

    The expectation is over the samples themselves: a text is worth the mean of its utility with each of them, itself
    included, as the reference. Costs n_samples^2 comparisons a sentence.

    Args:
        utility: chrf (sacrebleu's chrF2) or bleu (its sentence BLEU, 13a), both from 0 to 100.
        n_samples, temperature, top_k, top_p, seed, min_len_a, min_len_b, max_len_a, max_len_b: see Sampling.
    """

    def __init__(
        self,
        *,
        utility: Literal["chrf", "bleu"] = "chrf",
        n_samples: int = 32,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 1,
        min_len_a: float = 0.0,
        min_len_b: int = 0,
        max_len_a: float = 2.0,
        max_len_b: int = 20,
    ) -> None:
        if utility not in ("chrf", "bleu"):
            raise ValueError(f"utility ({utility}) must be chrf or bleu")
        super().__init__(
            n_samples=n_samples,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            min_len_a=min_len_a,
            min_len_b=min_len_b,
            max_len_a=max_len_a,
            max_len_b=max_len_b,
        )
        self.utility = utility
        self._metric = sacrebleu.CHRF() if utility == "chrf" else sacrebleu.BLEU(effective_order=True)

    def ranked(self, hypotheses: list[Hypothesis], read: Callable[[list[int]], str]) -> list[Hypothesis]:
        """The hypotheses by what they are worth, which becomes their score; each once."""
        texts = [read(hypothesis.tokens) for hypothesis in hypotheses]
        counts = Counter(texts)
        expected = {
            text: sum(n * self._metric.sentence_score(text, [other]).score for other, n in counts.items()) / len(texts)
            for text in counts
        }
        first = dict(reversed(list(zip(texts, hypotheses, strict=True))))
        worth = [first[text]._replace(score=expected[text]) for text in counts]
        return sorted(worth, key=lambda hypothesis: -hypothesis.score)
