"""Parallel text in memory and in files: a pair is a line in each of two files, or a row of one."""

import filecmp
import glob
import hashlib
import itertools
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from diglot.data.forms import comparable
from diglot.data.readers.opening import explained, opened
from diglot.errors import UserError
from diglot.system.atomic import atomic_file

MAX_LINE = 2**24  # bytes
BLOCK = 20_000  # number of pairs read, and later tokenised, at once
_COMPRESSED = (".gz", ".zst", ".xz", ".bz2", ".zip")  # endings never used for names of plain text
_BOM = "\ufeff"


class Parallel(Protocol):
    """Source sentences and their translations, in memory or not."""

    def blocks(self, size: int = BLOCK) -> Iterator["ParallelText"]:
        """Yield all pairs in order, at most `size` at a time."""

    def digest(self) -> str:
        """Return a hash of the complete content."""

    def load(self) -> "ParallelText":
        """Return all pairs, in memory."""


@dataclass(frozen=True)
class ParallelText:
    """Source sentences and their translations, in the same order.

    Attributes:
        src: the sources.
        tgt: their translations; in dev and test, these are the first references.
        more: further references of dev and test, each with one line per source; None: this source does not have it.

    Raises:
        ValueError: the sides differ in length.
    """

    src: list[str]
    tgt: list[str]
    more: tuple[Sequence[str | None], ...] = ()

    def __post_init__(self) -> None:
        for lines in (self.tgt, *self.more):
            if len(self.src) != len(lines):
                raise ValueError(f"{len(self.src)} source sentences but {len(lines)} target sentences")

    def __len__(self) -> int:
        return len(self.src)

    @property
    def references(self) -> list[Sequence[str | None]]:
        """All references, each with one line per source."""
        return [self.tgt, *self.more]

    @property
    def reference_lines(self) -> list[str]:
        """The lines of all references, one reference after the other."""
        return [line for lines in self.references for line in lines if line is not None]

    def select(self, indices: Sequence[int]) -> "ParallelText":
        """Return the pairs at `indices`, in that order."""
        more = tuple([lines[i] for i in indices] for lines in self.more)
        return ParallelText([self.src[i] for i in indices], [self.tgt[i] for i in indices], more)

    def blocks(self, size: int = BLOCK) -> Iterator["ParallelText"]:
        """Yield all pairs in order, at most `size` at a time."""
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            yield ParallelText(self.src[part], self.tgt[part], tuple(lines[part] for lines in self.more))

    def load(self) -> "ParallelText":
        return self

    def digest(self) -> str:
        """Return a hash of all text."""
        total = hashlib.sha256()
        for side in (self.src, *self.references):
            for line in side:
                # UTF-8 has no byte 0xff.
                total.update((b"\xff" if line is None else line.encode("utf-8", "surrogatepass")) + b"\n")
            total.update(b"\0")
        return total.hexdigest()


class UnequalLinesError(UserError):
    """Two files that should correspond differ in their number of lines.

    Args:
        told: the message.
        src_path: one file.
        tgt_path: the other file.
        n_pairs: number of lines of the shorter one; None: the longer one has only blank lines in addition.
    """

    def __init__(self, told: str, src_path: str | Path, tgt_path: str | Path, n_pairs: int | None) -> None:
        super().__init__(told)
        self.src_path, self.tgt_path, self.n_pairs = src_path, tgt_path, n_pairs


class PairReader(Protocol):
    """Reader of files other than two whose lines correspond."""

    def blocks(self, shard: tuple[str, ...], size: int) -> Iterator[ParallelText]:
        """Yield the pairs of a file, or of two, in order, at most `size` at a time."""


class PairFiles:
    """Pairs that stay in their files and are read a block at a time.

    Args:
        name: name of the pairs in errors, such as "train".
        shards: each is two files whose lines correspond, or one file that holds both sides. A file may be compressed
            (.gz, .zst, .xz, .bz2, or the only member of a .zip).
        reader: reader of the shards; None: their lines correspond.
        options: what besides the files determines the pairs; the digest depends on it.
    """

    def __init__(
        self,
        name: str,
        shards: Sequence[tuple[str, ...]],
        reader: PairReader | None = None,
        options: tuple[Any, ...] = ((0, 1),),  # earlier versions hashed the columns of all files
    ) -> None:
        self.name, self.shards, self.reader, self.options = name, list(shards), reader, options
        self._hashed: tuple[list[tuple[int, ...]], str] = ([], "")  # stamps of the files, and their hash

    def blocks(self, size: int = BLOCK) -> Iterator[ParallelText]:
        """Yield all pairs in order, at most `size` at a time.

        Raises:
            UserError: two files differ in their number of lines, or a reader refuses a file.
        """
        for shard in self.shards:
            if self.reader is not None:
                yield from self.reader.blocks(shard, size)
            else:
                yield from _line_blocks(shard[0], shard[1], self.name, size)

    def files(self) -> list[str]:
        """Return the paths of all files."""
        return list(itertools.chain.from_iterable(self.shards))

    def digest(self) -> str:
        """Return a hash of the files' bytes; read them again only if they have changed."""
        paths = self.files()
        stamps: list[tuple[int, ...]] = []
        for path in paths:
            with explained(path):
                stat = Path(path).stat()
                # Include the inode's change time: unlike the modification time, it cannot be set back.
                stamps.append((stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino))
        if self._hashed[0] != stamps:
            total = hashlib.sha256(repr((len(self.shards), *self.options)).encode())
            for path in paths:
                total.update(bytes.fromhex(file_hash(path)))
            self._hashed = stamps, total.hexdigest()
        return self._hashed[1]

    def load(self) -> ParallelText:
        """Load all pairs into memory."""
        return join_blocks(self.blocks())


class MixedText:
    """Several corpora, one after the other.

    Args:
        parts: corpora by name.
        weights: how often a pass over the data holds each corpus (see Mixture in diglot.data.batching); 1 by default.
        tgt_langs: codes of their target languages, if these differ.
    """

    def __init__(
        self, parts: Mapping[str, Parallel], weights: Mapping[str, float], tgt_langs: Mapping[str, str] | None = None
    ) -> None:
        self.parts, self.weights, self.tgt_langs = dict(parts), dict(weights), dict(tgt_langs or {})

    def blocks(self, size: int = BLOCK) -> Iterator[ParallelText]:
        """Yield all pairs in order; no block holds pairs of two corpora."""
        for part in self.parts.values():
            yield from part.blocks(size)

    def digest(self) -> str:
        """Return a hash of all text, and of the corpora's names and target languages."""
        parts = [(name, part.digest(), self.tgt_langs.get(name)) for name, part in self.parts.items()]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def load(self) -> ParallelText:
        """Return all pairs, in memory."""
        return join_blocks(self.blocks())


def join_blocks(blocks: Iterator[ParallelText]) -> ParallelText:
    """Return the pairs of blocks as one text. A block may have fewer references than another one."""
    src: list[str] = []
    tgt: list[str] = []
    more: list[list[str | None]] = []
    for block in blocks:
        more += [[None] * len(src) for _ in block.more[len(more) :]]
        for i, lines in enumerate(more):
            lines += block.more[i] if i < len(block.more) else [None] * len(block)
        src.extend(block.src)
        tgt.extend(block.tgt)
    return ParallelText(src, tgt, tuple(more))


def corpora_of(text: Parallel) -> dict[str, Parallel]:
    """Return the corpora of a training text, by name."""
    return text.parts if isinstance(text, MixedText) else {"train": text}


def expand(pattern: str, key: str) -> list[str]:
    """Return the files that match a path with `*`, `?` or `[...]`, sorted; the path itself if it exists.

    Raises:
        UserError: no file matches.
    """
    path = str(Path(pattern).expanduser())
    if not glob.has_magic(path) or Path(path).exists():
        return [path]
    found = sorted(glob.glob(path, recursive=True))  # noqa: PTH207 - absolute patterns too
    if not found:
        raise UserError(f"{key}={pattern}: no such file")
    return found


def read_blocks(path: str | Path, size: int = BLOCK) -> Iterator[list[str]]:
    """Yield the lines of a file, `size` at a time; see `opened` for compressed files and other encodings than UTF-8.

    A line ends only at an LF: a lone CR, U+2028 or NUL is text. One CR before an LF is dropped, and so is a byte order
    mark at the start. A last line without an LF counts.

    Raises:
        UserError: the file is missing, a folder, unreadable, damaged, empty, or not UTF-8.
    """
    with opened(path) as file:
        yield from line_blocks(file, str(path), size)


def line_blocks(file: BinaryIO, name: str, size: int = BLOCK) -> Iterator[list[str]]:
    """Yield the lines of an open file by the rules of `read_blocks`; `name` is its name in errors."""
    n_lines = 0
    while lines := _next_lines(file, size, name, n_lines):
        block = split_lines(b"".join(lines), name, n_lines)
        n_lines += len(block)
        if block:
            yield block
    if not n_lines:
        raise UserError(f"{name}: the file is empty")


def _next_lines(file: BinaryIO, size: int, name: str, first: int) -> list[bytes]:
    """Return the next lines of an open file; a binary file's lines end at LF alone."""
    lines: list[bytes] = []
    for line in itertools.islice(iter(partial(file.readline, MAX_LINE + 1), b""), size):
        if len(line) > MAX_LINE:
            raise UserError(f"{name}, line {first + len(lines) + 1}: more than {MAX_LINE:,} bytes in one line")
        lines.append(line)
    return lines


def have_same_content(one: str, other: str) -> bool:
    """Return whether two files have the same bytes. A file that cannot be read differs from any other."""
    try:
        return Path(one).samefile(other) or filecmp.cmp(one, other, shallow=False)
    except (OSError, ValueError):
        return False


def refuse_address(key: str, path: str | Path, what: str = "a local file is needed: download it first") -> None:
    """Check that a path is not a URL, because nothing is downloaded unless the user asks for it.

    Raises:
        UserError: the path is a URL.
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(path)) and not Path(path).exists():
        raise UserError(f"{key}={path}: this is a URL, but {what}")


def read_lines(path: str | Path) -> list[str]:
    """Return all lines of a UTF-8 file, by the rules of `read_blocks`."""
    return list(itertools.chain.from_iterable(read_blocks(path)))


# What a file that is not text is, by its first bytes, and what to do about it.
_UTF_16 = "the text is UTF-16 without a byte order mark: iconv -f UTF-16LE -t UTF-8 FILE > NEW_FILE converts it"
_FORMATS = {
    b"PAR1": "a Parquet file, not lines of text: type data.train.file=FILE",
    b"ARROW1": "an Arrow file, not text: type data=hub data.path=arrow data.data_files=FILE",
    b"%PDF-": "a PDF, not text",
    b"7z\xbc\xaf": "a 7z archive, not text: unpack it",
}


def split_lines(data: bytes, name: str, first: int = 0) -> list[str]:
    """Return the lines of UTF-8 bytes, by the rules of `read_blocks`.

    Args:
        data: complete lines.
        name: name of the bytes in errors.
        first: number of lines that came before.

    Raises:
        UserError: the bytes are not UTF-8.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if not first and (what := next((what for start, what in _FORMATS.items() if data.startswith(start)), None)):
            raise UserError(f"{name}: {what}") from None
        line = first + data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{name}, line {line}: not UTF-8 ({error.reason}, byte 0x{data[error.start]:02x})") from None
    if not first:
        text = text.removeprefix(_BOM)
    # Neither str.splitlines nor open() in text mode: both end a line at characters that are text here.
    *lines, rest = text.split("\n")
    if "\r" in text:
        lines = [line.removesuffix("\r") for line in lines]
    return [*lines, rest] if rest else lines


def sentence_blocks(path: str | Path, size: int = BLOCK) -> Iterator[list[str]]:
    """Yield the lines of `read_blocks`.

    Raises:
        UserError: the lines are those of another format, such as XML; or `read_blocks` raises it.
    """
    for i, block in enumerate(read_blocks(path, size)):
        if not i and (what := _other_format(block[:100])):
            raise UserError(f"{path}: {what}")
        yield block


def _other_format(lines: Sequence[str]) -> str | None:
    """Return what the first lines of a file are and what to do about it, or None if they may be sentences."""
    lines = [line.strip() for line in lines if line.strip()]
    read = "type data.train.file=FILE"
    tags = sum(line.startswith("<") for line in lines)
    if (
        lines
        and re.match(r"<(\?xml|!DOCTYPE|tmx|xliff|srcset|refset|tstset|html)\b", lines[0], re.I)
        and 2 * tags > len(lines)
    ):
        kind = next((kind for kind in ("tmx", "xliff", "html") if f"<{kind}" in " ".join(lines).lower()), "")
        extract = "extract its sentences, one per line" if kind == "html" else read
        return f"an XML file{f' ({kind.upper()})' if kind else ''}, not lines of text: {extract}"
    if lines and (all(map(_is_json_object, lines)) or re.match(r'\[\s*\{\s*"', "".join(lines))):
        return f"JSON, not lines of text: {read}"
    if any(line.startswith('msgid "') for line in lines) and any(line.startswith('msgstr "') for line in lines):
        return f"a gettext catalogue, not lines of text: {read}"
    if sum(line.count("\0") for line in lines) > sum(map(len, lines)) / 3:
        return _UTF_16
    return None


def _is_json_object(line: str) -> bool:
    try:
        return line.startswith("{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _line_blocks(src_path: str | Path, tgt_path: str | Path, name: str, size: int) -> Iterator[ParallelText]:
    sides = [sentence_blocks(path, size) for path in (src_path, tgt_path)]
    counts = [0, 0]
    while True:
        blocks = [next(side, []) for side in sides]
        counts = [count + len(block) for count, block in zip(counts, blocks)]
        if len(blocks[0]) != len(blocks[1]):
            longer = len(blocks[0]) < len(blocks[1])
            surplus = blocks[longer][len(blocks[not longer]) :]
            n_more, has_text = 0, any(map(str.strip, surplus))
            for block in sides[longer]:  # the other file has ended
                n_more += len(block)
                has_text = has_text or any(map(str.strip, block))
            counts[longer] += n_more
            src, tgt = counts
            told = f"{name}: {src_path} has {src} lines, {tgt_path} has {tgt}; both must have one line per pair"
            if not has_text:
                told += f" (the last {abs(src - tgt)} of {(src_path, tgt_path)[longer]} are blank: remove them)"
            for path, block in zip((src_path, tgt_path), blocks):
                if any("\r" in line for line in block):
                    told += f" ({path} has carriage returns inside lines, which do not end a line)"
            raise UnequalLinesError(told, src_path, tgt_path, min(src, tgt) if has_text else None)
        if not blocks[0]:
            return
        yield ParallelText(blocks[0], blocks[1])


def read_parallel(src_path: str | Path, tgt_path: str | Path, name: str) -> ParallelText:
    """Return the pairs of two files whose lines correspond; `name` is their name in errors, such as "train".

    Raises:
        UserError: the files differ in their number of lines, or `read_blocks` refuses one.
    """
    return PairFiles(name, [(str(src_path), str(tgt_path))]).load()


def ending_of(language: str) -> str:
    """Return the ending of the name of a file in a language: the language's code.

    A code such as "gz" is followed by `.txt`, because the file would otherwise be read as a compressed one.
    """
    return f"{language}.txt" if f".{language}".lower().endswith(_COMPRESSED) else language


def side_endings(src_lang: str, tgt_lang: str) -> tuple[str, str]:
    """Return the endings of the names of a source and a target file, such as ("de", "en") for dev.de and dev.en.

    These files are in one folder with a split's `.json`, `dev.translated.<tgt_lang>` and `dev.best.<tgt_lang>`. If a
    file system may take two of the names for the same one, the endings are, for example, ("source.en", "target.en").
    """
    src, tgt = ending_of(src_lang), ending_of(tgt_lang)
    names = [src, tgt, "json", f"translated.{tgt}", f"best.{tgt}"]
    # macOS and Windows ignore the case of names, and macOS ignores how accents are encoded.
    if len({unicodedata.normalize("NFD", name).casefold() for name in names}) == len(names):
        return src, tgt
    return f"source.{src}", f"target.{tgt}"


def write_lines(path: str | Path, lines: Iterable[str]) -> None:
    """Write lines, each ended by an LF, atomically.

    Raises:
        ValueError: a line contains an LF, so that the file would have more lines than were given.
        UserError: the file cannot be written.
    """
    lines = list(lines)
    for number, line in enumerate(lines, start=1):
        if "\n" in line:
            raise ValueError(f"{path}, line {number}: a line break inside a line")
    write_bytes(path, "".join(f"{line}\n" for line in lines).encode("utf-8"))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file atomically; create its folder if it is missing.

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
    """Write plain data as indented JSON, atomically.

    Raises:
        UserError: the file cannot be written.
    """
    write_bytes(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace"))


def file_hash(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes.

    Raises:
        UserError: the file cannot be read.
    """
    with explained(path), Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_pair(src: str, tgt: str) -> bytes:
    """Return an eight-byte hash of a pair; pairs with equal sides (see `comparable`) have the same hash."""
    return hashlib.blake2b(
        f"{comparable(src)}\n{comparable(tgt)}".encode("utf-8", "surrogatepass"), digest_size=8
    ).digest()


def drop_blank_pairs(pairs: ParallelText) -> tuple[ParallelText, int]:
    """Return the pairs in which both sides have text, and the number of others."""
    kept = [i for i, (src, tgt) in enumerate(zip(pairs.src, pairs.tgt)) if src.strip() and tgt.strip()]
    return pairs.select(kept), len(pairs) - len(kept)
