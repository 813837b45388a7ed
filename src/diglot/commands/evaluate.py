"""diglot-evaluate: score a checkpoint, or an existing file of hypotheses, with the chosen metrics."""

if __name__ == "__main__":  # before the imports, which take seconds
    from diglot.commands.start import start

    start("evaluate")


from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from omegaconf import DictConfig

from diglot.checkpoint import file as checkpoints
from diglot.commands.frame import command
from diglot.commands.output import refuse_unwritable
from diglot.commands.translate import load_translator
from diglot.config import build_corpus, check_language, resolved, trusted
from diglot.data.corpus import SPLITS, Corpus, Files
from diglot.data.encoding import to_select
from diglot.data.held_out import FurtherDev, split_of
from diglot.data.language import BleuTokenizer
from diglot.data.options import DataOptions
from diglot.data.references import expand_references
from diglot.data.text import PairFiles
from diglot.decoding.layout import Precision
from diglot.errors import UserError
from diglot.evaluation.evaluate import (
    Baseline,
    EvaluationSet,
    Hypotheses,
    evaluate,
    read_evaluation_set,
    read_lines_for,
    stored_languages,
    table,
)
from diglot.evaluation.metrics import Metric
from diglot.evaluation.openings import Ledger
from diglot.evaluation.scorer import Scorer, recorded_metrics, recorded_tokenizer
from diglot.huggingface import hub_models
from diglot.inference.translator import Translator
from diglot.runs.folder import holding_run, refuse_path_outside
from diglot.runs.scoring import build_metrics
from diglot.system.glibc import keep_freed_memory
from diglot.system.quoting import printable


@command("evaluate")
def main(
    *,
    checkpoint: str | None,
    hypotheses: str | None,
    references: str | list[str],
    baseline: str | None,
    data: Annotated[DictConfig, DataOptions] | None,
    split: str,
    search: DictConfig,
    tgt_lang: str | None,
    bleu_tokenizer: BleuTokenizer | None,
    metric: DictConfig,
    device: str | None,
    precision: Precision,
    trust: str | list[str],
    output: str | None,
) -> None:
    keep_freed_memory()
    if (checkpoint is None) == (hypotheses is None):
        suffix = "" if checkpoint is None else ", not both"
        raise UserError(f"checkpoint must be given: checkpoint=PATH, or hypotheses=FILE{suffix}")
    nodes = {"search": resolved(search), "metric": resolved(metric), "data": resolved(data) if data else None}
    modules = trusted({"trust": trust, **nodes})
    path = Path(str(hypotheses)).expanduser() if checkpoint is None else checkpoints.find(checkpoint)
    loaded = checkpoints.load(path, modules) if checkpoint is not None else None
    searched = [key for key, value in resolved(search).items() if value is not None]
    if searched and loaded is None and not names_checkpoint(baseline):
        raise UserError(f"search.{searched[0]}: has no effect, since hypotheses=FILE needs no search")
    corpus = build_corpus(data) if data is not None else None

    def load(loaded: checkpoints.Checkpoint) -> Translator:
        return translator_of(loaded, corpus, search, device, tgt_lang, precision)

    translator = load(loaded) if loaded is not None else None
    rival = baseline_translator(baseline, corpus, translator, lambda path: load(checkpoints.load(path, modules)))
    ledger = ledger_of(path, split, is_checkpoint=loaded is not None)
    rival_ledger = ledger_of(checkpoints.find(str(baseline)), split, is_checkpoint=True) if rival else None
    # Before all slow steps, since it may need a package that is not installed.
    scored_lang = tgt_lang or tgt_lang_of(hypotheses, split, corpus, translator)
    recorded = recorded_tokenizer(translator.record, scored_lang) if translator else None
    tokenizer = bleu_tokenizer or recorded
    metrics, notes = metrics_of(metric, translator)
    Scorer(scored_lang, (), tokenizer, metrics)
    if corpus is not None and data is not None:
        further = None if split in SPLITS else resolved(data).get("further_dev") or {}
        evaluated = named_text(split, corpus, Path(data.cache_dir), translator, further)
    else:
        beside = text_beside if split in SPLITS else further_text_beside
        evaluated = beside(path, split, translator)
    evaluated = with_references(references, evaluated)
    scorer = Scorer(scored_lang, evaluated.pairs.reference_lines, tokenizer, metrics)
    system = translator or hypotheses_of("hypotheses", str(hypotheses), evaluated, corpus)
    compared = None
    if baseline is not None:
        theirs = rival or hypotheses_of("baseline", baseline, evaluated, corpus)
        compared = Baseline(baseline, theirs, rival_ledger)
    folder = Path(output).expanduser() if output else checkpoints.output_home(path) / "evaluation" / evaluated.split
    if not output:
        refuse_path_outside(folder.parent, checkpoints.home(path))
    refuse_unwritable(folder)
    results = evaluate(system, evaluated, scorer, folder, baseline=compared, ledger=ledger)
    print("\n".join([*table(results), *scorer.notes, *notes]))
    print(f"Hypotheses, references and results: {printable(results['folder'])}/")


def ledger_of(file: Path, split: str, is_checkpoint: bool) -> Ledger | None:
    """Return the ledger in which a file's opening of a test set is recorded; None for other splits.

    Only a checkpoint in a run's folder has one: nothing is written beside other files.
    """
    if split != "test":
        return None
    return Ledger.of("diglot-evaluate", file, holding_run(file) if is_checkpoint and file.is_file() else None)


def metrics_of(nodes: DictConfig, translator: Translator | None) -> tuple[dict[str, Metric] | None, list[str]]:
    """Return the metrics that the command line names, or else those of the checkpoint's run, and notes for the user.

    The metrics are None if there are none of either kind.
    """
    if given := build_metrics(nodes):
        return given, []
    recorded, others = recorded_metrics(translator.record) if translator is not None else (None, [])
    return recorded, [
        f"not computed: the run's own metric {name}; type '+metric.{name}._target_=CLASS'" for name in others
    ]


def translator_of(
    loaded: checkpoints.Checkpoint,
    corpus: Corpus | None,
    search: DictConfig,
    device: str | None,
    tgt_lang: str | None,
    precision: Precision,
) -> Translator:
    """Return a checkpoint's translator into the requested language.

    Raises:
        UserError: a multilingual model lacks the target language, or the request contradicts the language of the text.
    """
    languages = loaded.tokenizer.languages
    if not languages:  # tgt_lang only selects how scores are computed
        return load_translator(loaded, search, device, None, precision)
    find = loaded.tokenizer.find_language
    of_text: str | None = corpus.tgt_lang if corpus else None
    requested = tgt_lang or of_text
    is_known = requested is not None and find(requested) is not None
    if requested is not None and not is_known:
        typed = f"tgt_lang={requested}" if tgt_lang else f"the target language of the text is {requested}"
        select = to_select("tgt_lang", languages, requested)
        raise UserError(f"{typed}: this model does not translate into {requested}; {select}")
    if of_text is not None and find(of_text) is not None and find(str(requested)) != find(of_text):
        raise UserError(
            f"tgt_lang={requested}: the text is in {of_text}; if that is wrong, type data.tgt_lang={requested}"
        )
    has_source = corpus is not None and loaded.tokenizer.reads_src_lang and find(corpus.src_lang) is not None
    src_lang = corpus.src_lang if corpus is not None and has_source else None
    return load_translator(loaded, search, device, requested, precision, src_lang)


def baseline_translator(
    baseline: str | None, corpus: Corpus | None, translator: Translator | None, load: Callable[[str], Translator]
) -> Translator | None:
    """Return the translator of the baseline, or None if there is no baseline or it is a text file."""
    if baseline is None or not names_checkpoint(baseline):
        return None
    rival = load(baseline)
    # The language codes of files may only be guesses from their names.
    if translator is not None and not isinstance(corpus, Files):
        direction, baseline_direction = (f"{t.record['src_lang']}-{t.tgt_lang}" for t in (translator, rival))
        if direction != baseline_direction:
            raise UserError(f"baseline={baseline} translates {baseline_direction}, but the checkpoint {direction}")
    return rival


def names_checkpoint(name: str | None) -> bool:
    """Return whether a path names a checkpoint or a run's folder, rather than a text file; False for None."""
    if name is None:
        return False
    path = Path(name).expanduser()
    if path.is_dir() or path.suffix == ".ckpt" or hub_models.is_name(name):
        return True
    try:
        with path.open("rb") as file:
            return file.read(2) == b"PK"
    except OSError:  # the code that reads the text reports it
        return False


def tgt_lang_of(hypotheses: str | None, split: str, corpus: Corpus | None, translator: Translator | None) -> str:
    """Return the language to compute scores for."""
    if translator is not None:
        return translator.tgt_lang or translator.record["tgt_lang"]
    if corpus is None:
        raise UserError(f"hypotheses={hypotheses}: {what_to_score_on(split)}")
    return corpus.tgt_lang


def what_to_score_on(split: str) -> str:
    """Return advice to name the text of a split."""
    return f"name the text to score on, data=files data.{split}.src=FILE data.{split}.tgt=FILE or data=NAME"


def named_text(
    split: str,
    corpus: Corpus,
    cache_dir: Path,
    translator: Translator | None,
    further: Mapping[str, Any] | None = None,
) -> EvaluationSet:
    """Return the text that the command line names.

    Args:
        split: train, dev, test, or the name of a further dev set.
        corpus: the corpus.
        cache_dir: its cache.
        translator: the translator to evaluate; None: the text of a file is evaluated.
        further: nodes of the further dev sets, by name, if the split is one of them.
    """
    if further is not None:
        return further_text(split, corpus, cache_dir, further)
    if translator is not None:
        languages = corpus.src_lang, corpus.tgt_lang
        trained = translator.record["src_lang"], translator.record["tgt_lang"]
        # The language codes of files may only be guesses from their names. For a multilingual model, `translator_of`
        # has checked the language. A checkpoint whose record has src or tgt may be of any language.
        free = isinstance(corpus, Files) or bool(translator.tokenizer.languages)
        differs = any(code not in (mine, unknown) for mine, code, unknown in zip(languages, trained, ("src", "tgt")))
        if not free and differs:
            names = "-".join(languages), "-".join(trained)
            raise UserError(f"data={corpus.name} is {names[0]}, but the checkpoint translates {names[1]}")
    corpus.prepare(cache_dir)
    splits = corpus.read_checked(cache_dir)
    if split not in splits:
        raise UserError(f"{corpus.name} has no {split} split; it has {', '.join(splits)}")
    text = splits[split]
    where, files = corpus.name, tuple[str, ...]()
    if isinstance(text, PairFiles):
        where, files = ", ".join(shard[-1] for shard in text.shards), tuple(text.files())
    src_lang = corpus.src_lang if corpus.src_lang != "src" else None  # "src" if the files' names have no code
    return EvaluationSet(corpus.name, split, text.load(), where=where, files=files, src_lang=src_lang)


def further_text(split: str, corpus: Corpus, cache_dir: Path, nodes: Mapping[str, Any]) -> EvaluationSet:
    """Return a further dev set that the command line names."""
    sets = [FurtherDev(name, node, corpus) for name, node in nodes.items()]
    found = next((each for each in sets if each.dev_set.name == split_of(split)), None)
    if found is None:
        names = ", ".join([*SPLITS, *(each.dev_set.name for each in sets)])
        raise UserError(f"split={split}: there is no such text; there are {names}")
    found.prepare(cache_dir)
    src_lang = found.dev_set.src_lang if found.dev_set.src_lang != "src" else None
    return EvaluationSet(corpus.name, found.dev_set.name, found.read(cache_dir), src_lang=src_lang)


def further_text_beside(path: Path, split: str, translator: Translator | None) -> EvaluationSet:
    """Return the copy of a further dev set that a run has kept beside its checkpoints."""
    assert translator is not None
    folder, name = path.parent / "text", split_of(split)
    languages = stored_languages(folder, name)
    for code in languages or ():
        check_language(f"{folder / name}.json: language", code)
    evaluated = read_evaluation_set(folder, name, *languages) if languages else None
    if languages is None or evaluated is None:
        kept = sorted(file.stem for file in folder.glob("*.json"))
        there = f"the texts beside {path} are {', '.join(kept)}" if kept else f"there is no text beside {path}"
        raise UserError(f"split={split}: there is no such text; {there}")
    if translator.tokenizer.languages and translator.tgt_lang != languages[1]:
        raise UserError(f"split={split}: the text is in {languages[1]}; type tgt_lang={languages[1]}")
    return replace(evaluated, src_lang=languages[0])


def text_beside(path: Path, split: str, translator: Translator | None) -> EvaluationSet:
    """Return the copy of a split's text that a run has kept beside its checkpoints."""
    assert translator is not None
    stored_lang = translator.record["tgt_lang"]
    if translator.tgt_lang != stored_lang:
        reason = f"the {split} text beside {path} is in {stored_lang}"
        raise UserError(f"tgt_lang={translator.tgt_lang}: {reason}; {what_to_score_on(split)}")
    evaluated = read_evaluation_set(checkpoints.home(path) / "text", split, translator.record["src_lang"], stored_lang)
    if evaluated is None:
        raise UserError(f"there is no copy of the {split} text beside {path}: {what_to_score_on(split)}")
    return evaluated


def with_references(references: str | list[str], evaluated: EvaluationSet) -> EvaluationSet:
    """Return an evaluation set with additional references from files."""
    patterns = [references] if isinstance(references, str) else references
    paths = expand_references("references", patterns, evaluated.files)
    more = tuple(read_lines_for("references", path, evaluated) for path in paths)
    return replace(evaluated, pairs=replace(evaluated.pairs, more=(*evaluated.pairs.more, *more)))


def hypotheses_of(key: str, path: str, evaluated: EvaluationSet, corpus: Corpus | None) -> Hypotheses:
    """Return the hypotheses in a file."""
    lines = read_lines_for(key, path, evaluated)
    return Hypotheses(lines, corpus.src_lang if corpus else "src", corpus.tgt_lang if corpus else "tgt")
