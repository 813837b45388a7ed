"""Run commands in forks of a process that has already imported diglot.

An import takes seconds, a fork milliseconds. Tests run commands through `commands.type_command`; like a console script,
each command has its own process, environment and streams. Tests of a command's start use new interpreters instead.
"""

import atexit
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

COMMANDS = (
    *("prepare", "doctor", "train", "sweep", "replay", "average", "evaluate", "translate", "score", "export"),
    *("convert", "certify", "verify"),
)
# Modules that the commands import lazily.
LATE = (
    "lightning.pytorch.callbacks.weight_averaging",
    "matplotlib.backends.backend_agg",
    "matplotlib.pyplot",
    "sacrebleu",
    "sentencepiece",
    "tensorboard.summary",
    "torch._dynamo",
    "torch.distributed",
    "torch.utils.tensorboard",
)


def serve() -> None:
    """Run one command per line of standard input, and answer with its process id and its exit status."""
    for name in COMMANDS:
        importlib.import_module(f"diglot.commands.{name}")
    for name in LATE:
        importlib.import_module(name)
    for line in sys.stdin.buffer:
        pid = os.fork()
        if not pid:
            become(**json.loads(line))
        os.write(1, b"%d\n" % pid)
        _, status = os.waitpid(pid, 0)
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(status))


def become(command: str, words: list[str], cwd: str, environment: dict[str, str], streams: list[str]) -> NoReturn:
    """Turn this process into the console script of a command, and exit with its status."""
    os.chdir(cwd)
    for number, path in enumerate(streams):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY
        descriptor = os.open(path, flags)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(
        io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8", "surrogateescape"
    )
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(1, "w", closefd=False)), "utf-8", "surrogateescape"
    )
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), "utf-8", "backslashreplace"
    )
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    added = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in added if path and path not in sys.path]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [str(Path(sys.executable).with_name(f"diglot-{command}")), *words]
    status = 1
    try:
        importlib.import_module("diglot.commands.start").start(command)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


@cache
def server() -> subprocess.Popen[bytes]:
    """Return the process from which commands are forked; it ends when this one exits and closes its standard input."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, __file__]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    atexit.register(process.communicate)
    return process


def run(command: str, words: list[str], limit: float = 600, **request: Any) -> int:
    """Run a command in a fork of the server and return its exit status, or minus the number of a fatal signal."""
    process = server()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"command": command, "words": words, **request}).encode() + b"\n")
    process.stdin.flush()
    pid = int(process.stdout.readline())
    ending = threading.Timer(limit, os.kill, (pid, signal.SIGKILL))
    ending.start()
    try:
        return int(process.stdout.readline())
    finally:
        ending.cancel()


if __name__ == "__main__":
    serve()
