"""A run whose terminal hangs up is asked to end; output that can no longer be shown does no harm."""

import fcntl
import os
import pty
import random
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from diglot.checkpoint.file import newest_intact
from diglot.errors import RESUME_ME
from runs import TINY, text

pytestmark = pytest.mark.reliability

RUN = ("run.updates=2000", "run.validate_every=40", "run.passes=null")
PATIENCE = 150.0  # seconds to wait for output on a busy machine


def train_at_a_terminal(folder: Path, *words: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start training in a new session; return the process and the master side of its terminal."""
    master, terminal = pty.openpty()

    def begin_session() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    command = [sys.executable, "-m", "diglot", "train", *words]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "120"},
        preexec_fn=begin_session,
    )
    os.close(terminal)
    return process, master


def read(master: int, until: bytes, seconds: float) -> bytes:
    """Read a terminal's output until it contains `until`, or a time limit is reached."""
    seen, deadline = b"", time.monotonic() + seconds
    while until not in seen and (left := deadline - time.monotonic()) > 0:
        if select.select([master], [], [], left)[0]:
            seen += os.read(master, 65536)
    return seen


def check_hanging_up(folder: Path, shown: bytes | None, seconds: float) -> None:
    """Hang up some seconds after certain output, or after the start, and check status and checkpoints."""
    process, master = train_at_a_terminal(folder, *text(folder), *TINY, *RUN)
    try:
        if shown is not None:
            assert shown in read(master, shown, PATIENCE)
        read(master, b"never shown", seconds)
        os.close(master)
        status = process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()
    log = folder / "run" / "log.txt"
    said = log.read_text() if log.exists() else ""
    assert "Traceback" not in said
    if newest_intact(folder / "run"):
        assert (status, "Stopped by" in said) == (RESUME_ME, True), said
    else:  # no checkpoint yet; during the interpreter's first milliseconds, the signal kills the process
        assert status in (128 + signal.SIGHUP, -signal.SIGHUP), said


@pytest.mark.promise(
    "A run whose terminal hangs up saves its state and ends with exit status 75, or 129 before training"
)
@pytest.mark.parametrize(
    ("shown", "seconds"), [(None, 1.0), (b"pass 0.", 0.0), (b"update 40 of", 0.3)], ids=["start", "first", "later"]
)
def test_a_terminal_that_hangs_up_asks_a_run_to_end(tmp_path: Path, shown: bytes | None, seconds: float) -> None:
    check_hanging_up(tmp_path, shown, seconds)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(20))
def test_a_terminal_may_hang_up_at_any_time(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    check_hanging_up(tmp_path, draw.choice([None, b"pass 0."]), draw.uniform(0, 6))
