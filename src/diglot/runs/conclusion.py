"""The end of a run: test scores of its best checkpoint, its results, and the commands to type next."""

from pathlib import Path
from typing import Any

import lightning as L
from omegaconf import DictConfig

from diglot.checkpoint import file as checkpoints
from diglot.config import trusted, without_secrets
from diglot.errors import UserError
from diglot.evaluation.evaluate import EvaluationSet, evaluate, table
from diglot.evaluation.scorer import Scorer
from diglot.export.writing import export
from diglot.inference.translator import Translator
from diglot.runs.contents import Contents
from diglot.runs.folder import CONFIG, RESULTS
from diglot.runs.report import best_scores, end_report, hyper_parameters, samples, write_results
from diglot.system.console import say
from diglot.system.quoting import printable, reading
from diglot.training.checkpoint_writer import CheckpointWriter
from diglot.training.dev_scores import DevScores
from diglot.training.loggers import Loggers
from diglot.training.throughput import Throughput


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
) -> None:
    """Score the best checkpoint on the test text, write the run's results, and report them.

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
    translator = Translator.load(writer.best, trust=trusted(config))
    test: dict[str, Any] | None = None
    if "test" in held_out:
        # As in diglot-evaluate, the test references determine how the target language is written. BLEU's tokenizer is
        # that of the dev scores.
        scorer = scorer.of(held_out["test"].pairs.reference_lines)
        test = evaluate(translator, held_out["test"], scorer, folder / "evaluation" / "test", is_repeated=True)
        say("\n".join(table(test)))
    sample_set = held_out.get("test", held_out["dev"])
    say(
        "\n".join(
            [
                f"Translations by {writer.best.name} ({sample_set.split}):",
                *samples(translator.translate, sample_set.pairs),
            ]
        )
    )
    best = {f"best/{name}": float(value) for name, value in best_scores(writer).items()}
    Loggers(trainer.loggers).hyper_parameters(hyper_parameters(without_secrets(config)), best)
    exported = ""
    if (form := config.export) is not None:
        say("\n".join(export(checkpoints.load(writer.best, trusted(config)), form, folder / form, "export")))
        exported = f"{form}/, "
    # Write the results last: they mark the run as finished.
    write_results(folder, writer, throughput, translator.model, trainer.global_step, test, contents)
    trust = trusted(config)
    say(
        f"Made in {printable(folder)}/: best.ckpt, last.ckpt, {exported}{CONFIG}, {RESULTS}, log.txt, "
        "curves and pictures\n"
        f"Next:  {reading('evaluate', writer.best, trust)}\n"
        f"       echo 'some text' | {reading('translate', writer.best, trust)}\n"
        f"       make tensorboard"
    )
