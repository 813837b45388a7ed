"""Scores of a corpus by several metrics, with their signatures."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from diglot.data.held_out import metric_of
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
from diglot.evaluation import metrics as known_metrics
from diglot.evaluation.metrics import (
    LABELS,
    Bleu,
    Chrf,
    Metric,
    References,
    TargetLanguage,
    Ter,
    n_references,
    statistics_of,
    value_of,
)


class Score(NamedTuple):
    """Value of a metric on a corpus, with the metric's name in tables and its signature."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f}"


class Scorer:
    """Scorer of detokenised text against raw references.

    The code of the target language determines how text is split into words. If the code is unknown or contradicts the
    references, their script determines it (see `diglot.data.language.writing_of`). If the code and an explicitly given
    tokenizer agree that spaces separate words, the script has no effect, for TER either.

    Args:
        tgt_lang: code of the target language.
        references: text in the target language. If it is empty, a language with an unknown code is assumed to have
            spaces between words.
        tokenizer: sacreBLEU's tokenizer for BLEU; None: chosen by language.
        metrics: metrics by name, of which the first one ranks systems; None: BLEU, chrF++ and TER. A metric that has no
            meaning in the language is left out.

    Attributes:
        metrics: metrics by name, adapted to the target language.
        chosen: metrics by name, as given.
        left_out: names of the metrics that have no meaning in the language.
        writing: writing system of the target language.
        tokenizer: sacreBLEU's tokenizer for BLEU.
        notes: remarks for the user about the choice of metrics and tokenizer, one line each.

    Raises:
        UserError: BLEU's tokenizer is unknown or not installed, or the first metric has no meaning in the language.
    """

    def __init__(
        self,
        tgt_lang: str,
        references: Sequence[str] = (),
        tokenizer: str | None = None,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        of_code = writing_of_code(tgt_lang)
        of_text = writing_of_text(references, is_alphabetic=of_code == SPACED)
        self.tgt_lang = tgt_lang
        # A tokenizer that splits at spaces, if it is explicitly given, confirms the language code.
        is_confirmed = of_code == SPACED and tokenizer is not None and lacks_segmentation(tokenizer, CHINESE)
        self.writing = SPACED if is_confirmed else writing_of(tgt_lang, references)
        self.tokenizer = tokenizer or self.writing.tokenizer
        language = TargetLanguage(
            tgt_lang if self.writing == of_code else self.writing.name, self.writing, self.tokenizer
        )
        chosen = {"bleu": Bleu(), "chrf": Chrf(), "ter": Ter()} if metrics is None else metrics
        adapted = {name: metric.in_language(language) for name, metric in chosen.items()}
        self.metrics = {name: metric for name, metric in adapted.items() if metric is not None}
        self.chosen = chosen
        self.left_out = [name for name in adapted if name not in self.metrics]
        if (first := next(iter(adapted))) in self.left_out:
            raise UserError(f"metric={first}: {label(first)} finds no words in {self.writing.name}; choose another one")
        metric_notes = [metric.note(references) for metric in self.metrics.values()]
        self.notes = [*filter(None, metric_notes), *self._metric_notes()]
        if "bleu" in self.metrics:
            self.notes = [*self._language_notes(of_code, of_text, tokenizer is None), *self.notes]

    def _language_notes(self, of_code: Writing | None, of_text: Writing | None, is_chosen_here: bool) -> list[str]:
        """Return a note if the script of the references determines BLEU's tokenizer, or does not suit it.

        Args:
            of_code: writing system of the language's code; None: unknown.
            of_text: writing system of the references; None: unknown.
            is_chosen_here: whether the tokenizer is chosen by language.
        """
        if of_text is None:
            return []
        if lacks_segmentation(self.tokenizer, of_text):
            return [
                f"BLEU's tokenizer {self.tokenizer} treats a complete sentence as one word: the references are in "
                f"{of_text.name}, but the target language is {self.tgt_lang}; "
                f"use bleu_tokenizer={of_text.tokenizer}"
            ]
        if self.writing != of_code and is_chosen_here:
            source = f"the references ({of_text.name}) determine BLEU's tokenizer {self.tokenizer}"
            if of_code is None:
                advice = "set data.tgt_lang=CODE (in evaluate: tgt_lang=CODE) or bleu_tokenizer=NAME"
                return [f"the target language {self.tgt_lang} is not known: {source}; {advice}"]
            advice = f"bleu_tokenizer={of_code.tokenizer} scores words separated by spaces"
            return [f"the target language {self.tgt_lang} is not written like the references: {source}; {advice}"]
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
        notes = [f"{label(name)} is left out: it finds no words in {self.writing.name}" for name in self.left_out]
        if "chrf" in self.metrics:
            script = f"{self.writing.name}: no spaces between words"
            return [f"{script}, so the word n-grams of chrF++ span whole phrases", *notes]
        return notes

    @property
    def in_validations(self) -> list[str]:
        """Names of the metrics that validations compute: the first one, and all others that are not slow."""
        first, *others = self.metrics
        return [first, *(name for name in others if not self.metrics[name].is_slow)]

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher value of the first metric is better."""
        return next(iter(self.metrics.values())).higher_is_better

    @property
    def unit_metric(self) -> Metric | None:
        """The first metric that counts in a unit of its own, such as symbols; None if there is none."""
        return next((metric for metric in self.metrics.values() if metric.unit is not None), None)

    def for_references(self, references: Sequence[str]) -> "Scorer":
        """Return a scorer with the same metrics and tokenizer for other references."""
        return Scorer(self.tgt_lang, references, self.tokenizer, self.chosen)

    def __call__(
        self,
        hypotheses: Sequence[str],
        references: Sequence[str | None],
        *more: Sequence[str | None],
        with_slow: bool = True,
    ) -> list[Score]:
        """Score a corpus, each hypothesis against the references of the same line.

        Args:
            hypotheses: N lines.
            references: N lines.
            more: further references, N lines each; None: the sentence does not have it.
            with_slow: whether to compute all metrics; otherwise, only those of `in_validations`.

        Raises:
            ValueError: the numbers of lines differ, or there are no lines.
        """
        for lines in (references, *more):
            if len(hypotheses) != len(lines) or not hypotheses:
                raise ValueError(f"{len(hypotheses)} hypotheses for {len(lines)} references")
        scores = []
        for name in self.metrics if with_slow else self.in_validations:
            table = self.statistics(name, hypotheses, [references, *more])
            signature = self.metrics[name].signature(n_references([references, *more]))
            scores.append(Score(label(name), value_of(name, self.metrics[name], table.sum(axis=0)), signature))
        return scores

    def statistics(self, name: str, hypotheses: Sequence[str], references: References) -> np.ndarray:
        """Return a metric's statistics of N sentences (N, n_statistics)."""
        return statistics_of(name, self.metrics[name], hypotheses, references)

    def value(self, name: str, sums: np.ndarray) -> float:
        """Return a metric's value for summed statistics (n_statistics,)."""
        return value_of(name, self.metrics[name], sums)

    def has_bleu(self, hypotheses: Sequence[str]) -> bool | None:
        """Return whether any hypothesis has the four tokens that BLEU needs; None without BLEU."""
        return self.metrics["bleu"].is_defined(hypotheses) if "bleu" in self.metrics else None

    def score_part(
        self, hypotheses: Sequence[str], *references: Sequence[str | None], with_slow: bool = True
    ) -> list[dict[str, Any]]:
        """Score a part of a corpus like `__call__`, as plain data. BLEU is None if no hypothesis has four tokens."""
        scores = [score._asdict() for score in self(hypotheses, *references, with_slow=with_slow)]
        for name, score in zip(self.metrics if with_slow else self.in_validations, scores, strict=True):
            if not self.metrics[name].is_defined(hypotheses):
                score["value"] = None
        return scores


def label(name: str) -> str:
    """Return a metric's name in tables, such as chrF++ for chrf."""
    return LABELS.get(name, name)


def recorded_tokenizer(record: Mapping[str, Any], tgt_lang: str | None) -> str | None:
    """Return BLEU's tokenizer of a checkpoint's dev scores; None if the record has none for the language."""
    recorded = record.get("bleu_tokenizer")
    return recorded if tgt_lang == record.get("tgt_lang") and recorded in TOKENIZERS else None


def with_first(metrics: Mapping[str, Metric], monitor: str | None) -> dict[str, Metric]:
    """Return metrics in an order in which the monitored one, which ranks systems, is the first.

    Args:
        metrics: metrics by name.
        monitor: the monitored score: the name of a metric, or that of a dev set and a metric, such as dev_old/bleu.
    """
    metric = monitor and metric_of(monitor)
    return {name: metrics[name] for name in sorted(metrics, key=lambda name: name != metric)}


def recorded_metrics(record: Mapping[str, Any]) -> tuple[dict[str, Metric] | None, list[str]]:
    """Return diglot's own metrics that a checkpoint's run computed, and the names of its other metrics.

    Other classes are not imported only because a checkpoint names them.

    Returns:
        The metrics, of which the first is the monitored one (None: the record has none of diglot's own), and the names
        of the other metrics.

    Raises:
        UserError: the record is malformed.
    """
    config: Any = record.get("config") or {}
    try:
        monitor, nodes = (config.get("run") or {}).get("monitor"), config.get("metric") or {}
        known: dict[str, Metric] = {}
        other_names = []
        for name, node in nodes.items():
            module, _, class_name = str(node.get("_target_")).rpartition(".")
            if module == known_metrics.__name__ and issubclass(getattr(known_metrics, class_name), Metric):
                options = {key: value for key, value in node.items() if key != "_target_"}
                known[name] = getattr(known_metrics, class_name)(**options)
            else:
                other_names.append(name)
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"the checkpoint's metrics cannot be read ({error}); choose some with metric=NAME") from None
    return (with_first(known, monitor) if known else None), other_names
