"""What is shown to a person never ends a command, whatever its streams are; a lost result does."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from diglot.system import streams

SHOWS = """
import sys, threading
from diglot.system import streams
streams.make_forgiving()
from rich.console import Console
from rich.progress import track
import logging, warnings
print("Größe 訳 \\ud800", flush=True)
print("to a person", file=sys.stderr)
for _ in track([1], console=Console(force_terminal=True)):
    pass
warnings.warn("a warning: 訳")
logging.getLogger("x").warning("logged: 訳")
thread = threading.Thread(target=lambda: print("訳" * 100_000, flush=True))
thread.start()
thread.join()
print("not flushed")
with open("opened", "w") as file:
    file.write("own text")
sys.exit(75)
"""
WRITES = """
from diglot.system import streams
from diglot.commands.output import written
from diglot.errors import UserError
streams.make_forgiving()
try:
    with written(None) as write:
        write("Größe 訳\\n")
except UserError as error:
    raise SystemExit(f"it is said: {error}")
"""


def run_in_shell(folder: Path, script: str, redirection: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a Python script whose streams a shell has redirected."""
    (folder / "script.py").write_text(script)
    words = ["bash", "-c", f'"{sys.executable}" script.py {redirection}']
    return subprocess.run(words, cwd=folder, env={**os.environ, **environment}, capture_output=True, timeout=60)


@pytest.mark.parametrize(
    "redirection",
    [
        ">/dev/full",
        "2>/dev/full",
        "&>/dev/full",
        ">&-",
        "2>&-",
        "<&-",
        "<&- >&- 2>&-",
        "| head -c 1; exit ${PIPESTATUS[0]}",
    ],
)
def test_output_that_cannot_be_shown_is_dropped(redirection: str, tmp_path: Path) -> None:
    done = run_in_shell(tmp_path, SHOWS, redirection)
    assert done.returncode == 75
    assert b"Traceback" not in done.stdout + done.stderr
    assert (tmp_path / "opened").read_text() == "own text"  # and no output meant for a closed stream


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "latin-1"},
        {"PYTHONIOENCODING": "ascii:strict"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "latin-1"},
    ],
    ids=str,
)
def test_characters_that_cannot_be_encoded_are_shown_as_escapes(environment: dict[str, str], tmp_path: Path) -> None:
    done = run_in_shell(tmp_path, SHOWS, "", **environment)
    assert done.returncode == 75, done.stderr
    assert b" \\u8a33 \\ud800\n" in done.stdout
    assert b"logged: \\u8a33" in done.stderr
    assert b"Traceback" not in done.stdout + done.stderr


def test_writing_to_a_terminal_that_hung_up_does_not_raise() -> None:
    master, terminal = pty.openpty()
    stream = streams.forgiving(None, terminal)
    assert stream.isatty()
    print("before", file=stream)
    said = b""
    while not said.endswith(b"\n"):
        said += os.read(master, 100)
    assert said == b"before\r\n"
    os.close(master)
    print("after", file=stream, flush=True)
    assert isinstance(streams.failure(stream), OSError)
    os.close(terminal)


def test_a_nonblocking_stream_is_written_completely() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    text = "x" * 300_000  # more than fits into a pipe
    process = subprocess.Popen(["wc", "-c"], stdin=reader, stdout=subprocess.PIPE)
    os.close(reader)
    stream = streams.forgiving(None, writer)
    stream.write(text)
    stream.flush()
    os.close(writer)
    assert process.communicate()[0].strip() == b"300000"
    assert streams.failure(stream) is None


@pytest.mark.reliability
@pytest.mark.parametrize(
    ("redirection", "reason"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")]
)
def test_output_that_cannot_be_written_is_reported(redirection: str, reason: str, tmp_path: Path) -> None:
    done = run_in_shell(tmp_path, WRITES, redirection)
    assert done.returncode == 1
    assert done.stderr.decode() == f"it is said: standard output: cannot be written ({reason})\n"


@pytest.mark.reliability
def test_output_is_utf8_whatever_the_terminal_s_encoding(tmp_path: Path) -> None:
    assert run_in_shell(tmp_path, WRITES, "", PYTHONIOENCODING="latin-1").stdout == "Größe 訳\n".encode()


def test_a_closed_standard_input_cannot_be_read(tmp_path: Path) -> None:
    script = "import sys\nfrom diglot.system import streams\nstreams.make_forgiving()\nsys.stdin.buffer.read()"
    assert b"Bad file descriptor" in run_in_shell(tmp_path, script, "<&-").stderr
