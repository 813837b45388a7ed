"""A run reports why it ended, and has the matching exit status."""

import logging
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diglot.system import interruption
from diglot.training.ending import fail

NONE: Any = None


@pytest.mark.parametrize("first", [None, "1"])
@pytest.mark.parametrize("code", [0, 3, 75, "enough"])
def test_a_callback_s_own_exit_has_its_own_status(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int | str, first: str | None
) -> None:
    monkeypatch.setattr(interruption, "outcome", lambda: (75, "It can go on."))
    monkeypatch.setattr(interruption, "received", 0)
    if first:
        monkeypatch.setenv("DIGLOT_FIRST_PROCESS", first)
    trainer: Any = SimpleNamespace(received_sigterm=False)
    with caplog.at_level(logging.INFO, "diglot"):
        fail(SystemExit(code), Path(), trainer, NONE, NONE, NONE, NONE)  # the caller raises it again
    assert caplog.messages == ["Stopped by a callback that exits. It can go on."]


@pytest.mark.parametrize(("first", "code"), [(None, 75), ("1", 128 + signal.SIGTERM)])
def test_a_signal_gives_the_exit_status_of_a_run_that_can_be_resumed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, first: str | None, code: int
) -> None:
    monkeypatch.setattr(interruption, "outcome", lambda: (75, "It can go on."))
    monkeypatch.delenv("DIGLOT_FIRST_PROCESS", raising=False)
    if first:
        monkeypatch.setenv("DIGLOT_FIRST_PROCESS", first)
    trainer: Any = SimpleNamespace(received_sigterm=True)
    with caplog.at_level(logging.INFO, "diglot"), pytest.raises(SystemExit) as ended:
        fail(SystemExit(1), Path(), trainer, NONE, NONE, NONE, NONE)
    assert ended.value.code == code
    assert caplog.messages == ["Stopped by SIGTERM. It can go on."]
