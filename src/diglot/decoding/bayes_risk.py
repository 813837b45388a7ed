"""Minimum Bayes risk decoding: the sample that is most similar to all other samples."""

from collections import Counter
from collections.abc import Callable
from typing import Literal

from diglot.data.language import SPACED, writing_of_text
from diglot.decoding.state import Hypothesis


def mbr_rerank(
    hypotheses: list[Hypothesis], decode: Callable[[list[int]], str], utility: Literal["chrf", "bleu"]
) -> list[Hypothesis]:
    """Return one hypothesis per distinct text, sorted by expected utility, which becomes its score.

    The expected utility of a text is its mean utility with each sample, itself included, as the reference (Eikema and
    Aziz, 2020).

    Args:
        hypotheses: samples of one sentence.
        decode: converts token ids to text.
        utility: chrf (sacrebleu's chrF2) or bleu (its sentence BLEU; on characters if the script does not separate
            words by spaces).
    """
    import sacrebleu  # imported only here, so that other searches start faster

    texts = [decode(hypothesis.tokens) for hypothesis in hypotheses]
    writing = writing_of_text(texts) or SPACED
    tokenizer = "13a" if writing.has_blanks else "char"
    metric = sacrebleu.CHRF() if utility == "chrf" else sacrebleu.BLEU(effective_order=True, tokenize=tokenizer)
    counts = Counter(texts)
    first_hypotheses = dict(reversed(list(zip(texts, hypotheses, strict=True))))

    def expected_utility(text: str) -> float:
        return sum(n * metric.sentence_score(text, [reference]).score for reference, n in counts.items()) / len(texts)

    reranked = [first_hypotheses[text]._replace(score=expected_utility(text)) for text in counts]
    return sorted(reranked, key=lambda hypothesis: -hypothesis.score)
