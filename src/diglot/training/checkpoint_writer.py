"""The callback that writes checkpoints, and nothing else does."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import torch

from diglot.data.batch import Batch
from diglot.data.batching import StreamPosition
from diglot.errors import UserError
from diglot.system.atomic import link
from diglot.system.console import say
from diglot.system.quoting import printable, resuming
from diglot.training.event_file import now
from diglot.training.lightning_seams import validate_now
from diglot.training.loggers import Loggers
from diglot.training.state import RunState

Rank = tuple[float, ...]


class CheckpointWriter(L.Callback):
    """Keeps `last.ckpt`, written before and after every validation, `previous.ckpt`, the one before, for the case that
    the last is damaged, `best.ckpt`, the one with the best dev BLEU, and, where more are asked for, those of several
    validations as `update_N.ckpt`. Of equal scores the one with the better chrF++ is better, then the one with the
    smaller loss, then the earlier one.

    Args:
        folder: of the run.
        keep_best: of how many validations, the best ones, the checkpoint is kept.
        keep_last: of how many, the last ones.
        monitor: the score that is the better the higher.
        state: of the run, which this keeps up to date; None: the run begins.
        restore: writes again what was removed from the run's folder, and returns the names of what was missing.
    """

    def __init__(
        self,
        folder: Path,
        keep_best: int = 1,
        keep_last: int = 1,
        monitor: str = "dev/bleu",
        state: RunState | None = None,
        restore: Callable[[], list[str]] = list,
    ) -> None:
        self.last, self.best, self.monitor = folder / "last.ckpt", folder / "best.ckpt", monitor
        self.previous = folder / "previous.ckpt"
        self.keep_best, self.keep_last = keep_best, keep_last
        self.ranks: dict[int, Rank] = {}  # of the validations whose checkpoints are kept, by update
        self.named: set[int] = set()  # updates whose checkpoint this run has called update_N.ckpt
        self.best_score = float("-inf")
        self.best_update = 0
        self.best_metrics: dict[str, float] = {}  # all dev scores of the best checkpoint, as they are logged
        self.state, self.restore = state or RunState(), restore

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero or not self.best_update:
            return
        # A run that goes on may have been killed between writing the checkpoint and giving it its other names.
        if trainer.global_step in self.ranks:
            self._name(trainer.global_step)
        self._forget_lost_best()

    def _forget_lost_best(self) -> None:
        """Let the best of the validations that follow be the best one where its file has been removed or moved."""
        if self.best_update and not self.best.exists():
            say(f"{self.best} has gone: the best checkpoint will be that of what follows")
            self._forget_best()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        self.state.position = StreamPosition(*batch.place)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # A validation may take minutes: whatever ends it, the updates before it are kept.
        if trainer.sanity_checking or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        # What of a validation was logged in vain is known by its time, also if it is broken off again.
        self.state.validation_due_since = self.state.validation_due_since or now()
        self.save(trainer)

    def save(self, trainer: L.Trainer) -> None:
        """Write `last.ckpt`, between two updates."""
        self.state.update, self.state.has_stopped = trainer.global_step, trainer.should_stop
        Loggers(trainer.loggers).flush()
        with self._explained():
            try:
                self._write(trainer)
            except UserError:
                if self.last.parent.exists():
                    raise
                self._write(trainer)  # the folder has gone in the middle of it

    def _write(self, trainer: L.Trainer) -> None:
        if trainer.is_global_zero:
            self._make_whole()
            if self.last.exists():
                _link(self.last, self.previous)
        trainer.save_checkpoint(self.last)

    def _make_whole(self) -> None:
        """Give the run what of its folder was removed or moved, so that it can go on and be evaluated from there."""
        has_gone = not self.last.parent.exists()
        missing = self.restore()
        if has_gone:
            say(f"{printable(self.last.parent)} has gone; it is made again, for the checkpoints from now on")
            self.ranks = {}
        elif missing:
            say(f"{', '.join(missing)}: gone from {printable(self.last.parent)}, and written again")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say how to go on where a checkpoint cannot be written."""
        try:
            yield
        except UserError as error:
            how = f"{resuming(self.last.parent)} goes on when it can be"
            raise UserError(f"{error}: {how}. {self.describe()}") from None

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if trainer.is_global_zero:
            self._forget_lost_best()
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("dev/")}
        rank = self._rank(metrics)
        if not self.best_update or rank > self._rank(self.best_metrics):
            self.best_score, self.best_update = metrics[self.monitor], trainer.global_step
            self.best_metrics = metrics
        self.ranks[trainer.global_step] = rank
        best = sorted(sorted(self.ranks), key=lambda update: self.ranks[update], reverse=True)[: self.keep_best]
        self.ranks = {update: self.ranks[update] for update in {*best, *sorted(self.ranks)[-self.keep_last :]}}
        if self.keep_best > 1 or self.keep_last > 1:
            self.named.add(trainer.global_step)
        self.state.dev_rank, self.state.validation_due_since = rank, None
        self.save(trainer)
        if trainer.is_global_zero:
            with self._explained():
                self._name(trainer.global_step)

    def _rank(self, metrics: Mapping[str, float]) -> Rank:
        """What validations are compared by: the greater, the better."""
        return metrics[self.monitor], metrics.get("dev/chrf", 0.0), -metrics.get("dev/loss", 0.0)

    def _forget_best(self) -> None:
        self.best_score, self.best_update, self.best_metrics = float("-inf"), 0, {}

    def _name(self, update: int) -> None:
        """Give the newest checkpoint, after these many updates, its other names, and remove what is not kept."""
        if update == self.best_update:
            _link(self.last, self.best)
        if update in self.named:
            _link(self.last, self._numbered(update))
        for number in self.named - self.ranks.keys():  # others of such a name are not this run's
            self._numbered(number).unlink(missing_ok=True)
        self.named &= self.ranks.keys()

    def _numbered(self, update: int) -> Path:
        return self.last.with_name(f"update_{update}.ckpt")

    def describe(self) -> str:
        """One sentence about what there is."""
        return (
            f"The last checkpoint is {printable(self.last)}." if self.last.is_file() else "There is no checkpoint yet."
        )

    @property
    def state_key(self) -> str:
        return "Checkpoints"  # in checkpoints since before the class had its name

    def state_dict(self) -> dict[str, Any]:
        best = {"best_score": self.best_score, "best_update": self.best_update, "best_metrics": self.best_metrics}
        ranks = {update: list(rank) for update, rank in self.ranks.items()}
        return best | {"ranks": ranks, "named": sorted(self.named)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not _is_state(state_dict):
            raise UserError("no run can go on from this checkpoint: its best scores are not such as a run writes")
        self.best_score, self.best_update = state_dict["best_score"], state_dict["best_update"]
        self.best_metrics = dict(state_dict["best_metrics"])
        # Older checkpoints have the monitored score alone, or only the best one's.
        scores = state_dict.get("scores", {self.best_update: self.best_score})
        ranks = state_dict.get("ranks", {update: [score] for update, score in scores.items()})
        self.ranks = {update: tuple(rank) for update, rank in ranks.items()}
        more = self.ranks if self.keep_best > 1 or self.keep_last > 1 else ()  # of a run that did not write it down
        self.named = set(state_dict.get("named", more))


def _is_state(state: Any) -> bool:
    """Whether this is what a `CheckpointWriter` has kept of itself, today or in an earlier version."""

    def is_count(value: Any) -> bool:
        return type(value) is int and value >= 0

    def is_score(value: Any) -> bool:
        return isinstance(value, (int, float))

    if not isinstance(state, dict):
        return False
    metrics, named = state.get("best_metrics"), state.get("named", [])
    scores, ranks = state.get("scores", {}), state.get("ranks", {})
    return (
        is_score(state.get("best_score"))
        and is_count(state.get("best_update"))
        and isinstance(metrics, dict)
        and all(isinstance(name, str) and is_score(value) for name, value in metrics.items())
        and isinstance(scores, dict)
        and all(is_count(update) and is_score(score) for update, score in scores.items())
        and isinstance(ranks, dict)
        and all(is_count(update) and isinstance(rank, list) for update, rank in ranks.items())
        and all(is_score(score) for rank in ranks.values() for score in rank)
        and isinstance(named, list)
        and all(map(is_count, named))
    )


class MissedValidation(L.Callback):
    """What a run that goes on does first.

    Args:
        writer: knows which updates were validated, and whether a validation was due, which is made up for.
        total_updates: length of the run. Where all are done, Lightning is made with one more: else it would do nothing.
    """

    def __init__(self, writer: CheckpointWriter, total_updates: int) -> None:
        self.writer, self.total_updates = writer, total_updates

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        first = trainer.strategy.broadcast(trainer.global_step)
        if trainer.global_step != first:
            which = f"process {trainer.global_rank + 1} of {trainer.world_size}"
            raise UserError(f"{which} has found update {trainer.global_step:,} to go on from, the first one {first:,}")
        check_moments(trainer.optimizers)
        trainer.fit_loop.epoch_loop.max_steps = self.total_updates
        trainer.should_stop = self.writer.state.has_stopped or trainer.global_step >= self.total_updates
        # A run may have become so short that it is over where no validation was to be, or its best checkpoint has gone.
        is_judged = trainer.global_step in self.writer.ranks and self.writer.best_update
        if self.writer.state.validation_due_since is not None or (trainer.should_stop and not is_judged):
            self._validate(trainer)

    def _validate(self, trainer: L.Trainer) -> None:
        validate_now(trainer)


# Those of torch whose fused kernels write into moments of any shape as if they had their weight's.
_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


def check_moments(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Make sure that the moments that an optimizer takes up have the shapes of their weights.

    Raises:
        UserError: they do not.
    """
    for optimizer in optimizers:
        for weight, state in optimizer.state.items() if isinstance(optimizer, _FUSED) else ():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.dim() and value.shape != weight.shape:
                    raise UserError(
                        f"no run can go on from this checkpoint: the optimizer's {name} is {tuple(value.shape)}, and "
                        f"its weight {tuple(weight.shape)}"
                    )


def _link(source: Path, name: Path) -> None:
    """Give a checkpoint a second name.

    Raises:
        UserError: it cannot be done.
    """
    try:
        link(source, name)
    except OSError as error:
        raise UserError(f"{name}: the checkpoint cannot be written ({error.strerror or error})") from error
