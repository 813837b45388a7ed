"""Callbacks of a sweep's job: one records its validations, and one ends the job if the sweep's rule says so."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L

from diglot.evaluation.validation import Validation, influences, measure
from diglot.training.dev_scores import DevScores

# Returns why a job ends after its newest validation, in a few words, or None if it goes on.
Rule = Callable[[], str | None]


class EndedEarly(BaseException):
    """Raised after a validation, when its checkpoint is written, if the sweep's rule ends the job.

    It derives from BaseException, so that `except Exception` does not catch it: an early end is not an error.
    """


class ValidationRecords(L.Callback):
    """Callback that records each validation in the job's folder, before its checkpoint is written.

    Args:
        scores: scores validations.
        objective: the score to record, such as dev/bleu.
        folder: the job's folder.
    """

    def __init__(self, scores: DevScores, objective: str, folder: Path) -> None:
        self.scores, self.objective, self.folder = scores, objective, folder

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        value = trainer.callback_metrics.get(self.objective)
        if _is_trial(trainer) or not trainer.is_global_zero or value is None:
            return
        record: dict[str, Any] = {}
        scorer, name = self.scores.scorer, self.objective.removeprefix("dev/")
        if name in scorer.metrics:
            translations = self.scores.translations
            references = self.scores.data.held_out["dev"].select(list(translations)).references
            statistics = scorer.statistics(name, list(translations.values()), references)
            record["measure"] = measure(scorer, name, references)
            record["influences"] = influences(statistics, lambda sums: scorer.value(name, sums))
        Validation(trainer.global_step, trainer.max_steps, self.objective, float(value), **record).write(self.folder)


class EarlyEnd(L.Callback):
    """Callback that ends a job after a validation, when its checkpoint is written, if a rule says so.

    Args:
        rule: the rule, which the first process asks for all.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if _is_trial(trainer) or trainer.should_stop or trainer.global_step >= trainer.max_steps:
            return
        reason = trainer.strategy.broadcast(self.rule() if trainer.is_global_zero else None)
        if reason is not None:
            raise EndedEarly(reason)


def _is_trial(trainer: L.Trainer) -> bool:
    return bool(trainer.sanity_checking or trainer.fast_dev_run)  # type: ignore[attr-defined]
