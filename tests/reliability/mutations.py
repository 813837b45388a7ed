"""Mutations that each disable one mechanism for surviving faults; applied in a separate process before the run."""

from pathlib import Path
from typing import Any

import torch
from torch.utils.tensorboard import SummaryWriter

from diglot.checkpoint import container
from diglot.checkpoint.atomic_io import AtomicCheckpointIO
from diglot.data.batching import Updates
from diglot.runs import open_run, resume, session
from diglot.training import loggers, schedule, signals, task
from diglot.training.checkpoint_writer import CheckpointWriter, MissedValidation


def the_stream_begins_anew() -> None:
    """Let a resumed run see its first batches again."""
    init = Updates.__init__

    def from_the_first(self: Updates, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        done, self.start, self.place = self.start, 0, None
        self.n_updates -= done

    Updates.__init__ = from_the_first  # type: ignore[method-assign]
    Updates.__len__ = lambda self: self.n_updates * self.accumulation  # type: ignore[method-assign]


def the_stream_stands_one_batch_off() -> None:
    load_resume_point = open_run.load_resume_point

    def off(*arguments: Any) -> resume.ResumePoint:
        begun = load_resume_point(*arguments)
        if begun.state.position is not None:
            begun.state.position = begun.state.position._replace(batch=begun.state.position.batch + 1)
        return begun

    open_run.load_resume_point = off


def dropout_goes_its_own_way() -> None:
    task.TranslationTask.on_train_batch_start = lambda *_: None  # type: ignore[method-assign]


def the_moments_are_forgotten() -> None:
    load = task.TranslationTask.on_load_checkpoint

    def without(self: Any, checkpoint: dict[str, Any]) -> None:
        load(self, checkpoint)
        checkpoint["optimizer_states"][0]["state"] = {}

    task.TranslationTask.on_load_checkpoint = without  # type: ignore[method-assign]


def the_schedule_begins_anew() -> None:
    schedule.Schedule.load_state_dict = lambda *_: None  # type: ignore[method-assign]


def signals_are_saved_within_an_update() -> None:
    """Save upon a signal while gradients are accumulated but not yet applied."""
    init = signals.Signals.__init__

    def changed(self: Any, *arguments: Any) -> None:
        init(self, *arguments)

        def on_train_batch_end(trainer: Any, pl_module: Any, outputs: Any, batch: Any, *_: Any) -> None:
            if self.received and not batch.ends_update:
                self.writer.save(trainer)
                raise signals.Stopped(self.received)

        self.on_train_batch_end = on_train_batch_end

    signals.Signals.__init__ = changed  # type: ignore[method-assign]


def signals_are_not_heeded() -> None:
    signals.Signals.on_train_start = lambda *_: None  # type: ignore[method-assign]


def checkpoints_are_written_where_they_stand() -> None:
    def save(self: Any, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        with Path(path).open("wb") as file:
            container.write(checkpoint, file)

    AtomicCheckpointIO.save_checkpoint = save  # type: ignore[method-assign]


def validations_that_were_cut_short_are_left_out() -> None:
    MissedValidation._validate = lambda *_: None  # type: ignore[method-assign]


def validations_are_logged_twice() -> None:
    resumed = loggers.Resumed
    session.loggers.Resumed = lambda update, _: resumed(update)  # type: ignore[misc,assignment]


def the_best_is_forgotten() -> None:
    CheckpointWriter.load_state_dict = lambda *_: None  # type: ignore[method-assign]


def what_is_not_finite_is_trained_on() -> None:
    def clip(self: Any, *_: Any, **__: Any) -> None:
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        self._gradient_norm = torch.nn.utils.get_total_norm(gradients)

    task.TranslationTask.configure_gradient_clipping = clip  # type: ignore[method-assign]


def the_logger_fails() -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    SummaryWriter.add_scalar = fail


def the_logger_fails_and_stops_training() -> None:
    the_logger_fails()
    session.loggers.forgiving = lambda logger: logger


def results_come_first() -> None:
    """Mark a run as finished too early."""
    conclude = session.conclude

    def early(folder: Path, *arguments: Any) -> None:
        (folder / "results.json").write_text('{"finished": true}')
        conclude(folder, *arguments)

    session.conclude = early
