"""Parallel text in memory and in files: a pair is a line in each of two files, or a row of one."""

import csv
import glob
import gzip
import hashlib
import itertools
import json
import re
import sys
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from diglot.data.forms import comparable
from diglot.errors import UserError
from diglot.system.atomic import atomic_file

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BLOCK = 20_000  # pairs that are read, and later tokenised, at once
_COMPRESSED = (".gz", ".zst", ".xz", ".bz2", ".zip")  # endings of names that are not given to plain text
_BOM = "\ufeff"
_LONGEST_FIELD = 2**27  # characters, of a CSV file
Column = int | str


class Parallel(Protocol):
    """Source sentences and their translations, in memory or not."""

    def blocks(self, size: int = BLOCK) -> Iterator["ParallelText"]:
        """All pairs in order, so many at a time."""

    def digest(self) -> str:
        """A hash of all there is to read."""

    def load(self) -> "ParallelText":
        """All of it, in memory."""


@dataclass(frozen=True)
class ParallelText:
    """Source sentences and their translations, in the same order.

    Raises:
        ValueError: the two sides differ in length.
    """

    src: list[str]
    tgt: list[str]

    def __post_init__(self) -> None:
        if len(self.src) != len(self.tgt):
            raise ValueError(f"{len(self.src)} source sentences but {len(self.tgt)} target sentences")

    def __len__(self) -> int:
        return len(self.src)

    def select(self, indices: Sequence[int]) -> "ParallelText":
        """The pairs at `indices`, in that order."""
        return ParallelText([self.src[i] for i in indices], [self.tgt[i] for i in indices])

    def blocks(self, size: int = BLOCK) -> Iterator["ParallelText"]:
        """All pairs in order, so many at a time."""
        for start in range(0, len(self), size):
            yield ParallelText(self.src[start : start + size], self.tgt[start : start + size])

    def load(self) -> "ParallelText":
        return self

    def digest(self) -> str:
        """A hash of all text."""
        total = hashlib.sha256()
        for side in (self.src, self.tgt):
            for line in side:
                total.update(line.encode("utf-8", "surrogatepass") + b"\n")
            total.update(b"\0")
        return total.hexdigest()


class PairFiles:
    """Pairs that stay in their files and are read a block at a time.

    Args:
        name: what an error calls them, "train" say.
        shards: each two files whose lines correspond, or one whose rows hold both sides. All may be compressed (.gz,
            .zst).
        columns: of the rows, as numbers from 0, or as names that stand in the first row.
        commas: whether rows are comma-separated (RFC 4180) and not tab-separated.
    """

    def __init__(
        self,
        name: str,
        shards: Sequence[tuple[str, ...]],
        columns: tuple[Column, Column] = (0, 1),
        commas: bool = False,
    ) -> None:
        self.name, self.shards, self.columns, self.commas = name, list(shards), columns, commas
        self._hashed: tuple[list[tuple[int, ...]], str] = ([], "")  # what the files were, and the hash of their bytes

    def blocks(self, size: int = BLOCK) -> Iterator[ParallelText]:
        """All pairs in order, at most so many at a time.

        Raises:
            UserError: two files differ in their number of lines, a row has too few columns, or `read_blocks` refuses
                one.
        """
        for shard in self.shards:
            if len(shard) == 2:
                yield from _line_blocks(shard[0], shard[1], self.name, size)
            else:
                yield from _row_blocks(shard[0], self.columns, self.commas, size)

    def digest(self) -> str:
        """A hash of the files' bytes; they are read again only if they have changed since."""
        paths = list(itertools.chain.from_iterable(self.shards))
        stamps: list[tuple[int, ...]] = []
        for path in paths:
            with _explained(path):
                stat = Path(path).stat()
                # The time of change, too: that of writing can be set back.
                stamps.append((stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino))
        if self._hashed[0] != stamps:
            total = hashlib.sha256(repr((len(self.shards), self.columns, *["commas"] * self.commas)).encode())
            for path in paths:
                with _explained(path), Path(path).open("rb") as file:
                    total.update(hashlib.file_digest(file, "sha256").digest())
            self._hashed = stamps, total.hexdigest()
        return self._hashed[1]

    def load(self) -> ParallelText:
        """All of it, in memory."""
        return _whole(self.blocks())


class MixedText:
    """Several corpora, one after the other.

    Args:
        parts: by name.
        weights: how often a pass over the data holds each (see Mixture in diglot.data.batching); those that are not
            named stand once.
        tgt_langs: codes of their target languages, where these differ.
    """

    def __init__(
        self, parts: Mapping[str, Parallel], weights: Mapping[str, float], tgt_langs: Mapping[str, str] | None = None
    ) -> None:
        self.parts, self.weights, self.tgt_langs = dict(parts), dict(weights), dict(tgt_langs or {})

    def blocks(self, size: int = BLOCK) -> Iterator[ParallelText]:
        """All pairs in order; no block holds pairs of two corpora."""
        for part in self.parts.values():
            yield from part.blocks(size)

    def digest(self) -> str:
        """A hash of all text and the corpora's names."""
        parts = [(name, part.digest(), self.tgt_langs.get(name)) for name, part in self.parts.items()]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def load(self) -> ParallelText:
        """All of it, in memory."""
        return _whole(self.blocks())


def _whole(blocks: Iterator[ParallelText]) -> ParallelText:
    whole = ParallelText([], [])
    for block in blocks:
        whole.src.extend(block.src)
        whole.tgt.extend(block.tgt)
    return whole


def corpora_of(text: Parallel) -> dict[str, Parallel]:
    """The corpora that a training text is made of, by name."""
    return text.parts if isinstance(text, MixedText) else {"train": text}


def expand(pattern: str, key: str) -> list[str]:
    """The files that a path with `*`, `?` or `[...]` stands for, by name; the path itself where it is a file's.

    Raises:
        UserError: there are none.
    """
    path = str(Path(pattern).expanduser())
    if not glob.has_magic(path) or Path(path).exists():
        return [path]
    found = sorted(glob.glob(path, recursive=True))  # noqa: PTH207 - absolute patterns too
    if not found:
        raise UserError(f"{key}={pattern}: no such file")
    return found


def read_blocks(path: str | Path, size: int = BLOCK) -> Iterator[list[str]]:
    """Reads the lines of a UTF-8 file, so many at a time; one whose name ends in .gz or .zst is decompressed.

    Lines end at LF and nowhere else (a lone CR, U+2028 or NUL is text); one CR before an LF and a byte order mark at
    the start are dropped; a last line without LF counts.

    Raises:
        UserError: the file is missing, a folder, unreadable, damaged, empty, or not UTF-8.
    """
    n_lines = 0
    with _explained(path), _opened(path) as file:
        while lines := list(itertools.islice(file, size)):  # a binary file's lines end at LF alone
            block = split_lines(b"".join(lines), str(path), n_lines)
            n_lines += len(block)
            if block:
                yield block
    if not n_lines:
        raise UserError(f"{path}: the file is empty")


def refuse_address(key: str, path: str | Path, what: str = "a file is needed: fetch it first") -> None:
    """Make sure that a file is on this machine: nothing is fetched that was not asked to be.

    Raises:
        UserError: it is an address.
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(path)) and not Path(path).exists():
        raise UserError(f"{key}={path}: this is an address, and {what}")


def read_lines(path: str | Path) -> list[str]:
    """Reads all lines of a UTF-8 file, by the rules of `read_blocks`."""
    return list(itertools.chain.from_iterable(read_blocks(path)))


def _opened(path: str | Path) -> BinaryIO:
    path = Path(path)
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if path.suffix == ".zst":
        return zstd.open(path, "rb")  # type: ignore[return-value]
    return path.open("rb")


@contextmanager
def _explained(path: str | Path) -> Iterator[None]:
    """What can go wrong with a file, as one line."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, not a text file") from None
    except EOFError:
        raise UserError(f"{path}: the compressed file is cut short") from None
    except (gzip.BadGzipFile, zlib.error, zstd.ZstdError) as error:
        raise UserError(f"{path}: damaged, or not what its name says ({error})") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def split_lines(data: bytes, name: str, first: int = 0) -> list[str]:
    """The lines of UTF-8 bytes, by the rules of `read_blocks`.

    Args:
        data: whole lines.
        name: what an error calls them.
        first: how many lines came before.

    Raises:
        UserError: the bytes are not UTF-8.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first + data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{name}, line {line}: not UTF-8 ({error.reason}, byte 0x{data[error.start]:02x})") from None
    if not first:
        text = text.removeprefix(_BOM)
    # Not str.splitlines, nor open() in text mode: both end a line at characters that are text here.
    *lines, rest = text.split("\n")
    if "\r" in text:
        lines = [line.removesuffix("\r") for line in lines]
    return [*lines, rest] if rest else lines


def _line_blocks(src_path: str | Path, tgt_path: str | Path, name: str, size: int) -> Iterator[ParallelText]:
    sides = [read_blocks(path, size) for path in (src_path, tgt_path)]
    counts = [0, 0]
    while True:
        blocks = [next(side, []) for side in sides]
        counts = [count + len(block) for count, block in zip(counts, blocks)]
        if len(blocks[0]) != len(blocks[1]):
            src, tgt = (count + sum(map(len, side)) for count, side in zip(counts, sides))
            told = f"{name}: {src_path} has {src} lines, {tgt_path} has {tgt}; a pair is a line in each"
            for path, block in zip((src_path, tgt_path), blocks):
                if any("\r" in line for line in block):
                    told += f" (inside lines of {path} there are carriage returns, which end no line)"
            raise UserError(told)
        if not blocks[0]:
            return
        yield ParallelText(*blocks)


def _row_blocks(path: str | Path, columns: tuple[Column, Column], commas: bool, size: int) -> Iterator[ParallelText]:
    rows = _csv_rows(path) if commas else _tsv_rows(path)
    indices = [column for column in columns if isinstance(column, int)]
    if len(indices) < 2:
        _, header = next(rows)
        for column in columns:
            if column not in header:
                raise UserError(f"{path}: its first row names no column {column!r}, but {', '.join(header)}")
        indices = [header.index(str(column)) for column in columns]
    needed = max(indices) + 1
    src, tgt = indices
    what = "comma" if commas else "tab"
    is_empty = True
    while batch := list(itertools.islice(rows, size)):
        for number, row in batch:
            if len(row) < needed:
                raise UserError(f"{path}, line {number}: {len(row)} {what}-separated column(s), {needed} needed")
        is_empty = False
        yield ParallelText([row[src] for _, row in batch], [row[tgt] for _, row in batch])
    if is_empty:
        raise UserError(f"{path}: below the columns' names there is no row")


def _tsv_rows(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """Rows with the numbers of their lines. There is no quoting: quotes and "NA" are text."""
    lines = itertools.chain.from_iterable(read_blocks(path))
    return ((number, line.split("\t")) for number, line in enumerate(lines, start=1))


def _csv_rows(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """Rows with the numbers of their last lines (RFC 4180). A line break in a quoted field is a blank."""
    csv.field_size_limit(_LONGEST_FIELD)
    lines = (f"{line}\n" for block in read_blocks(path) for line in block)
    reader = csv.reader(lines, strict=True)
    try:
        for row in reader:
            yield reader.line_num, [" ".join(field.split("\n")) for field in row]
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not comma-separated ({error})") from None


def read_parallel(src_path: str | Path, tgt_path: str | Path, name: str) -> ParallelText:
    """Reads two files whose lines correspond; `name` is what the error calls them, "train" say.

    Raises:
        UserError: the files differ in their number of lines, or `read_blocks` refuses one.
    """
    return PairFiles(name, [(str(src_path), str(tgt_path))]).load()


def ending_of(language: str) -> str:
    """Return what the name of a file in a language ends in: the language, and `.txt` behind one like "gz", for a file
    of that name would be read as a compressed one."""
    return f"{language}.txt" if f".{language}".lower().endswith(_COMPRESSED) else language


def side_endings(src_lang: str, tgt_lang: str) -> tuple[str, str]:
    """Return what the names of a source file and of a target file end in, such as ("de", "en") for dev.de and dev.en.

    Where two of the files that stand side by side (both sides, a split's `.json`, `dev.translated.<tgt_lang>`) would
    have names that some file system takes for one, these are ("source.en", "target.en").
    """
    src, tgt = ending_of(src_lang), ending_of(tgt_lang)
    names = [src, tgt, "json", f"translated.{tgt}"]
    # macOS and Windows ignore the case of names, and macOS how accents are encoded.
    if len({unicodedata.normalize("NFD", name).casefold() for name in names}) == len(names):
        return src, tgt
    return f"source.{src}", f"target.{tgt}"


def write_lines(path: str | Path, lines: Iterable[str]) -> None:
    """Writes lines, each ended by LF, so that the file is there whole or not at all.

    Raises:
        ValueError: a line contains an LF; the file would not have one line for each.
        UserError: the file cannot be written.
    """
    lines = list(lines)
    for number, line in enumerate(lines, start=1):
        if "\n" in line:
            raise ValueError(f"{path}, line {number}: a line break inside a line")
    write_bytes(path, "".join(f"{line}\n" for line in lines).encode("utf-8"))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Writes a file so that it is there whole or not at all, in a folder that is made where it is missing.

    Raises:
        UserError: the file cannot be written.
    """
    path = Path(path)
    try:
        with atomic_file(path) as file:
            file.write(content)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None


def write_json(path: str | Path, content: Any) -> None:
    """Write plain data as JSON for people and programs, complete or not at all.

    Raises:
        UserError: the file cannot be written.
    """
    write_bytes(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace"))


def hash_pair(src: str, tgt: str) -> bytes:
    """Eight bytes that pairs share whose sides are equal (see `comparable`), and others by accident alone."""
    return hashlib.blake2b(
        f"{comparable(src)}\n{comparable(tgt)}".encode("utf-8", "surrogatepass"), digest_size=8
    ).digest()


def drop_blank_pairs(pairs: ParallelText) -> tuple[ParallelText, int]:
    """The pairs in which both sides have text, and how many others there were."""
    kept = [i for i, (src, tgt) in enumerate(zip(pairs.src, pairs.tgt)) if src.strip() and tgt.strip()]
    return pairs.select(kept), len(pairs) - len(kept)
