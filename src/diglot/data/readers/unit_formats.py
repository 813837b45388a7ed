"""The formats of translation units: TMX, XLIFF, gettext catalogues and WMT test sets."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import BinaryIO

from diglot.data.language import has_same_language
from diglot.data.readers.formats import SAMPLE, Format, Pair, head_of
from diglot.data.readers.opening import opened
from diglot.data.readers.po import read_po
from diglot.data.readers.sides import Languages, Side, matching, spelled
from diglot.data.readers.tmx import read_tmx
from diglot.data.readers.units import Unit
from diglot.data.readers.wmt import read_wmt
from diglot.data.readers.xliff import read_xliff
from diglot.errors import UserError

# Atomic groups: a head of many comments that is of no format takes no longer than any other.
_XML_START = rb"(?:\s|(?><\?.*?\?>)|(?><!--.*?-->)|<!DOCTYPE[^>\[]*+(?>\[.*?\]\s*)?>)*+"
_XML_HEAD = rb"(?:\xef\xbb\xbf)?" + _XML_START + rb"<(?:[\w.-]+:)?%s[\s>]"
_PO_HEAD = rb'(?:\xef\xbb\xbf)?(?:\s|#[^\n]*\n|(?:domain|msgctxt)?\s*"[^\n]*\n)*+msgid\s*"'
_SGM_HEAD = _XML_START + rb"<(?:srcset|refset|tstset)\b"
_SRCLANG = re.compile(rb"""<header\b[^>]*?\bsrclang\s*=\s*["']([^"'*]+)["']""")


class Units(Format):
    """A format of units, each with its texts by language.

    Args:
        name: name of the format in messages.
        head: regular expression of the start of a file.
        read: the reader.
        declared: regular expression of the source language, in the start of a file; None: the first text of a unit is
            its source, and the second its target.
    """

    def __init__(
        self,
        name: str,
        head: bytes,
        read: Callable[[BinaryIO, str], Iterator[Unit]],
        declared: re.Pattern[bytes] | None = None,
    ) -> None:
        self.name, self.head, self.read, self.declared = name, re.compile(head, re.DOTALL), read, declared

    def detects(self, head: bytes) -> bool:
        return self.head.match(head) is not None

    def languages(self, path: str) -> Languages:
        by_spelling: dict[str, str] = {}  # en-US, EN-US and en_us are one language
        with opened(path, as_utf8=False) as file:
            for unit in islice(self.read(file, path), SAMPLE):
                for language in unit.texts:
                    by_spelling.setdefault(spelled(language), language)
        names = [*by_spelling.values()]
        if self.declared is None:
            source, target = names if len(names) == 2 else (None, None)
            return Languages(names, source, target)
        match = self.declared.search(head_of(path))
        source = matching(names, match[1].decode(errors="replace"), path) if match else None
        return Languages(names, source)

    def pairs(self, path: str, sides: Sequence[Side], exact: Collection[str] = ()) -> Iterator[Pair]:
        """Yield the pairs; a unit with only one of the two languages is a pair with a blank side.

        The further alternatives of the target are further references.
        """
        wanted = str(sides[0][0]), str(sides[1][0])
        codes = [spelled(str(side[0])) for side in sides]
        exact = set(map(spelled, exact))
        spellings: dict[str, str] = {}
        with opened(path, as_utf8=False) as file:
            for unit in self.read(file, path):
                for language in unit.texts.keys() - spellings.keys():
                    code = spellings[language] = spelled(language)
                    if code not in codes:
                        asked = [side for side in wanted if spelled(side) not in exact]
                        _check_variant(language, wanted, asked, f"{path}, {unit.place}")
                texts: dict[str, list[str]] = {}
                for language, alternatives in unit.texts.items():
                    texts.setdefault(spellings[language], []).extend(alternatives)
                src, tgt = texts.get(codes[0], [""]), texts.get(codes[1], [""])
                more = [*tgt[1:], *(text for code in codes[2:] for text in texts.get(code, ()))]
                if codes[0] in texts or codes[1] in texts:
                    yield src[0], tgt[0], *filter(None, more)


def _check_variant(language: str, wanted: tuple[str, str], asked: Sequence[str], where: str) -> None:
    """Check that a language that first occurs here is not a variant of a wanted one.

    Raises:
        UserError: it is, so that the choice among the first units was no choice.
    """
    for side in asked:
        if has_same_language(language, side) and not all(has_same_language(each, side) for each in wanted):
            raise UserError(f"{where}: {language}, but the units before have {side}: type the one that you want")


def is_sgm(path: str) -> bool:
    """Return whether a file is a side of a test set in SGML."""
    return re.match(_SGM_HEAD, head_of(path), re.DOTALL | re.IGNORECASE) is not None


UNIT_FORMATS: tuple[Format, ...] = (
    Units("TMX", _XML_HEAD % b"tmx", read_tmx, _SRCLANG),
    Units("XLIFF", _XML_HEAD % b"xliff", read_xliff),
    Units("a WMT test set", _XML_HEAD % b"dataset", read_wmt),
    Units("a gettext catalogue", _PO_HEAD, read_po),
)
