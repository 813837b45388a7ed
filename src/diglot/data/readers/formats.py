"""The interface of the formats of files that hold both sides."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence

from diglot.data.readers.opening import opened
from diglot.data.readers.sides import Languages, Side

Pair = tuple[str, str, *tuple[str | None, ...]]  # source, target, and further references; None: the source has none
HEAD = 2**16  # bytes of a file that decide its format
SAMPLE = 1000  # number of rows or units that decide which languages a file holds


class Format(ABC):
    """A format of files that hold both sides.

    Attributes:
        name: name of the format in messages.
    """

    name: str

    @abstractmethod
    def detects(self, head: bytes) -> bool:
        """Return whether a file that begins with these bytes, in UTF-8 if it is text, is of the format."""

    @abstractmethod
    def languages(self, path: str) -> Languages:
        """Return the languages or columns of a file, from its first rows or units."""

    @abstractmethod
    def pairs(self, path: str, sides: Sequence[Side], exact: Collection[str] = ()) -> Iterator[Pair]:
        """Yield the pairs of a file in order, with blank sides, without line breaks inside a side.

        Args:
            path: the file.
            sides: the columns, or the language, of the source, of the target, and of each further reference.
            exact: languages that the user typed; if one is spelled like a side, no other variant of it is meant.
        """

    def describe(self, path: str) -> str:
        """Return the name of the format, with what else was decided from the file."""
        return self.name


def given(text: str) -> str | None:
    """Return a further reference, or None if it is blank: a source may have fewer references than others."""
    return text if text.strip() else None


def head_of(path: str) -> bytes:
    """Return the first bytes of a file, decompressed and in UTF-8."""
    with opened(path) as file:
        return file.read(HEAD)


def head_lines(head: bytes) -> list[str]:
    """Return the complete lines in the first bytes of a file; the last line counts if there is no other."""
    *lines, rest = head.decode("utf-8", "replace").removeprefix("\ufeff").split("\n")
    return [line.removesuffix("\r") for line in (lines if len(head) == HEAD and lines else [*lines, rest])]
