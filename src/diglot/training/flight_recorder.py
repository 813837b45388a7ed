"""The callback that records unusual updates, so that `diglot-replay` can repeat them."""

import math
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import torch
from torch import Tensor

from diglot.data.batch import Batch
from diglot.data.text import write_bytes
from diglot.errors import UserError
from diglot.system.atomic import link
from diglot.system.console import say, warn
from diglot.system.quoting import command_line
from diglot.training.checkpoint_writer import CheckpointWriter
from diglot.training.gradients import NonFiniteError
from diglot.training.records import FOLDER, REASONS, Machine, Record
from diglot.training.task import TranslationTask
from diglot.training.watch import at_least, parts, shows


class Bound:
    """Robust upper bound of a figure: the median of its newest values plus a multiple of their deviation.

    The deviation is the median absolute deviation, but at least 1% of the median, because a figure that hardly varies
    would otherwise have a bound that rounding exceeds.

    Args:
        window: number of newest values.
        deviations: the multiple.
    """

    def __init__(self, window: int, deviations: float) -> None:
        self.window, self.deviations = window, deviations
        self._values: deque[float] = deque(maxlen=window)

    def __call__(self) -> float:
        """Return the bound; infinity while half of the window is not known yet."""
        if len(self._values) < self.window / 2:
            return math.inf
        values = np.array(self._values)
        median = float(np.median(values))
        deviation = max(float(np.median(np.abs(values - median))), 0.01 * abs(median))
        return median + self.deviations * deviation

    def add(self, values: Sequence[float]) -> None:
        """Add values. Those that are not finite are ignored."""
        self._values.extend(value for value in values if math.isfinite(value))


class _Update(NamedTuple):
    """An update whose figures are still on the device.

    Attributes:
        number: number of the update.
        sums: see `TranslationTask.figures`.
        norm: norm of the gradient.
        positions: numbers of the micro-batches in the stream.
        pairs: numbers of the pairs, a tensor per micro-batch.
    """

    number: int
    sums: Tensor
    norm: Tensor
    positions: list[int]
    pairs: list[Tensor]


class FlightRecorder(L.Callback):
    """Callback that records updates with a loss or gradient that is not finite or unusually high.

    A figure is unusually high if it exceeds the `Bound` of the updates known before. The figures are fetched from the
    device when the trainer logs and before a checkpoint is written, so that no other update waits for the device. A
    record holds a hard link to the newest checkpoint, from which the update can be repeated.

    Args:
        window: number of updates that the bound is computed from.
        deviations: number of deviations above the median that are unusual.
        limit: maximum number of records in the run's folder. An update that ends the run is recorded in any case.
    """

    def __init__(self, *, window: int = 100, deviations: float = 10.0, limit: int = 3) -> None:
        at_least(10, window=window)
        at_least(1, deviations=deviations, limit=limit)
        self.window, self.limit = window, limit
        self.loss, self.norm = Bound(window, deviations), Bound(window, deviations)
        self._updates: list[_Update] = []
        self._positions: list[int] = []  # of the current update
        self._pairs: list[Tensor] = []
        self._start = 0  # number of updates of the newest checkpoint
        self._newest = -window  # number of the newest update that was recorded
        self._has_ended = False  # whether the update that ends the run was recorded

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._start = trainer.global_step

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        self._positions.append(batch.position)
        self._pairs.append(batch.pairs)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TranslationTask)
        if batch.ends_update:
            self._keep(pl_module, trainer.global_step)
            if pl_module.is_logged(trainer.global_step):
                self._look(trainer, pl_module)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        # The newest checkpoint is replaced after this. A record needs the one before the update.
        self._look(trainer, pl_module)
        self._start = trainer.global_step

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._look(trainer, pl_module)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        if isinstance(exception, NonFiniteError):
            assert isinstance(pl_module, TranslationTask)
            is_refused = bool(self._positions)  # on a CPU, before the end of the update
            if is_refused:
                self._keep(pl_module, exception.update)
            self._look(trainer, pl_module, is_refused)

    def _keep(self, task: TranslationTask, number: int) -> None:
        sums, norm = task.figures()
        self._updates.append(_Update(number, sums, norm, self._positions, self._pairs))
        self._positions, self._pairs = [], []

    def _look(self, trainer: L.Trainer, task: L.LightningModule, last_is_refused: bool = False) -> None:
        """Fetch the figures of the updates since the last call, and record the unusual ones.

        Args:
            trainer: the trainer.
            task: the run's module.
            last_is_refused: whether the last of these updates ends the run, because its gradient is not finite.
        """
        updates, self._updates = self._updates, []
        if not updates:
            return
        sums = trainer.strategy.reduce(torch.stack([update.sums for update in updates]), reduce_op="sum")
        norms = torch.stack([update.norm for update in updates])
        losses, gradient_norms = torch.stack((sums[:, 0] / sums[:, 2], norms)).tolist()
        if shows(trainer):
            # A scaler of float16 gradients lets them overflow on purpose, in order to find the largest scale.
            has_scaler = getattr(trainer.precision_plugin, "scaler", None) is not None
            bounds = self.loss(), self.norm()
            for update, *figures in zip(updates, losses, gradient_norms, strict=True):
                may_overflow = has_scaler and not (last_is_refused and update is updates[-1])
                unusual = _unusual(figures[0], figures[1], bounds, may_overflow)
                if unusual is not None and self._may_record(trainer, task, update.number, unusual.reason):
                    self._record(trainer, task, update, unusual)
        self.loss.add(losses)
        self.norm.add(gradient_norms)

    def _may_record(self, trainer: L.Trainer, task: L.LightningModule, number: int, reason: str) -> bool:
        """Return whether an update is to be recorded: the first of a disturbance, and within the limit."""
        assert isinstance(task, TranslationTask)
        if reason == "non_finite":
            if task.gradient_check.ends_next and not self._has_ended:
                self._has_ended = True
                return True
        elif number < self._newest + self.window:
            return False
        return len(list(_folder(trainer).glob("update_*.json"))) < self.limit

    def _record(self, trainer: L.Trainer, task: L.LightningModule, update: _Update, unusual: "_Unusual") -> None:
        own_task, data = parts(trainer, task)
        record = Record(
            reason=unusual.reason,
            update=update.number,
            start=self._start,
            loss=unusual.loss,
            gradient_norm=unusual.norm,
            bound=unusual.bound,
            seed=own_task.seed,
            positions=update.positions,
            pairs=torch.cat(update.pairs).tolist(),
            data=str(data.shards.folder),
            data_key=data.shards.key,
            machine=Machine.here(own_task.device.type, trainer.world_size),
        )
        file = _folder(trainer) / f"update_{update.number}.json"
        try:
            _write(record, file, next(c for c in trainer.callbacks if isinstance(c, CheckpointWriter)).last)  # type: ignore[attr-defined]
        except (OSError, UserError) as error:
            warn(f"update {update.number:,} is not recorded: {error}")
            return
        self._newest = update.number
        say(f"{describe(record)}; {command_line('replay', record=file)} repeats it")


class _Unusual(NamedTuple):
    """Why an update is unusual: a key of `REASONS`, its loss and gradient norm, and the bound that one of them exceeds.

    The bound is None if one of them is not finite.
    """

    reason: str
    loss: float
    norm: float
    bound: float | None


def _unusual(loss: float, norm: float, bounds: tuple[float, float], may_overflow: bool) -> _Unusual | None:
    """Return why an update is unusual; None if it is not.

    Args:
        loss: its loss.
        norm: its gradient norm.
        bounds: the bounds of both.
        may_overflow: whether the norm may be infinite.
    """
    if not math.isfinite(loss) or not (math.isfinite(norm) or may_overflow):
        return _Unusual("non_finite", loss, norm, None)
    if loss > bounds[0]:
        return _Unusual("loss", loss, norm, bounds[0])
    return _Unusual("gradient_norm", loss, norm, bounds[1]) if bounds[1] < norm < math.inf else None


def describe(record: Record) -> str:
    """Return a sentence about a record, without a full stop."""
    limit = "" if record.bound is None else f", above {record.bound:.4g}"
    figures = f"loss {record.loss:.4g}, gradient norm {record.gradient_norm:.4g}"
    return f"update {record.update:,}: {REASONS[record.reason]}{limit} ({figures})"


def _write(record: Record, file: Path, checkpoint: Path) -> None:
    """Write a record with the run's config and checkpoint, the record last."""
    file.parent.mkdir(exist_ok=True)
    write_bytes(file.with_suffix(".yaml"), (file.parent.parent / "config.yaml").read_bytes())
    if record.start:
        link(checkpoint, file.with_suffix(".ckpt"))
    record.write(file)


def _folder(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / FOLDER
