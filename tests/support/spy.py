"""Callbacks for tests of commands; put tests/ on PYTHONPATH, and name a callback on the command line."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import lightning as L

from diglot.training.flight_recorder import FlightRecorder


class Spy(L.Callback):
    """Callback that records the pairs of each update in each process, and can interrupt a run.

    The environment variables SPY_KILL_AT and SPY_HANG_AT=RANK:UPDATE kill a process, or let it hang, after an update.
    SPY_SIGNAL_AT=SIGNAL:UPDATE sends a signal to the process itself after an update, and SIGNAL:UPDATE:validation
    during the validation after it.
    """

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, index: int) -> None:
        counted = batch.pairs.tolist() if batch.tgt_mask.any() else []
        line = json.dumps({"update": trainer.global_step + 1, "passes": batch.passes, "pairs": counted})
        with (Path(os.environ["SPY_FOLDER"]) / f"{trainer.global_rank}.jsonl").open("a") as file:
            file.write(line + "\n")

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        here = f"{trainer.global_rank}:{trainer.global_step}"
        if os.environ.get("SPY_KILL_AT") == here:
            os.kill(os.getpid(), signal.SIGKILL)
        if os.environ.get("SPY_HANG_AT") == here:
            time.sleep(3600)
        send_to_itself(f"{trainer.global_step}")

    def on_validation_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        send_to_itself(f"{trainer.global_step}:validation")


class LowBound(L.Callback):
    """Callback that makes the flight recorder find the losses of two updates unusually high."""

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == 13:
            recorder = next(c for c in trainer.callbacks if isinstance(c, FlightRecorder))  # type: ignore[attr-defined]
            recorder.loss.add([0.0] * recorder.window)


def send_to_itself(here: str) -> None:
    name, _, at = os.environ.get("SPY_SIGNAL_AT", "").partition(":")
    if at == here:
        os.kill(os.getpid(), getattr(signal, name))
