"""Corpus scores by sacreBLEU (Post, 2018), with the signatures that make them comparable."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric
from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
from sacrebleu.utils import SACREBLEU_DIR

from diglot.data.language import (
    CHINESE,
    SPACED,
    TOKENIZERS,
    Writing,
    lacks_segmentation,
    writing_of,
    writing_of_code,
    writing_of_text,
)
from diglot.errors import UserError
from diglot.system.masking import in_one_line

_EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko"}  # sacreBLEU's extras for tokenizers that need further packages


class Score(NamedTuple):
    """The value of one metric on a corpus."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f}"


class Scorer:
    """Scorer of detokenised text against raw references: BLEU, chrF++ and, if it suits the writing system, TER.

    The code of the target language decides how text is split into words. If the code is unknown or contradicts the
    references, their script decides (see `diglot.data.language.writing_of`). If both the code and an explicitly given
    tokenizer say that words are separated by spaces, that overrides the script, for TER as well.

    Args:
        tgt_lang: code of the target language.
        references: text in the target language. If empty, a language of unknown code is assumed to have spaces between
            words.
        tokenizer: sacreBLEU's tokenizer for BLEU; None: chosen by language.

    Attributes:
        metrics: sacreBLEU's metrics by name.
        writing: writing system of the target language.
        tokenizer: tokenizer of BLEU.
        notes: remarks for the user about the choice of metrics and tokenizer, one line each.

    Raises:
        UserError: the tokenizer is unknown or not installed.
    """

    def __init__(self, tgt_lang: str, references: Sequence[str] = (), tokenizer: str | None = None) -> None:
        of_code = writing_of_code(tgt_lang)
        of_text = writing_of_text(references, is_alphabetic=of_code == SPACED)
        self.tgt_lang = tgt_lang
        # Explicitly choosing a tokenizer that splits at spaces confirms that the language code is right.
        is_confirmed = of_code == SPACED and tokenizer is not None and lacks_segmentation(tokenizer, CHINESE)
        self.writing = SPACED if is_confirmed else writing_of(tgt_lang, references)
        self.tokenizer = tokenizer or self.writing.tokenizer
        self.bleu = _bleu(self.tokenizer, tgt_lang if self.writing == of_code else self.writing.name)
        self.chrf = CHRF(word_order=2)
        self.metrics: dict[str, Metric] = {"BLEU": self.bleu, "chrF++": self.chrf}
        if self.writing.has_ter:
            asian = not self.writing.has_blanks
            self.metrics["TER"] = TER(normalized=asian, asian_support=asian)
        self.notes = [*self._language_notes(of_code, of_text, tokenizer is None), *self._metric_notes()]

    def _language_notes(self, of_code: Writing | None, of_text: Writing | None, is_chosen_here: bool) -> list[str]:
        """Return a note if the script of the references chose the tokenizer, or if the tokenizer does not suit it."""
        if of_text is None:
            return []
        if lacks_segmentation(self.tokenizer, of_text):
            return [
                f"BLEU's tokenizer {self.tokenizer} treats a complete sentence as one word: the references are in "
                f"{of_text.name}, but the target language is {self.tgt_lang}; "
                f"use bleu_tokenizer={of_text.tokenizer}"
            ]
        if self.writing != of_code and is_chosen_here:
            decide = f"the references ({of_text.name}) determine BLEU's tokenizer {self.tokenizer}"
            if of_code is None:
                says = "set data.tgt_lang=CODE (in evaluate: tgt_lang=CODE) or bleu_tokenizer=NAME"
                return [f"the target language {self.tgt_lang} is not known: {decide}; {says}"]
            says = f"bleu_tokenizer={of_code.tokenizer} scores words separated by spaces"
            return [f"the target language {self.tgt_lang} is not written like the references: {decide}; {says}"]
        # Japanese and Korean text may consist of Chinese characters only.
        is_possible = of_text.tokenizer in (self.tokenizer, "zh")
        if is_chosen_here and not is_possible:
            return [
                f"BLEU's tokenizer {self.tokenizer} is for the target language {self.tgt_lang}, but the references "
                f"are in {of_text.name}; use bleu_tokenizer={of_text.tokenizer}"
            ]
        return []

    def _metric_notes(self) -> list[str]:
        """Return notes on how the metrics treat a language without spaces between words."""
        if self.writing.has_blanks:
            return []
        notes = [f"{self.writing.name}: no spaces between words, so the word n-grams of chrF++ span whole phrases"]
        if "TER" not in self.metrics:
            notes.append(f"TER is left out: it finds no words in {self.writing.name}")
        return notes

    def __call__(
        self, hypotheses: Sequence[str], references: Sequence[str], *more: Sequence[str], with_ter: bool = True
    ) -> list[Score]:
        """Score a corpus, each hypothesis against the references of the same line.

        Args:
            hypotheses: N lines.
            references: N lines.
            more: further references, N lines each.
            with_ter: whether to compute TER, the slowest metric.

        Raises:
            ValueError: the numbers of lines differ, or there are no lines.
        """
        for lines in (references, *more):
            if len(hypotheses) != len(lines) or not hypotheses:
                raise ValueError(f"{len(hypotheses)} hypotheses for {len(lines)} references")
        streams = [list(lines) for lines in (references, *more)]  # one list per reference, not per hypothesis
        scores = []
        for name, metric in self.metrics.items():
            if with_ter or name != "TER":
                value = metric.corpus_score(list(hypotheses), streams).score
                scores.append(Score(name, value, str(metric.get_signature())))
        return scores

    def has_bleu(self, hypotheses: Sequence[str]) -> bool:
        """Return whether any hypothesis has at least four tokens; otherwise BLEU, which needs 4-grams, is always 0."""
        return any(len(self.bleu.tokenizer(line).split()) >= self.bleu.max_ngram_order for line in hypotheses)

    def of_part(
        self, hypotheses: Sequence[str], *references: Sequence[str], with_ter: bool = True
    ) -> list[dict[str, Any]]:
        """Score part of a corpus like `__call__`, as plain data; BLEU is None if no hypothesis has four tokens."""
        found = [score._asdict() for score in self(hypotheses, *references, with_ter=with_ter)]
        if not self.has_bleu(hypotheses):
            found[0]["value"] = None
        return found


def _bleu(tokenizer: str, tgt_lang: str) -> BLEU:
    """Return a BLEU metric, after checking that its tokenizer works.

    Raises:
        UserError: the tokenizer does not exist, or needs a package or a model that is missing.
    """
    if tokenizer not in TOKENIZERS:
        raise UserError(f"bleu_tokenizer={tokenizer}: must be one of {', '.join(TOKENIZERS)}")
    if tokenizer in SPM_MODELS:
        model = Path(SACREBLEU_DIR) / "models" / Path(SPM_MODELS[tokenizer]["url"]).name
        if not model.is_file():  # sacreBLEU would download it
            fetch = f"python -c \"from sacrebleu import BLEU; BLEU(tokenize='{tokenizer}')\""
            raise UserError(f"BLEU's tokenizer {tokenizer} needs {model}, which is missing; download it with: {fetch}")
    try:
        bleu = BLEU(tokenize=tokenizer)
        bleu.corpus_score(["a"], [["a"]])  # some tokenizers fail only when they are used
    except Exception as error:
        extra = _EXTRAS.get(tokenizer)
        if extra is None:
            raise
        hint = f"pip install 'sacrebleu[{extra}]'"
        raise UserError(
            f"BLEU for {tgt_lang} needs sacreBLEU's tokenizer {tokenizer}: {hint} ({in_one_line(error)})"
        ) from None
    return bleu


def recorded_tokenizer(record: dict, tgt_lang: str | None) -> str | None:
    """Return the tokenizer of a checkpoint's dev scores, or None if no known one is recorded for this language."""
    recorded = record.get("bleu_tokenizer")
    return recorded if tgt_lang == record.get("tgt_lang") and recorded in TOKENIZERS else None
