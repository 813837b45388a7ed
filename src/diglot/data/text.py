"""Parallel text in memory and in files, where a pair is a line in each of two files or a row of one file."""

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
from diglot.data.readers.opening import open_file, user_errors
from diglot.errors import UserError
from diglot.system.atomic import atomic_file

MAX_LINE = 2**24  # greatest length of a line, in bytes
BLOCK = 20_000  # number of pairs that are read, and later tokenised, at once
_COMPRESSED_EXTENSIONS = (".gz", ".zst", ".xz", ".bz2", ".zip")
_BOM = "\ufeff"
# What to do with a file in another format where lines of text are needed.
READ_AS_DATA, EXTRACT = "type data.train.file=FILE", "extract its sentences, one per line"


class Parallel(Protocol):
    """Interface of source sentences and their translations, in memory or in files."""

    def blocks(self, size: int = BLOCK) -> Iterator["ParallelText"]:
        """Yield all pairs in order, at most `size` at a time."""

    def digest(self) -> str:
        """Return a hash of the complete content."""

    def load(self) -> "ParallelText":
        """Return all pairs, in memory."""


@dataclass(frozen=True)
class ParallelText:
    """Source sentences and their translations in memory, in the same order.

    Args:
        src: source sentences.
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
        """Return the object itself, which is already in memory."""
        return self

    def digest(self) -> str:
        """Return a hash of all text."""
        digest = hashlib.sha256()
        for side in (self.src, *self.references):
            for line in side:
                # UTF-8 has no byte 0xff.
                digest.update((b"\xff" if line is None else line.encode("utf-8", "surrogatepass")) + b"\n")
            digest.update(b"\0")
        return digest.hexdigest()


class UnequalLinesError(UserError):
    """Error about two files of corresponding lines that differ in their number of lines.

    Args:
        message: message for the user.
        src_path: source file.
        tgt_path: target file.
        n_pairs: number of lines of the shorter file; None: the surplus lines of the longer file are all blank.
    """

    def __init__(self, message: str, src_path: str | Path, tgt_path: str | Path, n_pairs: int | None) -> None:
        super().__init__(message)
        self.src_path, self.tgt_path, self.n_pairs = src_path, tgt_path, n_pairs


class PairReader(Protocol):
    """Interface of readers of files that are not two files of corresponding lines."""

    def blocks(self, shard: tuple[str, ...], size: int) -> Iterator[ParallelText]:
        """Yield the pairs of a shard, which is one file or two, in order, at most `size` at a time."""


class PairFiles:
    """Pairs in files, which are read a block at a time.

    Args:
        name: name of the pairs in errors, such as "train".
        shards: files of the pairs. Each shard is two files whose lines correspond, or one file that holds both sides. A
            file may be compressed (.gz, .zst, .xz, .bz2, or the only member of a .zip).
        reader: reader of the shards; None: each shard is two files whose lines correspond.
        options: all that determines the pairs, besides the files; part of the digest.
    """

    def __init__(
        self,
        name: str,
        shards: Sequence[tuple[str, ...]],
        reader: PairReader | None = None,
        options: tuple[Any, ...] = ((0, 1),),  # columns, which earlier versions hashed for all files
    ) -> None:
        self.name, self.shards, self.reader, self.options = name, list(shards), reader, options
        self._cached_digest: tuple[list[tuple[int, ...]], str] = ([], "")  # sizes and times of the files, and the hash

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
        """Return a hash of the files' bytes. The files are read again only if they have changed."""
        paths = self.files()
        stamps: list[tuple[int, ...]] = []
        for path in paths:
            with user_errors(path):
                stat = Path(path).stat()
                # Include the inode's change time: unlike the modification time, it cannot be set back.
                stamps.append((stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino))
        if self._cached_digest[0] != stamps:
            digest = hashlib.sha256(repr((len(self.shards), *self.options)).encode())
            for path in paths:
                digest.update(bytes.fromhex(file_hash(path)))
            self._cached_digest = stamps, digest.hexdigest()
        return self._cached_digest[1]

    def load(self) -> ParallelText:
        """Load all pairs into memory."""
        return join_blocks(self.blocks())


class StoredLines:
    """Reader of pairs of files that diglot has written: their lines are text, even if all of them look like JSON.

    Args:
        name: name of the pairs in errors.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def blocks(self, shard: tuple[str, ...], size: int) -> Iterator[ParallelText]:
        """Yield the pairs of two files in order, at most `size` at a time."""
        return _line_blocks(shard[0], shard[1], self.name, size, None)


class MixedText:
    """Several corpora, one after the other.

    Args:
        parts: corpora by name.
        weights: number of times that a pass over the data contains each corpus (see Mixture in diglot.data.batching); 1
            for a corpus that is not listed.
        tgt_langs: codes of the target languages of the corpora; None: they have the same target language.
    """

    def __init__(
        self, parts: Mapping[str, Parallel], weights: Mapping[str, float], tgt_langs: Mapping[str, str] | None = None
    ) -> None:
        self.parts, self.weights, self.tgt_langs = dict(parts), dict(weights), dict(tgt_langs or {})

    def blocks(self, size: int = BLOCK) -> Iterator[ParallelText]:
        """Yield all pairs in order. A block contains pairs of only one corpus."""
        for part in self.parts.values():
            yield from part.blocks(size)

    def digest(self) -> str:
        """Return a hash of all text, and of the corpora's names and target languages."""
        digests = [(name, part.digest(), self.tgt_langs.get(name)) for name, part in self.parts.items()]
        return hashlib.sha256(repr(digests).encode()).hexdigest()

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
    """Return the sorted files that match a path with `*`, `?` or `[...]`.

    If the path exists, or has no such character, return the path itself.

    Args:
        pattern: the path.
        key: config key of the path in errors.

    Raises:
        UserError: no file matches, or the path is a URL.
    """
    refuse_address(key, pattern)
    path = str(Path(pattern).expanduser())
    if not glob.has_magic(path) or Path(path).exists():
        return [path]
    paths = sorted(glob.glob(path, recursive=True))  # noqa: PTH207 - absolute patterns too
    if not paths:
        raise UserError(f"{key}={pattern}: no such file")
    return paths


def read_blocks(path: str | Path, size: int = BLOCK) -> Iterator[list[str]]:
    """Yield the lines of a file, at most `size` at a time.

    `open_file` describes the compressed files and the encodings that are supported. A line ends only at an LF: a CR
    elsewhere, U+2028 or NUL is text. One CR before an LF is dropped, and so is a byte order mark at the start. A last
    line without an LF counts.

    Raises:
        UserError: the file is missing, a folder, unreadable, damaged, empty, or not UTF-8.
    """
    with open_file(path) as file:
        yield from line_blocks(file, str(path), size)


def line_blocks(file: BinaryIO, name: str, size: int = BLOCK) -> Iterator[list[str]]:
    """Yield the lines of an open file by the rules of `read_blocks`.

    Args:
        file: file opened in binary mode.
        name: name of the file in errors.
        size: greatest number of lines to yield at a time.

    Raises:
        UserError: the file is empty, has a line of more than `MAX_LINE` bytes, or is not UTF-8.
    """
    n_lines = 0
    while lines := _next_lines(file, size, name, n_lines):
        block = split_lines(b"".join(lines), name, n_lines)
        n_lines += len(block)
        if block:
            yield block
    if not n_lines:
        raise UserError(f"{name}: the file is empty")


def _next_lines(file: BinaryIO, size: int, name: str, n_before: int) -> list[bytes]:
    """Return the next lines of a file opened in binary mode, in which lines end only at LF.

    Args:
        file: the file.
        size: greatest number of lines.
        name: name of the file in errors.
        n_before: number of lines that were read before.
    """
    lines: list[bytes] = []
    for line in itertools.islice(iter(partial(file.readline, MAX_LINE + 1), b""), size):
        if len(line) > MAX_LINE:
            raise UserError(f"{name}, line {n_before + len(lines) + 1}: more than {MAX_LINE:,} bytes in one line")
        lines.append(line)
    return lines


def have_same_content(one: str, other: str) -> bool:
    """Return whether two files have the same bytes. A file that cannot be read differs from all others."""
    try:
        return Path(one).samefile(other) or filecmp.cmp(one, other, shallow=False)
    except (OSError, ValueError):
        return False


def refuse_address(key: str, path: str | Path, reason: str = "a local file is needed: download it first") -> None:
    """Check that a path is not a URL, because nothing is downloaded unless the user asks for it.

    Args:
        key: config key of the path in errors.
        path: the path.
        reason: what the error says after "this is a URL, but".

    Raises:
        UserError: the path is a URL.
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(path)) and not Path(path).exists():
        raise UserError(f"{key}={path}: this is a URL, but {reason}")


def read_lines(path: str | Path) -> list[str]:
    """Return all lines of a UTF-8 file, by the rules of `read_blocks`."""
    return list(itertools.chain.from_iterable(read_blocks(path)))


# Descriptions of files that are not lines of text, with what to do about them, by the first bytes of a file.
_ARROW_DESCRIPTION = "an Arrow file, not text: type data=hub data.path=arrow data.data_files=FILE data.column=null"
_DESCRIPTIONS = {
    b"PAR1": "a Parquet file, not lines of text: type data.train.file=FILE",
    b"ARROW1": _ARROW_DESCRIPTION,
    b"\xff\xff\xff\xff": _ARROW_DESCRIPTION,  # in the form of a stream, which `datasets` writes
    b"%PDF-": "a PDF, not text",
    b"7z\xbc\xaf": "a 7z archive, not text: unpack it",
}


def binary_format(head: bytes) -> str | None:
    """Return a description of a file that is not text, with what to do about it, by its first bytes; None: unknown."""
    return next((text for signature, text in _DESCRIPTIONS.items() if head.startswith(signature)), None)


def split_lines(data: bytes, name: str, n_before: int = 0) -> list[str]:
    """Return the lines of UTF-8 bytes, by the rules of `read_blocks`.

    Args:
        data: complete lines.
        name: name of the file in errors.
        n_before: number of lines before these in the file.

    Raises:
        UserError: the bytes are not UTF-8.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if not n_before and (description := binary_format(data)):
            raise UserError(f"{name}: {description}") from None
        line = n_before + data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{name}, line {line}: not UTF-8 ({error.reason}, byte 0x{data[error.start]:02x})") from None
    if not n_before:
        text = text.removeprefix(_BOM)
    # str.splitlines, and open() in text mode, would also end a line at characters that are text here.
    *lines, last = text.split("\n")
    if "\r" in text:
        lines = [line.removesuffix("\r") for line in lines]
    return [*lines, last] if last else lines


def sentence_blocks(path: str | Path, size: int = BLOCK, instead: str = READ_AS_DATA) -> Iterator[list[str]]:
    """Yield the lines of `read_blocks`, after a check that the first ones may be sentences.

    Args:
        path: the file.
        size: greatest number of lines to yield at a time.
        instead: what to do with a file in another format, for errors.

    Raises:
        UserError: the first lines are in another format, such as XML, or end with a CR alone; or `read_blocks` raises
            it.
    """
    for number, block in enumerate(read_blocks(path, size)):
        if not number and (description := _other_format(block[:100], instead)):
            raise UserError(f"{path}: {description}")
        yield block


def _other_format(lines: Sequence[str], instead: str) -> str | None:
    """Return a description of the format of lines, with what to do about it; None if they may be sentences."""
    if len(lines) == 1 and lines[0].count("\r") > 1:
        return r"its lines end with CR alone, not LF: tr '\r' '\n' < FILE > NEW_FILE converts it"
    lines = [line.strip() for line in lines if line.strip()]
    n_tags = sum(line.startswith("<") for line in lines)
    if (
        lines
        and re.match(r"<(\?xml|!DOCTYPE|tmx|xliff|srcset|refset|tstset|html)\b", lines[0], re.I)
        and 2 * n_tags > len(lines)
    ):
        kind = next((kind for kind in ("tmx", "xliff", "html") if f"<{kind}" in " ".join(lines).lower()), "")
        advice = EXTRACT if kind == "html" else instead
        return f"an XML file{f' ({kind.upper()})' if kind else ''}, not lines of text: {advice}"
    if lines and (all(map(_is_json_object, lines)) or re.match(r'\[\s*\{\s*"', "".join(lines))):
        return f"JSON, not lines of text: {instead}"
    if any(line.startswith('msgid "') for line in lines) and any(line.startswith('msgstr "') for line in lines):
        return f"a gettext catalogue, not lines of text: {instead}"
    return None


def _is_json_object(line: str) -> bool:
    try:
        return line.startswith("{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _line_blocks(
    src_path: str | Path, tgt_path: str | Path, name: str, size: int, instead: str | None = READ_AS_DATA
) -> Iterator[ParallelText]:
    """Yield the pairs of two files whose lines correspond, at most `size` at a time.

    Args:
        src_path: source file.
        tgt_path: target file.
        name: name of the pairs in errors.
        size: greatest number of pairs to yield at a time.
        instead: what to do with a file in another format, for errors; None: any line is text.

    Raises:
        UnequalLinesError: the files differ in their number of lines.
        UserError: `sentence_blocks` raises it.
    """
    paths = (src_path, tgt_path)
    read = read_blocks if instead is None else partial(sentence_blocks, instead=instead)
    sides = [read(path, size) for path in paths]
    n_pairs = 0
    while True:
        blocks = [next(side, []) for side in sides]
        if len(blocks[0]) != len(blocks[1]):
            raise _unequal_lines(paths, name, n_pairs, blocks, sides)
        if not blocks[0]:
            return
        n_pairs += len(blocks[0])
        yield ParallelText(blocks[0], blocks[1])


def _unequal_lines(
    paths: tuple[str | Path, str | Path],
    name: str,
    n_pairs: int,
    blocks: Sequence[list[str]],
    remaining: Sequence[Iterator[list[str]]],
) -> UnequalLinesError:
    """Return the error about two files that differ in their number of lines, after counting them.

    Args:
        paths: the two files.
        name: name of the pairs.
        n_pairs: number of pairs before the blocks.
        blocks: last block of each file, of which one is longer.
        remaining: further blocks of each file; the shorter file has none.
    """
    counts = [n_pairs + len(block) for block in blocks]
    longer = 0 if counts[0] > counts[1] else 1
    has_text = any(map(str.strip, blocks[longer][len(blocks[1 - longer]) :]))
    for block in remaining[longer]:
        counts[longer] += len(block)
        has_text = has_text or any(map(str.strip, block))
    message = f"{name}: {paths[0]} has {counts[0]} lines, {paths[1]} has {counts[1]}; both must have one line per pair"
    if not has_text:
        message += f" (the last {max(counts) - min(counts)} of {paths[longer]} are blank: remove them)"
    for path, block in zip(paths, blocks):
        if any("\r" in line for line in block):
            message += f" ({path} has carriage returns inside lines, which do not end a line)"
    return UnequalLinesError(message, *paths, min(counts) if has_text else None)


def read_parallel(src_path: str | Path, tgt_path: str | Path, name: str) -> ParallelText:
    """Return the pairs of two files whose lines correspond.

    Args:
        src_path: source file.
        tgt_path: target file.
        name: name of the pairs in errors, such as "train".

    Raises:
        UserError: the files differ in their number of lines, or `read_blocks` refuses one.
    """
    return join_blocks(_line_blocks(src_path, tgt_path, name, BLOCK, EXTRACT))


def ending_of(language: str) -> str:
    """Return the extension of files in a language: the language's code.

    A code such as "gz" is followed by `.txt`, because the file would otherwise be taken for a compressed one.
    """
    return f"{language}.txt" if f".{language}".lower().endswith(_COMPRESSED_EXTENSIONS) else language


def side_endings(src_lang: str, tgt_lang: str) -> tuple[str, str]:
    """Return the extensions of a source and a target file, such as ("de", "en") for dev.de and dev.en.

    The same folder also has the files `dev.json`, `dev.translated.<tgt_lang>` and `dev.best.<tgt_lang>`. If a file
    system may take two of the names for the same one, the extensions are, for example, ("source.en", "target.en").
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
        ValueError: a line contains an LF, so that the file would have more lines than it should.
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
    with user_errors(path), Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_pair(src: str, tgt: str) -> bytes:
    """Return an eight-byte hash of a pair. Pairs whose sides are equal after `comparable` have the same hash."""
    return hashlib.blake2b(
        f"{comparable(src)}\n{comparable(tgt)}".encode("utf-8", "surrogatepass"), digest_size=8
    ).digest()


def drop_blank_pairs(pairs: ParallelText) -> tuple[ParallelText, int]:
    """Return the pairs in which both sides have text, and the number of other pairs."""
    indices = [i for i, (src, tgt) in enumerate(zip(pairs.src, pairs.tgt)) if src.strip() and tgt.strip()]
    return pairs.select(indices), len(pairs) - len(indices)
