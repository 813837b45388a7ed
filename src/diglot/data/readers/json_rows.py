"""Reading of JSON: an object per line (JSON Lines), or an array of objects.

The library `datasets` is not used here, because it changes text. It rewrites text that looks like a date. If a number
appears late in a column of text, it puts quotes around all of the text.
"""

import codecs
import itertools
import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, BinaryIO

from diglot.data.readers.formats import SAMPLE, Format, Pair, given
from diglot.data.readers.opening import open_file
from diglot.data.readers.sides import Languages, Side
from diglot.data.readers.units import one_line
from diglot.data.text import line_blocks
from diglot.errors import UserError

_TRANSLATION = "translation"  # the key of the languages in the Hub's form, {"translation": {"de": ..., "en": ...}}
_CHUNK_SIZE = 2**20  # bytes of an array that are read at once
_MAX_OBJECT_SIZE = 2**27  # characters of an object in an array
_WHITESPACE = re.compile(r"[ \t\r\n]*")
# The start of an object or of an array of objects. Arrays of other items, and objects with the quotes of Python, match
# too: they are meant as JSON, and reading them gives a clear error.
_FILE_START = re.compile(rb"""\[\s*\{|\{\s*(["'}]|$)|\[\s*(?:\[\s*)?"[^\t\n]*(?:\n|$)""")
_ARRAY_START = re.compile(rb"(\xef\xbb\xbf)?[ \t\r\n]*\[")

Object = tuple[int, dict[str, Any]]  # the line on which an object starts, from 1, and its content


class Json(Format):
    """JSON objects whose keys are columns or languages. Languages may also be keys of an object "translation"."""

    name = "JSON"

    def detects(self, head: bytes) -> bool:
        start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
        return _FILE_START.match(start) is not None

    def languages(self, path: str) -> Languages:
        keys: dict[str, None] = {}
        for _, row in itertools.islice(json_objects(path), SAMPLE):
            keys |= dict.fromkeys(_columns(row))
        return Languages(list(keys), are_columns=True)

    def pairs(self, path: str, sides: Sequence[Side], exact: Collection[str] = ()) -> Iterator[Pair]:
        for line_number, row in json_objects(path):
            columns = _columns(row)
            src = _side_text(columns, sides[0], path, line_number)
            tgt, *more = itertools.chain.from_iterable(
                _alternatives(columns, side, path, line_number) for side in sides[1:]
            )
            yield src, tgt, *map(given, more)


def _columns(row: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of an object, in which the languages below the key "translation" are columns, too."""
    translation = row.get(_TRANSLATION)
    if not isinstance(translation, dict):
        return row
    return {key: value for key, value in row.items() if key != _TRANSLATION} | translation


def _alternatives(columns: dict[str, Any], side: Side, path: str, line_number: int) -> list[str]:
    """Return the texts of a target side: several, if its column is an array of texts, each of which is a reference."""
    texts = columns.get(str(side[0]))
    if len(side) > 1 or not isinstance(texts, list):
        return [_side_text(columns, side, path, line_number)]
    return [one_line(checked_text(text, path, line_number) or "") for text in texts] or [""]


def _side_text(columns: dict[str, Any], side: Side, path: str, line_number: int) -> str:
    """Return one side of a pair, in which null and a missing key are blank."""
    texts = [checked_text(columns.get(str(column)), path, line_number) for column in side]
    return one_line(texts[0] or "" if len(texts) == 1 else " ".join(filter(None, texts)))


def json_objects(path: str) -> Iterator[Object]:
    """Yield the objects of a file with JSON Lines or a JSON array, with their line numbers; skip blank lines.

    An array is decoded in parts. The memory needed is a few megabytes, or that of the largest object.

    Raises:
        UserError: a line or an item is not an object; or `read_blocks` raises it.
    """
    with open_file(path) as file:
        is_array = _ARRAY_START.match(file.peek(64)) is not None
        yield from _array_objects(file, path) if is_array else _line_objects(file, path)


def _line_objects(file: BinaryIO, path: str) -> Iterator[Object]:
    lines = itertools.chain.from_iterable(line_blocks(file, path, SAMPLE))
    for line_number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{path}, line {line_number}: not valid JSON; each line must be a JSON object "
                f"({error.msg}, column {error.colno})"
            ) from None
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {line_number}: not readable as JSON ({error})") from None
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {line_number}: a JSON {type(row).__name__}; each line must be a JSON object")
        yield line_number, row


class _TextBuffer:
    """Text of a stream that is decoded in parts.

    Args:
        file: stream of UTF-8.
        path: name of the stream in errors.

    Attributes:
        line: number of the current line, from 1.
        buffer: part of the text that is in memory.
        position: current position in the buffer, up to which JSON is decoded.
        is_complete: whether the buffer reaches to the end of the stream.
    """

    def __init__(self, file: BinaryIO, path: str) -> None:
        self.path, self.line = path, 1
        self.buffer, self.position = "", 0
        self.is_complete = False
        self._file, self._decoder = file, codecs.getincrementaldecoder("utf-8")()

    def read_more(self) -> None:
        """Append text to the buffer: at least as much as remains in it.

        The buffer doubles, so that the number of attempts to decode a large object grows only with the logarithm of its
        size.
        """
        data = self._file.read(max(_CHUNK_SIZE, len(self.buffer) - self.position))
        self.is_complete = not data
        try:
            text = self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise self.error(
                f"not UTF-8 ({error.reason}, byte 0x{error.object[error.start]:02x})", "at or after "
            ) from None
        self.buffer, self.position = self.buffer[self.position :] + text, 0

    def advance_to(self, position: int) -> None:
        """Move the current position forwards."""
        self.line += self.buffer.count("\n", self.position, position)
        self.position = position

    def next_character(self) -> str:
        """Move to the next character that is not whitespace, and return it; at the end of the stream, return ""."""
        while True:
            self.advance_to(_WHITESPACE.match(self.buffer, self.position).end())  # type: ignore[union-attr]
            if self.position < len(self.buffer) or self.is_complete:
                return self.buffer[self.position : self.position + 1]
            self.read_more()

    def error(self, reason: str, prefix: str = "") -> UserError:
        """Return an error that names the current line."""
        return UserError(f"{self.path}, {prefix}line {self.line}: {reason}")


def _array_objects(file: BinaryIO, path: str) -> Iterator[Object]:
    text = _TextBuffer(file, path)
    if text.next_character() == "\ufeff":
        text.advance_to(text.position + 1)
        text.next_character()
    text.advance_to(text.position + 1)  # the bracket
    if text.next_character() == "]":
        raise UserError(f"{path}: the JSON array is empty")
    decoder = json.JSONDecoder()
    while True:
        if not text.next_character():
            raise text.error("the JSON array has no end: the file is cut short")
        row, end = _decode_item(text, decoder)
        if not isinstance(row, dict):
            raise text.error(f"a JSON {type(row).__name__}; each item of the array must be a JSON object")
        yield text.line, row
        text.advance_to(end)
        character = text.next_character()
        text.advance_to(text.position + len(character))
        if character == "]":
            break
        if character not in (",", ""):
            raise text.error("not valid JSON (no comma between two items of the array)")
    if text.next_character():
        raise text.error("text after the end of the JSON array")


def _decode_item(text: _TextBuffer, decoder: json.JSONDecoder) -> tuple[Any, int]:
    """Return the item at the current position and the position of its end; read on while it may be incomplete."""
    while True:
        try:
            return decoder.raw_decode(text.buffer, text.position)
        except json.JSONDecodeError as error:
            # Of an incomplete string, the error's position is the start; of another incomplete value, almost the end.
            may_be_incomplete = error.msg.startswith("Unterminated") or error.pos > len(text.buffer) - 12
            if not may_be_incomplete or text.is_complete or len(text.buffer) - text.position > _MAX_OBJECT_SIZE:
                text.advance_to(min(error.pos, len(text.buffer)))
                raise text.error(f"not valid JSON ({error.msg})") from None
            text.read_more()
        except (ValueError, RecursionError) as error:
            raise text.error(f"not readable as JSON ({error})") from None


def checked_text(value: object, path: str, line_number: int) -> str | None:
    """Return a value of an object, after a check that it is text or null.

    Args:
        value: the value.
        path: name of the file in errors.
        line_number: line of the object in errors, from 1.

    Raises:
        UserError: the value is of another type, or it cannot be encoded in UTF-8.
    """
    if value is None:
        return None
    if not isinstance(value, str):
        raise UserError(
            f"{path}, line {line_number}: a sentence has type {type(value).__name__}, not text: {str(value)[:60]}"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{path}, line {line_number}: a sentence contains a lone surrogate (half a character)"
        ) from None
    return value
