"""A run shows its progress: in a bar at a terminal, and otherwise in lines."""

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diglot.training.checkpoint_writer import CheckpointWriter
from diglot.training.lightning_seams import DescribedBar
from diglot.training.progress import PulseLines, UpdateBar, ValidationLines, progress_callbacks

NONE: Any = None


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class Run:
    """A run of 100 updates, with two micro-batches of 60 target tokens per update."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.lines = PulseLines(now=self.clock)
        self.trainer: Any = SimpleNamespace(
            global_step=20, max_steps=100, is_global_zero=True, sanity_checking=False, logged_metrics={}
        )
        self.lines.on_train_start(self.trainer, NONE)

    def train(self, n_updates: int, seconds: float) -> None:
        for _ in range(n_updates):
            self.clock.time += seconds
            for ends in (False, True):
                self.trainer.global_step += ends
                batch: Any = SimpleNamespace(ends_update=ends, update_target_tokens=60)
                self.lines.on_train_batch_end(self.trainer, NONE, None, batch, 0)

    def validate(self, n_batches: int, seconds: float) -> None:
        self.lines.on_validation_start(self.trainer, NONE)
        for _ in range(n_batches):
            self.clock.time += seconds
            self.lines.on_validation_batch_end(self.trainer, NONE)
        self.lines.on_validation_end(self.trainer, NONE)


@pytest.fixture
def run(caplog: pytest.LogCaptureFixture) -> Run:
    caplog.set_level(logging.INFO, "diglot")
    return Run()


def test_a_line_tells_the_loss_the_speed_and_the_time_left(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.train(2, 12.0)
    assert not caplog.messages
    run.trainer.logged_metrics["train/loss"] = torch.tensor(4.5678)
    run.train(1, 12.0)  # 36 seconds for 3 updates
    assert caplog.messages == ["update 23 of 100, loss 4.568, 5 target tokens/s, 15:24 left"]
    run.train(1, 72.0)
    assert caplog.messages[1:] == ["update 24 of 100, loss 4.568, 1 target tokens/s, 34:12 left"]


def test_the_first_line_has_no_loss_if_none_is_logged(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.train(1, 300.0)
    assert caplog.messages == ["update 21 of 100, 0 target tokens/s, 6 h 35 min left"]


def test_a_validation_is_no_training_time_but_has_lines_of_its_own(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.train(2, 10.0)
    run.validate(4, 12.0)
    assert caplog.messages == ["update 22 of 100, validation"] * 2
    caplog.clear()
    run.train(3, 10.0)  # 20 seconds before the validation, 30 after it: 10 for each update
    assert caplog.messages == ["update 25 of 100, 6 target tokens/s, 12:30 left"]
    caplog.clear()
    run.validate(1, 20.0)
    run.train(1, 10.0)
    assert caplog.messages == ["update 26 of 100, 6 target tokens/s, 12:20 left"]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_has_a_bar_instead_of_lines(
    is_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    first, second = progress_callbacks(CheckpointWriter(tmp_path), {})
    assert isinstance(first, UpdateBar if is_terminal else PulseLines)
    assert isinstance(second, ValidationLines)


def test_the_bar_shows_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DescribedBar, "get_metrics", lambda *_: {"v_num": 1, "dev/bleu": 5.0})
    trainer: Any = SimpleNamespace(logged_metrics={"train/loss": torch.tensor(4.5678), "other": 1})
    assert UpdateBar().get_metrics(trainer, NONE) == {"dev/bleu": 5.0, "train/loss": "4.57"}
