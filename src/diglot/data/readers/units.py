"""Units of translation formats, and functions that their readers share."""

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from diglot.errors import UserError

MAX_UNIT = 2**24  # greatest size of a unit in a file, in bytes, so that a malicious file cannot fill the memory


class Unit(NamedTuple):
    """A translation unit of a file.

    Attributes:
        texts: alternative texts by language code, which is spelled as in the file. The first text is the translation;
            the others are further references. If the file does not give the languages, the keys are those of
            `pair_keys`.
        place: position of the unit in errors, such as "line 120" or "document x, segment 7".
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
    """Return a text without line breaks, and without blanks at its ends.

    Each line break (LF or CR), with the blanks (spaces and tabs) around it, becomes a space. Other characters, such as
    no-break spaces, are text.
    """
    if "\n" in text or "\r" in text:
        parts = (part.strip(" \t") for part in text.replace("\r", "\n").split("\n"))
        return " ".join(filter(None, parts))
    return text.strip(" \t")


def numbered_lines(file: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file with their numbers, from 1; a byte order mark at the start is dropped.

    Raises:
        UserError: a line is longer than `MAX_UNIT`.
    """
    line_number = 1
    while line := file.readline(MAX_UNIT + 1):
        if len(line) > MAX_UNIT:
            raise UserError(f"{name}, line {line_number}: more than {MAX_UNIT:,} bytes in one line")
        yield line_number, line.removeprefix(b"\xef\xbb\xbf") if line_number == 1 else line
        line_number += 1


def decode(line: bytes, encoding: str, name: str, line_number: int) -> str:
    """Return the text of a line.

    Args:
        line: the line.
        encoding: its encoding.
        name: name of the file in errors.
        line_number: number of the line in errors, from 1.

    Raises:
        UserError: the line is not valid in the encoding.
    """
    try:
        return line.decode(encoding)
    except UnicodeDecodeError as error:
        reason = f"{error.reason}, byte 0x{line[error.start]:02x}"
        raise UserError(f"{name}, line {line_number}: not {encoding.upper()} ({reason})") from None
