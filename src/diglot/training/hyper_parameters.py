"""The callback that logs what loggers compare runs by: hyperparameters and the scores of the best checkpoint."""

from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L

from diglot.training.checkpoint_writer import CheckpointWriter
from diglot.training.loggers import Loggers


class HyperParameters(L.Callback):
    """Callback that logs hyperparameters at the start of a run, and the best scores whenever they change.

    So a run that was stopped can be compared, too.

    Args:
        values: hyperparameters by key.
        writer: knows the best scores.
        names: names of the metrics of a validation.
    """

    def __init__(self, values: Mapping[str, Any], writer: CheckpointWriter, names: Sequence[str]) -> None:
        self.values, self.writer, self.names = values, writer, names

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            names = [*self.names, "loss", "perplexity", "cut", "update"]
            Loggers(trainer.loggers).hyper_parameters(self.values, [f"best/{name}" for name in names])

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        writer = self.writer
        if trainer.sanity_checking or writer.best_update != trainer.global_step:
            return
        scores = {f"best/{name.removeprefix('dev/')}": value for name, value in writer.best_metrics.items()}
        Loggers(trainer.loggers).best({**scores, "best/update": float(writer.best_update)}, trainer.global_step)
