"""The callback that measures training speed, waiting time and memory."""

import resource
import sys
import time
from typing import Any

import lightning as L
import torch

from diglot.data.batch import Batch
from diglot.system.console import say
from diglot.system.masking import in_one_line
from diglot.training.operations import Operations, moments
from diglot.training.peak import dtype_of_products, peak
from diglot.training.products import as_in_a_step


class Throughput(L.Callback):
    """Callback that logs speed, padding share, waiting time and memory as often as the trainer logs.

    It also sums training time and target tokens over the run. Validations are not part of this time, nor is what other
    callbacks do in them (see diglot.training.order). The search of each validation is measured separately.

    Args:
        precision: the Lightning precision of the run, to log the share of the device's greatest speed (model FLOPs
            utilisation: Chowdhery et al., 2022). None: it is not logged.

    Attributes:
        seconds: training time so far, including earlier parts of a resumed run.
        target_tokens: number of target tokens trained on in that time, on all processes together.
        dev_sentences_per_second: speed of the search in the newest validation, on all processes together; None: no
            validation has ended, or it ended in an earlier version of diglot.
    """

    def __init__(self, precision: str | None = None) -> None:
        self._precision = precision
        self._operations: Operations | None = None
        self._peak = 0.0  # greatest number of operations per second
        self.seconds, self.target_tokens = 0.0, 0
        self.dev_sentences_per_second: float | None = None
        self._searched = (0, 0.0)  # sentences and seconds of this validation on this process
        self._began = 0.0  # when the clock was started or last read
        self._pending = 0  # tokens of this interval that `target_tokens` includes already
        self._interval: dict[str, float] = {"seconds": 0.0, "tokens": 0, "updates": 0, "waited": 0.0}
        self._update = 0
        self._waited = 0.0  # the loader's waiting time when the interval began
        self._moments: torch.Tensor | None = None  # of the sentences of the interval's batches on this process
        self._places = 0  # all positions in these batches, with padding

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._precision is not None:
            self._compare_with_peak(trainer, pl_module, dtype_of_products(self._precision))
        self._began, self._update = time.perf_counter(), trainer.global_step
        self._waited = _waited(trainer) - self._interval["waited"]

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        new = moments(batch.src_mask, batch.tgt_mask)
        self._moments = new if self._moments is None else self._moments.to(new.device) + new
        self._places += batch.src_mask.numel() + batch.tgt_mask.numel()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        if trainer.global_step == self._update:
            return  # in the middle of an update
        self._update = trainer.global_step
        self._interval["tokens"] += batch.update_target_tokens
        self._interval["updates"] += 1
        is_last = self._update == trainer.max_steps
        if is_last or self._update % trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            self._stop(trainer)
            for name, value in self._values(trainer).items():
                pl_module.log(name, value, rank_zero_only=False)
            self._reset(trainer)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop(trainer)

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._searched = (0, 0.0)

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        sentences, seconds = self._searched
        self._searched = (sentences + len(outputs["hypotheses"]), seconds + outputs["search_seconds"])

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        sentences, seconds = self._searched  # every process has about as many
        self.dev_sentences_per_second = trainer.world_size * sentences / seconds if seconds else None

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._began = time.perf_counter()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop(trainer)

    def _compare_with_peak(self, trainer: L.Trainer, pl_module: L.LightningModule, dtype: torch.dtype | None) -> None:
        """Count the operations of a step and find the greatest speed of the device."""
        if dtype is None:
            return
        try:
            with as_in_a_step(trainer):
                self._operations = Operations.of(pl_module.model)  # type: ignore[arg-type]
                self._peak = peak(trainer.strategy.root_device, dtype)
        except Exception as error:  # a model of the user's may fail in many ways on the pairs that are counted
            self._operations = None
            say(f"speed/mfu is not logged: the operations of the model cannot be counted: {in_one_line(error)}")

    def _stop(self, trainer: L.Trainer) -> None:
        """Add the time and tokens since the clock was last read to the sums."""
        now = time.perf_counter()
        self._interval["waited"] = _waited(trainer) - self._waited
        self._interval["seconds"] += now - self._began
        self.seconds += now - self._began
        self.target_tokens += int(self._interval["tokens"]) - self._pending
        self._pending = int(self._interval["tokens"])
        self._began = now

    def _values(self, trainer: L.Trainer) -> dict[str, float]:
        interval, seconds = self._interval, max(self._interval["seconds"], 1e-9)
        sums = self._sums()
        values = {
            "speed/target_tokens_per_second": interval["tokens"] / seconds,
            "speed/updates_per_second": interval["updates"] / seconds,
            "speed/waiting_for_data": interval["waited"] / seconds,  # share of the time
            "speed/memory_gb": peak_memory(),
            "train/padding": 1 - (sums[0][1] + sums[0][2]) / max(1, self._places),  # share of all positions
        }
        if self._operations is not None:
            values["speed/mfu"] = self._operations.total(sums) / seconds / self._peak
        if trainer.strategy.root_device.type == "cuda":
            values["speed/gpu_memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
        return values

    def _sums(self) -> list[list[float]]:
        return [[0.0] * 3] * 3 if self._moments is None else self._moments.tolist()  # type: ignore[no-any-return]

    def _reset(self, trainer: L.Trainer) -> None:
        self._interval = dict.fromkeys(self._interval, 0)
        self._pending, self._places, self._moments = 0, 0, None
        self._waited = _waited(trainer)

    @property
    def target_tokens_per_second(self) -> float:
        """Return the target tokens per second over the whole run."""
        return self.target_tokens / self.seconds if self.seconds else 0.0

    @property
    def state_key(self) -> str:
        return "Speed"  # the class's former name, which checkpoints use as the key

    def state_dict(self) -> dict[str, Any]:
        # A checkpoint may be written between two logged updates, so it includes the current interval.
        sums = {"moments": self._sums(), "places": self._places, "pending": self._pending}
        return {
            "seconds": self.seconds,
            "target_tokens": self.target_tokens,
            "interval": {**sums, **self._interval},
            "dev_sentences_per_second": self.dev_sentences_per_second,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.dev_sentences_per_second = state_dict.get("dev_sentences_per_second")  # not in older checkpoints
        self.seconds, self.target_tokens = state_dict["seconds"], state_dict["target_tokens"]
        interval = dict(state_dict["interval"])
        self._places, self._pending = (interval.pop(name) for name in ("places", "pending"))
        former = [[0, interval.pop("real", 0), 0], [0, 0, 0], [0, 0, 0]]  # earlier versions counted only real tokens
        self._moments = torch.tensor(interval.pop("moments", former), dtype=torch.float64)
        self._interval = interval


def _waited(trainer: L.Trainer) -> float:
    """Return the seconds that training has waited for its loader."""
    return getattr(trainer.train_dataloader, "waited", 0.0)


def peak_memory() -> float:
    """Return the peak memory of this process, in GB."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / (1e9 if sys.platform == "darwin" else 1e6)  # macOS counts bytes
