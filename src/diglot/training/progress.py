"""Progress of a run: a bar at a terminal, otherwise a line every half minute, and a line per validation everywhere."""

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning as L

from diglot.data.batch import Batch
from diglot.evaluation.scorer import Scorer, label
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
        for name in ("train/loss", "train/perplexity"):
            if (value := trainer.logged_metrics.get(name)) is not None:
                metrics[name] = f"{float(value):.3g}"
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
        scorers: scorer of each dev set, by its name.
    """

    def __init__(self, writer: CheckpointWriter, scorers: Mapping[str, Scorer]) -> None:
        self.writer, self.scorers = writer, scorers
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
        described = [
            self._describe(dev_set, scorer.in_validations, metrics) for dev_set, scorer in self.scorers.items()
        ]
        minutes, seconds = divmod(int(time.monotonic() - self._start), 60)
        line = (
            f"update {trainer.global_step:,} of {trainer.max_steps:,}, "
            f"pass {self._passes:.1f}, {minutes}:{seconds:02d}: "
            f"{'; '.join(described)}" + (", best so far" if self.writer.best_update == trainer.global_step else "")
        )
        logging.getLogger("diglot").info(line)

    def _describe(self, dev_set: str, names: Sequence[str], metrics: Mapping[str, Any]) -> str:
        """Return the scores of a dev set in words."""
        scores = ", ".join(f"{label(name)} {float(metrics[f'{dev_set}/{name}']):.2f}" for name in names)
        n_cut = int(metrics[f"{dev_set}/cut"])
        cut = f", outputs cut by the length limit: {n_cut}" if n_cut else ""
        return f"{dev_set} {scores}, perplexity {float(metrics[f'{dev_set}/perplexity']):.2f}{cut}"


class PulseLines(L.Callback):
    """Callback that prints a line at least every `interval` seconds, for a run without a progress bar.

    The line shows the newest logged loss, the speed since the line before, and the time left at the speed so far.

    Args:
        interval: seconds between two lines.
        now: returns the time in seconds.
    """

    def __init__(self, interval: float = 30.0, now: Callable[[], float] = time.monotonic) -> None:
        self.interval, self.now = interval, now
        self._printed = 0.0  # time of the last line
        self._tokens = 0  # target tokens since the last line
        self._validated = 0.0  # seconds of validations since the last line
        self._validation_began = 0.0
        self._training = 0.0  # seconds of training before the last line
        self._first = 0  # number of updates when training began

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._printed = self.now()
        self._first = trainer.global_step

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        if not batch.ends_update:
            return
        self._tokens += batch.update_target_tokens
        seconds = self.now() - self._printed
        if seconds < self.interval:
            return
        trained = max(seconds - self._validated, 1e-9)
        self._training += trained
        left = (trainer.max_steps - trainer.global_step) * self._training / (trainer.global_step - self._first)
        # The newest logged loss may still be on the device. To fetch it once in `interval` seconds costs nothing.
        loss = trainer.logged_metrics.get("train/loss")
        figures = [] if loss is None else [f"loss {float(loss):.3f}"]
        figures += [f"{self._tokens / trained:,.0f} target tokens/s", f"{_duration(left)} left"]
        self._say(trainer, ", ".join(figures))

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._validation_began = self.now()

    def on_validation_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any, **__: Any) -> None:
        if trainer.sanity_checking or self.now() - self._printed < self.interval:
            return
        printed = self._printed
        self._say(trainer, "validation")
        # The training before this line still counts for the next one.
        self._training += max(self._validation_began - printed, 0.0)
        self._validation_began = self._printed

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._validated += self.now() - self._validation_began

    def _say(self, trainer: L.Trainer, text: str) -> None:
        self._printed, self._tokens, self._validated = self.now(), 0, 0.0
        if trainer.is_global_zero:
            logging.getLogger("diglot").info(f"update {trainer.global_step:,} of {trainer.max_steps:,}, {text}")


def _duration(seconds: float) -> str:
    """Return a time as minutes and seconds, or as hours and minutes."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def progress_callbacks(writer: CheckpointWriter, scorers: Mapping[str, Scorer]) -> list[L.Callback]:
    """Return the callbacks that show progress: a bar at a terminal, otherwise regular lines; see `ValidationLines`."""
    return [UpdateBar() if sys.stdout.isatty() else PulseLines(), ValidationLines(writer, scorers)]
