"""The formats of translation units: TMX, XLIFF, gettext catalogues and WMT test sets."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import BinaryIO

from diglot.data.language import has_same_language
from diglot.data.readers.formats import SAMPLE, Format, Pair, read_head
from diglot.data.readers.opening import open_file
from diglot.data.readers.po import read_po
from diglot.data.readers.sides import Languages, Side, find_language, normalise_code
from diglot.data.readers.tmx import read_tmx
from diglot.data.readers.units import Unit
from diglot.data.readers.wmt import read_wmt
from diglot.data.readers.xliff import read_xliff
from diglot.errors import UserError

# The groups are atomic, so that the time for a file with many comments that is in none of the formats is linear.
_XML_START = rb"(?:\s|(?><\?.*?\?>)|(?><!--.*?-->)|<!DOCTYPE[^>\[]*+(?>\[.*?\]\s*)?>)*+"
_XML_HEAD = rb"(?:\xef\xbb\xbf)?" + _XML_START + rb"<(?:[\w.-]+:)?%s[\s>]"
_PO_HEAD = rb'(?:\xef\xbb\xbf)?(?:\s|#[^\n]*\n|(?:domain|msgctxt)?\s*"[^\n]*\n)*+msgid\s*"'
_SGM_HEAD = _XML_START + rb"<(?:srcset|refset|tstset)\b"
_SRCLANG = re.compile(rb"""<header\b[^>]*?\bsrclang\s*=\s*["']([^"'*]+)["']""")


class Units(Format):
    """Format of translation units, each with its texts by language.

    Args:
        name: name of the format in messages.
        head: regular expression that matches the start of a file.
        read_units: function that yields the units of a file, given the file and its name in errors.
        source_language: regular expression whose group 1 is the source language in the start of a file; None: the first
            language in the file is the source, and the second one the target.
    """

    def __init__(
        self,
        name: str,
        head: bytes,
        read_units: Callable[[BinaryIO, str], Iterator[Unit]],
        source_language: re.Pattern[bytes] | None = None,
    ) -> None:
        self.name, self.head = name, re.compile(head, re.DOTALL)
        self.read_units, self.source_language = read_units, source_language

    def detects(self, head: bytes) -> bool:
        return self.head.match(head) is not None

    def languages(self, path: str) -> Languages:
        by_spelling: dict[str, str] = {}  # en-US, EN-US and en_us are the same language
        with open_file(path, as_utf8=False) as file:
            for unit in islice(self.read_units(file, path), SAMPLE):
                for language in unit.texts:
                    by_spelling.setdefault(normalise_code(language), language)
        names = [*by_spelling.values()]
        if not names:
            raise UserError(f"{path}: {self.name} without any pair")
        if self.source_language is None:
            source, target = names if len(names) == 2 else (None, None)
            return Languages(names, source, target)
        match = self.source_language.search(read_head(path))
        source = find_language(names, match[1].decode(errors="replace"), path) if match else None
        return Languages(names, source)

    def pairs(self, path: str, sides: Sequence[Side], exact: Collection[str] = ()) -> Iterator[Pair]:
        """Yield the pairs. A unit with only one of the two languages is a pair with a blank side.

        Further alternatives of the target are further references.
        """
        requested = str(sides[0][0]), str(sides[1][0])
        codes = [normalise_code(str(side[0])) for side in sides]
        exact = set(map(normalise_code, exact))
        spellings: dict[str, str] = {}
        with open_file(path, as_utf8=False) as file:
            for unit in self.read_units(file, path):
                for language in unit.texts.keys() - spellings.keys():
                    code = spellings[language] = normalise_code(language)
                    if code not in codes:
                        open_requests = [side for side in requested if normalise_code(side) not in exact]
                        _check_variant(language, requested, open_requests, f"{path}, {unit.place}")
                texts: dict[str, list[str]] = {}
                for language, alternatives in unit.texts.items():
                    texts.setdefault(spellings[language], []).extend(alternatives)
                src, tgt = texts.get(codes[0], [""]), texts.get(codes[1], [""])
                more = [*tgt[1:], *(text for code in codes[2:] for text in texts.get(code, ()))]
                if codes[0] in texts or codes[1] in texts:
                    yield src[0], tgt[0], *filter(None, more)


def _check_variant(language: str, requested: tuple[str, str], open_requests: Sequence[str], place: str) -> None:
    """Check that a language that occurs first in this unit is not a variant of a requested one.

    The sides were chosen from the languages of the first units, so that a later variant makes the choice ambiguous.

    Args:
        language: language that occurs first in this unit.
        requested: languages of source and target.
        open_requests: those of them that the user did not type in this spelling.
        place: position of the unit in errors.

    Raises:
        UserError: the language is such a variant.
    """
    for side in open_requests:
        if has_same_language(language, side) and not all(has_same_language(other, side) for other in requested):
            raise UserError(f"{place} has {language}, but earlier units have {side}: type the one that you want")


def is_sgm(path: str) -> bool:
    """Return whether a file is one side of a WMT test set in SGML."""
    return is_sgm_head(read_head(path))


def is_sgm_head(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is one side of a WMT test set in SGML."""
    return re.match(_SGM_HEAD, head, re.DOTALL | re.IGNORECASE) is not None


UNIT_FORMATS: tuple[Format, ...] = (
    Units("TMX", _XML_HEAD % b"tmx", read_tmx, _SRCLANG),
    Units("XLIFF", _XML_HEAD % b"xliff", read_xliff),
    Units("a WMT test set", _XML_HEAD % b"dataset", read_wmt),
    Units("a gettext catalogue", _PO_HEAD, read_po),
)
