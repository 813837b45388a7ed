"""The callback and the plugin that write checkpoints, and nothing else does."""

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import lightning as L
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from diglot.data.batch import Batch
from diglot.errors import UserError
from diglot.job import quoted
from diglot.training.loggers import flush
from diglot.training.task import TranslationTask
from diglot.whole import remove_leftovers, sync_folder, temporary_name, whole_file

say = logging.getLogger("diglot").info


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its final name and renames it: under that name it is whole or not there.

    Args:
        read: how a checkpoint is read: without running code that is in it.
    """

    def __init__(self, read: Callable[[Path], dict[str, Any]]) -> None:
        self.read = read

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return self.read(Path(path))

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        path = Path(path)
        file: Failing | None = None
        try:
            with whole_file(path) as whole:
                file = Failing(whole)
                torch.save(checkpoint, file)  # type: ignore[arg-type]  # it has all that torch asks for
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            reason = file.error if file and file.error else error
            raise UserError(f"{path}: the checkpoint cannot be written ({str(reason).splitlines()[0]})") from error


class Failing:
    """A file to write to that remembers why writing failed, which torch does not say.

    Attributes:
        error: the first one.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        try:
            return self.file.write(content)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        self.file.flush()


class Checkpoints(L.Callback):
    """Keeps `last.ckpt`, written before and after every validation, `previous.ckpt`, the one before, for the case that
    the last is damaged, and `best.ckpt`, the one with the best dev BLEU."""

    def __init__(self, folder: Path, monitor: str = "dev/bleu") -> None:
        self.last, self.best, self.monitor = folder / "last.ckpt", folder / "best.ckpt", monitor
        self.previous = folder / "previous.ckpt"
        self.best_score = float("-inf")
        self.best_update = 0
        self.best_metrics: dict[str, float] = {}  # all dev scores of the best checkpoint, as they are logged
        self.place: tuple[int, ...] = ()  # where the stream of batches stands after the newest update

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # A run that goes on may have been killed between writing the checkpoint and giving it its second name.
        if not trainer.is_global_zero or not self.best_update:
            return
        if self.best_update == trainer.global_step:
            _link(self.last, self.best)
        elif not self.best.exists():
            say(f"{self.best} has gone: the best checkpoint will be that of what follows")
            self.best_score, self.best_update, self.best_metrics = float("-inf"), 0, {}

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        self.place = batch.place

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # A validation may take minutes: whatever ends it, the updates before it are kept. (After the last update there
        # is nothing left of the run for Lightning to go on with.)
        if trainer.sanity_checking or trainer.fast_dev_run or trainer.global_step >= trainer.max_steps:  # type: ignore[attr-defined]
            return
        assert isinstance(pl_module, TranslationTask)
        self.save(trainer, pl_module, validation_is_due=True)

    def save(self, trainer: L.Trainer, pl_module: TranslationTask, validation_is_due: bool = False) -> None:
        """Write `last.ckpt`, between two updates."""
        pl_module.record["update"], pl_module.record["place"] = trainer.global_step, list(self.place)
        flush(trainer.loggers)
        pl_module.record["validation_due_since"] = time.time() if validation_is_due else None
        with self._explained():
            if trainer.is_global_zero and self.last.exists():
                _link(self.last, self.previous)
            elif trainer.is_global_zero and not self.last.parent.exists():
                say(f"{self.last.parent} has gone; it is made again, for the checkpoints from now on")
            trainer.save_checkpoint(self.last)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say how to go on where a checkpoint cannot be written."""
        try:
            yield
        except UserError as error:
            how = f"resume={quoted(str(self.last.parent))} goes on when it can be"
            raise UserError(f"{error}: {how}. {self.describe()}") from error

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, TranslationTask)
        if trainer.sanity_checking or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        score = float(trainer.callback_metrics[self.monitor])
        is_best = score > self.best_score
        if is_best:
            self.best_score, self.best_update = score, trainer.global_step
            self.best_metrics = {
                name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("dev/")
            }
        pl_module.record["dev_bleu"] = score
        self.save(trainer, pl_module)
        if is_best and trainer.is_global_zero:
            with self._explained():
                _link(self.last, self.best)

    def describe(self) -> str:
        """One sentence about what there is."""
        return f"The last checkpoint is {self.last}." if self.last.is_file() else "There is no checkpoint yet."

    def state_dict(self) -> dict[str, Any]:
        return {"best_score": self.best_score, "best_update": self.best_update, "best_metrics": self.best_metrics}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best_score, self.best_update = state_dict["best_score"], state_dict["best_update"]
        self.best_metrics = dict(state_dict["best_metrics"])


class DueValidation(L.Callback):
    """Begins with a validation, where a run goes on from a checkpoint that was written before one."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # As Lightning does it in the middle of training.
        first = trainer._logger_connector._first_loop_iter
        trainer.validating = True
        loop = trainer.fit_loop.epoch_loop.val_loop
        loop.restarting = False
        loop.run()
        trainer.training = True
        trainer._logger_connector._first_loop_iter = first


def _link(source: Path, name: Path) -> None:
    """Give a file a second name, replacing what had that name; where there are no hard links, copy it.

    Raises:
        UserError: it cannot be done.
    """
    temporary = temporary_name(name)
    try:
        remove_leftovers(name.parent, name.name)
        try:
            os.link(source, temporary)
            temporary.replace(name)
            sync_folder(name.parent)
        except OSError:
            with source.open("rb") as whole, whole_file(name) as copy:
                shutil.copyfileobj(whole, copy)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{name}: the checkpoint cannot be written ({error.strerror or error})") from error
