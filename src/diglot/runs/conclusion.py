"""The end of a run: its results, with test scores unless the test set stays closed, and the commands to type next."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
from omegaconf import DictConfig

from diglot.checkpoint import file as checkpoints
from diglot.config import trusted
from diglot.config.fine_tuning import n_weights
from diglot.data.text import side_endings
from diglot.errors import UserError
from diglot.evaluation.evaluate import EvaluationSet, evaluate, table
from diglot.evaluation.openings import Ledger
from diglot.evaluation.scorer import Scorer
from diglot.export.writing import export
from diglot.inference.translator import Translator
from diglot.runs.contents import Contents
from diglot.runs.folder import CONFIG, JOB, RESULTS
from diglot.runs.report import end_report, samples, write_results
from diglot.system.console import say
from diglot.system.quoting import printable, reading
from diglot.training.checkpoint_writer import CheckpointWriter
from diglot.training.dev_scores import DevScores
from diglot.training.run import Budget
from diglot.training.throughput import Throughput


def why_closed(folder: Path, budget: Budget) -> str | None:
    """Return why the run in a folder does not open its test set; None if it does."""
    if (folder / JOB).exists():
        return "a job of a sweep never opens it"
    return None if budget.test else "run.test=false"


def conclude(
    folder: Path,
    held_out: dict[str, EvaluationSet],
    scorer: Scorer,
    scores: DevScores,
    writer: CheckpointWriter,
    throughput: Throughput,
    trainer: L.Trainer,
    config: DictConfig,
    contents: Contents,
    closed: str | None = None,
) -> None:
    """Write and report the run's results. Unless `closed` says why not, score the best checkpoint on the test set.

    Raises:
        UserError: there is no checkpoint, or something cannot be written.
    """
    if not writer.best.exists() and writer.last.exists():
        raise UserError(f"{writer.best} is missing; {writer.last} contains the last weights")
    if not writer.best.exists():
        raise UserError(f"the run ended before its first validation: there is no checkpoint in {folder}/")
    if trainer.global_step < trainer.max_steps:
        cause = "a callback" if config.trainer.get("max_time") is None else "a callback or trainer.max_time"
        say(f"Ended before all {trainer.max_steps:,} updates, because of {cause}")
    say(end_report(writer, throughput, trainer.global_step, scores.latest))
    trust = trusted(config)
    translator = Translator.load(writer.best, trust=trust)
    test: dict[str, Any] | None = None
    sample_set = held_out["dev"]
    if "test" in held_out and closed is not None:
        say(f"Test not opened: {closed}. To open it, type: {reading('evaluate', writer.best, trust)} split=test")
    elif "test" in held_out:
        sample_set = held_out["test"]
        test = open_test(folder, sample_set, translator, scorer, writer.best)
    say(
        "\n".join(
            [
                f"Translations by {writer.best.name} ({sample_set.split}):",
                *samples(translator.translate, sample_set.pairs),
            ]
        )
    )
    exported = ""
    if (form := config.export) is not None:
        say("\n".join(export(checkpoints.load(writer.best, trust), form, folder / form, "export")))
        exported = f"{form}/, "
    # Write the results last: they mark the run as finished.
    n_trained = n_weights(trainer.lightning_module, trained=True)
    write_results(folder, writer, throughput, translator.model, n_trained, trainer.global_step, test, contents)
    languages = translator.record["src_lang"], translator.record["tgt_lang"]
    page = page_command(folder, sample_set.split, *languages, trust)
    say(
        f"Made in {printable(folder)}/: best.ckpt, last.ckpt, {exported}{CONFIG}, {RESULTS}, log.txt, "
        "curves and pictures\n"
        f"Next:  {reading('evaluate', writer.best, trust)}\n"
        f"       echo 'some text' | {reading('translate', writer.best, trust)}\n"
        f"       {page}\n"
        f"       make tensorboard"
    )


def page_command(folder: Path, split: str, src_lang: str, tgt_lang: str, trust: Sequence[str]) -> str:
    """Return the line to type for an HTML page of the translations of held-out text, with their attention."""
    files = {"input": folder / "text" / f"{split}.{side_endings(src_lang, tgt_lang)[0]}"}
    files |= {key: folder / f"{split}.{ending}" for key, ending in (("output", "txt"), ("html", "html"))}
    return reading("translate", folder / "best.ckpt", trust, **files)


def open_test(
    folder: Path, test: EvaluationSet, translator: Translator, scorer: Scorer, checkpoint: Path
) -> dict[str, Any]:
    """Score a run's checkpoint on its test set, record that the set was opened, and report the results."""
    say(f"Opening the test set, {len(test.pairs):,} sentences (with run.test=false, it stays closed)")
    # As in diglot-evaluate, the test references determine how the target language is written. BLEU's tokenizer is that
    # of the dev scores.
    scorer = scorer.for_references(test.pairs.reference_lines)
    ledger = Ledger.of("diglot-train", checkpoint, folder)
    results = evaluate(translator, test, scorer, folder / "evaluation" / "test", is_repeated=True, ledger=ledger)
    say("\n".join(table(results)))
    return results
