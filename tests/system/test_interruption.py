"""A signal ends a command with one line and exit status 128 + its number, from its first import on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from diglot.system import interruption

COMMANDS = (
    *("prepare", "doctor", "train", "sweep", "replay", "average", "evaluate", "translate", "score", "export"),
    *("convert", "certify", "verify"),
)
SAID = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "stopped by SIGTERM",
    signal.SIGHUP: "stopped by SIGHUP",
    signal.SIGUSR1: "stopped by SIGUSR1",
}

# Replaces torch: tells the test that it is being imported, and turns an exception into another one, as compiled modules
# do. A signal that comes just before a sleep is handled after it, so all sleeps are short.
TORCH = """
import time
try:
    print("importing", flush=True)
    for _ in range(3000): time.sleep(0.02)
except BaseException:
    raise ImportError("numpy is broken") from None
"""
# Replaces a command.
WORKS = """
import atexit, time
def wait():
    try:
        print("working", flush=True)
        for _ in range(3000): time.sleep(0.02)
    finally:
        print("cleaned up", flush=True)
def main():
    {main}
"""


def signalled(words: list[str], numbers: list[int], path: Path) -> tuple[int, str, str]:
    """Start Python, send it signals as soon as it has printed something, and return its exit status and output."""
    environment = {**os.environ, "PYTHONPATH": str(path)}
    process = subprocess.Popen(
        [sys.executable, *words],
        env=environment,
        stdin=subprocess.PIPE,  # until communicate()
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell makes its background processes ignore Ctrl-C; this process must not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout
    process.stdout.readline()
    for number in numbers:
        process.send_signal(number)
    said, errors = process.communicate(timeout=50)
    return process.returncode, said, errors


@pytest.mark.reliability
@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_during_the_imports_is_one_line(command: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    script = f"from diglot.commands.start import {command}; {command}()"
    for words, number in (
        (["-m", "diglot", command], signal.SIGINT),
        (["-c", script], signal.SIGTERM),
        (["-m", "diglot.commands.from_make", command], signal.SIGHUP),
    ):
        assert signalled(words, [number], tmp_path) == (128 + number, "", f"diglot-{command}: {SAID[number]}\n")


def started(main: str) -> list[str]:
    """Return the arguments of a script that starts a command with this body."""
    body = WORKS.format(main=main)
    return ["-c", f"import sys, types; m = types.ModuleType('diglot.commands.x'); exec({body!r}, m.__dict__)\n"
            "sys.modules['diglot.commands.x'] = m\nfrom diglot.commands.start import start; start('x')"]  # fmt: skip


@pytest.mark.parametrize("number", SAID, ids=[number.name for number in SAID])
def test_a_signal_to_a_command_at_work_lets_it_clean_up(number: signal.Signals, tmp_path: Path) -> None:
    assert signalled(started("wait()"), [number], tmp_path) == (
        128 + number,
        "cleaned up\n",
        f"diglot-x: {SAID[number]}\n",
    )


def test_an_error_that_a_library_raises_for_a_signal_is_reported_as_the_signal(tmp_path: Path) -> None:
    main = "\n    try: wait()\n    except BaseException: raise ImportError('numpy is broken') from None"
    status, _, errors = signalled(started(main), [signal.SIGINT], tmp_path)
    assert (status, errors) == (130, "diglot-x: interrupted\n")


def test_a_second_signal_ends_a_command_at_once_and_a_second_sighup_does_not(tmp_path: Path) -> None:
    def slow(n: int) -> list[str]:
        leisure = f"[time.sleep(0.02) for _ in range({n})]; print('at leisure', flush=True)"
        return started(f"\n    try: wait()\n    finally: {leisure}")

    status, said, _ = signalled(slow(2000), [signal.SIGINT, signal.SIGTERM], tmp_path)
    assert status in (130, 143)
    assert "at leisure" not in said
    status, said, _ = signalled(slow(25), [signal.SIGHUP, signal.SIGHUP], tmp_path)
    assert (status, said) == (129, "cleaned up\nat leisure\n")


def test_a_signal_while_the_interpreter_ends_is_one_line(tmp_path: Path) -> None:
    status, _, errors = signalled(started("atexit.register(wait)"), [signal.SIGINT], tmp_path)
    assert (status, errors) == (130, "diglot-x: interrupted\n")


DESTRUCTOR = """
    class Slow:
        def __del__(self):
            print("working", flush=True)
            for _ in range(25): time.sleep(0.02)
    {setting}
        try:
            slow = Slow()
            del slow
            wait()
        finally:
            print("cleaned up", flush=True)
"""


@pytest.mark.reliability
@pytest.mark.parametrize(
    "setting", ["if True:", "from diglot.training.signals import leaving_at_once\n    with leaving_at_once():"]
)
def test_a_signal_that_comes_in_a_destructor_is_not_lost(setting: str, tmp_path: Path) -> None:
    status, said, errors = signalled(started(DESTRUCTOR.format(setting=setting)), [signal.SIGTERM], tmp_path)
    assert "cleaned up" in said
    assert "Exception ignored" not in errors
    assert (status, errors) == (143, "diglot-x: stopped by SIGTERM\n") or "Stopped: SIGTERM" in errors


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    words = started("print('working', flush=True); import sys; sys.stdin.read(); print('done')")
    words[1] = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); {words[1]}"
    assert signalled(words, [signal.SIGHUP], tmp_path) == (0, "done\n", "")


@pytest.mark.parametrize(("first", "code", "says"), [(None, 75, True), ("1", 138, False)])
def test_a_started_process_returns_its_signal_to_the_process_that_started_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, first: str | None, code: int, says: bool
) -> None:
    monkeypatch.delenv("DIGLOT_FIRST_PROCESS", raising=False)
    if first is not None:
        monkeypatch.setenv("DIGLOT_FIRST_PROCESS", first)
    monkeypatch.setattr(interruption, "outcome", lambda: (75, "It can go on."))
    assert interruption.tell("x", signal.SIGUSR1) == code
    assert capsys.readouterr().err == ("diglot-x: stopped by SIGUSR1. It can go on.\n" if says else "")
