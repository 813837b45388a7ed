"""Signals that ask a run to end: it saves its state, and its exit status says that it can be resumed."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import lightning as L
import torch
from torch import Tensor

from diglot.data.batch import Batch
from diglot.system.interruption import STOP_SIGNALS, retry_if_ignored, send_again
from diglot.training.checkpoint_writer import CheckpointWriter
from diglot.training.lightning_seams import loops_state


class Stopped(BaseException):
    """Raised when a signal ends a run that can be resumed.

    It derives from BaseException, so that `except Exception` does not catch it: stopping is not an error.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Raise `Stopped` as soon as a signal arrives during the block.

    Raises:
        Stopped: a signal has arrived, which the exception names.
    """

    def leave(signum: int, _: FrameType | None) -> None:
        for handled in previous_handlers:
            # A second signal ends the process, except SIGHUP: a terminal that hangs up sends it twice.
            signal.signal(handled, signal.SIG_IGN if handled == signal.SIGHUP else signal.SIG_DFL)
        raise retry_if_ignored(Stopped(signum), lambda: install_again(signum))

    def install_again(signum: int) -> None:
        for handled in previous_handlers:
            signal.signal(handled, leave)
        send_again(signum)

    previous_handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for signum in STOP_SIGNALS:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                previous_handlers[signum] = signal.signal(signum, leave)
    try:
        yield
    finally:
        for handled, handler in previous_handlers.items():
            signal.signal(handled, handler)


class Signals(L.Callback):
    """Callback that ends a run if a signal asks for it, with a checkpoint, on all processes after the same update.

    In a single process, a signal interrupts a validation immediately, because a checkpoint was written before it. A
    second signal ends the process at once, except SIGHUP, which a terminal that hangs up sends twice. Ignored signals
    stay ignored (SIGHUP after nohup, for example).

    Args:
        writer: writes the checkpoint.
        validate_every: number of updates between validations.
    """

    def __init__(self, writer: CheckpointWriter, validate_every: int) -> None:
        self.writer, self.validate_every = writer, validate_every
        self.received = 0
        self.interrupts_immediately = False  # whether a signal takes effect immediately
        self._previous_handlers: dict[int, Any] = {}
        self._previous_signal: Tensor | None = None
        self._pending_signal = 0  # the signal that ends the run after the next checkpoint
        self._loops: dict[str, Any] = {}

    def on_train_start(self, *_: Any) -> None:  # not earlier: Lightning installs its own handlers
        if threading.current_thread() is threading.main_thread():
            for signum in STOP_SIGNALS:
                if signal.getsignal(signum) is not signal.SIG_IGN:
                    self._previous_handlers[signum] = signal.signal(signum, self._note)

    def _note(self, signum: int, _: FrameType | None) -> None:
        if self.received:
            if signum != signal.SIGHUP:
                os._exit(128 + signum)
            return
        self.received = signum
        if self.interrupts_immediately:  # if the exception is ignored, the run ends at the next check
            raise retry_if_ignored(Stopped(signum), lambda: None)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        if not batch.ends_update:
            return
        signum = self._signal_of_any_process(trainer)
        # If a validation follows, it writes a checkpoint before it begins.
        if signum and trainer.global_step % self.validate_every and not trainer.should_stop:
            # Do not end the run yet: this update's values have not been logged, and a checkpoint must never be ahead of
            # the curves. Keep the current state of Lightning's loops, from which the run will resume.
            self._pending_signal, self._loops = signum, loops_state(trainer)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._pending_signal:
            checkpoint["loops"] = self._loops

    def leave_before_batch(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write a checkpoint and end the run, if a signal asked for it after the previous update.

        Raises:
            Stopped: a signal asked for it, which the exception names.
        """
        if self._pending_signal:
            self.writer.save(trainer)
            raise Stopped(self._pending_signal)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.interrupts_immediately = trainer.world_size == 1  # otherwise the other processes would wait for this one
        self._leave(trainer)

    def on_validation_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._leave(trainer)

    def let_validation_end(self) -> None:
        """Let the validation finish: signals no longer interrupt it."""
        self.interrupts_immediately = False

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._leave(trainer)

    def _leave(self, trainer: L.Trainer) -> None:
        if signum := self._signal_of_any_process(trainer):
            raise Stopped(signum)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._restore()

    def on_exception(self, *_: Any) -> None:
        self._restore()

    def _restore(self) -> None:
        self.interrupts_immediately = False
        for signum, handler in self._previous_handlers.items():
            signal.signal(signum, handler)
        self._previous_handlers.clear()

    def _signal_of_any_process(self, trainer: L.Trainer) -> int:
        """Return the signal that any process has received, 0 for none; all processes get the same answer."""
        if trainer.world_size == 1:
            return self.received
        device = trainer.strategy.root_device
        received = torch.tensor(self.received, device=device)
        torch.distributed.all_reduce(received, torch.distributed.ReduceOp.MAX)
        if device.type == "cpu":
            return int(received)
        # Do not wait for a GPU: return the answer of the previous call.
        previous, self._previous_signal = self._previous_signal, received
        return 0 if previous is None else int(previous)


class StopBeforeBatch(L.Callback):
    """Callback that lets `Signals` end a run before other callbacks see the batch that will not be trained on.

    It also keeps `Signals` from interrupting the work of other callbacks at the end of a validation.

    Args:
        signals: knows whether the run ends.
    """

    def __init__(self, signals: Signals) -> None:
        self.signals = signals

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        self.signals.leave_before_batch(trainer, pl_module)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.signals.let_validation_end()  # the callbacks after this one save the validation's results
