"""Processes that end when the one that started them has died, however it did."""

import multiprocessing
import os
import threading
from multiprocessing.process import BaseProcess
from typing import Any


def end_with_parent(*_: Any) -> None:
    """Let this process not wait for work for ever from one that was killed."""
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
