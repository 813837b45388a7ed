"""Callbacks that write a run's checkpoints and check a resumed run. No other code writes a run's checkpoints."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import torch

from diglot.data.batch import Batch
from diglot.data.batching import StreamPosition
from diglot.data.held_out import PREFIX, score_of
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
    """Callback that writes a run's checkpoints.

    `last.ckpt` is written before and after every validation. `previous.ckpt` is the one before it, in case `last.ckpt`
    is damaged. `best.ckpt` is the checkpoint with the best score. If `keep_best` or `keep_last` is above 1, the
    checkpoints of several validations are kept as `update_N.ckpt`. Ties in the monitored score are broken by chrF++,
    then by the lower loss, then in favour of the earlier checkpoint.

    Args:
        folder: the run's folder.
        keep_best: number of best validations whose checkpoints are kept.
        keep_last: number of most recent validations whose checkpoints are kept.
        monitor: what ranks validations: a metric of dev, such as bleu, or a score of a further dev set, such as
            dev_old/bleu.
        higher_is_better: whether a higher value of it is better.
        state: state of the run, which this callback updates; None for a new run.
        restore: rewrites files that were removed from the run's folder, and returns the names of the missing files.
        outputs: files that every validation writes, each with the file that keeps the version of the best checkpoint.
    """

    def __init__(
        self,
        folder: Path,
        keep_best: int = 1,
        keep_last: int = 1,
        monitor: str = "bleu",
        higher_is_better: bool = True,
        state: RunState | None = None,
        restore: Callable[[], list[str]] = list,
        outputs: Sequence[tuple[Path, Path]] = (),
    ) -> None:
        self.last, self.best = folder / "last.ckpt", folder / "best.ckpt"
        self.monitor, self.higher_is_better = monitor, higher_is_better
        self.previous = folder / "previous.ckpt"
        self.keep_best, self.keep_last = keep_best, keep_last
        self.ranks: dict[int, Rank] = {}  # update -> rank, for validations whose checkpoints are kept
        self.named: set[int] = set()  # updates for which this run has written update_N.ckpt
        self.best_score = float("-inf")
        self.best_update = 0
        self.best_metrics: dict[str, float] = {}  # all logged dev scores of the best checkpoint
        self.state, self.restore, self.outputs = state or RunState(), restore, outputs

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero or not self.best_update:
            return
        # The process may have been killed after writing the checkpoint and before linking its other names.
        if trainer.global_step in self.ranks:
            self._name(trainer.global_step)
        self._forget_lost_best()

    def _forget_lost_best(self) -> None:
        """Reset the best score if `best.ckpt` was removed or moved, so that a later validation can become the best."""
        if self.best_update and not self.best.exists():
            say(f"{self.best} is missing: the best checkpoint will be chosen from later validations")
            self._forget_best()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        self.state.position = StreamPosition(*batch.place)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # A validation may take minutes. Save now, so that an interrupted validation loses no updates.
        if trainer.sanity_checking or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        # When the run resumes, values that an interrupted validation logged are recognised by their time. Keep the
        # first start time, in case the validation is interrupted more than once.
        self.state.validation_due_since = self.state.validation_due_since or now()
        self.save(trainer)

    def save(self, trainer: L.Trainer) -> None:
        """Write `last.ckpt`. Must be called between two updates."""
        self.state.update, self.state.has_stopped = trainer.global_step, trainer.should_stop
        Loggers(trainer.loggers).flush()
        with self._explained():
            try:
                self._write(trainer)
            except UserError:
                if self.last.parent.exists():
                    raise
                self._write(trainer)  # the folder was removed while the checkpoint was written

    def _write(self, trainer: L.Trainer) -> None:
        if trainer.is_global_zero:
            self._restore_files()
            if self.last.exists():
                _link(self.last, self.previous)
        trainer.save_checkpoint(self.last)

    def _restore_files(self) -> None:
        """Restore removed files of the run's folder, so that the run can be resumed and evaluated from it."""
        has_gone = not self.last.parent.exists()
        missing = self.restore()
        if has_gone:
            say(f"{printable(self.last.parent)} is missing; it is created again for the next checkpoints")
            self.ranks = {}
        elif missing:
            say(f"{', '.join(missing)}: missing from {printable(self.last.parent)}, written again")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Add advice on how to resume the run to the error of a failed write."""
        try:
            yield
        except UserError as error:
            advice = f"once this is fixed, {resuming(self.last.parent)} resumes the run"
            raise UserError(f"{error}; {advice}. {self.describe()}") from None

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if trainer.is_global_zero:
            self._forget_lost_best()
        metrics = {
            name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith(("dev/", PREFIX))
        }
        rank = self._rank(metrics)
        if not self.best_update or rank > self._rank(self.best_metrics):
            self.best_score, self.best_update = self._score(metrics), trainer.global_step
            self.best_metrics = metrics
        self.ranks[trainer.global_step] = rank
        best = sorted(sorted(self.ranks), key=lambda update: self.ranks[update], reverse=True)[: self.keep_best]
        self.ranks = {update: self.ranks[update] for update in {*best, *sorted(self.ranks)[-self.keep_last :]}}
        if self.keep_best > 1 or self.keep_last > 1:
            self.named.add(trainer.global_step)
        self.state.dev_score, self.state.dev_rank = (self.monitor, self._score(metrics)), rank
        self.state.validation_due_since = None
        if self.best_update == trainer.global_step:  # before the checkpoint: a resumed run does not log it again
            scores = {f"best/{name.removeprefix('dev/')}": value for name, value in metrics.items()}
            Loggers(trainer.loggers).best({**scores, "best/update": float(self.best_update)}, trainer.global_step)
        self.save(trainer)
        if trainer.is_global_zero:
            with self._explained():
                self._name(trainer.global_step)

    def _rank(self, metrics: Mapping[str, float]) -> Rank:
        """Return the key by which validations are compared; greater is better."""
        score = self._score(metrics)
        better = score if self.higher_is_better else -score
        dev_set = score_of(self.monitor).partition("/")[0]
        return better, metrics.get(f"{dev_set}/chrf", 0.0), -metrics.get(f"{dev_set}/loss", 0.0)

    def _score(self, metrics: Mapping[str, float]) -> float:
        return metrics[score_of(self.monitor)]

    def _forget_best(self) -> None:
        self.best_score, self.best_update, self.best_metrics = float("-inf"), 0, {}

    def _name(self, update: int) -> None:
        """Link the newest checkpoint to its other names, and remove checkpoints that are no longer kept.

        Args:
            update: number of updates after which the newest checkpoint was written.
        """
        if update == self.best_update:
            for newest, best in self.outputs:
                if newest.exists():
                    _link(newest, best, "the dev outputs")
            _link(self.last, self.best)
        if update in self.named:
            _link(self.last, self._numbered(update))
        for old_update in self.named - self.ranks.keys():  # other files of this kind do not belong to this run
            self._numbered(old_update).unlink(missing_ok=True)
        self.named &= self.ranks.keys()

    def _numbered(self, update: int) -> Path:
        return self.last.with_name(f"update_{update}.ckpt")

    def describe(self) -> str:
        """Return a sentence that names the last checkpoint, or says that there is none."""
        return (
            f"The last checkpoint is {printable(self.last)}." if self.last.is_file() else "There is no checkpoint yet."
        )

    @property
    def state_key(self) -> str:
        return "Checkpoints"  # the class's former name, which checkpoints use as the key

    def state_dict(self) -> dict[str, Any]:
        best = {"best_score": self.best_score, "best_update": self.best_update, "best_metrics": self.best_metrics}
        ranks = {update: list(rank) for update, rank in self.ranks.items()}
        return best | {"ranks": ranks, "named": sorted(self.named)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not _is_state(state_dict):
            raise UserError("no run can resume from this checkpoint, because its best scores are malformed")
        self.best_score, self.best_update = state_dict["best_score"], state_dict["best_update"]
        self.best_metrics = dict(state_dict["best_metrics"])
        # Older checkpoints hold only the monitored score of each validation, or only the best score.
        scores = state_dict.get("scores", {self.best_update: self.best_score})
        ranks = state_dict.get("ranks", {update: [score] for update, score in scores.items()})
        self.ranks = {update: tuple(rank) for update, rank in ranks.items()}
        default = self.ranks if self.keep_best > 1 or self.keep_last > 1 else ()  # for checkpoints without this key
        self.named = set(state_dict.get("named", default))


def _is_state(state: Any) -> bool:
    """Return whether a value is a state that this or an earlier version of `CheckpointWriter` has saved."""

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
    """Callback that checks a resumed run and makes up for a validation that it missed.

    Args:
        writer: knows which updates were validated, and whether a validation is due.
        total_updates: length of the run. If all updates are done, the trainer is built with one more update, because
            Lightning would otherwise do nothing. This callback restores the right number.
    """

    def __init__(self, writer: CheckpointWriter, total_updates: int) -> None:
        self.writer, self.total_updates = writer, total_updates

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        first_step = trainer.strategy.broadcast(trainer.global_step)
        if trainer.global_step != first_step:
            process = f"process {trainer.global_rank + 1} of {trainer.world_size}"
            raise UserError(
                f"{process} would resume from update {trainer.global_step:,}, but the first from {first_step:,}"
            )
        check_moments(trainer.optimizers)
        trainer.fit_loop.epoch_loop.max_steps = self.total_updates
        trainer.should_stop = self.writer.state.has_stopped or trainer.global_step >= self.total_updates
        # A shortened run may end at an update without a validation, or its best checkpoint may have been removed.
        has_scores = trainer.global_step in self.writer.ranks and self.writer.best_update
        if self.writer.state.validation_due_since is not None or (trainer.should_stop and not has_scores):
            self._validate(trainer)

    def _validate(self, trainer: L.Trainer) -> None:
        validate_now(trainer)


# Torch's optimizers with fused kernels, which do not check that moments have the shape of their weight.
_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


def check_moments(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Check that the moments loaded into an optimizer have the shapes of their weights.

    Raises:
        UserError: a shape differs.
    """
    for optimizer in optimizers:
        for weight, state in optimizer.state.items() if isinstance(optimizer, _FUSED) else ():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.dim() and value.shape != weight.shape:
                    raise UserError(
                        f"no run can resume from this checkpoint, because its optimizer's {name} has shape "
                        f"{tuple(value.shape)}, but the weight has shape {tuple(weight.shape)}"
                    )


def _link(source: Path, name: Path, what: str = "the checkpoint") -> None:
    """Give a file a second name.

    Raises:
        UserError: the second name cannot be written.
    """
    try:
        link(source, name)
    except OSError as error:
        raise UserError(f"{name}: {what} cannot be written ({error.strerror or error})") from error
