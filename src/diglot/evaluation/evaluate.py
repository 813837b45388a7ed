"""Evaluation of a system on parallel text, and storage of evaluation sets."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from diglot.data.forms import comparable, count_forms, mixed_forms
from diglot.data.held_out import PREFIX
from diglot.data.language import writing_of
from diglot.data.pieces import normalisation
from diglot.data.references import check_count
from diglot.data.text import (
    PairFiles,
    ParallelText,
    StoredLines,
    ending_of,
    read_lines,
    refuse_address,
    side_endings,
    write_json,
    write_lines,
)
from diglot.errors import UserError
from diglot.evaluation.breakdown import by_length, output_counts
from diglot.evaluation.metrics import References
from diglot.evaluation.openings import Ledger, told
from diglot.evaluation.scorer import Score, Scorer
from diglot.evaluation.significance import MIN_SENTENCES, compare
from diglot.evaluation.translation_memory import nearest
from diglot.inference.scoring import search_errors
from diglot.inference.translator import Translation, Translator
from diglot.system.atomic import numbered_folder
from diglot.system.console import render
from diglot.system.masking import masked

# A source is far from the training text if its similarity to all training sources (rapidfuzz ratio, 0-100) is below
# this.
SIMILAR = 80.0


@dataclass(frozen=True)
class MemoryMatch:
    """Answer of a translation memory for a source.

    Attributes:
        target: target of the most similar training source.
        similarity: similarity of this training source, from 0 to 100.
    """

    target: str
    similarity: float


@dataclass(frozen=True)
class EvaluationSet:
    """Parallel text to evaluate on.

    Attributes:
        name: name of corpus and split in the results.
        split: dev, test, or the name of a further dev set.
        pairs: sources and references.
        memory: answers of a translation memory, one per pair; empty: there is no translation memory.
        where: name of the pairs in messages.
        files: the files of the references, if known.
        src_lang: code of the source language; None: that of the system.
    """

    name: str
    split: str
    pairs: ParallelText
    memory: tuple[MemoryMatch, ...] = ()
    where: str = "the text"
    files: tuple[str, ...] = ()
    src_lang: str | None = None


def look_up(train: ParallelText, sources: Sequence[str]) -> tuple[MemoryMatch, ...]:
    """Look up sources in the training text as a translation memory; return an answer for each of them."""
    return tuple(MemoryMatch(train.tgt[match.index], match.similarity) for match in nearest(list(sources), train.src))


def write_evaluation_set(folder: Path, evaluation_set: EvaluationSet, src_lang: str, tgt_lang: str) -> list[Path]:
    """Write an evaluation set into a run's folder, so that checkpoints can be scored without the corpus.

    Returns:
        Paths of the files.
    """
    src_ending, tgt_ending = side_endings(src_lang, tgt_lang)
    src, tgt, metadata_file = (folder / f"{evaluation_set.split}.{each}" for each in (src_ending, tgt_ending, "json"))
    write_lines(src, evaluation_set.pairs.src)
    write_lines(tgt, evaluation_set.pairs.tgt)
    metadata: dict[str, Any] = {"name": evaluation_set.name}
    metadata["memory"] = [[match.similarity, match.target] for match in evaluation_set.memory]
    if evaluation_set.pairs.more:
        metadata["references"] = evaluation_set.pairs.more  # no files: their names could be those of other files
    if evaluation_set.split.startswith(PREFIX):
        metadata["languages"] = [src_lang, tgt_lang]  # may differ from those of the checkpoint
    write_json(metadata_file, metadata)
    return [src, tgt, metadata_file]


def read_evaluation_set(folder: Path, split: str, src_lang: str, tgt_lang: str) -> EvaluationSet | None:
    """Read the evaluation set that `write_evaluation_set` wrote; return None if files are missing.

    Raises:
        UserError: the files are damaged.
    """
    metadata_file = folder / f"{split}.json"
    sides = _find_stored_sides(folder, split, src_lang, tgt_lang)
    if sides is None or not metadata_file.exists():
        return None
    src, tgt = sides
    try:
        content = json.loads("\n".join(read_lines(metadata_file)))
        memory = tuple(MemoryMatch(target, similarity) for similarity, target in content["memory"])
        pairs = PairFiles(split, [(str(src), str(tgt))], StoredLines(split)).load()
        pairs = replace(pairs, more=_stored_references(content.get("references", [])))
        return EvaluationSet(content["name"], split, pairs, memory, where=str(tgt), files=(str(tgt),))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{metadata_file}: damaged ({error})") from None


def stored_languages(folder: Path, split: str) -> tuple[str, str] | None:
    """Return the languages of a further dev set that `write_evaluation_set` wrote; None if there is no such set.

    Raises:
        UserError: its file is damaged.
    """
    metadata_file = folder / f"{split}.json"
    if not metadata_file.is_file():
        return None
    try:
        src_lang, tgt_lang = map(str, json.loads("\n".join(read_lines(metadata_file)))["languages"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{metadata_file}: damaged ({error})") from None
    return src_lang, tgt_lang


def _stored_references(more: Any) -> tuple[list[str | None], ...]:
    """Return the further references that `write_evaluation_set` wrote.

    Raises:
        ValueError: they are not lists of lines.
    """
    if not all(isinstance(line, (str, type(None))) for lines in more for line in lines):
        raise ValueError("a reference is not text")
    return tuple(map(list, more))


def _find_stored_sides(folder: Path, split: str, src_lang: str, tgt_lang: str) -> tuple[Path, Path] | None:
    """Return the source and target file of a stored evaluation set; None if they are missing or overwritten.

    In earlier versions, the names of the files contained only the languages, so that one file could overwrite another.
    """
    others = [folder / f"{split}.json", folder / f"{split}.translated.{tgt_lang}"]
    for endings in (side_endings(src_lang, tgt_lang), (src_lang, tgt_lang)):
        src, tgt = (folder / f"{split}.{ending}" for ending in endings)
        files = [file for file in (src, tgt, *others) if file.exists()]
        has_both = src in files and tgt in files
        if has_both and not any(one.samefile(other) for one, other in combinations(files, 2)):
            return src, tgt
    return None


class Hypotheses(NamedTuple):
    """Existing output of any system, one line per source."""

    lines: list[str]
    src_lang: str
    tgt_lang: str


class Baseline(NamedTuple):
    """A system to compare with, its name, and its ledger if it is a checkpoint that opens a test set."""

    name: str
    system: Translator | Hypotheses
    ledger: Ledger | None = None


def read_lines_for(key: str, path: str, evaluation_set: EvaluationSet) -> list[str]:
    """Read a file that has one line per pair of an evaluation set.

    Args:
        key: config key of the file in errors.
        path: path of the file.
        evaluation_set: the evaluation set.

    Raises:
        UserError: the file has a different number of lines, or cannot be read.
    """
    refuse_address(key, path)
    lines = read_lines(Path(path).expanduser())
    check_count(key, path, len(lines), len(evaluation_set.pairs), evaluation_set.where)
    return lines


def placeholder_errors(translator: Translator, sources: Sequence[str], outputs: Sequence[str]) -> tuple[int, int]:
    """Count the lines whose placeholders differ between source and output, and the lines with any placeholders."""
    n_errors = n_lines = 0
    for lines in zip(sources, outputs, strict=True):
        source, output = (Counter(map(comparable, translator.tokenizer.find_placeholders(line))) for line in lines)
        n_errors += source != output
        n_lines += bool(source or output)
    return n_errors, n_lines


def evaluate(
    system: Translator | Hypotheses,
    evaluation_set: EvaluationSet,
    scorer: Scorer,
    folder: Path,
    is_repeated: bool = False,
    baseline: Baseline | None = None,
    ledger: Ledger | None = None,
) -> dict[str, Any]:
    """Translate and score a text, and write sources, hypotheses, references and results.

    Args:
        system: system to score: a translator, or the existing output of another system.
        evaluation_set: the text.
        scorer: scorer of the target language.
        folder: folder to create for the results. If it exists, a number is appended to its name.
        is_repeated: whether a killed process may already have started this evaluation. If so, an existing folder is
            reused if its results are missing, damaged or the same.
        baseline: system to compare with; None: there is none.
        ledger: if the text is a test set: records that it was opened, before anything is written or returned.

    Returns:
        The contents of results.json.

    Raises:
        UserError: the text has no pairs.
    """
    pairs, references = evaluation_set.pairs, evaluation_set.pairs.references
    if not len(pairs):
        raise UserError(f"{evaluation_set.name}: there are no {evaluation_set.split} pairs")
    cut: list[bool] | None = None
    visible_sources = pairs.src
    if isinstance(system, Translator):
        src_lang, tgt_lang = system.record.get("src_lang", "src"), system.tgt_lang or "tgt"
        translations = system.translate_all(pairs.src, show=True)
        hypotheses = [translation.text for translation in translations]
        cut = [translation.cut for translation in translations]
        sources = zip(pairs.src, translations, strict=True)
        # A source without tokens (see `Encoded`) counts as empty.
        visible_sources = [source if translation.source_tokens else "" for source, translation in sources]
    else:
        src_lang, tgt_lang = system.src_lang, system.tgt_lang
        translations, hypotheses = None, system.lines
    src_lang = evaluation_set.src_lang or src_lang
    results: dict[str, Any] = {
        "set": masked(evaluation_set.name),
        "split": evaluation_set.split,
        "sentences": len(pairs),
        "references": len(references),
        "scores": _as_plain_data(scorer(hypotheses, *references)),
        "forms": {"outputs": count_forms(hypotheses), "references": count_forms(pairs.reference_lines)},
        "outputs": output_counts(visible_sources, hypotheses, cut, writing_of(src_lang, pairs.src), scorer.writing),
        "has_four_tokens": scorer.has_bleu(hypotheses),
        "by_length": by_length(scorer, pairs.src, hypotheses, references, src_lang),
    }
    if isinstance(system, Translator) and translations is not None:
        results |= _model_results(system, pairs.src, references, translations)
    if baseline is not None:
        baseline_lines = _output_lines(baseline.system, pairs.src)
        results["baseline"] = {"name": masked(baseline.name), **compare(scorer, hypotheses, baseline_lines, references)}
    if evaluation_set.memory:
        answers = [match.target for match in evaluation_set.memory]
        far = [i for i, match in enumerate(evaluation_set.memory) if match.similarity < SIMILAR]
        results["translation_memory"] = _as_plain_data(scorer(answers, *references))
        if far:
            far_references = [[lines[i] for i in far] for lines in references]
            results["far_from_training"] = {
                "sentences": len(far),
                "scores": scorer.score_part([hypotheses[i] for i in far], *far_references),
                "translation_memory": scorer.score_part([answers[i] for i in far], *far_references),
            }
    if ledger is not None:
        results["openings"] = ledger.record(evaluation_set.name, pairs, results["scores"])
    if baseline is not None and baseline.ledger is not None:
        baseline_scores = _as_plain_data(scorer(baseline_lines, *references))
        results["baseline"]["openings"] = baseline.ledger.record(evaluation_set.name, pairs, baseline_scores)
    if not (is_repeated and _has_same_results(folder, results)):
        folder = numbered_folder(folder)
    tgt = ending_of(tgt_lang)
    write_lines(folder / f"hypotheses.{tgt}", hypotheses)
    for number, lines in enumerate(references, start=1):
        write_lines(
            folder / (f"references.{tgt}" if number == 1 else f"references.{number}.{tgt}"),
            [line or "" for line in lines],
        )
    write_lines(folder / f"sources.{ending_of(src_lang)}", pairs.src)
    if baseline is not None:
        write_lines(folder / f"baseline.{tgt}", baseline_lines)
    results["folder"] = masked(str(folder))
    write_json(folder / "results.json", results)
    return results


def _output_lines(system: Translator | Hypotheses, sources: Sequence[str]) -> list[str]:
    """Return the output of a system, one line per source."""
    if isinstance(system, Hypotheses):
        return system.lines
    return [translation.text for translation in system.translate_all(sources, show=True)]


def _model_results(
    translator: Translator,
    sources: Sequence[str],
    references: References,
    translations: Sequence[Translation],
) -> dict[str, Any]:
    """Return the results that require the model, not just its output."""
    outputs = [translation.text for translation in translations]
    n_wrong, n_with_placeholders = placeholder_errors(translator, sources, outputs)
    return {
        "cut_by_length_limit": sum(translation.cut for translation in translations),
        "near_ties": sum(translation.near_tie for translation in translations),
        "placeholder_errors": {"lines": n_wrong, "of": n_with_placeholders},
        "search_errors": search_errors(translator, sources, references, translations),
        "search": translator.search.options,
        "precision": translator.precision,
        "normalisation": normalisation(translator.tokenizer.model),
        "update": translator.record.get("update"),
        "mean_of": translator.record.get("mean_of"),
        "diglot": translator.record.get("version"),
    }


def _has_same_results(folder: Path, results: dict[str, Any]) -> bool:
    """Return whether a folder exists, and its results are missing, damaged or the same."""
    others = {"folder": None, "openings": None}  # these describe the evaluation, not the system
    try:
        return {**json.loads((folder / "results.json").read_bytes()), **others} == {**results, **others}
    except (OSError, ValueError, TypeError, RecursionError):
        return folder.is_dir()


def table(results: dict[str, Any]) -> list[str]:
    """Format the results as lines to print."""
    names = [score["name"] for score in results["scores"]]
    rows = [("model" if "search" in results else "hypotheses", results["scores"])]
    if "translation_memory" in results:
        rows.append(("translation memory", results["translation_memory"]))
    if "far_from_training" in results:
        far = results["far_from_training"]
        rows.append((f"model, {far['sentences']} far from training", far["scores"]))
        rows.append((f"translation memory, {far['sentences']} far from training", far["translation_memory"]))
    grid = Table(title=f"{results['set']} {results['split']}: {results['sentences']:,} sentences", title_justify="left")
    grid.add_column("")
    for name in names:
        grid.add_column(name, justify="right")
    for title, scores in rows:
        grid.add_row(title, *map(_format_value, scores))
    lines = render(grid)
    if results["has_four_tokens"] is False:
        lines.append("BLEU is always 0 here: it needs 4-grams, and no output has four tokens")
    lines += [f"{score['name']}: {score['signature']}" for score in results["scores"]]
    if forms := mixed_forms(results["forms"]):
        lines.append(
            f"{forms}; to {'the metrics' if results['has_four_tokens'] is None else 'sacreBLEU'} the two "
            "forms are different words"
        )
    lines += render(_length_table(results["by_length"]))
    lines += render(_counts_table(results["outputs"]))
    lines += _error_lines(results)
    if "baseline" in results:
        lines += _comparison_lines(results["baseline"], results["sentences"])
    return lines + _opening_lines(results)


def _error_lines(results: dict[str, Any]) -> list[str]:
    """Format the counts of errors as lines to print; leave out those that are zero."""
    lines = []
    if (errors := results.get("placeholder_errors")) and errors["of"]:
        lines.append(f"{errors['lines']} of {errors['of']} lines with placeholders have wrong ones")
    if results.get("cut_by_length_limit"):
        lines.append(f"outputs cut by the length limit: {results['cut_by_length_limit']}")
    if results.get("near_ties"):
        lines.append(f"near ties, which may turn out differently in other batches: {results['near_ties']}")
    if (errors := results.get("search_errors")) and errors["of"]:
        lines.append(
            f"Search errors: {errors['n_search_errors']:,} of {errors['of']:,} ({errors['share']:.1%}), where the "
            f"model scores a reference higher; model errors: {errors['n_model_errors']:,}"
        )
    return lines


def _opening_lines(results: dict[str, Any]) -> list[str]:
    """Format how often the test set was opened, by the system and by the baseline, as lines to print."""
    lines = [told(results["openings"])] if "openings" in results else []
    if "openings" in (baseline := results.get("baseline", {})):
        lines.append(f"Baseline: {told(baseline['openings'])}")
    return lines


def _comparison_lines(comparison: dict[str, Any], n_sentences: int) -> list[str]:
    """Format the comparison with a baseline as lines to print."""
    n_resamples = comparison["paired_bootstrap"]["n"]
    n_trials = comparison["paired_approximate_randomisation"]["n"]
    if n_resamples:
        note = (
            f"In brackets: mean and 95% confidence interval of {n_resamples:,} resamples; {n_trials:,} trials of "
            "randomisation"
        )
    else:
        note = (
            f"No p-values or confidence intervals: {n_sentences} sentences are too few to resample; at least "
            f"{MIN_SENTENCES} are needed"
        )
    return [*render(_comparison_table(comparison)), note]


def _length_table(breakdown: dict[str, Any]) -> Table:
    grid = Table(title=f"By the length of the {breakdown['unit'].partition(' ')[0]}", title_justify="left")
    for name in (breakdown["unit"], "sentences", *(score["name"] for score in breakdown["buckets"][0]["scores"])):
        grid.add_column(name, justify="right")
    for bucket in breakdown["buckets"]:
        length = f"{bucket['from']}-{bucket['to']}" if bucket["to"] is not None else f"{bucket['from']} and more"
        grid.add_row(length, f"{bucket['sentences']:,}", *map(_format_value, bucket["scores"]))
    return grid


def _format_value(score: dict[str, Any]) -> str:
    return "-" if score["value"] is None else f"{score['value']:.2f}"


def _counts_table(outputs: dict[str, Any]) -> Table:
    grid = Table(title="Outputs that are", title_justify="left")
    counts = {name: n for name, n in outputs.items() if name in outputs["definitions"]}
    for name in counts:
        grid.add_column(name, justify="right")
    grid.add_row(*("not known" if n is None else f"{n:,}" for n in counts.values()))
    return grid


def _comparison_table(comparison: dict[str, Any]) -> Table:
    """Return the table of scores with 95% confidence intervals, and of p-values."""
    bootstrap, randomisation = comparison["paired_bootstrap"], comparison["paired_approximate_randomisation"]
    grid = Table(title=Text(f"Compared with {comparison['name']}"), title_justify="left")
    grid.add_column("")
    for metric in bootstrap["metrics"]:
        grid.add_column(metric["name"], justify="right")
    for name in ("baseline", "system"):
        sides = [metric[name] for metric in bootstrap["metrics"]]
        grid.add_row(name, *map(_format_interval, sides))
    for title, test in (("p, bootstrap", bootstrap), ("p, randomisation", randomisation)):
        p_values = [metric["p_value"] for metric in test["metrics"]]
        grid.add_row(title, *("-" if p_value is None else f"{p_value:.4f}" for p_value in p_values))
    return grid


def _format_interval(side: dict[str, float | None]) -> str:
    interval = "" if side["ci"] is None else f" ({side['mean']:.2f} ± {side['ci']:.2f})"
    return f"{side['score']:.2f}{interval}"


def _as_plain_data(scores: Sequence[Score]) -> list[dict[str, Any]]:
    return [score._asdict() for score in scores]
