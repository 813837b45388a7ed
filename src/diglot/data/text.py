"""Parallel text in memory and in files: a pair is a line in each of two files."""

import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from diglot.errors import UserError

_BOM = "\ufeff"


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


def read_lines(path: str | Path) -> list[str]:
    """Reads the lines of a UTF-8 file.

    Lines end at LF and nowhere else (a lone CR, U+2028 or NUL is text); one CR before an LF and a byte order mark at
    the start are dropped; a last line without LF counts.

    Raises:
        UserError: the file is missing, a folder, unreadable, empty, or not UTF-8.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, not a text file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    lines = split_lines(data, str(path))
    if not lines:
        raise UserError(f"{path}: the file is empty")
    return lines


def split_lines(data: bytes, name: str) -> list[str]:
    """The lines of UTF-8 bytes, by the rules of `read_lines`; `name` is what an error calls them.

    Raises:
        UserError: the bytes are not UTF-8.
    """
    try:
        text = data.decode("utf-8").removeprefix(_BOM)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{name}, line {line}: not UTF-8 ({error.reason}, byte 0x{data[error.start]:02x})") from None
    # Not str.splitlines, nor open() in text mode: both end a line at characters that are text here.
    *lines, rest = text.split("\n")
    lines = [line.removesuffix("\r") for line in lines]
    return [*lines, rest] if rest else lines


def read_parallel(src_path: str | Path, tgt_path: str | Path, name: str) -> ParallelText:
    """Reads two files whose lines correspond; `name` is what the error calls them, "train" say.

    Raises:
        UserError: the files differ in their number of lines, or `read_lines` refuses one.
    """
    src, tgt = read_lines(src_path), read_lines(tgt_path)
    if len(src) != len(tgt):
        raise UserError(f"{name}: {src_path} has {len(src)} lines, {tgt_path} has {len(tgt)}; a pair is a line in each")
    return ParallelText(src, tgt)


def read_tsv(path: str | Path, src_column: int = 0, tgt_column: int = 1) -> ParallelText:
    """Reads pairs from tab-separated columns, one pair a line, under the byte rules of `read_lines`.

    There is no quoting and no header: quotes and "NA" are text.

    Raises:
        UserError: a row has too few columns, or `read_lines` refuses the file.
    """
    src, tgt = [], []
    needed = max(src_column, tgt_column) + 1
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) < needed:
            raise UserError(f"{path}, line {number}: {len(columns)} tab-separated column(s), {needed} needed")
        src.append(columns[src_column])
        tgt.append(columns[tgt_column])
    return ParallelText(src, tgt)


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
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Not tempfile: its files are private (mode 0600), and the result would stay so.
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None


def drop_blank_pairs(pairs: ParallelText) -> tuple[ParallelText, int]:
    """The pairs in which both sides have text, and how many others there were."""
    kept = [i for i, (src, tgt) in enumerate(zip(pairs.src, pairs.tgt)) if src.strip() and tgt.strip()]
    return pairs.select(kept), len(pairs) - len(kept)
