"""Corpus scores by sacreBLEU (Post, 2018), each with the signature that makes it comparable."""

from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric

from diglot.errors import UserError


class Score(NamedTuple):
    """One metric's value on a corpus."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f}"


def bleu_tokenizer(tgt_lang: str) -> str:
    """sacreBLEU's tokenizer for a target language: that of its command line, by the language's code."""
    code = tgt_lang.replace("_", "-").split("-")[0].lower()
    return {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}.get(code, "13a")


class Scorer:
    """Scores detokenised text against raw references: BLEU, chrF++ and TER.

    Args:
        tgt_lang: code of the target language; it decides BLEU's tokenizer.

    Attributes:
        metrics: sacreBLEU's, by name.

    Raises:
        UserError: at once, if that tokenizer is not installed.
    """

    def __init__(self, tgt_lang: str) -> None:
        tokenizer = bleu_tokenizer(tgt_lang)
        try:
            self.bleu = BLEU(tokenize=tokenizer)
            self.bleu.corpus_score(["a"], [["a"]])  # some tokenizers fail only when they are used
        except Exception as error:
            if tokenizer == "13a":
                raise
            raise UserError(
                f"BLEU for {tgt_lang} needs sacreBLEU's tokenizer {tokenizer}: "
                f"pip install 'sacrebleu[{tokenizer[:2]}]' ({' '.join(str(error).split())[:200]})"
            ) from None
        self.tgt_lang = tgt_lang
        self.chrf, self.ter = CHRF(word_order=2), TER()
        self.metrics: dict[str, Metric] = {"BLEU": self.bleu, "chrF++": self.chrf, "TER": self.ter}

    def __call__(
        self, hypotheses: Sequence[str], references: Sequence[str], *more: Sequence[str], with_ter: bool = True
    ) -> list[Score]:
        """Score a corpus; each hypothesis against the reference of the same number.

        Args:
            hypotheses: N lines.
            references: N lines.
            more: further references, N lines each.
            with_ter: whether to compute TER, which takes longest.

        Raises:
            ValueError: if there are not as many of the one as of the other, or none.
        """
        for lines in (references, *more):
            if len(hypotheses) != len(lines) or not hypotheses:
                raise ValueError(f"{len(hypotheses)} hypotheses for {len(lines)} references")
        streams = [list(lines) for lines in (references, *more)]  # not a list for each hypothesis
        scores = []
        for name, metric in self.metrics.items():
            if with_ter or name != "TER":
                value = metric.corpus_score(list(hypotheses), streams).score
                scores.append(Score(name, value, str(metric.get_signature())))
        return scores
