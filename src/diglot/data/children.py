"""Processes that this one starts: how they end when it has died, and how to say how they ended."""

import multiprocessing
import os
import signal
import threading
from multiprocessing.process import BaseProcess
from typing import Any


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


def end_with_parent(*_: Any) -> None:
    """Let this process not wait for work for ever from one that was killed."""
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
