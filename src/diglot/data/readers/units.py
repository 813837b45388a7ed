"""What the readers share: the unit that they yield, how text becomes one line, and limits for malicious files."""

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from diglot.errors import UserError

MAX_UNIT = 2**24  # bytes of a file that one unit may take


class Unit(NamedTuple):
    """One translation unit of a file: its texts by language, and where it is.

    Attributes:
        texts: by language code, as the file writes it, the alternatives of the text. The first is the translation; the
            others are further references. Formats without languages have the keys of `pair_keys`.
        place: where the unit is, for errors: "line 120" or "document x, segment 7".
    """

    texts: dict[str, list[str]]
    place: str


def pair_keys(src_lang: str | None, tgt_lang: str | None) -> tuple[str, str]:
    """Return the keys of source and target in `Unit.texts`: their languages, or "src" and "tgt" if these do not differ.

    Args:
        src_lang: the source language, or None if the file does not give it.
        tgt_lang: the target language, or None if the file does not give it.
    """
    src, tgt = src_lang or "src", tgt_lang or "tgt"
    return (src, tgt) if src != tgt else ("src", "tgt")


def one_line(text: str) -> str:
    """Return a text without line breaks: each, with the blanks around it, becomes a space; none is left at the ends.

    Line breaks are LF and CR, and blanks are spaces and tabs. Other characters, such as no-break spaces, are text.
    """
    if "\n" in text or "\r" in text:
        parts = (part.strip(" \t") for part in text.replace("\r", "\n").split("\n"))
        return " ".join(filter(None, parts))
    return text.strip(" \t")


def numbered_lines(file: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file with their numbers, from 1; a byte order mark at the start is dropped.

    Raises:
        UserError: a line is longer than a unit may be.
    """
    number = 1
    while line := file.readline(MAX_UNIT + 1):
        if len(line) > MAX_UNIT:
            raise UserError(f"{name}, line {number}: more than {MAX_UNIT:,} bytes in one line")
        yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        number += 1


def decode(line: bytes, encoding: str, name: str, number: int) -> str:
    """Return the text of a line.

    Raises:
        UserError: the line is not valid in the encoding.
    """
    try:
        return line.decode(encoding)
    except UnicodeDecodeError as error:
        reason = f"{error.reason}, byte 0x{line[error.start]:02x}"
        raise UserError(f"{name}, line {number}: not {encoding.upper()} ({reason})") from None
