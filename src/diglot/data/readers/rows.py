"""Reading of tab-separated or comma-separated columns."""

import csv
import itertools
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence

from diglot.data.readers.formats import Format, Pair, given, head_lines, read_head
from diglot.data.readers.sides import Languages, Side, format_names, has_names
from diglot.data.text import sentence_blocks
from diglot.errors import UserError

Row = tuple[int, list[str]]  # number of the line on which a row ends, from 1, and the columns of the row
_MAX_FIELD_SIZE = 2**24  # characters of a CSV field
_SEPARATOR_LINE = re.compile(r'"?sep=([,;\t])"?')  # first line that declares the separator, as Excel writes it
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}


class Rows(Format):
    """Base class of formats of rows. The first row may name the columns."""

    @abstractmethod
    def rows(self, path: str) -> Iterator[Row]:
        """Yield the rows of a file with their line numbers."""

    @abstractmethod
    def separator(self, path: str) -> str:
        """Return the name of the character that separates columns, for messages."""

    def languages(self, path: str) -> Languages:
        return Languages(_header(self.rows(path)), are_columns=True, are_numbered=True)

    def pairs(self, path: str, sides: Sequence[Side], exact: Collection[str] = ()) -> Iterator[Pair]:
        rows = self.rows(path)
        indices = _column_indices(sides, _header(rows) if has_names(sides) else [], path)
        n_columns = max(map(max, indices)) + 1
        get_src, get_tgt, *get_more = map(_side_getter, indices)
        is_empty = True
        for line_number, row in rows:
            if len(row) < n_columns:
                if any(map(str.strip, row)):
                    columns = f"{self.separator(path)}-separated column(s)"
                    raise UserError(f"{path}, line {line_number}: {len(row)} {columns}, {n_columns} needed")
                row.extend([""] * (n_columns - len(row)))  # a blank line is a pair with blank sides
            is_empty = False
            yield get_src(row), get_tgt(row), *[given(get(row)) for get in get_more]
        if is_empty:
            raise UserError(f"{path}: no rows below the header")


def _header(rows: Iterator[Row]) -> list[str]:
    """Read the first row that is not blank; return its fields without the spaces around them, or [] without a row."""
    return [name.strip() for name in next((row for _, row in rows if any(map(str.strip, row))), [])]


def _column_indices(sides: Sequence[Side], header: Sequence[str], path: str) -> list[list[int]]:
    """Return the indices of the columns of each side.

    Args:
        sides: columns of each side.
        header: names of all columns; empty if the sides have numbers only.
        path: name of the file in errors.

    Raises:
        UserError: a name is not in the header.
    """
    for column in itertools.chain.from_iterable(sides):
        if isinstance(column, str) and column not in header:
            raise UserError(f"{path}: no column {column!r} in its first row, which has {format_names(header)}")
    return [[header.index(column) if isinstance(column, str) else column for column in side] for side in sides]


def _side_getter(indices: Sequence[int]) -> Callable[[list[str]], str]:
    """Return a function that returns one side of a row: a column, or several joined by a space.

    A function for a single column is separate, because it is called for each row of the data.
    """
    if len(indices) == 1:
        return lambda row, i=indices[0]: row[i]  # type: ignore[misc]
    return lambda row: " ".join([row[i] for i in indices if row[i]])


class Tsv(Rows):
    """Tab-separated columns without quoting: quotes and "NA" are text."""

    name = "tab-separated columns"

    def detects(self, head: bytes) -> bool:
        lines = [line for line in head_lines(head) if line.strip()]
        if not lines or _SEPARATOR_LINE.fullmatch(lines[0]) or _are_quoted(lines):
            return False
        return "\t" in lines[0] and 2 * sum("\t" in line for line in lines) > len(lines)

    def rows(self, path: str) -> Iterator[Row]:
        lines = itertools.chain.from_iterable(sentence_blocks(path))
        return ((line_number, line.split("\t")) for line_number, line in enumerate(lines, start=1))

    def separator(self, path: str) -> str:
        return "tab"

    def describe(self, path: str) -> str:
        return self.name + (", whose quotes are text (csv instead of tsv takes them off)" if is_quoted(path) else "")


class Csv(Rows):
    """Columns separated by commas, semicolons or tabs, with quotes as in RFC 4180.

    Args:
        prefers_commas: whether the separator is a comma if commas give at least two columns, even if the rows then
            differ in their number of columns.
    """

    name = "CSV"

    def __init__(self, prefers_commas: bool = False) -> None:
        self.prefers_commas = prefers_commas

    def detects(self, head: bytes) -> bool:
        lines = head_lines(head)
        if _SEPARATOR_LINE.fullmatch(lines[0]):
            return True
        return any(len(_column_counts(lines, separator)) == 1 for separator in self._possible_separators(lines))

    def rows(self, path: str) -> Iterator[Row]:
        """Yield the rows of a file; a line break in a quoted field becomes a space."""
        csv.field_size_limit(_MAX_FIELD_SIZE)
        lines = (f"{line}\n" for block in sentence_blocks(path) for line in block)
        reader = csv.reader(lines, delimiter=self._separator(path), strict=True)
        try:
            for row in reader:
                if reader.line_num == 1 and _is_separator_line(row):
                    continue
                yield reader.line_num, [" ".join(field.split("\n")) for field in row]
        except csv.Error as error:
            raise UserError(f"{path}, line {reader.line_num}: not valid CSV ({error})") from None

    def separator(self, path: str) -> str:
        return _SEPARATORS[self._separator(path)].removesuffix("s")

    def describe(self, path: str) -> str:
        return f"{self.name} separated by {_SEPARATORS[self._separator(path)]}"

    def _separator(self, path: str) -> str:
        lines = head_lines(read_head(path))
        if match := _SEPARATOR_LINE.fullmatch(lines[0]):
            return match[1]
        separators = self._possible_separators(lines)
        if self.prefers_commas and "," in separators:
            return ","
        consistent = [separator for separator in separators if len(_column_counts(lines, separator)) == 1]
        return (consistent or separators or [","])[0]

    def _possible_separators(self, lines: Sequence[str]) -> list[str]:
        """Return the separators that give at least two columns in each of the lines."""
        return [separator for separator in _SEPARATORS if min(_column_counts(lines, separator), default=0) > 1]


def is_quoted(path: str) -> bool:
    """Return whether each field of tab-separated columns is in quotes, as in a CSV file, or a number."""
    return _are_quoted(head_lines(read_head(path)))


def _are_quoted(lines: Sequence[str]) -> bool:
    """Return whether each field of tab-separated lines is in quotes or a number, and each row has some in quotes."""
    counts = set()
    lines = [f"{line}\n" for line in lines]
    try:
        # With this option, a field without quotes is a number, or else an error.
        for row in csv.reader(lines, csv.excel_tab, quoting=csv.QUOTE_NONNUMERIC, strict=True):
            if row and not any(isinstance(field, str) and field for field in row):
                return False  # only numbers
            counts.add(len(row) or 2)
    except ValueError:
        return False
    except csv.Error as error:
        if "end of data" not in str(error):  # the head ends inside a field of several lines
            return False
    return len(counts) == 1 and counts.pop() > 1


def _is_separator_line(row: Sequence[str]) -> bool:
    """Return whether a row declares the separator, such as `sep=,`. The separator itself may have split it."""
    return row == ["sep=", ""] or (len(row) == 1 and _SEPARATOR_LINE.fullmatch(row[0]) is not None)


def _column_counts(lines: Sequence[str], separator: str) -> set[int]:
    """Return the different numbers of columns in lines, up to the first row that is not valid CSV."""
    counts = set()
    try:
        for row in csv.reader((f"{line}\n" for line in lines), delimiter=separator, strict=True):
            if any(map(str.strip, row)):
                counts.add(len(row))
    except csv.Error:
        return counts
    return counts
