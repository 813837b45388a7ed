"""Reading of a file that holds both sides, in the format that its content shows or that the user names."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from diglot.data.readers.formats import Format, Pair, head_of
from diglot.data.readers.json_rows import Json
from diglot.data.readers.opening import opened, texts_in
from diglot.data.readers.parquet import Parquet
from diglot.data.readers.rows import Csv, Tsv, is_quoted
from diglot.data.readers.sides import Side, Wanted, choose
from diglot.data.readers.unit_formats import UNIT_FORMATS, is_sgm, is_sgm_head
from diglot.data.readers.wmt import join_sides, read_sgm
from diglot.data.readers.zip_pair import ZipPair
from diglot.data.text import ParallelText, binary_format
from diglot.errors import UserError
from diglot.system.quoting import printable

# The formats that the content of a file shows, the most certain first.
FORMATS: tuple[Format, ...] = (Parquet(), *UNIT_FORMATS, Json(), Tsv(), Csv())
# The formats that the user may name.
CLAIMS: dict[str, Format] = {"tsv": Tsv(), "csv": Csv(prefers_commas=True), "jsonl": Json()}


class Reader(ABC):
    """A reader of a file format of your own, for data.reader."""

    @abstractmethod
    def pairs(self, path: str) -> Iterable[Pair]:
        """Yield the pairs of a file as (source, target), in order and without line breaks.

        A reader may raise UserError, with a message of one line.
        """


class FileReader:
    """Reader of files that hold both sides.

    Args:
        wanted: the columns or languages of the two sides.
        format: the format of all files; None: each file's content shows it.
        columns_only: whether the columns are `wanted.columns`, whatever the first row names.
    """

    def __init__(self, wanted: Wanted, format: Format | None = None, columns_only: bool = False) -> None:
        self.wanted, self.format, self.columns_only = wanted, format, columns_only

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
        path = shard[0]
        exact = [code for code in (self.wanted.src_lang, self.wanted.tgt_lang) if code]
        return blocks_of(self.format_of(path).pairs(path, *self.sides(path), exact), path, size)

    def is_quoted_tsv(self, path: str) -> bool:
        """Return whether the content of a file shows that its columns are separated by tabs, and quoted as in CSV."""
        return self.format is None and isinstance(format_of(path), Csv) and is_quoted(path)

    def describe(self, path: str) -> str | None:
        """Return what was decided from a file's content: its format and its sides; None if nothing was."""
        form = self.format_of(path)
        if self.columns_only:
            is_usual = form.separator(path) == "comma" if isinstance(form, Csv) else not is_quoted(path)
            return None if is_usual else form.describe(path)
        src, tgt = (" and ".join(map(str, side)) for side in self.sides(path))
        return f"{form.describe(path)}: source {src}, target {tgt}"


class OwnReader:
    """Reader of files by a class of the user's own, whose pairs are checked."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def blocks(self, shard: tuple[str, ...], size: int) -> Iterator[ParallelText]:
        """Yield the pairs of a file in order, at most `size` at a time."""
        return blocks_of(self._checked(shard[0]), shard[0], size)

    def _checked(self, path: str) -> Iterator[Pair]:
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
    """Reader of WMT test sets in SGML, a file for each side, whose segments are paired by their ids."""

    def blocks(self, shard: tuple[str, ...], size: int) -> Iterator[ParallelText]:
        """Yield the pairs of two files in order, at most `size` at a time; of several references, the first."""
        src, tgt = shard
        with opened(src) as src_file, opened(tgt) as tgt_file:
            units = join_sides(read_sgm(src_file, src), read_sgm(tgt_file, tgt), src, tgt)
            yield from blocks_of(((unit.texts["src"][0], unit.texts["tgt"][0]) for unit in units), src, size)


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
    if len(members := texts_in(path)) > 1:
        _refuse_formats(path, members)
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
    if found is None and (what := binary_format(head)):
        raise UserError(f"{path}: {what}")
    if found is None:
        raise UserError(
            f"{path}: of no format that holds both sides (TMX, XLIFF, PO, JSON, Parquet, TSV, CSV, ...); if its "
            "lines are one side, type data.train.src=FILE data.train.tgt=FILE"
        )
    return found


def _refuse_formats(path: str, members: Sequence[str]) -> None:
    """Check that the members of a ZIP archive are lines of text.

    Raises:
        UserError: one is of a format, or a side of a test set.
    """
    for member in members:
        head = head_of(path, member)
        # The lines of a text may all have the same number of commas, so that they look like CSV.
        formats = (
            FORMATS if ".csv" in Path(member).suffixes else [each for each in FORMATS if not isinstance(each, Csv)]
        )
        name = "SGML" if is_sgm_head(head) else next((each.name for each in formats if each.detects(head)), None)
        if name is not None:
            raise UserError(
                f"{path}: its member {printable(member)} contains {name}; of several files in an archive, each must "
                "be the lines of a language: unpack it"
            )


def blocks_of(pairs: Iterable[Pair], path: str, size: int) -> Iterator[ParallelText]:
    """Yield pairs in blocks.

    Raises:
        UserError: there are none.
    """
    pairs, n_pairs = iter(pairs), 0
    while block := list(islice(pairs, size)):
        n_pairs += len(block)
        src, tgt = zip(*block)
        yield ParallelText(list(src), list(tgt))
    if not n_pairs:
        raise UserError(f"{path}: the file has no pairs")
