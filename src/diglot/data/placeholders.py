"""Search for placeholders by regular expressions, with a time limit.

Even a short pattern can make a search arbitrarily slow, and a checkpoint of any origin contains a pattern. Therefore
the length of a pattern and the time of a search are limited.
"""

import re
import warnings
from collections.abc import Callable
from typing import TypeVar

import regex

from diglot.errors import UserError
from diglot.system.masking import shortened

T = TypeVar("T")

MAX_PATTERN_LENGTH = 1_000  # in characters
TIME_LIMIT = 2.0  # for a search in one line, in seconds of CPU time; a normal search takes a thousandth of it

# An escaped character, a character class, or a brace that does not begin a repeat. `re` takes such a brace literally,
# while `regex` may take it for the limit of an approximate match.
_LITERAL = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(?!(?:\d+(?:,\d*)?|,\d*)\})", re.DOTALL)


class Placeholders:
    """Finder of the placeholders in lines.

    Args:
        pattern: regular expression of placeholders, in the syntax of Python's `re`.
        extra_pattern: another regular expression, whose matches also count as placeholders; None: there is none.
        key: name of the pattern in messages.

    Raises:
        ValueError: the pattern is invalid, too long, uses (?x), or matches the empty string.
    """

    def __init__(self, pattern: str, extra_pattern: str | None = None, key: str = "placeholder") -> None:
        self._description = f"{key} ({shortened(pattern, 60, '...')})"
        if len(pattern) > MAX_PATTERN_LENGTH:
            raise ValueError(
                f"{self._description} has {len(pattern):,} characters; the limit is {MAX_PATTERN_LENGTH:,}"
            )
        try:
            with warnings.catch_warnings(action="ignore"):
                flags = re.compile(pattern).flags
                escaped = _LITERAL.sub(lambda part: rf"\{part[0]}" if part[0] == "{" else part[0], pattern)
                self._pattern = regex.compile(escaped if extra_pattern is None else f"{escaped}|{extra_pattern}")
                matches_empty = regex.search(escaped, "", timeout=TIME_LIMIT) is not None
        except (re.error, regex.error, RecursionError, OverflowError, MemoryError) as error:
            raise ValueError(f"{self._description} is not a regular expression: {error}") from None
        if flags & re.VERBOSE:
            raise ValueError(f"{self._description} must not use (?x): verbose patterns are not supported")
        if matches_empty:
            raise ValueError(f"{self._description} must not match the empty string")

    def occurs_in(self, line: str) -> bool:
        """Return whether a line contains a placeholder."""
        return self._run_in_time(lambda: self._pattern.search(line, timeout=TIME_LIMIT) is not None, line)

    def find(self, line: str) -> list[str]:
        """Return the placeholders in a line, in order."""
        return self._run_in_time(lambda: [match[0] for match in self._pattern.finditer(line, timeout=TIME_LIMIT)], line)

    def replace(self, line: str, replacement: Callable[[str], str]) -> str:
        """Return a line with each placeholder replaced by `replacement(placeholder)`."""
        return self._run_in_time(
            lambda: self._pattern.sub(lambda match: replacement(match[0]), line, timeout=TIME_LIMIT), line
        )

    def _run_in_time(self, search: Callable[[], T], line: str) -> T:
        """Return the result of a search in a line.

        Raises:
            UserError: the search takes more than `TIME_LIMIT`.
        """
        try:
            return search()
        except TimeoutError:
            raise UserError(
                f"{self._description} takes more than {TIME_LIMIT:g} seconds in a line that begins with "
                f"{line[:40]!r}: avoid adjacent or nested repeats of the same characters"
            ) from None


def check_placeholder(pattern: str | None) -> None:
    """Check that a pattern is valid for `Placeholders`.

    Raises:
        ValueError: the pattern is invalid; the message gives the reason.
    """
    if pattern is not None:
        Placeholders(pattern)
