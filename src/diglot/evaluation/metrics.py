"""Metrics, which are computed from statistics of each sentence that are summed over a corpus.

BLEU, chrF++ and TER are those of sacreBLEU (Post, 2018).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from importlib.metadata import version
from numbers import Real
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import sacrebleu.metrics
from rapidfuzz.distance import Levenshtein
from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
from sacrebleu.utils import SACREBLEU_DIR

from diglot import __version__
from diglot.data.language import TOKENIZERS, Writing
from diglot.errors import UserError
from diglot.system.masking import in_one_line, masked, shortened

_EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko"}  # extras of sacreBLEU with the packages that a tokenizer needs

# Names of metrics in tables, by their names in conf/metric. Any other metric has the same name in both.
LABELS = {
    "bleu": "BLEU",
    "chrf": "chrF++",
    "ter": "TER",
    "cer": "CER",
    "wer": "WER",
    "per": "PER",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
}


class TargetLanguage(NamedTuple):
    """Properties of the target language on which metrics depend.

    Attributes:
        name: code of the language, or the name of its script if the script contradicts the code.
        writing: writing system of the language.
        tokenizer: sacreBLEU's tokenizer for the language.
    """

    name: str
    writing: Writing
    tokenizer: str


# Lists of references, each with one line per sentence. As for sacreBLEU, None stands for a missing reference.
References = Sequence[Sequence[str | None]]
NReferences = int | Literal["var"]  # the number of references of every sentence; var: sentences differ


def existing(references: References) -> list[list[str]]:
    """Return the references of each sentence."""
    return [[line for line in lines if line is not None] for lines in zip(*references, strict=True)]


def n_references(references: References) -> NReferences:
    """Return the number of references of each sentence."""
    numbers = {len(lines) for lines in existing(references)}
    return numbers.pop() if len(numbers) == 1 else "var"


class Metric(ABC):
    """Base class of metrics whose value on a corpus is a function of sums over sentences.

    The statistics of each sentence are computed once. The value on any resample of sentences follows from their sums.

    Attributes:
        higher_is_better: whether a higher value is better.
        unit: unit in which the metric counts a text, such as symbols; None: no particular unit.
        is_slow: whether validations leave the metric out unless it is the first one.
        counts_ties: whether significance tests count a difference that equals the observed one as extreme. Such ties
            are frequent if the metric counts lines. For its own metrics, sacreBLEU does not count them.
    """

    higher_is_better: bool = True
    unit: str | None = None
    is_slow: bool = False
    counts_ties: bool = True

    @abstractmethod
    def statistics(self, hypothesis: str, references: Sequence[str]) -> Sequence[float]:
        """Return the statistics of a sentence, which are summed over the corpus. Their number is the same for all.

        Args:
            hypothesis: output of a system.
            references: one or more references for the output.
        """

    @abstractmethod
    def score(self, sums: Sequence[float]) -> float:
        """Return the value of the metric for the summed statistics of at least one sentence."""

    def corpus_statistics(self, hypotheses: Sequence[str], references: References) -> Any:
        """Return the statistics of all sentences, one row per sentence.

        Args:
            hypotheses: N lines.
            references: one or more lists of N lines.
        """
        given = existing(references)
        return [self.statistics(hypothesis, lines) for hypothesis, lines in zip(hypotheses, given, strict=True)]

    def signature(self, n_references: NReferences) -> str:
        """Return the version and the settings of the metric, in the form of sacreBLEU's signatures."""
        return f"nrefs:{n_references}|class:{type(self).__module__}.{type(self).__qualname__}"

    def units(self, text: str) -> Sequence[str]:
        """Split a text into the units that `unit` names."""
        return text.split()

    def in_language(self, language: TargetLanguage) -> "Metric | None":
        """Return the metric for a target language; None if the metric has no meaning in it."""
        return self

    def note(self, references: Sequence[str]) -> str | None:
        """Return a one-line remark if the metric does not suit the references, otherwise None."""
        return None

    def is_defined(self, hypotheses: Sequence[str]) -> bool:
        """Return whether the metric can have a value other than 0 for these hypotheses."""
        return True


class _SacrebleuMetric(Metric):
    """A metric of sacreBLEU."""

    counts_ties = False

    def __init__(self, metric: sacrebleu.metrics.base.Metric) -> None:
        self.metric: Any = metric

    def statistics(self, hypothesis: str, references: Sequence[str]) -> Sequence[float]:
        (row,) = self.corpus_statistics([hypothesis], [[line] for line in references])
        return row  # type: ignore[no-any-return]

    def corpus_statistics(self, hypotheses: Sequence[str], references: References) -> Any:
        return self.metric._extract_corpus_statistics(list(hypotheses), [list(lines) for lines in references])

    def score(self, sums: Sequence[float]) -> float:
        return float(self.metric._compute_score_from_stats(list(sums)).score)

    def signature(self, n_references: NReferences) -> str:
        return str(self.metric.get_signature())  # `corpus_statistics` has set the number of references

    def _with_metric(self, metric: sacrebleu.metrics.base.Metric) -> "_SacrebleuMetric":
        new = copy(self)
        new.metric = metric
        return new


class Bleu(_SacrebleuMetric):
    """BLEU (Papineni et al., 2002), with the tokenizer of the target language."""

    def __init__(self) -> None:
        super().__init__(sacrebleu.metrics.BLEU())

    def in_language(self, language: TargetLanguage) -> Metric:
        return self._with_metric(_checked_bleu(language.tokenizer, language.name))

    def is_defined(self, hypotheses: Sequence[str]) -> bool:
        """Return whether any hypothesis has at least four tokens; otherwise BLEU, which needs 4-grams, is always 0."""
        return any(len(self.metric.tokenizer(line).split()) >= self.metric.max_ngram_order for line in hypotheses)


class Chrf(_SacrebleuMetric):
    """chrF++ (Popović, 2017), an F-score of character n-grams, words and pairs of words."""

    def __init__(self) -> None:
        super().__init__(sacrebleu.metrics.CHRF(word_order=2))


class Ter(_SacrebleuMetric):
    """Translation edit rate (Snover et al., 2006), whose edits include shifts of phrases."""

    higher_is_better = False
    is_slow = True

    def __init__(self) -> None:
        super().__init__(sacrebleu.metrics.TER())

    def in_language(self, language: TargetLanguage) -> Metric | None:
        if not language.writing.has_ter:
            return None
        has_no_spaces = not language.writing.has_blanks
        return self._with_metric(sacrebleu.metrics.TER(normalized=has_no_spaces, asian_support=has_no_spaces))


class Accuracy(Metric):
    """Percentage of hypotheses that equal a reference, apart from white space around the line."""

    def statistics(self, hypothesis: str, references: Sequence[str]) -> Sequence[float]:
        return [float(hypothesis.strip() in [line.strip() for line in references]), 1.0]

    def score(self, sums: Sequence[float]) -> float:
        return 100 * sums[0] / sums[1]

    def signature(self, n_references: NReferences) -> str:
        return f"nrefs:{n_references}|match:line|diglot:{__version__}"


class EditRate(Metric):
    """Edits that turn the hypotheses into the references, as a percentage of the length of the references.

    An edit inserts, removes or replaces a unit. Of several references, the first one with the fewest edits counts, with
    its length.
    """

    higher_is_better = False
    unit = "words"

    def statistics(self, hypothesis: str, references: Sequence[str]) -> Sequence[float]:
        units = self.units(hypothesis)
        return min(
            ((Levenshtein.distance(units, reference), len(reference)) for reference in map(self.units, references)),
            key=lambda edits_and_length: edits_and_length[0],
        )

    def score(self, sums: Sequence[float]) -> float:
        n_edits, length = sums
        if not length:
            return 100.0 if n_edits else 0.0
        return 100 * n_edits / length

    def signature(self, n_references: NReferences) -> str:
        return f"nrefs:{n_references}|unit:{self.unit}|edits:levenshtein|diglot:{__version__}"


class Wer(EditRate):
    """Word error rate: the edit rate in words separated by white space."""


class Per(EditRate):
    """Edit rate in symbols separated by white space, such as phonemes (phoneme error rate)."""

    unit = "symbols"


class Cer(EditRate):
    """Character error rate: the edit rate in Unicode code points, spaces included except around the line."""

    unit = "characters"

    def units(self, text: str) -> Sequence[str]:
        return text.strip()


RougeKind = Literal["rouge1", "rouge2", "rougeL"]
RougeTokenizer = Literal["ascii", "words", "characters"]


class Rouge(Metric):
    """ROUGE (Lin, 2004) as computed by the package rouge-score: the mean F-score of the sentences, in percent.

    Of several references, the one with the highest F-score counts.

    Args:
        kind: what is compared: words (rouge1), pairs of words (rouge2), or the longest common subsequence (rougeL).
        tokenizer: ascii: words in lower case, of the letters a to z and digits only, as in rouge-score; words: words
            separated by white space; characters: all characters except white space.

    Raises:
        ValueError: an argument is invalid.
    """

    def __init__(self, kind: RougeKind, tokenizer: RougeTokenizer = "ascii") -> None:
        for name, value, known in (("kind", kind, RougeKind), ("tokenizer", tokenizer, RougeTokenizer)):
            if value not in get_args(known):
                raise ValueError(f"{name} ({value}) must be one of {', '.join(get_args(known))}")
        self.kind, self.tokenizer = kind, tokenizer

    @cached_property
    def _scorer(self) -> Any:
        from rouge_score.rouge_scorer import RougeScorer  # imported here, because the import is slow

        return RougeScorer([self.kind], tokenizer=None if self.tokenizer == "ascii" else self)

    def tokenize(self, text: str) -> list[str]:
        """Split a text into tokens. rouge-score calls this method."""
        return text.split() if self.tokenizer == "words" else list("".join(text.split()))

    def statistics(self, hypothesis: str, references: Sequence[str]) -> Sequence[float]:
        return [self._scorer.score_multi(references, hypothesis)[self.kind].fmeasure, 1.0]

    def score(self, sums: Sequence[float]) -> float:
        return 100 * sums[0] / sums[1]

    def signature(self, n_references: NReferences) -> str:
        return f"nrefs:{n_references}|tok:{self.tokenizer}|stem:no|rouge-score:{version('rouge-score')}"

    def note(self, references: Sequence[str]) -> str | None:
        keeps_nothing = self.tokenizer == "ascii" and not any(
            character.isascii() and character.isalnum() for line in references for character in line
        )
        if not references or not keeps_nothing:
            return None
        return (
            f"{LABELS[self.kind]} is always 0 here: its tokenizer keeps only the letters a to z and digits, and the "
            f"references have none; use metric.{self.kind}.tokenizer=words or characters"
        )


def _checked_bleu(tokenizer: str, language: str) -> sacrebleu.metrics.BLEU:
    """Return sacreBLEU's BLEU, after checking that its tokenizer works.

    Raises:
        UserError: the tokenizer does not exist, or needs a package or a model that is missing.
    """
    if tokenizer not in TOKENIZERS:
        raise UserError(f"bleu_tokenizer={tokenizer}: must be one of {', '.join(TOKENIZERS)}")
    if tokenizer in SPM_MODELS:
        model = Path(SACREBLEU_DIR) / "models" / Path(SPM_MODELS[tokenizer]["url"]).name
        if not model.is_file():  # sacreBLEU would download it
            command = f"python -c \"from sacrebleu import BLEU; BLEU(tokenize='{tokenizer}')\""
            raise UserError(f"BLEU's tokenizer {tokenizer} needs {model}, which is missing; get it with: {command}")
    try:
        bleu = sacrebleu.metrics.BLEU(tokenize=tokenizer)
        bleu.corpus_score(["a"], [["a"]])  # some tokenizers fail only when they are used
    except Exception as error:
        extra = _EXTRAS.get(tokenizer)
        if extra is None:
            raise
        hint = f"pip install 'sacrebleu[{extra}]'"
        raise UserError(
            f"BLEU for {language} needs sacreBLEU's tokenizer {tokenizer}: {hint} ({in_one_line(error)})"
        ) from None
    return bleu


def statistics_of(name: str, metric: Metric, hypotheses: Sequence[str], references: References) -> np.ndarray:
    """Return a metric's statistics of N sentences (N, n_statistics).

    Args:
        name: name of the metric in errors.
        metric: the metric, which may be user-defined.
        hypotheses: N lines.
        references: one or more lists of N lines.

    Raises:
        UserError: the metric fails, or returns something other than finite numbers.
    """
    try:
        rows = metric.corpus_statistics(hypotheses, references)
    except Exception as error:
        raise UserError(f"metric.{name}: statistics raised {type(error).__name__}: {in_one_line(error)}") from error
    try:
        table = np.asarray(rows, dtype=np.float64)
    except (ValueError, TypeError):
        table = np.empty(0)
    if table.ndim != 2 or not table.shape[1] or not np.isfinite(table).all():
        first = _format_value(rows[0]) if isinstance(rows, list) and rows else _format_value(rows)
        raise UserError(
            f"metric.{name}: statistics must return a list of finite numbers, as many for each sentence; it returned "
            f"{first} for the first one"
        )
    return table


def value_of(name: str, metric: Metric, sums: np.ndarray) -> float:
    """Return a metric's value for summed statistics.

    Args:
        name: name of the metric in errors.
        metric: the metric, which may be user-defined.
        sums: sums of the statistics (n_statistics,).

    Raises:
        UserError: the metric fails, or returns something other than a finite number.
    """
    try:
        value = metric.score(sums.tolist())
    except Exception as error:
        raise UserError(f"metric.{name}: score raised {type(error).__name__}: {in_one_line(error)}") from error
    if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
        raise UserError(f"metric.{name}: score returned {_format_value(value)}; it must be a finite number")
    return float(value)


def _format_value(value: Any) -> str:
    return shortened(" ".join(masked(repr(value)).split()), 100)


def check_metric(name: str, metric: Metric) -> None:
    """Try a metric on two sentences, so that a mistake in a user-defined metric is reported before training.

    Raises:
        UserError: the metric fails, or its attributes have wrong types.
    """
    if not isinstance(metric.higher_is_better, bool):
        raise UserError(f"metric.{name}: higher_is_better is {metric.higher_is_better!r}; it must be True or False")
    table = statistics_of(name, metric, ["a b c", ""], [["a b d", "b"], ["a", "c"]])
    value_of(name, metric, table.sum(axis=0))
