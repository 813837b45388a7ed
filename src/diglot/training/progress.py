"""Progress of a run: a bar that counts updates, at a terminal, and one line per validation everywhere."""

import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

import lightning as L

from diglot.data.batch import Batch
from diglot.evaluation.scorer import label
from diglot.training.checkpoint_writer import CheckpointWriter
from diglot.training.lightning_seams import DescribedBar


class UpdateBar(DescribedBar):
    """Lightning's progress bar, which counts updates and shows the pass over the data."""

    first_description = "pass 0.0"

    def __init__(self) -> None:
        super().__init__(refresh_rate=4)

    @property
    def total_train_batches(self) -> int:
        return self.trainer.max_steps

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        # Read here instead of logged with prog_bar=True, with which Lightning waits for the device in every update.
        if (perplexity := trainer.logged_metrics.get("train/perplexity")) is not None:
            metrics["train/perplexity"] = f"{float(perplexity):.3g}"
        return metrics

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs, batch, trainer.global_step - 1)
        self._describe(batch.passes)

    def _describe(self, passes: float) -> None:
        if self.progress is not None and self.train_progress_bar_id is not None:
            self.progress.update(self.train_progress_bar_id, description=f"pass {passes:.1f}")


class ValidationLines(L.Callback):
    """Callback that prints one line per validation, with the run's progress and the scores.

    Args:
        writer: knows the best validation.
        names: names of the metrics, in the order to print them.
    """

    def __init__(self, writer: CheckpointWriter, names: Sequence[str]) -> None:
        self.writer, self.names = writer, names
        self._start = 0.0
        self._passes = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._start = time.monotonic()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        self._passes = batch.passes

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        metrics = trainer.callback_metrics
        scores = ", ".join(f"{label(name)} {float(metrics[f'dev/{name}']):.2f}" for name in self.names)
        n_cut = int(metrics["dev/cut"])
        minutes, seconds = divmod(int(time.monotonic() - self._start), 60)
        line = (
            f"update {trainer.global_step:,} of {trainer.max_steps:,}, "
            f"pass {self._passes:.1f}, {minutes}:{seconds:02d}: "
            f"dev {scores}, perplexity {float(metrics['dev/perplexity']):.2f}"
            + (f", outputs cut by the length limit: {n_cut}" if n_cut else "")
            + (", best so far" if self.writer.best_update == trainer.global_step else "")
        )
        logging.getLogger("diglot").info(line)


def progress_callbacks(writer: CheckpointWriter, names: Sequence[str]) -> list[L.Callback]:
    """Return the callbacks that show progress, with the bar only at a terminal; see `ValidationLines`."""
    lines: list[L.Callback] = [ValidationLines(writer, names)]
    return [UpdateBar(), *lines] if sys.stdout.isatty() else lines
