"""Signals that ask a run to end: it keeps what it has, and its exit status says that it can go on."""

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
from diglot.system.interruption import ASKING, again_where_ignored, send_again
from diglot.training.checkpoint_writer import CheckpointWriter
from diglot.training.lightning_seams import loops_state


class Stopped(BaseException):
    """A signal has ended a run that is kept. It is nothing that has gone wrong, and that someone could make good."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """While this holds, signals end what is done by `Stopped`, wherever it is.

    Raises:
        Stopped: naming the signal.
    """

    def leave(number: int, _: FrameType | None) -> None:
        for asking in before:
            # A second one ends the process; a terminal that hangs up sends SIGHUP twice.
            signal.signal(asking, signal.SIG_IGN if asking == signal.SIGHUP else signal.SIG_DFL)
        raise again_where_ignored(Stopped(number), lambda: answer_anew(number))

    def answer_anew(number: int) -> None:
        for asking in before:
            signal.signal(asking, leave)
        send_again(number)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in ASKING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for asking, handler in before.items():
            signal.signal(asking, handler)


class Signals(L.Callback):
    """Ends a run that is asked to by a signal, on all processes after the same update, when a checkpoint is written.

    A validation of a single process is broken off where it stands: the checkpoint was written before it. A second
    signal ends the process at once, unless it is SIGHUP, which a terminal that hangs up sends twice. Ignored signals
    stay ignored (SIGHUP after nohup, say).

    Args:
        writer: writes the checkpoint.
        validate_every: updates between validations.
    """

    def __init__(self, writer: CheckpointWriter, validate_every: int) -> None:
        self.writer, self.validate_every = writer, validate_every
        self.received = 0
        self.breaks_off = False  # whether a signal ends what is done where it stands
        self._before: dict[int, Any] = {}
        self._asked_before: Tensor | None = None
        self._leaves = 0  # the signal by which the run ends as soon as a checkpoint is written
        self._loops: dict[str, Any] = {}

    def on_train_start(self, *_: Any) -> None:  # not before: Lightning sets handlers of its own
        if threading.current_thread() is threading.main_thread():
            for number in ASKING:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.received:
            if number != signal.SIGHUP:
                os._exit(128 + number)
            return
        self.received = number
        if self.breaks_off:  # where that is ignored, the run ends at the next place that asks
            raise again_where_ignored(Stopped(number), lambda: None)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        if not batch.ends_update:
            return
        number = self._asked(trainer)
        # A validation writes a checkpoint of its own before it begins.
        if number and trainer.global_step % self.validate_every and not trainer.should_stop:
            # Not yet: what the update came to is still to be logged, and a checkpoint never knows more than the curves.
            # Lightning goes on from where its loops stand now.
            self._leaves, self._loops = number, loops_state(trainer)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._leaves:
            checkpoint["loops"] = self._loops

    def leave_before_batch(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write a checkpoint and leave, if a signal has asked for it after the update before.

        Raises:
            Stopped: naming the signal.
        """
        if self._leaves:
            self.writer.save(trainer)
            raise Stopped(self._leaves)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.breaks_off = trainer.world_size == 1  # else the other processes would wait for this one
        self._leave(trainer)

    def on_validation_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._leave(trainer)

    def let_validation_end(self) -> None:
        """Break the validation off no more."""
        self.breaks_off = False

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._leave(trainer)

    def _leave(self, trainer: L.Trainer) -> None:
        if number := self._asked(trainer):
            raise Stopped(number)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._restore()

    def on_exception(self, *_: Any) -> None:
        self._restore()

    def _restore(self) -> None:
        self.breaks_off = False
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _asked(self, trainer: L.Trainer) -> int:
        """The signal that any process has received, the same answer on all of them."""
        if trainer.world_size == 1:
            return self.received
        device = trainer.strategy.root_device
        asked = torch.tensor(self.received, device=device)
        torch.distributed.all_reduce(asked, torch.distributed.ReduceOp.MAX)
        if device.type == "cpu":
            return int(asked)
        # A GPU is not waited for: the answer is that of the call before.
        before, self._asked_before = self._asked_before, asked
        return 0 if before is None else int(before)


class LeaveFirst(L.Callback):
    """Lets `Signals` end a run before another callback has seen the batch that will not be trained on, and keeps it
    from breaking off what they do at the end of a validation.

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
        self.signals.let_validation_end()  # the callbacks after this one keep what the validation came to
