"""Values that are kept out of messages: each is shown as the config's expression that it came from."""

import html
import json
import logging
import re
import sys
import traceback
from functools import cache
from types import TracebackType
from typing import Any

SHORTEST = 4  # characters of a text that may be a secret
LONG = 6  # from which on it is looked for within words, too

_written: dict[str, str] = {}  # by values that this process took from the environment: how the config names them


def is_secret(value: Any) -> bool:
    """Whether a value from the environment may be a secret: a text that is not very short, or what holds one. Numbers,
    true, false and null are none."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return any(is_secret(item) for item in value)
    return isinstance(value, str) and len(value.strip()) >= SHORTEST


def note(value: Any, written: str) -> None:
    """Keep a value out of messages, if it may be a secret.

    Args:
        value: plain data.
        written: what is shown in its place.
    """
    if isinstance(value, (dict, list)):
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            note(item, written)
    elif is_secret(value):
        _written.setdefault(value, written)
        sys.excepthook = _print_masked


def masked(text: str) -> str:
    """Return a text with the config's expressions in place of the values that they took from the environment, also
    where these are escaped."""
    for value in sorted(_written, key=len, reverse=True):
        text = _written[value].join(_pattern(value).split(text))
    return text


def shortened(text: object, longest: int, end: str = "") -> str:
    """Return a masked text that is no longer than it may be: the cut never leaves a part of a secret.

    Args:
        text: any.
        longest: characters.
        end: of what was cut.
    """
    whole = masked(str(text))
    return whole if len(whole) <= longest else whole[: longest - len(end)] + end


def in_one_line(error: BaseException, longest: int = 200) -> str:
    """Return what an error says, or else its class, masked, in one line and no longer than it may be."""
    return shortened(" ".join(masked(str(error)).split()) or type(error).__name__, longest)


def mask_record(record: logging.LogRecord) -> bool:
    """Mask a message of a logger; to be used as its filter."""
    record.msg, record.args = masked(record.getMessage()), None
    return True


def _print_masked(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback as Python does, but masked."""
    print(masked("".join(traceback.format_exception(kind, error, trace))), end="", file=sys.stderr)


@cache
def _pattern(value: str) -> re.Pattern[str]:
    """What finds a value as it is, and as Python, JSON, HTML and addresses write it, also one within the other. Blanks
    and line ends stand for each other: messages are brought into one line."""
    found = "".join(_ways_to_write(part) for part in re.findall(r"\s+|\\+|.", value.strip(), re.DOTALL))
    return re.compile(found if len(value) >= LONG else rf"(?<!\w){found}(?!\w)")


def _ways_to_write(part: str) -> str:
    """A pattern of a character, or of a run of blanks or backslashes. What is escaped may be so more than once."""
    backslash = r"(?:\\|%5[Cc])"  # as many as there are (*+, ++): they are not shared out in all ways
    if part.startswith("\\"):
        return rf"{backslash}++"
    if re.fullmatch(r"\w", part, re.ASCII):
        return part
    ways: set[str] = set()
    for character in part:
        encoded = character.encode("utf-8", "surrogatepass")
        percent = "".join(f"%{byte:02X}" for byte in encoded)
        ways |= {html.escape(character), percent, percent.lower(), json.dumps(character)[1:-1]}
        ways |= {ascii(character)[1:-1], repr(encoded)[2:-1], character}
    each = {
        re.escape(way.lstrip("\\")).replace(r"\\", f"{backslash}++")
        for way in ways
        if not way.isspace() and way != "%20"
    }
    escaped = f"{backslash}*+(?:{'|'.join(sorted(each))})"
    return rf"(?:\s|\+|%20|{escaped})+" if part.isspace() else escaped
