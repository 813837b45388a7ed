"""Reading of JSON: an object per line (JSON Lines), or an array of objects.

`datasets` reads them too, but it rewrites text that looks like a date. If a number appears late in a column of text, it
puts quotes around all of the text.
"""

import codecs
import itertools
import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, BinaryIO

from diglot.data.readers.formats import SAMPLE, Format, Pair, given
from diglot.data.readers.opening import opened
from diglot.data.readers.sides import Languages, Side
from diglot.data.readers.units import one_line
from diglot.data.text import line_blocks
from diglot.errors import UserError

_TRANSLATION = "translation"  # the key of the languages in the Hub's form, {"translation": {"de": ..., "en": ...}}
_CHUNK = 2**20  # characters of an array that are decoded at once
_LARGEST_OBJECT = 2**27  # characters
_BLANKS = re.compile(r"[ \t\r\n]*")
# Objects, or what is meant as JSON and is refused with a reason: arrays of arrays, and quotes of Python.
_HEAD = re.compile(rb"""\[\s*\{|\{\s*(["'}]|$)|\[\s*(?:\[\s*)?"[^\t\n]*(?:\n|$)""")
_ARRAY = re.compile(rb"(\xef\xbb\xbf)?[ \t\r\n]*\[")

Object = tuple[int, dict[str, Any]]  # the number of its first line, and its content


class Json(Format):
    """JSON objects whose keys are columns, or languages, also inside the key "translation"."""

    name = "JSON"

    def detects(self, head: bytes) -> bool:
        start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
        return _HEAD.match(start) is not None

    def languages(self, path: str) -> Languages:
        keys: dict[str, None] = {}
        for _, row in itertools.islice(json_objects(path), SAMPLE):
            keys |= dict.fromkeys(_columns(row))
        return Languages(list(keys), are_columns=True)

    def pairs(self, path: str, sides: Sequence[Side], exact: Collection[str] = ()) -> Iterator[Pair]:
        for number, row in json_objects(path):
            columns = _columns(row)
            src, tgt, *more = [_side(columns, side, path, number) for side in sides]
            yield src, tgt, *map(given, more)


def _columns(row: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of an object, in which languages need no key of their own."""
    held = row.get(_TRANSLATION)
    return {key: value for key, value in row.items() if key != _TRANSLATION} | held if isinstance(held, dict) else row


def _side(columns: dict[str, Any], side: Side, path: str, number: int) -> str:
    """Return one side of a pair; null and a missing key are blank."""
    texts = [checked_text(columns.get(str(column)), path, number) for column in side]
    return one_line(texts[0] or "" if len(texts) == 1 else " ".join(filter(None, texts)))


def json_objects(path: str) -> Iterator[Object]:
    """Yield the objects of a file with JSON Lines or a JSON array, with their line numbers; skip blank lines.

    An array is decoded in parts, in the memory of a few megabytes or of its largest object.

    Raises:
        UserError: a line or an item is no object, or `read_blocks` refuses the file.
    """
    with opened(path) as file:
        is_array = _ARRAY.match(file.peek(64)) is not None
        yield from _array_objects(file, path) if is_array else _line_objects(file, path)


def _line_objects(file: BinaryIO, path: str) -> Iterator[Object]:
    lines = itertools.chain.from_iterable(line_blocks(file, path, SAMPLE))
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{path}, line {number}: not valid JSON; each line must be a JSON object "
                f"({error.msg}, column {error.colno})"
            ) from None
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: not readable as JSON ({error})") from None
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: a JSON {type(row).__name__}; each line must be a JSON object")
        yield number, row


class _Text:
    """The text of a stream, of which a part is in memory."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self.path, self.line = path, 1
        self.part, self.at = "", 0  # the part, and how far it is decoded
        self.is_complete = False  # whether the part reaches to the end of the stream
        self._file, self._decoder = file, codecs.getincrementaldecoder("utf-8")()

    def extend(self) -> None:
        """Read on: at least as much as is in memory, so that a large object is not decoded from its start too often."""
        data = self._file.read(max(_CHUNK, len(self.part) - self.at))
        self.is_complete = not data
        try:
            text = self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise self.error(
                f"not UTF-8 ({error.reason}, byte 0x{error.object[error.start]:02x})", "at or after "
            ) from None
        self.part, self.at = self.part[self.at :] + text, 0

    def move(self, to: int) -> None:
        """Take the text up to a place as decoded."""
        self.line += self.part.count("\n", self.at, to)
        self.at = to

    def next(self) -> str:
        """Return the next character that is no whitespace, without taking it; "" at the end."""
        while True:
            self.move(_BLANKS.match(self.part, self.at).end())  # type: ignore[union-attr]
            if self.at < len(self.part) or self.is_complete:
                return self.part[self.at : self.at + 1]
            self.extend()

    def error(self, what: str, where: str = "") -> UserError:
        return UserError(f"{self.path}, {where}line {self.line}: {what}")


def _array_objects(file: BinaryIO, path: str) -> Iterator[Object]:
    text = _Text(file, path)
    if text.next() == "\ufeff":
        text.move(text.at + 1)
        text.next()
    text.move(text.at + 1)  # the bracket
    if text.next() == "]":
        raise UserError(f"{path}: the JSON array is empty")
    decoder = json.JSONDecoder()
    while True:
        if not text.next():
            raise text.error("the JSON array has no end: the file is cut short")
        row, end = _decoded(text, decoder)
        if not isinstance(row, dict):
            raise text.error(f"a JSON {type(row).__name__}; each item of the array must be a JSON object")
        yield text.line, row
        text.move(end)
        character = text.next()
        text.move(text.at + len(character))
        if character == "]":
            break
        if character not in (",", ""):
            raise text.error("not valid JSON (no comma between two items of the array)")
    if text.next():
        raise text.error("text after the end of the JSON array")


def _decoded(text: _Text, decoder: json.JSONDecoder) -> tuple[Any, int]:
    """Return the next item and where it ends; read on for as long as it may only be incomplete."""
    while True:
        try:
            return decoder.raw_decode(text.part, text.at)
        except json.JSONDecodeError as error:
            # The place of an unfinished string is its start, of anything else unfinished nearly the end.
            may_go_on = error.msg.startswith("Unterminated") or error.pos > len(text.part) - 12
            if not may_go_on or text.is_complete or len(text.part) - text.at > _LARGEST_OBJECT:
                text.move(min(error.pos, len(text.part)))
                raise text.error(f"not valid JSON ({error.msg})") from None
            text.extend()
        except (ValueError, RecursionError) as error:
            raise text.error(f"not readable as JSON ({error})") from None


def checked_text(value: object, path: str, number: int) -> str | None:
    """Return a value of an object if it is text or null.

    Raises:
        UserError: the value is of another type, or it cannot be encoded in UTF-8.
    """
    if value is None:
        return None
    if not isinstance(value, str):
        raise UserError(
            f"{path}, line {number}: a sentence has type {type(value).__name__}, not text: {str(value)[:60]}"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{path}, line {number}: a sentence contains a lone surrogate (half a character)") from None
    return value
