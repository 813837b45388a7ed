"""Masking of secrets in messages: each is replaced by the config's expression that it came from."""

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

MIN_LENGTH = 4  # minimum number of characters of a secret
MIN_LENGTH_WITHIN_WORDS = 6  # from this length on, a secret is also masked within words
MAX_UNITS = 200  # maximum number of units in a pattern; a longer secret is masked in parts
WORD = "[A-Za-z0-9_]+"  # never escaped

_VARIABLE = re.compile(r"\$\{oc\.env:(\w+)\}")
_expressions: dict[str, str] = {}  # value from the environment -> the config's expression for it


def is_secret(value: Any) -> bool:
    """Return whether an environment value may be a secret: a text that is not very short, or a container of one.

    Numbers, true, false and null are not secrets.
    """
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return any(is_secret(item) for item in value)
    return isinstance(value, str) and len(value.strip()) >= MIN_LENGTH


def note(value: Any, expression: str, names: str = "") -> None:
    """Mask a value in messages from now on, if it may be a secret.

    Args:
        value: plain data.
        expression: the expression to show instead.
        names: text that holds no secret and must stay readable.
    """
    if isinstance(value, (dict, list)):
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            note(item, expression, names)
    elif is_secret(value) and value.strip() not in names:
        _expressions.setdefault(value, expression)
        sys.excepthook = _print_masked


def masked(text: str) -> str:
    """Return a text in which the config's expressions replace the values that they read from the environment.

    Escaped values are replaced, too.
    """
    return _replaced(text, _expressions)


def typable(text: str, form: str = r"\g<0>") -> str:
    """Return a text in which environment variables replace their values.

    Other expressions are not used, because they depend on context: in another command `${data.cache_dir}` is another
    folder, and `${oc.env:NAME,'a b'}` cannot be written within quotes.

    Args:
        text: part of a command to type.
        form: template for a variable, which replaces `${oc.env:NAME}`; its first group is NAME.
    """
    return _replaced(
        text,
        {
            value: _VARIABLE.sub(form, expression)
            for value, expression in _expressions.items()
            if _VARIABLE.fullmatch(expression)
        },
    )


def shortened(text: object, longest: int, end: str = "") -> str:
    """Return a masked text of at most `longest` characters.

    It is masked before it is cut, so that no part of a secret remains.

    Args:
        text: any object.
        longest: maximum number of characters.
        end: end of a text that was cut.
    """
    masked_text = masked(str(text))
    return masked_text if len(masked_text) <= longest else masked_text[: longest - len(end)] + end


def in_one_line(error: BaseException, longest: int = 200) -> str:
    """Return an error's message, or else its class, masked, in one line of at most `longest` characters."""
    return shortened(" ".join(masked(str(error)).split()) or type(error).__name__, longest)


def mask_record(record: logging.LogRecord) -> bool:
    """Mask the message of a log record; used as a logging filter."""
    record.msg, record.args = masked(record.getMessage()), None
    return True


def _print_masked(error_class: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback as Python does, but masked."""
    print(masked("".join(traceback.format_exception(error_class, error, trace))), end="", file=sys.stderr)


def _replaced(text: str, expressions: Mapping[str, str]) -> str:
    for value in sorted(expressions, key=len, reverse=True):
        for word, part in _parts(value):
            if word in text:
                text = expressions[value].join(_pattern(part, len(value) >= MIN_LENGTH_WITHIN_WORDS).split(text))
    return text


@cache
def _parts(value: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the parts of a value, each with its longest word, which is the same in every form.

    A part has at most `MAX_UNITS` units. A unit is a word, a run of blanks or of backslashes, or another character.
    """
    units = re.findall(rf"{WORD}|\s+|\\+|.", value.strip(), re.DOTALL)
    n_parts = -(-len(units) // MAX_UNITS)
    parts = [tuple(units[len(units) * i // n_parts : len(units) * (i + 1) // n_parts]) for i in range(n_parts)]
    return [(max(re.findall(rf"{WORD}|$", "".join(part)), key=len), part) for part in parts]


@cache
def _pattern(units: tuple[str, ...], is_long: bool) -> re.Pattern[str]:
    """Return a pattern for a part of a value, as it is or as Python, JSON, HTML and URLs escape it, even repeatedly.

    Blanks and line ends match each other, because messages are joined into one line.
    """
    forms = "".join(map(_escaped_forms, units))
    # If a match begins with a run of backslashes, it takes the whole run and never begins within it.
    begin = "" if re.match(WORD, units[0]) else r"(?<!\\)(?<!%5[Cc])"
    return re.compile(begin + forms if is_long else rf"(?<!\w)(?:{begin}|(?<=\w\\)){forms}(?!\w)")


@cache
def _escaped_forms(unit: str) -> str:
    """Return a pattern for all forms of a unit, which may be escaped more than once."""
    backslash = r"(?:\\|%5[Cc])"  # possessive (*+, ++), so that a run is not split in all possible ways
    if unit.startswith("\\"):
        return rf"{backslash}++"
    if re.fullmatch(WORD, unit):
        return unit
    forms: set[str] = set()
    for character in unit:
        encoded = character.encode("utf-8", "surrogatepass")
        percent = "".join(f"%{byte:02X}" for byte in encoded)
        forms |= {html.escape(character), percent, percent.lower(), json.dumps(character)[1:-1]}
        forms |= {ascii(character)[1:-1], repr(encoded)[2:-1], character}
    alternatives = {
        re.escape(form.lstrip("\\")).replace(r"\\", f"{backslash}++")
        for form in forms
        if not form.isspace() and form != "%20"
    }
    escaped = f"{backslash}*+(?:{'|'.join(sorted(alternatives))})"
    return rf"(?:\s|\+|%20{f'|{escaped}' if alternatives else ''})+" if unit.isspace() else escaped
