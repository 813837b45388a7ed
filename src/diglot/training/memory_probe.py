"""The callback that suggests a token budget that fits when memory runs out."""

import traceback
from collections.abc import Callable
from typing import Any

import lightning as L
import torch

from diglot.data.batch import Batch
from diglot.data.module import TranslationData, worker_failure
from diglot.errors import UserError, is_out_of_memory
from diglot.training.loss import batch_loss
from diglot.training.task import TranslationTask


class OutOfMemoryProbe(L.Callback):
    """Callback that suggests a token budget that fits when memory runs out, by halving the batch until it fits.

    On a GPU, it runs the largest batches forward and backward before the first update and discards the gradients. So a
    run that does not fit fails within seconds. Memory may still run out later if this process or another one uses more.

    Args:
        data: the run's data.
        everywhere: whether to try the largest batches on a CPU, too.

    Attributes:
        refusal: message about the batch that ran out of memory; None if none did.
        is_training: whether that batch was a training batch.
    """

    def __init__(self, data: TranslationData, everywhere: bool = False) -> None:
        self.data, self.everywhere = data, everywhere
        self.refusal: str | None = None
        self.is_training = True
        self._batch: Batch | None = None  # the newest batch

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, TranslationTask)
        if pl_module.device.type != "cuda" and not self.everywhere:
            return
        for batch in self.data.largest_batches():
            own_rows = _rows(batch, -(-len(batch.src) // self._row_divisor(trainer)))
            if not _fits(self._train, trainer, pl_module, own_rows):
                raise UserError(self._refused(trainer, pl_module, own_rows, "the largest batch"))

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, *_: Any) -> None:
        self._batch, self.is_training = batch, True

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, *_: Any
    ) -> None:
        self._batch, self.is_training = batch, False

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        if self._batch is None or not is_out_of_memory(exception) or worker_failure(exception):
            return
        assert isinstance(pl_module, TranslationTask)
        traceback.clear_frames(exception.__traceback__)  # the frames hold the batch's intermediate results
        pl_module.zero_grad(set_to_none=True)
        self.refusal = self._refused(trainer, pl_module, self._batch, "a batch")

    def _refused(self, trainer: L.Trainer, task: TranslationTask, batch: Batch, batch_name: str) -> str:
        """Return a message that names the batch that does not fit and a budget that would."""
        key = "tokens_per_batch" if self.is_training else "eval_tokens_per_batch"
        compute = self._train if self.is_training else self._validate
        longest = max(batch.src.size(1), batch.labels.size(1))
        n_fitting = n_rows = len(batch.src)
        while n_fitting := n_fitting // 2:
            if _fits(compute, trainer, task, _rows(batch, n_fitting)):
                break
        budget = n_fitting * longest * (self._row_divisor(trainer) if self.is_training else trainer.world_size)
        advice = f"data.{key}={budget} would fit" if n_fitting else "not even one row of it fits"
        if n_fitting and self.is_training and budget < self.data.options.max_len:
            advice += f", with data.max_len={budget}"
        shape = f"{n_rows} x {batch.src.size(1)} source and {batch.labels.size(1)} target tokens"
        return f"out of memory in {batch_name} ({shape}) of data.{key}={getattr(self.data.options, key)}: {advice}"

    def _row_divisor(self, trainer: L.Trainer) -> int:
        """Return the number of processes that share a training batch's rows."""
        return trainer.world_size if self.data.options.batches_per_update is None else 1

    def _train(self, trainer: L.Trainer, task: TranslationTask, batch: Batch) -> None:
        with trainer.precision_plugin.forward_context():
            loss = batch_loss(task.model, batch, task.label_smoothing).smoothed
        (loss / batch.labels.numel()).backward()

    def _validate(self, trainer: L.Trainer, task: TranslationTask, batch: Batch) -> None:
        with torch.no_grad():
            task.validation_step(batch, 0)


def _rows(batch: Batch, n_rows: int) -> Batch:
    """Return the first rows of a batch."""
    tensors = ("src", "src_mask", "tgt_in", "labels", "tgt_mask", "pairs")
    first_rows: dict[str, Any] = {name: getattr(batch, name)[:n_rows] for name in tensors}
    return batch._replace(**first_rows)


def _fits(compute: Callable[..., None], trainer: L.Trainer, task: TranslationTask, batch: Batch) -> bool:
    try:
        compute(trainer, task, batch.on(task.device))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        task.zero_grad(set_to_none=True)
        if task.device.type == "cuda":
            torch.cuda.empty_cache()
    return True
