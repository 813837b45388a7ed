"""The translation that is most like all others that the model might have given."""

from collections import Counter
from collections.abc import Callable
from typing import Literal

import sacrebleu

from diglot.data.language import SPACED, writing_of_text
from diglot.decoding.state import Hypothesis


def by_expected_utility(
    hypotheses: list[Hypothesis], read: Callable[[list[int]], str], utility: Literal["chrf", "bleu"]
) -> list[Hypothesis]:
    """A sentence's samples, each text once, the one with the greatest expected utility first; that is their score.

    The expectation is over the samples themselves (Eikema and Aziz, 2020): a text is worth the mean of its utility with
    each of them, itself included, as the reference.

    Args:
        hypotheses: the samples.
        read: gives the text of token ids.
        utility: chrf (sacrebleu's chrF2) or bleu (its sentence BLEU, of characters where a script has no blanks
            between words).
    """
    texts = [read(hypothesis.tokens) for hypothesis in hypotheses]
    writing = writing_of_text(texts) or SPACED
    tokenizer = "13a" if writing.has_blanks else "char"
    metric = sacrebleu.CHRF() if utility == "chrf" else sacrebleu.BLEU(effective_order=True, tokenize=tokenizer)
    counts = Counter(texts)
    first = dict(reversed(list(zip(texts, hypotheses, strict=True))))

    def worth(text: str) -> float:
        return sum(n * metric.sentence_score(text, [other]).score for other, n in counts.items()) / len(texts)

    found = [first[text]._replace(score=worth(text)) for text in counts]
    return sorted(found, key=lambda hypothesis: -hypothesis.score)
