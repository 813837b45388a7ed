"""Reading of a file that holds both sides, in the format that its content shows or that the user names."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from diglot.data.readers.formats import Format, Pair, given, read_head
from diglot.data.readers.json_rows import Json
from diglot.data.readers.opening import list_texts, open_file
from diglot.data.readers.parquet import Parquet
from diglot.data.readers.rows import Csv, Tsv, is_quoted
from diglot.data.readers.sides import Side, SideRequest, check_references, choose_sides
from diglot.data.readers.unit_formats import UNIT_FORMATS, is_sgm, is_sgm_head
from diglot.data.readers.wmt import Segment, join_sides, read_sgm
from diglot.data.readers.zip_pair import ZipPair
from diglot.data.text import ParallelText, binary_format
from diglot.errors import UserError
from diglot.system.quoting import printable

# Formats that are detected from the content of a file, in the order in which they are tried.
FORMATS: tuple[Format, ...] = (Parquet(), *UNIT_FORMATS, Json(), Tsv(), Csv())
# Formats that the user may name, by key of `data.train`.
NAMED_FORMATS: dict[str, Format] = {"tsv": Tsv(), "csv": Csv(prefers_commas=True), "jsonl": Json()}


class Reader(ABC):
    """Base class of a reader for a file format of your own, which `data.reader` selects."""

    @abstractmethod
    def pairs(self, path: str) -> Iterable[tuple[str, str]]:
        """Yield the pairs of a file as (source, target), in order and without line breaks.

        It may raise UserError with a one-line message.
        """


class FileReader:
    """Reader of files that hold both sides.

    Args:
        request: columns or languages of the two sides, and of further references.
        format: format of all files; None: detected from the content of each file.
        columns_only: whether the sides are `request.columns`, regardless of the languages in the file.
        all_references: whether to read all references; otherwise, only the first.
    """

    def __init__(
        self,
        request: SideRequest,
        format: Format | None = None,
        columns_only: bool = False,
        all_references: bool = False,
    ) -> None:
        self.request, self.format, self.columns_only = request, format, columns_only
        self.all_references = all_references

    def detect_format(self, path: str) -> Format:
        """Return the format of a file."""
        return self.format or detect_format(path)

    def sides(self, path: str) -> tuple[Side, Side]:
        """Return the columns or languages of the source and of the target in a file."""
        if self.columns_only:
            return self.request.columns
        return choose_sides(self.detect_format(path).languages(path), self.request, path)

    def blocks(self, shard: tuple[str, ...], size: int) -> Iterator[ParallelText]:
        """Yield the pairs of a file in order, at most `size` at a time."""
        path = shard[0]
        exact = [code for code in (self.request.src_lang, self.request.tgt_lang) if code]
        sides = (*self.sides(path), *self._references(path))
        return blocks_of(self.detect_format(path).pairs(path, sides, exact), path, size, self.all_references)

    def _references(self, path: str) -> tuple[Side, ...]:
        """Return the columns or languages of further references."""
        references = self.request.references
        if references:
            check_references(self.detect_format(path).languages(path), self.sides(path), references, path)
        return references

    def is_quoted_tsv(self, path: str) -> bool:
        """Return whether the content of a file shows that its columns are separated by tabs, and quoted as in CSV."""
        return self.format is None and isinstance(detect_format(path), Csv) and is_quoted(path)

    def describe(self, path: str) -> str | None:
        """Return what was detected in a file, its format and its sides, for a message; None if nothing was."""
        file_format = self.detect_format(path)
        if self.columns_only:
            is_usual = file_format.separator(path) == "comma" if isinstance(file_format, Csv) else not is_quoted(path)
            return None if is_usual else file_format.describe(path)
        src, tgt, *more = (" and ".join(map(str, side)) for side in (*self.sides(path), *self.request.references))
        further = f", further references {', '.join(more)}" if more else ""
        return f"{file_format.describe(path)}: source {src}, target {tgt}{further}"


class CustomReader:
    """Reader that applies a user-defined `Reader` and checks the pairs that it yields."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def blocks(self, shard: tuple[str, ...], size: int) -> Iterator[ParallelText]:
        """Yield the pairs of a file in order, at most `size` at a time."""
        return blocks_of(self._checked_pairs(shard[0]), shard[0], size)

    def _checked_pairs(self, path: str) -> Iterator[tuple[str, str]]:
        source = f"data.reader: {type(self.reader).__qualname__}.pairs({path!r})"
        n_pairs = 0
        try:
            for pair in self.reader.pairs(path):
                n_pairs += 1
                if fault := _pair_error(pair):
                    raise UserError(f"{source}: pair {n_pairs} is {fault}; it must be two lines of text")
                yield pair[0], pair[1]
        except UserError:
            raise
        except Exception as error:  # the user's code may raise anything
            reason = " ".join(str(error).split())
            raise UserError(f"{source}, after {n_pairs} pairs: {type(error).__name__}: {reason}") from error


class SgmReader:
    """Reader of WMT test sets in SGML, which have a file for each side. Segments are paired by their ids.

    Args:
        all_references: whether to read all references of a segment; otherwise, only the first.
    """

    def __init__(self, all_references: bool = False) -> None:
        self.all_references = all_references

    def blocks(self, shard: tuple[str, ...], size: int) -> Iterator[ParallelText]:
        """Yield the pairs of two files in order, at most `size` at a time."""
        src_path, tgt_path = shard
        units = join_sides(segments(src_path), segments(tgt_path), src_path, tgt_path)
        texts = (unit.texts for unit in units)
        pairs: Iterator[Pair] = ((text["src"][0], text["tgt"][0], *map(given, text["tgt"][1:])) for text in texts)
        yield from blocks_of(pairs, src_path, size, self.all_references)


def segments(path: str) -> Iterator[Segment]:
    """Yield the segments of one side of a test set in SGML."""
    with open_file(path) as file:
        yield from read_sgm(file, path)


def _pair_error(pair: Any) -> str | None:
    """Return what is wrong with a pair of a user-defined reader; None if nothing is."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        return f"{type(pair).__name__} {str(pair)[:40]!r}"
    for side in pair:
        if not isinstance(side, str):
            return f"a pair with {type(side).__name__} {str(side)[:40]!r}"
        if "\n" in side:
            return "a pair with a line break inside a side"
    return None


def detect_format(path: str) -> Format:
    """Return the format of a file that holds both sides.

    Raises:
        UserError: the file cannot be read, or its format is not known.
    """
    if len(members := list_texts(path)) > 1:
        _refuse_formats(path, members)
        return ZipPair()
    head = read_head(path)
    if not head.strip():
        raise UserError(f"{path}: the file is empty")
    file_format = next((candidate for candidate in FORMATS if candidate.detects(head)), None)
    if is_sgm(path):
        raise UserError(
            f"{path}: this SGML file is one side of a test set: type data.test.src=SOURCE data.test.tgt=REFERENCE"
        )
    # The content of the next two does not show their format, but reading them gives an error that says what is wrong.
    if file_format is None and ".csv" in Path(path).suffixes:
        return Csv()
    if file_format is None and head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith((b"[", b"{")):
        return Json()
    if file_format is None and (reason := binary_format(head)):
        raise UserError(f"{path}: {reason}")
    if file_format is None:
        raise UserError(
            f"{path}: not in a known format that holds both sides (TMX, XLIFF, PO, JSON, Parquet, TSV, CSV, ...); if "
            "its lines are one side, type data.train.src=FILE data.train.tgt=FILE"
        )
    return file_format


def _refuse_formats(path: str, members: Sequence[str]) -> None:
    """Check that the members of a ZIP archive are lines of text.

    Raises:
        UserError: one is in another format, or is one side of a test set.
    """
    for member in members:
        head = read_head(path, member)
        # The lines of a text may all have the same number of commas, so that they look like CSV.
        may_be_csv = ".csv" in Path(member).suffixes
        formats = [each for each in FORMATS if may_be_csv or not isinstance(each, Csv)]
        name = "SGML" if is_sgm_head(head) else next((each.name for each in formats if each.detects(head)), None)
        if name is not None:
            raise UserError(
                f"{path}: its member {printable(member)} contains {name}; of several files in an archive, each must "
                "be the lines of a language: unpack it"
            )


def blocks_of(pairs: Iterable[Pair], path: str, size: int, all_references: bool = False) -> Iterator[ParallelText]:
    """Yield pairs in blocks of at most `size`, with their further references if `all_references` is true.

    Raises:
        UserError: there are no pairs.
    """
    pairs, n_pairs = iter(pairs), 0
    while block := list(islice(pairs, size)):
        n_pairs += len(block)
        columns: tuple[Any, ...] = tuple(zip_longest(*block))
        more = columns[2:] if all_references else ()
        yield ParallelText(list(columns[0]), list(columns[1]), tuple(map(list, more)))
    if not n_pairs:
        raise UserError(f"{path}: the file has no pairs")
