"""Processes that this one starts: how many, how they end when it has died, and how to say how they ended."""

import ctypes
import math
import multiprocessing
import os
import signal
import threading
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

CGROUPS = Path("/sys/fs/cgroup")
_LIBC = ctypes.CDLL(None)  # loaded before there are threads


def n_cores() -> int:
    """Return how many cores this process may use, on any system: those it is bound to, and no more than a container's
    quota of processor time is worth."""
    if hasattr(os, "process_cpu_count"):  # Python 3.13
        count = os.process_cpu_count()
    elif hasattr(os, "sched_getaffinity"):  # Linux
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count()
    return max(1, min(count or 1, math.ceil(_quota())))


def _quota() -> float:
    """Return how many cores' time the control group (Linux, version 2) of this process may use, else a large number."""
    try:
        quota, period = (CGROUPS / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # another system; or there is no limit: max
        return 1e9


def how_it_ended(status: int) -> str:
    """An exit status in words."""
    if status == 0:
        return "ended without results"
    number = -status if status < 0 else status - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"failed with exit status {status}"
    return f"was killed by {name}" if status < 0 else f"was stopped by {name}"


def be_signalled_with_parent(number: int) -> None:
    """Let the system send this process a signal when its parent ends (Linux alone). May be called between fork and
    exec."""
    if hasattr(_LIBC, "prctl"):
        _LIBC.prctl(1, number)  # PR_SET_PDEATHSIG


def end_with_parent(*_: Any) -> None:
    """Let this process not wait for work for ever from one that was killed."""
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
