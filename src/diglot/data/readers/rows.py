"""Reading of rows of tab-separated or comma-separated columns."""

import csv
import itertools
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence

from diglot.data.readers.formats import Format, Pair, head_lines, head_of
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

    def pairs(self, path: str, src: Side, tgt: Side, exact: Collection[str] = ()) -> Iterator[Pair]:
        rows = self.rows(path)
        if has_names((src, tgt)):
            header = _header(rows)
            for column in (*src, *tgt):
                if column not in header:
                    raise UserError(f"{path}: no column {column!r} in its first row, which has {listed(header)}")
            src, tgt = (tuple(header.index(str(column)) for column in side) for side in (src, tgt))
        indices = [int(column) for column in (*src, *tgt)]
        needed = max(indices) + 1
        pick_src, pick_tgt = _picker(indices[: len(src)]), _picker(indices[len(src) :])
        is_empty = True
        for number, row in rows:
            if len(row) < needed:
                if any(map(str.strip, row)):
                    what = f"{self.separator(path)}-separated column(s)"
                    raise UserError(f"{path}, line {number}: {len(row)} {what}, {needed} needed")
                row.extend([""] * (needed - len(row)))  # a blank line is a pair with blank sides
            is_empty = False
            yield pick_src(row), pick_tgt(row)
        if is_empty:
            raise UserError(f"{path}: no rows below the header")


def _header(rows: Iterator[Row]) -> list[str]:
    """Return the names in the first row that is not blank, without the spaces around them."""
    return [name.strip() for name in next((row for _, row in rows if any(map(str.strip, row))), [])]


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
        if not lines or _DECLARATION.fullmatch(lines[0]) or _are_quoted(lines):
            return False
        return "\t" in lines[0] and 2 * sum("\t" in line for line in lines) > len(lines)

    def rows(self, path: str) -> Iterator[Row]:
        lines = itertools.chain.from_iterable(sentence_blocks(path))
        return ((number, line.split("\t")) for number, line in enumerate(lines, start=1))

    def separator(self, path: str) -> str:
        return "tab"

    def describe(self, path: str) -> str:
        quoted = ", whose quotes are text (csv instead of tsv takes them off)"
        return self.name + (quoted if is_quoted(path) else "")


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


def is_quoted(path: str) -> bool:
    """Return whether each cell of tab-separated columns is in quotes, as in a CSV file, or a number."""
    return _are_quoted(head_lines(head_of(path)))


def _are_quoted(lines: Sequence[str]) -> bool:
    widths = set()
    lines = [f"{line}\n" for line in lines]
    try:
        # With this option, a cell without quotes is a number, or else an error.
        for row in csv.reader(lines, csv.excel_tab, quoting=csv.QUOTE_NONNUMERIC, strict=True):
            if row and not any(isinstance(cell, str) and cell for cell in row):
                return False  # only numbers
            widths.add(len(row) or 2)
    except ValueError:
        return False
    except csv.Error as error:
        if "end of data" not in str(error):  # a cell of several lines, in which the head ends
            return False
    return len(widths) == 1 and widths.pop() > 1


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
