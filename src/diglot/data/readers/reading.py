"""Reading of a file that holds both sides, in the format that its content shows or that the user names."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from diglot.data.readers.formats import Format, Pair, given, head_of
from diglot.data.readers.json_rows import Json
from diglot.data.readers.opening import opened, texts_in
from diglot.data.readers.parquet import Parquet
from diglot.data.readers.rows import Csv, Tsv
from diglot.data.readers.sides import Side, Wanted, check_references, choose
from diglot.data.readers.unit_formats import UNIT_FORMATS, is_sgm
from diglot.data.readers.wmt import Segment, join_sides, read_sgm
from diglot.data.readers.zip_pair import ZipPair
from diglot.data.text import ParallelText
from diglot.errors import UserError

# The formats that the content of a file shows, the most certain first.
FORMATS: tuple[Format, ...] = (Parquet(), *UNIT_FORMATS, Json(), Tsv(), Csv())
# The formats that the user may name.
CLAIMS: dict[str, Format] = {"tsv": Tsv(), "csv": Csv(prefers_commas=True), "jsonl": Json()}


class Reader(ABC):
    """A reader of a file format of your own, for data.reader."""

    @abstractmethod
    def pairs(self, path: str) -> Iterable[tuple[str, str]]:
        """Yield the pairs of a file as (source, target), in order and without line breaks.

        A reader may raise UserError, with a message of one line.
        """


class FileReader:
    """Reader of files that hold both sides.

    Args:
        wanted: the columns or languages of the two sides.
        format: the format of all files; None: each file's content shows it.
        columns_only: whether the columns are `wanted.columns`, whatever the first row names.
        all_references: whether to read all references; otherwise, only the first.
    """

    def __init__(
        self, wanted: Wanted, format: Format | None = None, columns_only: bool = False, all_references: bool = False
    ) -> None:
        self.wanted, self.format, self.columns_only = wanted, format, columns_only
        self.all_references = all_references

    def format_of(self, path: str) -> Format:
        """Return the format of a file."""
        return self.format or format_of(path)

    def sides(self, path: str) -> tuple[Side, Side]:
        """Return the columns or languages of a file that make the two sides."""
        if self.columns_only:
            return self.wanted.columns
        return choose(self.format_of(path).languages(path), self.wanted, path)

    def blocks(self, shard: tuple[str, ...], size: int) -> Iterator[ParallelText]:
        """Yield the pairs of a file in order, at most `size` at a time."""
        path, form = shard[0], self.format_of(shard[0])
        exact = [code for code in (self.wanted.src_lang, self.wanted.tgt_lang) if code]
        sides = (*self.sides(path), *self._references(path))
        return blocks_of(form.pairs(path, sides, exact), path, size, self.all_references)

    def _references(self, path: str) -> tuple[Side, ...]:
        """Return the columns or languages of further references."""
        if self.wanted.references:
            check_references(self.format_of(path).languages(path), self.sides(path), self.wanted.references, path)
        return self.wanted.references

    def describe(self, path: str) -> str | None:
        """Return what was decided from a file's content: its format and its sides; None if nothing was."""
        form = self.format_of(path)
        if self.columns_only:
            return form.describe(path) if isinstance(form, Csv) and form.separator(path) != "comma" else None
        src, tgt, *more = (" and ".join(map(str, side)) for side in (*self.sides(path), *self.wanted.references))
        further = f", further references {', '.join(more)}" if more else ""
        return f"{form.describe(path)}: source {src}, target {tgt}{further}"


class OwnReader:
    """Reader of files by a class of the user's own, whose pairs are checked."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def blocks(self, shard: tuple[str, ...], size: int) -> Iterator[ParallelText]:
        """Yield the pairs of a file in order, at most `size` at a time."""
        return blocks_of(self._checked(shard[0]), shard[0], size)

    def _checked(self, path: str) -> Iterator[tuple[str, str]]:
        what = f"data.reader: {type(self.reader).__qualname__}.pairs({path!r})"
        n_pairs = 0
        try:
            for pair in self.reader.pairs(path):
                n_pairs += 1
                if wrong := _wrong_pair(pair):
                    raise UserError(f"{what}: pair {n_pairs} is {wrong}; it must be two lines of text")
                yield pair[0], pair[1]
        except UserError:
            raise
        except Exception as error:  # the user's code may raise anything
            reason = " ".join(str(error).split())
            raise UserError(f"{what}, after {n_pairs} pairs: {type(error).__name__}: {reason}") from error


class SgmReader:
    """Reader of WMT test sets in SGML, a file for each side, whose segments are paired by their ids.

    Args:
        all_references: whether to read all references of a segment; otherwise, only the first.
    """

    def __init__(self, all_references: bool = False) -> None:
        self.all_references = all_references

    def blocks(self, shard: tuple[str, ...], size: int) -> Iterator[ParallelText]:
        """Yield the pairs of two files in order, at most `size` at a time."""
        src, tgt = shard
        texts = (unit.texts for unit in join_sides(segments(src), segments(tgt), src, tgt))
        pairs: Iterator[Pair] = ((text["src"][0], text["tgt"][0], *map(given, text["tgt"][1:])) for text in texts)
        yield from blocks_of(pairs, src, size, self.all_references)


def segments(path: str) -> Iterator[Segment]:
    """Yield the segments of one side of a test set in SGML."""
    with opened(path) as file:
        yield from read_sgm(file, path)


def _wrong_pair(pair: Any) -> str | None:
    """Return what is wrong with a pair, or None."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        return f"{type(pair).__name__} {str(pair)[:40]!r}"
    for side in pair:
        if not isinstance(side, str):
            return f"a pair with {type(side).__name__} {str(side)[:40]!r}"
        if "\n" in side:
            return "a pair with a line break inside a side"
    return None


def format_of(path: str) -> Format:
    """Return the format of a file that holds both sides.

    Raises:
        UserError: the file cannot be read, or is of no known format.
    """
    if len(texts_in(path)) > 1:
        return ZipPair()
    head = head_of(path)
    if not head.strip():
        raise UserError(f"{path}: the file is empty")
    found = next((each for each in FORMATS if each.detects(head)), None)
    if is_sgm(path):
        raise UserError(f"{path}: a side of a test set (SGML): type data.test.src=SOURCE data.test.tgt=REFERENCE")
    if found is None and ".csv" in Path(path).suffixes:  # its rows differ in their number of columns
        return Csv()
    if found is None and head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith((b"[", b"{")):
        return Json()  # whose errors say what is wrong
    if found is None:
        raise UserError(
            f"{path}: of no format that holds both sides (TMX, XLIFF, PO, JSON, Parquet, TSV, CSV, ...); if its "
            "lines are one side, type data.train.src=FILE data.train.tgt=FILE"
        )
    return found


def blocks_of(pairs: Iterable[Pair], path: str, size: int, all_references: bool = False) -> Iterator[ParallelText]:
    """Yield pairs in blocks, with their further references if `all_references` asks for them.

    Raises:
        UserError: there are none.
    """
    pairs, n_pairs = iter(pairs), 0
    while block := list(islice(pairs, size)):
        n_pairs += len(block)
        columns: tuple[Any, ...] = tuple(zip_longest(*block))
        more = columns[2:] if all_references else ()
        yield ParallelText(list(columns[0]), list(columns[1]), tuple(map(list, more)))
    if not n_pairs:
        raise UserError(f"{path}: the file has no pairs")
