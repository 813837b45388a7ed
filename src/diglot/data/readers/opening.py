"""Opening of text files that may be compressed, in a ZIP archive, or in UTF-16. The content of a file shows which."""

import bz2
import codecs
import gzip
import io
import lzma
import re
import stat
import sys
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from diglot.errors import UserError
from diglot.system.quoting import printable

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_BUFFER = 2**16  # bytes
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".zst": zstd.open, ".xz": lzma.open, ".bz2": bz2.open}
_ZIP_SIGNATURE, _EMPTY_ZIP_SIGNATURE = b"PK\x03\x04", b"PK\x05\x06"
_SIGNATURES = re.compile(
    rb"(?P<gz>\x1f\x8b)|(?P<zst>\x28\xb5\x2f\xfd)|(?P<xz>\xfd7zXZ\0)|(?P<bz2>BZh[1-9](1AY&SY|\x17rE8P\x90))"
)
# The marks of UTF-32 come first: that of little-endian UTF-32 begins with that of UTF-16.
_BYTE_ORDER_MARKS = {b"\xff\xfe\0\0": "utf-32", b"\0\0\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}

# Members of a ZIP archive that are not its text. Beside the text, OPUS packs the numbers of the pairs and an index.
_METADATA = re.compile(r"(__MACOSX/.*|(.*/)?(\.[^/]*|(README|LICEN[SC]E|COPYING)[^/]*))", re.IGNORECASE)
_INDEX = re.compile(r".*\.(ids|xml|info|scores?|md)", re.IGNORECASE)
# A member of more than _BOMB_SIZE bytes that is more than _BOMB_RATIO times as large as its compressed form is no text.
# Even repetitive text is only about 100 times as large.
_BOMB_SIZE, _BOMB_RATIO = 2**24, 300

# Number of bytes at the start of a file in which UTF-16 is detected, and the least number in which it can be.
_UTF_16_HEAD, _UTF_16_MINIMUM = 2**12, 16


def is_pipe(path: str) -> bool:
    """Return whether a path is a named pipe, which can be read only once."""
    with suppress(OSError, ValueError):
        return stat.S_ISFIFO(Path(path).stat().st_mode)
    return False


@contextmanager
def open_file(path: str | Path, member: str | None = None, as_utf8: bool = True) -> Iterator[io.BufferedReader]:
    """Open a file for reading, decompressed.

    The content or the name of the file decides how it is decompressed: gzip, Zstandard, xz or bzip2. If the file is a
    ZIP archive, the stream is that of a member, which may itself be compressed. Nothing is unpacked to disk.

    Args:
        path: path of the file.
        member: name of the member of a ZIP archive to read; None: the only member with text.
        as_utf8: whether to convert text in UTF-16 or UTF-32 with a byte order mark to UTF-8.

    Raises:
        UserError: the file is missing, a folder, unreadable, damaged or encrypted, is an archive of several texts, or
            is in UTF-16 without a byte order mark.
    """
    with user_errors(path), ExitStack() as stack:
        file = _buffered(stack.enter_context(Path(path).open("rb")))
        if member is not None or file.peek(4).startswith((_ZIP_SIGNATURE, _EMPTY_ZIP_SIGNATURE)):
            archive = stack.enter_context(zipfile.ZipFile(file))
            info = archive.getinfo(member) if member is not None else _only_text_member(archive, path)
            file = _buffered(stack.enter_context(archive.open(info)))
            if file.peek(4).startswith(_ZIP_SIGNATURE):
                raise UserError(f"{path}: its member {printable(info.filename)} is a ZIP archive: unpack it")
        suffix = Path(path).suffix
        match = _SIGNATURES.match(file.peek(10))
        if match or suffix in _OPENERS:
            opener = _OPENERS[f".{match.lastgroup}" if match else suffix]
            file = _buffered(stack.enter_context(opener(file, "rb")))
        if file.peek(512)[257:262] == b"ustar":
            raise UserError(f"{path}: a tar archive, not text: unpack it")
        encoding = next((name for mark, name in _BYTE_ORDER_MARKS.items() if file.peek(4).startswith(mark)), None)
        if encoding and as_utf8:
            file = _buffered(_Utf8(file, encoding, path))
        elif as_utf8 and (name := utf_16_of(file.peek(_UTF_16_HEAD)[:_UTF_16_HEAD])):
            remedy = f"iconv -f {name} -t UTF-8 FILE > NEW_FILE converts it"
            raise UserError(f"{path}: the text is {name} without a byte order mark: {remedy}")
        yield file


def list_texts(path: str | Path) -> list[str]:
    """Return the names of the members of a ZIP archive that may hold text; an empty list for any other file.

    Raises:
        UserError: the archive is damaged, or one of these members is encrypted or expands like a ZIP bomb.
    """
    with user_errors(path):
        with Path(path).open("rb") as file:
            if file.read(4) != _ZIP_SIGNATURE:
                return []
        with zipfile.ZipFile(path) as archive:
            return [info.filename for info in _text_members(archive, path)]


def _buffered(file: Any) -> io.BufferedReader:
    """Return a stream whose first bytes can be examined with `peek`."""
    return io.BufferedReader(file, _BUFFER)


def utf_16_of(head: bytes) -> str | None:
    """Return which UTF-16 a file without a byte order mark is in; None if it is not in UTF-16.

    Most of its line ends must be those of UTF-16, or if it has no line end, its characters must be those of Latin-1.
    Such text may also be valid UTF-8, which has a control character in place of each Cyrillic letter's high byte.

    Args:
        head: first bytes of the file.
    """
    if len(head) < _UTF_16_MINIMUM or b"\0" not in head:
        return None
    for name, low_byte in (("UTF-16LE", 0), ("UTF-16BE", 1)):  # index of the low byte of a code unit
        lows, highs = head[low_byte::2], head[1 - low_byte :: 2]
        n_line_ends = sum(pair == (ord("\n"), 0) for pair in zip(lows, highs))
        is_likely = 2 * n_line_ends > head.count(b"\n") if n_line_ends else not any(highs) and b"\0" not in lows
        if is_likely and _is_text(head, name):
            return name
    return None


def _is_text(head: bytes, encoding: str) -> bool:
    """Return whether the first bytes of a file are text in an encoding, without control or undefined characters."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(head)
    except UnicodeDecodeError:
        return False
    return all(unicodedata.category(character) not in ("Cc", "Cn", "Co") for character in set(text) - set("\t\n\r"))


def _text_members(archive: zipfile.ZipFile, path: str | Path) -> list[zipfile.ZipInfo]:
    """Return the members that may hold text.

    Raises:
        UserError: one of them is encrypted or expands like a ZIP bomb.
    """
    files = [info for info in archive.infolist() if not info.is_dir() and not _METADATA.fullmatch(info.filename)]
    texts = [info for info in files if not _INDEX.fullmatch(info.filename)] or files
    for info in texts:
        name = printable(info.filename)
        if info.flag_bits & 1:
            raise UserError(f"{path}: its member {name} is encrypted: unpack it")
        if info.file_size > _BOMB_SIZE and info.file_size > _BOMB_RATIO * info.compress_size:
            raise UserError(
                f"{path}: its member {name} would expand from {info.compress_size:,} to {info.file_size:,} bytes, "
                "as no text does, and is not read"
            )
    return texts


def _only_text_member(archive: zipfile.ZipFile, path: str | Path) -> zipfile.ZipInfo:
    """Return the only member that may hold text.

    Raises:
        UserError: there are none or several; or `_text_members` raises it.
    """
    texts = _text_members(archive, path)
    if len(texts) != 1:
        names = ", ".join(printable(info.filename) for info in texts[:6]) + (", ..." if len(texts) > 6 else "")
        raise UserError(
            f"{path}: a ZIP archive (or an Office document) with {len(texts)} text files instead of one"
            + (f": {names}" if texts else "")
        )
    return texts[0]


class _Utf8(io.RawIOBase):
    """Binary stream that converts another one to UTF-8."""

    def __init__(self, file: io.BufferedReader, encoding: str, path: str | Path) -> None:
        self._file, self._name, self._path = file, encoding.upper(), path
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._pending = b""
        self._line = 1

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._pending:
            data = self._file.read(_BUFFER)
            try:
                self._pending = self._decoder.decode(data, final=not data).encode("utf-8")
            except UnicodeError as error:
                reason = getattr(error, "reason", error)
                raise UserError(f"{self._path}, about line {self._line}: not {self._name} ({reason})") from None
            self._line += self._pending.count(b"\n")
            if not data:
                break
        n_bytes = min(len(buffer), len(self._pending))
        buffer[:n_bytes], self._pending = self._pending[:n_bytes], self._pending[n_bytes:]
        return n_bytes


@contextmanager
def user_errors(path: str | Path) -> Iterator[None]:
    """Convert the errors of reading a file into a UserError with a one-line message."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, not a text file") from None
    except EOFError:
        raise UserError(f"{path}: the compressed file is cut short") from None
    except (gzip.BadGzipFile, zlib.error, zstd.ZstdError, lzma.LZMAError) as error:
        raise UserError(f"{path}: damaged, or its extension is wrong ({error})") from None
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise UserError(f"{path}: a ZIP archive that cannot be read ({error})") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        if isinstance(error, OSError) and error.errno is None:  # bz2 has no class for it
            raise UserError(f"{path}: damaged, or its extension is wrong ({error})") from None
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(f"{path}: cannot be read: {reason}") from None
