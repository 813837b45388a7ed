"""Signals that ask a command to end, from its first import to its last line.

The command prints one line and exits with 128 + the signal's number. During training, diglot.training.signals handles
signals and saves the run. Before and after, `set_outcome` sets the run's exit status and how to resume it.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)

STARTED_BY = "DIGLOT_FIRST_PROCESS"  # ID of the process that started this one for its run

received = 0  # the first signal that `raise_on_signal` has handled


Outcome = Callable[[], tuple[int | None, str]]


def _default_outcome() -> tuple[int | None, str]:
    return None, ""


_outcome: Outcome = _default_outcome


def set_outcome(callback: Outcome = _default_outcome) -> None:
    """Set the exit status and the advice for a signal that ends the command from now on.

    Args:
        callback: returns the exit status (None: 128 + the signal's number) and what to type next.
    """
    global _outcome
    _outcome = callback


def outcome() -> tuple[int | None, str]:
    """Return the exit status after a signal (None: 128 + its number) and what to type next."""
    return _outcome()


class Interrupted(KeyboardInterrupt):
    """Raised when a signal asks this process to end. Libraries do not suppress subclasses of KeyboardInterrupt."""


def exit_on_signal(command: str) -> None:
    """Make signals end the process immediately.

    An exception would pass through the import of compiled modules, which turn it into an error of their own.
    """

    def leave(signum: int, _: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"{_line(command, signum)}\n".encode())
        os._exit(128 + signum)

    _install(leave)


def raise_on_signal() -> None:
    """Make a signal raise `Interrupted`, so that files and terminals are left in order.

    A second signal ends the process, except SIGHUP, which a terminal that hangs up sends twice.
    """

    def leave(signum: int, _: FrameType | None) -> None:
        global received
        if not received:
            received = signum
            raise retry_if_ignored(Interrupted(signal.Signals(signum).name), lambda: install_again(signum))
        if signum != signal.SIGHUP:
            os._exit(128 + signum)

    def install_again(signum: int) -> None:
        global received
        received = 0
        send_again(signum)

    _install(leave)


def retry_if_ignored(error: BaseException, retry: Callable[[], None]) -> BaseException:
    """Return an exception for a signal handler to raise, with a function to call if Python ignores the exception.

    Python ignores exceptions raised in a destructor or a weak reference's callback, which may run at any time. In that
    case, `retry` is called, and nothing is printed.
    """
    error.again = retry  # type: ignore[attr-defined]
    if sys.unraisablehook is not _retry_ignored:
        global _previous_hook
        _previous_hook, sys.unraisablehook = sys.unraisablehook, _retry_ignored
    return error


def send_again(signum: int) -> None:
    """Send this process a signal after 20 ms, when it probably executes other code."""
    timer = threading.Timer(0.02, os.kill, (os.getpid(), signum))
    timer.daemon = True
    timer.start()


def _retry_ignored(ignored: Any) -> None:
    retry = getattr(ignored.exc_value, "again", None)
    if retry is None:
        _previous_hook(ignored)
    else:
        retry()


_previous_hook: Callable[[Any], Any] = sys.unraisablehook


def _install(handler: Callable[[int, FrameType | None], None]) -> None:
    for signum in STOP_SIGNALS:
        if signal.getsignal(signum) is not signal.SIG_IGN:  # it is ignored after nohup, for example
            signal.signal(signum, handler)


def leave(command: str) -> NoReturn:
    """Report that a signal has ended a command, and exit with its status."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that hangs up sends it twice
    sys.exit(tell(command, received or signal.SIGINT))


def tell(command: str, signum: int) -> int:
    """Report that a signal has ended a command, and return the exit status."""
    exit_status, advice = outcome()
    if _is_main_process():
        print(_line(command, signum) + (f". {advice}" if advice else ""), file=sys.stderr, flush=True)
    return status(signum, exit_status)


def status(signum: int, exit_status: int | None) -> int:
    """Return the exit status after a signal: `exit_status`, or 128 + the signal's number if that is None.

    In a process that another process has started for its run, it is always the latter: from this status, the other
    process knows the signal.
    """
    return 128 + signum if exit_status is None or not _is_main_process() else exit_status


def _is_main_process() -> bool:
    """Return whether this process itself reports how a run ends; otherwise the process that started it does."""
    return os.environ.get(STARTED_BY) in (None, str(os.getpid()))


def _line(command: str, signum: int) -> str:
    cause = "interrupted" if signum == signal.SIGINT else f"stopped by {signal.Signals(signum).name}"
    return f"diglot-{command}: {cause}"
