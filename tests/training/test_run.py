"""A run ends where it is told to."""

import os
import signal
from types import SimpleNamespace

import pytest

from diglot.training.run import Interrupts


def test_an_interrupt_that_was_swallowed_ends_the_run_at_the_next_update() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    callback, trainer = Interrupts(), SimpleNamespace()
    try:
        callback.on_fit_start(trainer)
        callback.on_train_batch_end(trainer)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):  # as if that had been raised where Python drops it
            callback.on_train_batch_end(trainer)
        callback.teardown(trainer)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        Interrupts().on_fit_start(SimpleNamespace())
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
