"""Scores by sentence length, and counts of obviously wrong outputs."""

import re
from collections.abc import Sequence
from typing import Any

from diglot.data.forms import comparable
from diglot.data.language import Writing, writing_of
from diglot.evaluation.metrics import References
from diglot.evaluation.scorer import Scorer

BUCKETS = (5, 10, 20, 30, 40, 50)  # greatest length of each bucket, in units; a last bucket has no maximum
MAX_LOOP_LENGTH, MIN_REPETITIONS = 8, 3  # a loop repeats at most this many words at least this many times
_THOUSANDS = re.compile(r"(?<!\d)\d{1,3}(?:\s\d{3})+(?!\d)")  # a number with separators, such as 1 000 000
_PART = re.compile(r"\d+(?:[.,]\d+)*|[A-Za-z]+|([^\w\s]|_)\1*|\S")

DEFINITIONS = {
    "empty": "an output without text for a source with text",
    "truncated": "an output cut by the length limit (search.max_len_a, search.max_len_b); null: unknown",
    "repeated": f"an output that repeats the same 1 to {MAX_LOOP_LENGTH} words {MIN_REPETITIONS} times in a row or "
    "more, for a source that does not. In a language without spaces between words, characters count instead of words; "
    "a word in Latin letters, a number and a run of the same punctuation mark (...) count as one. 1 000 000 is one "
    "word",
    "copied": "an output that equals its source, apart from spaces around it",
}


def unit_of(writing: Writing) -> str:
    """Return the unit of text length: words separated by white space, or characters other than white space."""
    return "words" if writing.has_blanks else "characters"


def units(text: str, unit: str) -> list[str]:
    """Split a text into its words or characters."""
    return text.split() if unit == "words" else list("".join(text.split()))


def has_loop(text: str, writing: Writing) -> bool:
    """Return whether a text repeats the same 1 to 8 words at least three times in a row; see `DEFINITIONS`."""
    text = _THOUSANDS.sub(lambda number: "".join(number[0].split()), text)
    parts = text.split() if writing.has_blanks else [part[0] for part in _PART.finditer(text)]
    for length in range(1, MAX_LOOP_LENGTH + 1):
        n_equal = 0  # number of consecutive parts that equal the part `length` positions after them
        for part, later_part in zip(parts, parts[length:], strict=False):
            n_equal = n_equal + 1 if part == later_part else 0
            if n_equal == (MIN_REPETITIONS - 1) * length:
                return True
    return False


def output_counts(
    sources: Sequence[str], hypotheses: Sequence[str], cut: Sequence[bool] | None, src: Writing, tgt: Writing
) -> dict[str, Any]:
    """Count the outputs that are empty, truncated, repeated or copied; return the counts and their definitions.

    Args:
        sources: source texts.
        hypotheses: their translations.
        cut: for each translation, whether the length limit cut it; None: unknown.
        src: writing system of the source language.
        tgt: writing system of the target language.
    """
    pairs = [(source.strip(), output.strip()) for source, output in zip(sources, hypotheses, strict=True)]
    return {
        "empty": sum(bool(source) and not output for source, output in pairs),
        "truncated": None if cut is None else sum(cut),
        "repeated": sum(has_loop(output, tgt) and not has_loop(source, src) for source, output in pairs),
        "copied": sum(bool(source) and comparable(source) == comparable(output) for source, output in pairs),
        "definitions": DEFINITIONS,
    }


def by_length(
    scorer: Scorer,
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: References,
    src_lang: str,
) -> dict[str, Any]:
    """Compute the scores separately for each bucket of lengths.

    If a metric counts in a unit of its own, such as symbols, the length is that of the first reference in this unit.
    Otherwise, it is that of the source in words, or in characters if the language has no spaces between words.

    Args:
        scorer: scorer of the target language.
        sources: source texts.
        hypotheses: their translations.
        references: one or more lists of references, each with one line per source.
        src_lang: code of the source language. If it is unknown, the script of the sources determines the unit.

    Returns:
        The unit, and for each bucket that is not empty its minimum and maximum length, its number of sentences, and its
        scores by the metrics that validations compute. The value of BLEU is None if no output has the four tokens that
        BLEU needs.
    """
    if metric := scorer.unit_metric:
        unit = f"reference {metric.unit}"
        lengths = [len(metric.units(reference or "")) for reference in references[0]]
    else:
        source_unit = unit_of(writing_of(src_lang, sources))
        unit = f"source {source_unit}"
        lengths = [len(units(source, source_unit)) for source in sources]
    buckets: list[dict[str, Any]] = []
    min_length = 0
    for max_length in (*BUCKETS, None):
        indices = [i for i, n in enumerate(lengths) if n >= min_length and (max_length is None or n <= max_length)]
        if indices:
            part_references = [[lines[i] for i in indices] for lines in references]
            scores = scorer.score_part([hypotheses[i] for i in indices], *part_references, with_slow=False)
            buckets.append({"from": min_length, "to": max_length, "sentences": len(indices), "scores": scores})
        min_length = (max_length or 0) + 1
    return {"unit": unit, "buckets": buckets}
