"""The callback that lets a run fail in its first seconds where its largest batch does not fit into memory."""

import lightning as L
import torch

from diglot.data.batch import Batch
from diglot.data.module import TranslationData
from diglot.errors import UserError
from diglot.training.loss import token_loss
from diglot.training.task import TranslationTask


class LargestBatch(L.Callback):
    """Computes, on a GPU, the largest batch once forward and backward before the first update, and discards it.

    Args:
        data: of the run.
        everywhere: whether to do so on a CPU, too.
    """

    def __init__(self, data: TranslationData, everywhere: bool = False) -> None:
        self.data, self.everywhere = data, everywhere

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, TranslationTask)
        if pl_module.device.type != "cuda" and not self.everywhere:
            return
        for batch in self.data.largest_batches():
            if self._fits(trainer, pl_module, batch):
                continue
            n_rows = len(batch.src)
            shape = f"{n_rows} x {batch.src.size(1)} source and {batch.labels.size(1)} target tokens"
            fitting = n_rows
            while fitting := fitting // 2:
                if self._fits(trainer, pl_module, batch, fitting):
                    break
            budget = fitting * max(batch.src.size(1), batch.labels.size(1))
            advice = f"data.tokens_per_batch={budget} would fit" if fitting else "not even one row of it fits"
            raise UserError(
                f"out of memory in the largest batch ({shape}) of data.tokens_per_batch={self.data.tokens_per_batch}: "
                f"{advice}"
            )

    def _fits(self, trainer: L.Trainer, task: TranslationTask, batch: Batch, n_rows: int | None = None) -> bool:
        src, tgt_in, labels, src_mask, tgt_mask = (
            tensor[:n_rows].to(task.device)
            for tensor in (batch.src, batch.tgt_in, batch.labels, batch.src_mask, batch.tgt_mask)
        )

        def compute() -> None:  # whose tensors are gone when it is over
            with trainer.precision_plugin.forward_context():
                loss = token_loss(task.model(src, tgt_in, src_mask), labels, tgt_mask, task.label_smoothing).smoothed
            (loss / tgt_mask.sum()).backward()

        try:
            compute()
        except torch.OutOfMemoryError:
            return False
        finally:
            task.zero_grad(set_to_none=True)
            if task.device.type == "cuda":
                torch.cuda.empty_cache()
        return True
