"""One signal ends a run between two updates, with a checkpoint; a second one ends it at once."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diglot.system.interruption import STOP_SIGNALS
from diglot.training.signals import Signals, StopBeforeBatch, Stopped, leaving_at_once
from diglot.training.task import TranslationTask


class Kept(list[int]):
    """Stub of a checkpoint writer that records the updates after which checkpoints are written."""

    def save(self, trainer: Any) -> None:
        self.append(trainer.global_step)


def stub_batch(ends_update: bool = True) -> Any:
    return SimpleNamespace(ends_update=ends_update)


def stub_trainer(update: int) -> Any:
    connector = SimpleNamespace(_get_loops_state_dict=lambda: {"after": update})
    return SimpleNamespace(
        global_step=update,
        max_steps=100,
        world_size=1,
        should_stop=False,
        _checkpoint_connector=connector,
    )


@pytest.fixture
def task() -> TranslationTask:
    made = TranslationTask.__new__(TranslationTask)
    torch.nn.Module.__init__(made)
    return made


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_takes_effect_after_the_update_and_its_logs(number: int, task: TranslationTask) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    kept = Kept()
    signals = Signals(kept, validate_every=10)  # type: ignore[arg-type]
    try:
        signals.on_train_start()
        first = StopBeforeBatch(signals)
        first.on_train_batch_start(stub_trainer(3), task, None, 0)  # type: ignore[arg-type]
        os.kill(os.getpid(), number)
        for trainer, ends_update in ((stub_trainer(3), False), (stub_trainer(4), True)):
            signals.on_train_batch_end(trainer, task, None, stub_batch(ends_update), 0)
            assert not kept  # the update has not been logged yet
        with pytest.raises(Stopped, match=signal.Signals(number).name):
            first.on_train_batch_start(trainer, task, None, 0)  # type: ignore[arg-type]
        assert kept == [4]
        content = {"loops": {"after": 5}}
        signals.on_save_checkpoint(trainer, task, content)
        assert content == {"loops": {"after": 4}}
        signals.on_exception()
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_if_a_validation_follows_it_writes_the_checkpoint(task: TranslationTask) -> None:
    kept = Kept()
    signals = Signals(kept, validate_every=10)  # type: ignore[arg-type]
    signals.received = signal.SIGTERM
    signals.on_train_batch_end(stub_trainer(20), task, None, stub_batch(), 0)
    assert not kept
    with pytest.raises(Stopped):
        signals.on_validation_start(stub_trainer(20), task)
    # The same holds for the last validation, which follows the last update even if none is due there.
    last = stub_trainer(33)
    last.should_stop = True
    signals.on_train_batch_end(last, task, None, stub_batch(), 0)
    assert not kept
    with pytest.raises(Stopped):
        signals.on_validation_batch_end(last)


def test_a_signal_interrupts_a_validation_at_once(task: TranslationTask) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signals = Signals(Kept(), validate_every=10)  # type: ignore[arg-type]
    trainer = stub_trainer(20)
    try:
        signals.on_train_start()
        signals.on_validation_start(trainer, task)
        with pytest.raises(Stopped, match="SIGTERM"):
            os.kill(os.getpid(), signal.SIGTERM)
        signals.received = 0
        StopBeforeBatch(signals).on_validation_end(trainer, task)
        os.kill(os.getpid(), signal.SIGTERM)  # while callbacks save its results
        assert signals.received == signal.SIGTERM
        # If other processes would wait for this one, it checks for signals after each batch.
        signals.received = 0
        several = stub_trainer(20)
        several.world_size = 2
        signals._signal_of_any_process = lambda trainer: 0  # type: ignore[method-assign]
        signals.on_validation_start(several, task)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGTERM
    finally:
        signals.on_exception()
        signal.signal(signal.SIGTERM, before)


def test_a_terminal_that_hangs_up_twice_asks_once() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signals = Signals(Kept(), validate_every=10)  # type: ignore[arg-type]
    try:
        signals.on_train_start()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
        assert signals.received == signal.SIGHUP
        with leaving_at_once():
            with pytest.raises(Stopped, match="SIGHUP"):
                os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signals.on_exception()
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals = Signals(Kept(), validate_every=10)  # type: ignore[arg-type]
    try:
        signals.on_train_start()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signals.on_exception()
        signal.signal(signal.SIGHUP, before)


TWICE = """
import os, signal
from diglot.training.signals import Signals
Signals([], 10).on_train_start()
os.kill(os.getpid(), signal.SIGTERM)
print("still here", flush=True)
os.kill(os.getpid(), signal.SIGINT)
print("and here")
"""


@pytest.mark.reliability
def test_a_second_signal_ends_the_process_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWICE],
        capture_output=True,
        text=True,
        timeout=300,
        # A shell makes its background processes ignore Ctrl-C; this process must not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.returncode, done.stdout) == (128 + signal.SIGINT, "still here\n")
