"""Values that are kept out of messages: each is shown as the config's expression that it came from."""

import html
import json
import logging
import re
import sys
import traceback
from collections.abc import Mapping
from functools import cache
from types import TracebackType
from typing import Any

SHORTEST = 4  # characters of a text that may be a secret
LONG = 6  # from which on it is looked for within words, too
LONGEST = 200  # words and other characters of a pattern: of a longer text each part is looked for
WORD = "[A-Za-z0-9_]+"  # what nobody escapes

_VARIABLE = re.compile(r"\$\{oc\.env:(\w+)\}")
_written: dict[str, str] = {}  # by values that this process took from the environment: how the config names them


def is_secret(value: Any) -> bool:
    """Whether a value from the environment may be a secret: a text that is not very short, or what holds one. Numbers,
    true, false and null are none."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return any(is_secret(item) for item in value)
    return isinstance(value, str) and len(value.strip()) >= SHORTEST


def note(value: Any, written: str, names: str = "") -> None:
    """Keep a value out of messages, if it may be a secret.

    Args:
        value: plain data.
        written: what is shown in its place.
        names: text that holds no secret and has to stay readable.
    """
    if isinstance(value, (dict, list)):
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            note(item, written, names)
    elif is_secret(value) and value.strip() not in names:
        _written.setdefault(value, written)
        sys.excepthook = _print_masked


def masked(text: str) -> str:
    """Return a text with the config's expressions in place of the values that they took from the environment, also
    where these are escaped."""
    return _replaced(text, _written)


def typable(text: str, form: str = r"\g<0>") -> str:
    """Return a text with variables of the environment in place of their values. What else is masked depends on more:
    in another command `${data.cache_dir}` is another folder, and `${oc.env:NAME,'a b'}` cannot stand within quotes.

    Args:
        text: of a command to type.
        form: how a variable is written: a template for `${oc.env:NAME}` whose first group is NAME.
    """
    return _replaced(text, {v: _VARIABLE.sub(form, w) for v, w in _written.items() if _VARIABLE.fullmatch(w)})


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


def _replaced(text: str, written: Mapping[str, str]) -> str:
    for value in sorted(written, key=len, reverse=True):
        for word, part in _parts(value):
            if word in text:
                text = written[value].join(_pattern(part, len(value) >= LONG).split(text))
    return text


@cache
def _parts(value: str) -> list[tuple[str, tuple[str, ...]]]:
    """The words, runs of blanks and backslashes, and other characters of a value, at most `LONGEST` of them in a part;
    before each part its longest word, which is the same in every form."""
    units = re.findall(rf"{WORD}|\s+|\\+|.", value.strip(), re.DOTALL)
    n_parts = -(-len(units) // LONGEST)
    parts = [tuple(units[len(units) * i // n_parts : len(units) * (i + 1) // n_parts]) for i in range(n_parts)]
    return [(max(re.findall(rf"{WORD}|$", "".join(part)), key=len), part) for part in parts]


@cache
def _pattern(units: tuple[str, ...], is_long: bool) -> re.Pattern[str]:
    """What finds a part of a value as it is, and as Python, JSON, HTML and addresses write it, also one within the
    other. Blanks and line ends stand for each other: messages are brought into one line."""
    found = "".join(map(_ways_to_write, units))
    # Of a run of backslashes that it may begin with it takes all: from within the run nothing else is found.
    begin = "" if re.match(WORD, units[0]) else r"(?<!\\)(?<!%5[Cc])"
    return re.compile(begin + found if is_long else rf"(?<!\w)(?:{begin}|(?<=\w\\)){found}(?!\w)")


@cache
def _ways_to_write(unit: str) -> str:
    """A pattern of a word, of a run of blanks or backslashes, or of another character. What is escaped may be so more
    than once."""
    backslash = r"(?:\\|%5[Cc])"  # as many as there are (*+, ++): they are not shared out in all ways
    if unit.startswith("\\"):
        return rf"{backslash}++"
    if re.fullmatch(WORD, unit):
        return unit
    ways: set[str] = set()
    for character in unit:
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
    return rf"(?:\s|\+|%20{f'|{escaped}' if each else ''})+" if unit.isspace() else escaped
