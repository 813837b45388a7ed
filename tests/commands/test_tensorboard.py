"""TensorBoard starts without notes of its own, and its address is the last line."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from diglot.commands import tensorboard

COMMAND = [sys.executable, "-m", tensorboard.__name__]


@pytest.mark.reliability
def test_the_address_is_the_last_line(tmp_path: Path) -> None:
    command = [*COMMAND, str(tmp_path), "--port=0", "--load_fast=false"]
    # A test run in the background of a shell ignores SIGINT, and its child processes would, too.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    os.kill(process.pid, signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert (rest, errors, process.returncode) == ("", "", 0)
    assert lines[0].startswith(f"TensorBoard shows the runs under {tmp_path}/")
    assert re.fullmatch(r"http://\S+:\d+/\n", lines[1])


def test_a_folder_that_is_missing_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tensorboard", "elsewhere"])
    with pytest.raises(SystemExit, match=r"LOGDIR=elsewhere: no such folder; make train creates runs/"):
        tensorboard.main()
