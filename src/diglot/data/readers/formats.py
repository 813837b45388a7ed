"""Interface of the formats of files that hold both sides of a text."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence

from diglot.data.readers.opening import open_file
from diglot.data.readers.sides import Languages, Side

Pair = tuple[str, str, *tuple[str | None, ...]]  # source, target, and further references; None: the source has none
HEAD = 2**16  # number of bytes at the start of a file that decide its format
SAMPLE = 1000  # number of rows or units at the start of a file that decide which languages it holds


class Format(ABC):
    """Base class of the formats of files that hold both sides.

    Attributes:
        name: name of the format in messages.
    """

    name: str

    @abstractmethod
    def detects(self, head: bytes) -> bool:
        """Return whether a file is of this format.

        Args:
            head: first bytes of the file, decompressed, and in UTF-8 if it is text.
        """

    @abstractmethod
    def languages(self, path: str) -> Languages:
        """Return the languages or columns of a file, as its first rows or units show them."""

    @abstractmethod
    def pairs(self, path: str, sides: Sequence[Side], exact: Collection[str] = ()) -> Iterator[Pair]:
        """Yield the pairs of a file in order, including those with a blank side. A side has no line breaks.

        Args:
            path: path of the file.
            sides: columns or language of the source, of the target, and of each further reference.
            exact: language codes that the user typed. A side that is one of them does not stand for other variants of
                its language.
        """

    def describe(self, path: str) -> str:
        """Return the name of the format, with details such as the separator of its columns."""
        return self.name


def given(text: str) -> str | None:
    """Return a further reference; None if it is blank, because a source may have fewer references than others."""
    return text if text.strip() else None


def read_head(path: str, member: str | None = None) -> bytes:
    """Return the first bytes of a file, or of a member of a ZIP archive, decompressed and in UTF-8."""
    with open_file(path, member) as file:
        return file.read(HEAD)


def head_lines(head: bytes) -> list[str]:
    """Return the lines in the first bytes of a file, without an incomplete last line unless it is the only one."""
    *lines, last = head.decode("utf-8", "replace").removeprefix("\ufeff").split("\n")
    return [line.removesuffix("\r") for line in (lines if len(head) == HEAD and lines else [*lines, last])]
