"""Each test is a reason for the order of callbacks."""

import logging
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch

from diglot.data.batching import StreamPosition
from diglot.evaluation.metrics import Bleu, Chrf
from diglot.evaluation.scorer import Scorer
from diglot.training import checkpoint_writer, throughput
from diglot.training.checkpoint_writer import CheckpointWriter
from diglot.training.early_end import EarlyEnd, EndedEarly
from diglot.training.order import in_order
from diglot.training.progress import ValidationLines
from diglot.training.signals import Signals, Stopped
from diglot.training.throughput import Throughput


class Trainer(SimpleNamespace):
    """The parts of a trainer that these callbacks use; each hook is called in turn, as Lightning calls it."""

    def __init__(self, callbacks: list[L.Callback], update: int) -> None:
        super().__init__(
            callbacks=callbacks,
            global_step=update,
            max_steps=8,
            log_every_n_steps=100,
            world_size=1,
            should_stop=False,
            is_global_zero=True,
            sanity_checking=False,
            fast_dev_run=False,
            loggers=[],
            optimizers=[],
            train_dataloader=None,
            callback_metrics={"dev/bleu": torch.tensor(5.0), "dev/chrf": torch.tensor(9.0), "dev/cut": torch.tensor(0)}
            | {"dev/perplexity": torch.tensor(2.0)},
            strategy=SimpleNamespace(broadcast=lambda value: value, root_device=torch.device("cpu")),
            fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(max_steps=8)),
            _checkpoint_connector=SimpleNamespace(_get_loops_state_dict=dict),
        )

    def save_checkpoint(self, path: Path) -> None:
        path.write_bytes(b"")

    def call(self, hook: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self, L.LightningModule(), *arguments)


class User(L.Callback):
    """A user's own callback."""

    def __init__(self) -> None:
        self.batches = 0
        self.has_started = self.stops = False
        self.clock = 0.0

    def on_train_start(self, *_: Any) -> None:
        self.has_started = True

    def on_train_batch_start(self, *_: Any) -> None:
        self.batches += 1

    def on_validation_start(self, *_: Any) -> None:
        assert self.has_started

    def on_validation_end(self, trainer: Any, _: Any) -> None:
        trainer.should_stop = self.stops
        self.clock += 100.0


class Recorder(L.Callback):
    """A callback that records validations."""

    def __init__(self, writer: CheckpointWriter) -> None:
        self.writer = writer

    def on_validation_end(self, *_: Any) -> None:
        assert self.writer.state.dev_score is None, "a run that is killed here would have a gap in its records"


BATCH: Any = SimpleNamespace(
    ends_update=True,
    place=StreamPosition(),
    passes=0.5,
    update_target_tokens=10,
    src_mask=torch.ones(2, 3),
    tgt_mask=torch.ones(2, 3),
)


class Parts:
    """The callbacks of a run, by their role."""

    def __init__(self, folder: Path) -> None:
        self.user = User()
        self.reason: str | None = None
        self.writer = CheckpointWriter(folder)
        self.throughput, self.signals = Throughput(), Signals(self.writer, validate_every=4)
        self.all = in_order(
            signals=self.signals,
            throughput=self.throughput,
            reports=[ValidationLines(self.writer, {"dev": Scorer("en", metrics={"bleu": Bleu(), "chrf": Chrf()})})],
            writer=self.writer,
            users=[self.user],
            records=[Recorder(self.writer)],
            scores=L.Callback(),
            probe=L.Callback(),
            kernels=[],
            n_updates=8,
            early_end=[EarlyEnd(lambda: self.reason)],
        )


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


def test_no_callback_sees_a_batch_that_a_signal_left_untrained(parts: Parts) -> None:
    trainer = Trainer(parts.all, update=3)
    trainer.call("on_train_batch_start", BATCH, 0)
    parts.signals.received = signal.SIGTERM
    trainer.call("on_train_batch_end", {}, BATCH, 0)
    with pytest.raises(Stopped):
        trainer.call("on_train_batch_start", BATCH, 1)
    assert parts.user.batches == 1


def test_a_checkpoint_knows_that_a_callback_has_ended_the_run(parts: Parts) -> None:
    parts.user.stops = True
    Trainer(parts.all, update=4).call("on_validation_end")
    assert parts.writer.state.has_stopped


def test_a_job_that_a_rule_ends_has_its_checkpoint_and_its_line_and_can_go_on(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "diglot")
    parts.reason = "stopped: cannot win"
    with pytest.raises(EndedEarly, match="cannot win"):
        Trainer(parts.all, update=4).call("on_validation_end")
    assert parts.writer.best.exists()
    assert "best so far" in caplog.text
    assert not parts.writer.state.has_stopped


def test_the_line_of_a_validation_knows_whether_it_was_the_best(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "diglot")
    Trainer(parts.all, update=4).call("on_validation_end")
    assert "best so far" in caplog.text


def test_the_time_that_callbacks_take_in_a_validation_is_no_training(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: parts.user.clock)
    trainer = Trainer(parts.all, update=4)
    trainer.call("on_train_start")
    parts.user.clock += 7.0
    trainer.call("on_validation_start")
    trainer.call("on_validation_end")
    trainer.call("on_train_end")
    assert parts.throughput.seconds == 7.0


def test_a_signal_in_the_last_update_lets_the_last_validation_follow(parts: Parts) -> None:
    trainer = Trainer(parts.all, update=8)
    trainer.max_steps = 8
    parts.signals.validate_every = 5
    parts.signals.received = signal.SIGTERM
    trainer.call("on_train_batch_end", {}, BATCH, 0)
    assert trainer.should_stop
    parts.signals.leave_before_batch(trainer, L.LightningModule())  # the run does not end before the validation


def test_a_missed_validation_is_made_up_for_when_all_callbacks_have_begun(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(parts.all, update=4)
    parts.writer.state.validation_due_since = 1.0
    monkeypatch.setattr(checkpoint_writer, "validate_now", lambda _: trainer.call("on_validation_start"))
    trainer.call("on_train_start")
    assert parts.user.has_started
    parts.signals.on_exception()
    assert parts.writer.last.exists()
