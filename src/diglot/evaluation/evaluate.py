"""Evaluation of a system on parallel text, and storage of the evaluation sets."""

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
from diglot.data.language import writing_of
from diglot.data.pieces import normalisation
from diglot.data.references import check_count
from diglot.data.text import (
    ParallelText,
    ending_of,
    read_lines,
    read_parallel,
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

# A source is far from the training text if no training source reaches this similarity (rapidfuzz ratio, 0-100).
SIMILAR = 80.0


@dataclass(frozen=True)
class MemoryMatch:
    """The answer of a translation memory for a source: the target of the most similar training source."""

    target: str
    similarity: float


@dataclass(frozen=True)
class EvaluationSet:
    """Parallel text to evaluate on.

    Attributes:
        name: name of corpus and split in the results.
        split: dev or test.
        pairs: sources and references.
        memory: the answers of a translation memory, one per pair; empty: no translation memory.
        where: how messages refer to the pairs.
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


def remember(train: ParallelText, sources: Sequence[str]) -> tuple[MemoryMatch, ...]:
    """Look up sources in the training text, used as a translation memory."""
    return tuple(MemoryMatch(train.tgt[m.index], m.similarity) for m in nearest(list(sources), train.src))


def keep_text(folder: Path, evaluated: EvaluationSet, src_lang: str, tgt_lang: str) -> list[Path]:
    """Write an evaluation set into a run's folder, so that checkpoints can be scored without the corpus.

    Returns:
        The files written.
    """
    *sides, about = (folder / f"{evaluated.split}.{ending}" for ending in (*side_endings(src_lang, tgt_lang), "json"))
    for file, lines in zip(sides, (evaluated.pairs.src, evaluated.pairs.tgt), strict=True):
        write_lines(file, lines)
    content: dict[str, Any] = {"name": evaluated.name}
    content["memory"] = [[m.similarity, m.target] for m in evaluated.memory]
    if evaluated.pairs.more:
        content["references"] = evaluated.pairs.more  # no files: their names could be those of other files
    write_json(about, content)
    return [*sides, about]


def kept_text(folder: Path, split: str, src_lang: str, tgt_lang: str) -> EvaluationSet | None:
    """Read the evaluation set that `keep_text` wrote; return None if files are missing.

    Raises:
        UserError: the files are damaged.
    """
    about = folder / f"{split}.json"
    sides = _kept_sides(folder, split, src_lang, tgt_lang)
    if sides is None or not about.exists():
        return None
    src, tgt = sides
    try:
        content = json.loads("\n".join(read_lines(about)))
        memory = tuple(MemoryMatch(target, similarity) for similarity, target in content["memory"])
        pairs = replace(read_parallel(src, tgt, split), more=_kept_references(content.get("references", [])))
        return EvaluationSet(content["name"], split, pairs, memory, where=str(tgt), files=(str(tgt),))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{about}: damaged ({error})") from None


def _kept_references(more: Any) -> tuple[list[str | None], ...]:
    """Return the further references that `keep_text` wrote.

    Raises:
        ValueError: they are not lists of lines.
    """
    if not all(isinstance(line, (str, type(None))) for lines in more for line in lines):
        raise ValueError("a reference is not text")
    return tuple(map(list, more))


def _kept_sides(folder: Path, split: str, src_lang: str, tgt_lang: str) -> tuple[Path, Path] | None:
    """Return the source and target file of a stored set, or None if they are missing or overwritten.

    Earlier versions named the files after the languages alone, so that one file could overwrite another.
    """
    others = [folder / f"{split}.json", folder / f"{split}.translated.{tgt_lang}"]
    for endings in (side_endings(src_lang, tgt_lang), (src_lang, tgt_lang)):
        src, tgt = (folder / f"{split}.{ending}" for ending in endings)
        files = [file for file in (src, tgt, *others) if file.exists()]
        is_whole = src in files and tgt in files
        if is_whole and not any(one.samefile(other) for one, other in combinations(files, 2)):
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


def read_lines_for(key: str, path: str, evaluated: EvaluationSet) -> list[str]:
    """Read a file that has one line per pair of an evaluation set.

    Args:
        key: the config key that names the file.
        path: the file.
        evaluated: the evaluation set.

    Raises:
        UserError: the file has a different number of lines, or cannot be read.
    """
    refuse_address(key, path)
    lines = read_lines(Path(path).expanduser())
    check_count(key, path, len(lines), len(evaluated.pairs), evaluated.where)
    return lines


def placeholder_errors(translator: Translator, sources: Sequence[str], outputs: Sequence[str]) -> tuple[int, int]:
    """Count the lines whose placeholders differ between source and output, and the lines with any placeholders."""
    find = translator.tokenizer.find_placeholders
    wanted, got = ([Counter(map(comparable, find(line))) for line in lines] for lines in (sources, outputs))
    return sum(a != b for a, b in zip(wanted, got, strict=True)), sum(bool(a or b) for a, b in zip(wanted, got))


def evaluate(
    system: Translator | Hypotheses,
    evaluated: EvaluationSet,
    scorer: Scorer,
    folder: Path,
    is_repeated: bool = False,
    baseline: Baseline | None = None,
    ledger: Ledger | None = None,
) -> dict[str, Any]:
    """Translate, score, and write sources, hypotheses, references and results.

    Args:
        system: the system to score: a translator, or the existing output of another system.
        evaluated: the text.
        scorer: scorer of the target language.
        folder: folder to create for the results; if it exists, a number is appended to its name.
        is_repeated: whether a killed process may already have started this evaluation. If so, an existing folder is
            reused if its results are missing, damaged or the same.
        baseline: a system to compare with.
        ledger: if the text is a test set: records that it was opened, before anything is written or returned.

    Returns:
        The contents of results.json.

    Raises:
        UserError: the text has no pairs.
    """
    pairs, references = evaluated.pairs, evaluated.pairs.references
    if not len(pairs):
        raise UserError(f"{evaluated.name}: there are no {evaluated.split} pairs")
    if isinstance(system, Translator):
        src_lang, tgt_lang = system.record.get("src_lang", "src"), system.tgt_lang or "tgt"
        translations = system.translate_all(pairs.src, show=True)
        hypotheses = [t.text for t in translations]
    else:
        src_lang, tgt_lang = system.src_lang, system.tgt_lang
        translations, hypotheses = None, system.lines
    src_lang = evaluated.src_lang or src_lang
    cut = None if translations is None else [t.cut for t in translations]
    # A source that the tokenizer reduces to nothing (see `Encoded`) counts as empty.
    read = ["" if translations and not translations[i].source_tokens else source for i, source in enumerate(pairs.src)]
    results: dict[str, Any] = {
        "set": masked(evaluated.name),
        "split": evaluated.split,
        "sentences": len(pairs),
        "references": len(references),
        "scores": _scores(scorer(hypotheses, *references)),
        "forms": {"outputs": count_forms(hypotheses), "references": count_forms(pairs.reference_lines)},
        "outputs": output_counts(read, hypotheses, cut, writing_of(src_lang, pairs.src), scorer.writing),
        "has_four_tokens": scorer.has_bleu(hypotheses),
        "by_length": by_length(scorer, pairs.src, hypotheses, references, src_lang),
    }
    if isinstance(system, Translator) and translations is not None:
        results |= _of_model(system, pairs.src, references, translations)
    if baseline is not None:
        others = _lines(baseline.system, pairs.src)
        results["baseline"] = {"name": masked(baseline.name), **compare(scorer, hypotheses, others, references)}
    if evaluated.memory:
        answers = [m.target for m in evaluated.memory]
        far = [i for i, m in enumerate(evaluated.memory) if m.similarity < SIMILAR]
        results["translation_memory"] = _scores(scorer(answers, *references))
        if far:
            far_references = [[lines[i] for i in far] for lines in references]
            results["far_from_training"] = {
                "sentences": len(far),
                "scores": scorer.of_part([hypotheses[i] for i in far], *far_references),
                "translation_memory": scorer.of_part([answers[i] for i in far], *far_references),
            }
    if ledger is not None:
        results["openings"] = ledger.record(evaluated.name, pairs, results["scores"])
    if baseline is not None and baseline.ledger is not None:
        scores = _scores(scorer(others, *references))
        results["baseline"]["openings"] = baseline.ledger.record(evaluated.name, pairs, scores)
    if not (is_repeated and _is_of(folder, results)):
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
        write_lines(folder / f"baseline.{tgt}", others)
    results["folder"] = masked(str(folder))
    write_json(folder / "results.json", results)
    return results


def _lines(system: Translator | Hypotheses, sources: Sequence[str]) -> list[str]:
    """Return the output of a system, one line per source."""
    if isinstance(system, Hypotheses):
        return system.lines
    return [translation.text for translation in system.translate_all(sources, show=True)]


def _of_model(
    translator: Translator,
    sources: Sequence[str],
    references: References,
    translations: Sequence[Translation],
) -> dict[str, Any]:
    """Return the results that require the model, not just its output."""
    wrong, with_any = placeholder_errors(translator, sources, [t.text for t in translations])
    return {
        "cut_by_length_limit": sum(t.cut for t in translations),
        "near_ties": sum(t.near_tie for t in translations),
        "placeholder_errors": {"lines": wrong, "of": with_any},
        "search_errors": search_errors(translator, sources, references, translations),
        "search": translator.search.options,
        "precision": translator.precision,
        "normalisation": normalisation(translator.tokenizer.model),
        "update": translator.record.get("update"),
        "mean_of": translator.record.get("mean_of"),
        "diglot": translator.record.get("version"),
    }


def _is_of(folder: Path, results: dict[str, Any]) -> bool:
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
        grid.add_row(title, *map(_value, scores))
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
    lines += _notes(results)
    if "baseline" in results:
        lines += _comparison(results["baseline"], results["sentences"])
    return lines + _openings(results)


def _notes(results: dict[str, Any]) -> list[str]:
    """Format the counts of errors as lines to print."""
    lines = []
    if (errors := results.get("placeholder_errors")) and errors["of"]:
        lines.append(f"{errors['lines']} of {errors['of']} lines with placeholders have wrong ones")
    if results.get("cut_by_length_limit"):
        lines.append(f"outputs cut by the length limit: {results['cut_by_length_limit']}")
    if results.get("near_ties"):
        lines.append(f"near ties, which may turn out differently in other batches: {results['near_ties']}")
    if (errors := results.get("search_errors")) and errors["of"]:
        told = f"Search errors: {errors['n_search_errors']:,} of {errors['of']:,} ({errors['share']:.1%}), where the"
        lines.append(f"{told} model scores a reference higher; model errors: {errors['n_model_errors']:,}")
    return lines


def _openings(results: dict[str, Any]) -> list[str]:
    """Format how often the test set was opened, by the system and by the baseline, as lines to print."""
    lines = [told(results["openings"])] if "openings" in results else []
    if "openings" in (baseline := results.get("baseline", {})):
        lines.append(f"Baseline: {told(baseline['openings'])}")
    return lines


def _comparison(found: dict[str, Any], n_sentences: int) -> list[str]:
    """Format the comparison with a baseline as lines to print."""
    n, n_trials = (found[name]["n"] for name in ("paired_bootstrap", "paired_approximate_randomisation"))
    told = f"In brackets: mean and 95% confidence interval of {n:,} resamples; {n_trials:,} trials of randomisation"
    if not n:
        told = f"No p-values or confidence intervals: {n_sentences} sentences are too few to resample; at least"
        told = f"{told} {MIN_SENTENCES} are needed"
    return [*render(_comparison_table(found)), told]


def _length_table(found: dict[str, Any]) -> Table:
    grid = Table(title=f"By the length of the {found['unit'].partition(' ')[0]}", title_justify="left")
    for name in (found["unit"], "sentences", *(score["name"] for score in found["buckets"][0]["scores"])):
        grid.add_column(name, justify="right")
    for bucket in found["buckets"]:
        length = f"{bucket['from']}-{bucket['to']}" if bucket["to"] is not None else f"{bucket['from']} and more"
        grid.add_row(length, f"{bucket['sentences']:,}", *map(_value, bucket["scores"]))
    return grid


def _value(score: dict[str, Any]) -> str:
    return "-" if score["value"] is None else f"{score['value']:.2f}"


def _counts_table(found: dict[str, Any]) -> Table:
    grid = Table(title="Outputs that are", title_justify="left")
    counts = {name: n for name, n in found.items() if name in found["definitions"]}
    for name in counts:
        grid.add_column(name, justify="right")
    grid.add_row(*("not known" if n is None else f"{n:,}" for n in counts.values()))
    return grid


def _comparison_table(found: dict[str, Any]) -> Table:
    """Return the table of scores with 95% confidence intervals, and of p-values."""
    bootstrap, randomisation = found["paired_bootstrap"], found["paired_approximate_randomisation"]
    grid = Table(title=Text(f"Compared with {found['name']}"), title_justify="left")
    grid.add_column("")
    for metric in bootstrap["metrics"]:
        grid.add_column(metric["name"], justify="right")
    for name in ("baseline", "system"):
        sides = [metric[name] for metric in bootstrap["metrics"]]
        grid.add_row(name, *map(_with_confidence, sides))
    for title, test in (("p, bootstrap", bootstrap), ("p, randomisation", randomisation)):
        p_values = [metric["p_value"] for metric in test["metrics"]]
        grid.add_row(title, *("-" if p is None else f"{p:.4f}" for p in p_values))
    return grid


def _with_confidence(side: dict[str, float | None]) -> str:
    interval = "" if side["ci"] is None else f" ({side['mean']:.2f} ± {side['ci']:.2f})"
    return f"{side['score']:.2f}{interval}"


def _scores(scores: Sequence[Score]) -> list[dict[str, Any]]:
    return [score._asdict() for score in scores]
