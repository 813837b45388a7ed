"""The callback that logs the hyperparameters by which loggers compare runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L

from diglot.training.loggers import Loggers


class HyperParameters(L.Callback):
    """Callback that logs hyperparameters at the start of a run, so that a run that was stopped can be compared, too.

    `CheckpointWriter` logs the best scores.

    Args:
        values: hyperparameters by key.
        names: names of the metrics of a validation.
    """

    def __init__(self, values: Mapping[str, Any], names: Sequence[str]) -> None:
        self.values, self.names = values, names

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            names = [*self.names, "loss", "perplexity", "cut", "update"]
            Loggers(trainer.loggers).hyper_parameters(self.values, [f"best/{name}" for name in names])
