"""Search for placeholders by regular expressions, with a time limit.

A pattern of ten characters can make a search arbitrarily slow, and a checkpoint contains a pattern. So the length of a
pattern and the time of a search are limited.
"""

import re
import warnings
from collections.abc import Callable
from typing import TypeVar

import regex

from diglot.errors import UserError
from diglot.system.masking import shortened

T = TypeVar("T")

LONGEST = 1_000  # characters of a pattern
SECONDS = 2.0  # CPU time for the search of one line; a normal search of a long line takes a thousandth

# A character class, an escaped character, or a brace that is no repeat. `re` takes such a brace literally, while
# `regex` may take it as a limit for approximate matches.
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(?!(?:\d+(?:,\d*)?|,\d*)\})", re.DOTALL)


class Placeholders:
    """The placeholders that a pattern finds in lines.

    Args:
        pattern: a regular expression, as Python's `re` reads it.
        more: another regular expression; its matches count as placeholders, too. None: no other.
        key: name of the pattern in messages.

    Raises:
        ValueError: the pattern is invalid, too long, written with (?x), or matches the empty string.
    """

    def __init__(self, pattern: str, more: str | None = None, key: str = "placeholder") -> None:
        self._shown = f"{key} ({shortened(pattern, 60, '...')})"
        if len(pattern) > LONGEST:
            raise ValueError(f"{self._shown} has {len(pattern):,} characters; the limit is {LONGEST:,}")
        try:
            with warnings.catch_warnings(action="ignore"):
                flags = re.compile(pattern).flags
                own = _PART.sub(lambda part: rf"\{part[0]}" if part[0] == "{" else part[0], pattern)
                self._pattern = regex.compile(own if more is None else f"{own}|{more}")
                is_empty = regex.search(own, "", timeout=SECONDS) is not None
        except (re.error, regex.error, RecursionError, OverflowError, MemoryError) as error:
            raise ValueError(f"{self._shown} is not a regular expression: {error}") from None
        if flags & re.VERBOSE:
            raise ValueError(f"{self._shown} must not use (?x), which could comment out what follows")
        if is_empty:
            raise ValueError(f"{self._shown} must not match the empty string")

    def occurs_in(self, line: str) -> bool:
        """Return whether a line contains a placeholder."""
        return self._in_time(lambda: self._pattern.search(line, timeout=SECONDS) is not None, line)

    def find(self, line: str) -> list[str]:
        """Return the placeholders in a line, in order."""
        return self._in_time(lambda: [match[0] for match in self._pattern.finditer(line, timeout=SECONDS)], line)

    def replace(self, line: str, by: Callable[[str], str]) -> str:
        """Return a line with each placeholder replaced by `by(placeholder)`."""
        return self._in_time(lambda: self._pattern.sub(lambda match: by(match[0]), line, timeout=SECONDS), line)

    def _in_time(self, search: Callable[[], T], line: str) -> T:
        try:
            return search()
        except TimeoutError:
            raise UserError(
                f"{self._shown} takes more than {SECONDS:g} seconds in a line that begins with "
                f"{line[:40]!r}: avoid adjacent or nested repeats of the same characters"
            ) from None


def check_placeholder(pattern: str | None) -> None:
    """Check that a pattern is valid for `Placeholders`.

    Raises:
        ValueError: the pattern is invalid; the message gives the reason.
    """
    if pattern is not None:
        Placeholders(pattern)
