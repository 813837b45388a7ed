"""A long step shows a bar at a terminal, lines elsewhere, and nothing if another process shows it."""

import os
import pty
import subprocess
import sys

import pytest

from diglot.system import progress

WORDS = "from diglot.system.progress import step\nwith step('reading texts', 4) as done:\n    done(2)\n    done(2)\n"


def test_without_a_terminal_progress_is_two_lines(capsys: pytest.CaptureFixture) -> None:
    with progress.step("reading texts", total=4) as done:
        done(4)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "reading texts ..."
    assert lines[1].startswith("reading texts: ")
    assert lines[1].endswith(" s")


def test_a_process_that_does_not_show_progress_prints_nothing(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "shows", False)
    with progress.step("reading texts") as done:
        done(1)
    assert capsys.readouterr() == ("", "")


def test_at_a_terminal_progress_is_a_bar_that_ends_complete() -> None:
    theirs, ours = pty.openpty()
    subprocess.run([sys.executable, "-c", WORDS], stderr=ours, check=True)
    os.close(ours)
    shown = os.read(theirs, 100_000).decode()
    os.close(theirs)
    assert "reading texts" in shown
    assert "100%" in shown
