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


def set_outcome(asked: Outcome = _default_outcome) -> None:
    """Set the exit status and the advice for a signal that ends the command from now on.

    Args:
        asked: returns the exit status (None: 128 + the signal's number) and what to type next.
    """
    global _outcome
    _outcome = asked


def outcome() -> tuple[int | None, str]:
    """Return the exit status after a signal (None: 128 + its number) and what to type next."""
    return _outcome()


class Interrupted(KeyboardInterrupt):
    """Raised when a signal asks this process to end. Libraries do not suppress subclasses of KeyboardInterrupt."""


def exit_on_signal(command: str) -> None:
    """Make signals end the process immediately.

    An exception would pass through the import of compiled modules, which turn it into an error of their own.
    """

    def leave(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"{_line(command, number)}\n".encode())
        os._exit(128 + number)

    _answer(leave)


def raise_on_signal() -> None:
    """Make a signal raise `Interrupted`, so that files and terminals are left in order.

    A second signal ends the process, except SIGHUP, which a terminal that hangs up sends twice.
    """

    def leave(number: int, _: FrameType | None) -> None:
        global received
        if not received:
            received = number
            raise retry_if_ignored(Interrupted(signal.Signals(number).name), lambda: answer_anew(number))
        if number != signal.SIGHUP:
            os._exit(128 + number)

    def answer_anew(number: int) -> None:
        global received
        received = 0
        send_again(number)

    _answer(leave)


def retry_if_ignored(error: BaseException, again: Callable[[], None]) -> BaseException:
    """Return an exception for a signal handler to raise, with a function to call if Python ignores the exception.

    Python ignores exceptions raised in a destructor or a weak reference's callback, which may run at any time. In that
    case, `again` is called, and nothing is printed.
    """
    error.again = again  # type: ignore[attr-defined]
    if sys.unraisablehook is not _answer_ignored:
        global _before
        _before, sys.unraisablehook = sys.unraisablehook, _answer_ignored
    return error


def send_again(number: int) -> None:
    """Send this process a signal after 20 ms, when it probably executes other code."""
    timer = threading.Timer(0.02, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()


def _answer_ignored(ignored: Any) -> None:
    again = getattr(ignored.exc_value, "again", None)
    if again is None:
        _before(ignored)
    else:
        again()


_before: Callable[[Any], Any] = sys.unraisablehook


def _answer(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # it is ignored after nohup, for example
            signal.signal(number, handler)


def leave(command: str) -> NoReturn:
    """Report that a signal has ended a command, and exit with its status."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that hangs up sends it twice
    sys.exit(tell(command, received or signal.SIGINT))


def tell(command: str, number: int) -> int:
    """Report that a signal has ended a command, and return the exit status."""
    known, how = outcome()
    if _is_main_process():
        print(_line(command, number) + (f". {how}" if how else ""), file=sys.stderr, flush=True)
    return status(number, known)


def status(number: int, known: int | None) -> int:
    """Return the exit status after a signal: `known`, or 128 + the signal's number if `known` is None.

    In a process that another process has started for its run, it is always the latter: from this status, the other
    process knows the signal.
    """
    return 128 + number if known is None or not _is_main_process() else known


def _is_main_process() -> bool:
    """Return whether this process itself reports how a run ends; otherwise the process that started it does."""
    return os.environ.get(STARTED_BY) in (None, str(os.getpid()))


def _line(command: str, number: int) -> str:
    how = "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"
    return f"diglot-{command}: {how}"
