"""The callback that compiles the model for all shapes of training batches before the first update."""

import time
from collections.abc import Callable
from typing import Any

import lightning as L
import torch

from diglot.data.batch import Batch
from diglot.data.batching import Shape
from diglot.errors import UserError, is_out_of_memory
from diglot.system import progress
from diglot.system.console import say
from diglot.system.masking import in_one_line
from diglot.training.loss import batch_loss
from diglot.training.task import TranslationTask


class Compilation(L.Callback):
    """Callback that compiles the layers of a model for fixed shapes before the first update.

    The time for this is not counted as training time. Each layer is compiled on its own (regional compilation), and all
    layers of a kind share their graphs. So the number of graphs is known beforehand: shapes x kinds of layers. Once
    training has begun, nothing is compiled: a batch of another shape runs uncompiled.

    Args:
        shapes: shapes of the training batches of one process.
        backend: see torch.compile.

    Attributes:
        n_graphs: number of compiled graphs, each with its backward pass.
    """

    def __init__(self, shapes: list[Shape], backend: str | Callable[..., Any] = "inductor") -> None:
        self.shapes, self.backend = shapes, backend
        self.n_graphs = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, TranslationTask)
        began = time.perf_counter()
        n_kinds = pl_module.model.compile_layers(self.backend)
        self.n_graphs = n_kinds * len(self.shapes)
        # Beyond this limit, torch would silently run a shape without a graph.
        limit = max(torch._dynamo.config.recompile_limit, self.n_graphs)  # type: ignore[attr-defined]
        torch._dynamo.config.recompile_limit = limit  # type: ignore[attr-defined]
        with progress.step(f"compiling {self.n_graphs} graphs", len(self.shapes)) as done:
            for shape in self.shapes:
                self._compile(trainer, pl_module, _dummy_batch(shape).on(pl_module.device))
                done(1)
        torch.compiler.set_stance("eager_on_recompile")
        seconds = time.perf_counter() - began
        say(f"compiled {self.n_graphs} graphs ({n_kinds} kinds of layers, {len(self.shapes)} shapes): {seconds:.0f} s")

    @staticmethod
    def _compile(trainer: L.Trainer, task: TranslationTask, batch: Batch) -> None:
        try:
            with trainer.precision_plugin.forward_context():
                loss = batch_loss(task.model, batch, task.label_smoothing).smoothed
            (loss / batch.labels.numel()).backward()
        except Exception as error:  # a backend may lack a compiler, and fails in many ways
            if is_out_of_memory(error):
                raise
            raise UserError(f"run.compile=true: torch.compile fails here: {in_one_line(error)}") from error
        finally:
            task.zero_grad(set_to_none=True)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        torch.compiler.set_stance("default")

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        torch.compiler.set_stance("default")


def _dummy_batch(shape: Shape) -> Batch:
    """Return a batch of a shape, without padding."""
    ids = torch.full(tuple(shape), 4)
    mask = torch.ones_like(ids, dtype=torch.bool)
    return Batch(ids, mask, ids, ids, mask, ids[:, 0], update_target_tokens=ids.numel(), position=0, passes=0.0)
