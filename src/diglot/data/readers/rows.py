"""Reading of rows of tab-separated or comma-separated columns."""

import csv
import itertools
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence

from diglot.data.readers.formats import Format, Pair, given, head_lines, head_of
from diglot.data.readers.sides import Languages, Side, has_names, listed
from diglot.data.text import sentence_blocks
from diglot.errors import UserError

Row = tuple[int, list[str]]  # the number of its (last) line, and its columns
_LONGEST_FIELD = 2**24  # characters, of a CSV file
_DECLARATION = re.compile(r'"?sep=([,;\t])"?')  # of the separator, as Excel writes it in the first line
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}


class Rows(Format):
    """A format of rows, whose first one may name the columns."""

    @abstractmethod
    def rows(self, path: str) -> Iterator[Row]:
        """Yield the rows of a file."""

    @abstractmethod
    def separator(self, path: str) -> str:
        """Return the name of the character between columns, for messages."""

    def languages(self, path: str) -> Languages:
        return Languages(_header(self.rows(path)), are_columns=True, are_numbered=True)

    def pairs(self, path: str, sides: Sequence[Side], exact: Collection[str] = ()) -> Iterator[Pair]:
        rows = self.rows(path)
        indices = _indices(sides, _header(rows) if has_names(sides) else [], path)
        needed = max(map(max, indices)) + 1
        pick_src, pick_tgt, *pick_more = map(_picker, indices)
        is_empty = True
        for number, row in rows:
            if len(row) < needed:
                if any(map(str.strip, row)):
                    what = f"{self.separator(path)}-separated column(s)"
                    raise UserError(f"{path}, line {number}: {len(row)} {what}, {needed} needed")
                row.extend([""] * (needed - len(row)))  # a blank line is a pair with blank sides
            is_empty = False
            yield pick_src(row), pick_tgt(row), *[given(pick(row)) for pick in pick_more]
        if is_empty:
            raise UserError(f"{path}: no rows below the header")


def _header(rows: Iterator[Row]) -> list[str]:
    """Return the names in the first row that is not blank, without the spaces around them."""
    return [name.strip() for name in next((row for _, row in rows if any(map(str.strip, row))), [])]


def _indices(sides: Sequence[Side], header: Sequence[str], path: str) -> list[list[int]]:
    """Return the numbers of the columns of each side.

    Raises:
        UserError: the header lacks a name.
    """
    for column in itertools.chain.from_iterable(sides):
        if isinstance(column, str) and column not in header:
            raise UserError(f"{path}: no column {column!r} in its first row, which has {listed(header)}")
    return [[header.index(column) if isinstance(column, str) else column for column in side] for side in sides]


def _picker(indices: Sequence[int]) -> Callable[[list[str]], str]:
    """Return a function that returns one side of a row: a column, or several joined by a space."""
    if len(indices) == 1:
        return lambda row, i=indices[0]: row[i]  # type: ignore[misc]
    return lambda row: " ".join([row[i] for i in indices if row[i]])


class Tsv(Rows):
    """Tab-separated columns. There is no quoting: quotes and "NA" are text."""

    name = "tab-separated columns"

    def detects(self, head: bytes) -> bool:
        lines = [line for line in head_lines(head) if line.strip()]
        if not lines or _DECLARATION.fullmatch(lines[0]):
            return False
        return "\t" in lines[0] and 2 * sum("\t" in line for line in lines) > len(lines)

    def rows(self, path: str) -> Iterator[Row]:
        lines = itertools.chain.from_iterable(sentence_blocks(path))
        return ((number, line.split("\t")) for number, line in enumerate(lines, start=1))

    def separator(self, path: str) -> str:
        return "tab"


class Csv(Rows):
    """Columns separated by commas, semicolons or tabs, with quotes as in RFC 4180.

    Args:
        prefers_commas: whether commas separate the columns wherever they can.
    """

    name = "CSV"

    def __init__(self, prefers_commas: bool = False) -> None:
        self.prefers_commas = prefers_commas

    def detects(self, head: bytes) -> bool:
        lines = head_lines(head)
        if _DECLARATION.fullmatch(lines[0]):
            return True
        return any(len(_widths(lines, separator)) == 1 for separator in self._possible(lines))

    def rows(self, path: str) -> Iterator[Row]:
        """Yield the rows of a file; a line break in a quoted field becomes a space."""
        csv.field_size_limit(_LONGEST_FIELD)
        lines = (f"{line}\n" for block in sentence_blocks(path) for line in block)
        reader = csv.reader(lines, delimiter=self._separator(path), strict=True)
        try:
            for row in reader:
                if reader.line_num == 1 and _is_declaration(row):
                    continue
                yield reader.line_num, [" ".join(field.split("\n")) for field in row]
        except csv.Error as error:
            raise UserError(f"{path}, line {reader.line_num}: not valid CSV ({error})") from None

    def separator(self, path: str) -> str:
        return _SEPARATORS[self._separator(path)].removesuffix("s")

    def describe(self, path: str) -> str:
        return f"{self.name} separated by {_SEPARATORS[self._separator(path)]}"

    def _separator(self, path: str) -> str:
        lines = head_lines(head_of(path))
        if match := _DECLARATION.fullmatch(lines[0]):
            return match[1]
        possible = self._possible(lines)
        if self.prefers_commas and "," in possible:
            return ","
        constant = [separator for separator in possible if len(_widths(lines, separator)) == 1]
        return (constant or possible or [","])[0]

    def _possible(self, lines: Sequence[str]) -> list[str]:
        """Return the characters that separate at least two columns in each of some lines."""
        return [separator for separator in _SEPARATORS if min(_widths(lines, separator), default=0) > 1]


def _is_declaration(row: Sequence[str]) -> bool:
    """Return whether a row declares the separator, which also splits it."""
    return row == ["sep=", ""] or (len(row) == 1 and _DECLARATION.fullmatch(row[0]) is not None)


def _widths(lines: Sequence[str], separator: str) -> set[int]:
    """Return the numbers of columns in the rows of some lines, up to the first row that is no CSV."""
    widths = set()
    try:
        for row in csv.reader((f"{line}\n" for line in lines), delimiter=separator, strict=True):
            if any(map(str.strip, row)):
                widths.add(len(row))
    except csv.Error:
        return widths
    return widths
