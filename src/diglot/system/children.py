"""Child processes: their number, their end when their parent ends, and descriptions of their exit statuses."""

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
    """Return the number of cores that this process may use, on any system.

    These are the cores that it is bound to, but no more than its container's CPU quota (rounded up).
    """
    if hasattr(os, "process_cpu_count"):  # Python 3.13
        count = os.process_cpu_count()
    elif hasattr(os, "sched_getaffinity"):  # Linux
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count()
    return max(1, min(count or 1, math.ceil(_quota())))


def _quota() -> float:
    """Return the CPU quota of this process's control group, in cores (Linux, cgroup v2), or a large number if none."""
    try:
        quota, period = (CGROUPS / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # another system, or no limit ("max")
        return 1e9


def how_it_ended(status: int) -> str:
    """Return an exit status in words."""
    if status == 0:
        return "ended without results"
    signum = -status if status < 0 else status - 128
    try:
        name = signal.Signals(signum).name
    except ValueError:
        return f"failed with exit status {status}"
    return f"was killed by {name}" if status < 0 else f"was stopped by {name}"


def be_signalled_with_parent(signum: int) -> None:
    """Make the system send this process a signal when its parent ends (Linux only).

    This may be called between fork and exec.
    """
    if hasattr(_LIBC, "prctl"):
        _LIBC.prctl(1, signum)  # PR_SET_PDEATHSIG


def end_with_parent(*_: Any) -> None:
    """Make this process end when its parent ends, instead of waiting for work forever."""
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
