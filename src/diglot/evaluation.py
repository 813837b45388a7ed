"""Scores a translator on parallel text, and keeps what it was scored on."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from diglot.data.memory import nearest
from diglot.data.text import ParallelText, read_lines, read_parallel, write_bytes, write_lines
from diglot.errors import UserError
from diglot.training.console import render
from diglot.training.metrics import Score, Scorer
from diglot.training.run import numbered_folder
from diglot.translator import Translator

# A test source is far from training text when no training source is this similar (rapidfuzz ratio, 0-100).
SIMILAR = 80.0


@dataclass(frozen=True)
class Remembered:
    """What a translation memory answers for a source: the target of the nearest training source."""

    target: str
    similarity: float


@dataclass(frozen=True)
class EvaluationSet:
    """Text to score on.

    Attributes:
        name: of corpus and split, for the results.
        split: dev or test.
        pairs: sources and references.
        memory: a translation memory's answers, or none.
    """

    name: str
    split: str
    pairs: ParallelText
    memory: tuple[Remembered, ...] = ()


def remember(train: ParallelText, sources: Sequence[str]) -> tuple[Remembered, ...]:
    """Ask the training text as a translation memory."""
    return tuple(Remembered(train.tgt[m.index], m.similarity) for m in nearest(list(sources), train.src))


def keep_text(folder: Path, evaluated: EvaluationSet, src_lang: str, tgt_lang: str) -> None:
    """Write a set into a run's folder, so that its checkpoints can be scored on it after the corpus has gone."""
    write_lines(folder / f"{evaluated.split}.{src_lang}", evaluated.pairs.src)
    write_lines(folder / f"{evaluated.split}.{tgt_lang}", evaluated.pairs.tgt)
    content = {"name": evaluated.name, "memory": [[m.similarity, m.target] for m in evaluated.memory]}
    write_bytes(folder / f"{evaluated.split}.json", json.dumps(content, ensure_ascii=False, indent=0).encode())


def kept_text(folder: Path, split: str, src_lang: str, tgt_lang: str) -> EvaluationSet | None:
    """Read what `keep_text` wrote; None if there is nothing."""
    src, tgt, about = (folder / f"{split}.{ending}" for ending in (src_lang, tgt_lang, "json"))
    if not (src.exists() and tgt.exists() and about.exists()):
        return None
    try:
        content = json.loads("\n".join(read_lines(about)))
        memory = tuple(Remembered(target, similarity) for similarity, target in content["memory"])
        return EvaluationSet(content["name"], split, read_parallel(src, tgt, split), memory)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{about}: damaged ({error})") from None


def placeholder_errors(translator: Translator, sources: Sequence[str], outputs: Sequence[str]) -> tuple[int, int]:
    """Lines whose output has other placeholders than its source, and lines with any."""
    find = translator.tokenizer.find_placeholders
    wanted, got = [Counter(find(s)) for s in sources], [Counter(find(o)) for o in outputs]
    return sum(a != b for a, b in zip(wanted, got, strict=True)), sum(bool(a or b) for a, b in zip(wanted, got))


def evaluate(
    translator: Translator, evaluated: EvaluationSet, scorer: Scorer, folder: Path, is_repeated: bool = False
) -> dict[str, Any]:
    """Translate, score, and write hypotheses, references and results.

    Args:
        translator: what is scored.
        evaluated: the text.
        scorer: for its target language.
        folder: made for the results; a number is added where it exists.
        is_repeated: whether the same may have been done before by a process that was killed: then the folder is taken
            where it holds nothing whole, or the same.

    Returns:
        The results as they stand in results.json.
    """
    pairs = evaluated.pairs
    if not len(pairs):
        raise UserError(f"{evaluated.name}: there are no {evaluated.split} pairs")
    translations = translator.translate_all(pairs.src, show=True)
    hypotheses = [t.text for t in translations]
    wrong, with_any = placeholder_errors(translator, pairs.src, hypotheses)
    results: dict[str, Any] = {
        "set": evaluated.name,
        "split": evaluated.split,
        "sentences": len(pairs),
        "scores": _scores(scorer(hypotheses, pairs.tgt)),
        "cut_by_length_limit": sum(t.cut for t in translations),
        "placeholder_errors": {"lines": wrong, "of": with_any},
        "search": {
            "beam_size": translator.search.beam_size,
            "length_penalty": translator.search.length_penalty,
            "max_len_a": translator.search.max_len_a,
            "max_len_b": translator.search.max_len_b,
        },
        "normalisation": translator.record.get("config", {}).get("tokenizer", {}).get("normalisation"),
        "update": translator.record.get("update"),
        "mean_of": translator.record.get("mean_of"),
        "diglot": translator.record.get("version"),
    }
    if evaluated.memory:
        answers = [m.target for m in evaluated.memory]
        far = [i for i, m in enumerate(evaluated.memory) if m.similarity < SIMILAR]
        results["translation_memory"] = _scores(scorer(answers, pairs.tgt))
        if far:
            results["far_from_training"] = {
                "sentences": len(far),
                "scores": _scores(scorer([hypotheses[i] for i in far], [pairs.tgt[i] for i in far])),
                "translation_memory": _scores(scorer([answers[i] for i in far], [pairs.tgt[i] for i in far])),
            }
    if not (is_repeated and _is_of(folder, results)):
        folder = numbered_folder(folder)
    tgt_lang = translator.tgt_lang or "tgt"
    write_lines(folder / f"hypotheses.{tgt_lang}", hypotheses)
    write_lines(folder / f"references.{tgt_lang}", pairs.tgt)
    write_lines(folder / f"sources.{translator.record.get('src_lang', 'src')}", pairs.src)
    results["folder"] = str(folder)
    write_bytes(folder / "results.json", (json.dumps(results, indent=2, ensure_ascii=False) + "\n").encode())
    return results


def _is_of(folder: Path, results: dict[str, Any]) -> bool:
    """Whether a folder is one of an evaluation that was cut short, or came to the same results."""
    try:
        return {**json.loads((folder / "results.json").read_bytes()), "folder": None} == {**results, "folder": None}
    except (OSError, ValueError, TypeError, RecursionError):
        return folder.is_dir()


def table(results: dict[str, Any]) -> list[str]:
    """Results in lines to print."""
    names = [score["name"] for score in results["scores"]]
    rows = [("model", results["scores"])]
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
        grid.add_row(title, *(f"{score['value']:.2f}" for score in scores))
    lines = render(grid)
    lines += [f"{score['name']}: {score['signature']}" for score in results["scores"]]
    errors = results["placeholder_errors"]
    if errors["of"]:
        lines.append(f"{errors['lines']} of {errors['of']} lines with placeholders have wrong ones")
    if results["cut_by_length_limit"]:
        lines.append(f"outputs cut by the length limit: {results['cut_by_length_limit']}")
    return lines


def _scores(scores: Sequence[Score]) -> list[dict[str, Any]]:
    return [score._asdict() for score in scores]
