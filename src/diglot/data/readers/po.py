"""Reading of gettext catalogues (PO), which hold the translations of programs."""

import gettext
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import BinaryIO, NoReturn

from diglot.data.readers.units import MAX_UNIT, Unit, decode, numbered_lines, one_line, pair_keys
from diglot.errors import UserError

_STRING_PATTERN = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_STRINGS = re.compile(_STRING_PATTERN)
_LINE = re.compile(rf"(?:(domain|msgctxt|msgid_plural|msgid|msgstr(?:\[\d{{1,3}}\])?)\s*)?((?:{_STRING_PATTERN}\s*)+)")
_ESCAPE = re.compile(r"(?:\\(?:[0-7]{1,3}|x[0-9a-fA-F]{1,2}))+|\\.")
_BYTE = re.compile(r"\\(?:x([0-9a-fA-F]+)|([0-7]+))")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_CHARSET = re.compile(rb'[^#]*content-type:[^"]*?charset=([^\s\\";]+)', re.I)
_MAX_HEADER_SIZE = 2**18  # number of bytes at the start of a file in which the charset is searched
_ASCII_SAMPLE = "".join(map(chr, range(32, 127))) + r"\u0041"
_KDE_CONTEXT = re.compile(r"_: ?[^\n]*\n")


def read_po(file: BinaryIO, name: str) -> Iterator[Unit]:
    r"""Yield the units of a gettext catalogue (.po). An entry without a translation gives a unit with an empty text.

    The source language is the header's `X-Source-Language`, or "src" if it is missing; the target language is the
    header's `Language`, or "tgt". The charset is also that of the header, or UTF-8. Skipped are the header entry,
    obsolete entries (`#~`), entries that are marked as fuzzy, contexts (`msgctxt`), previous strings (`#|`) and all
    other comments.

    An entry with plural forms gives two units: the singular with the form for 1, and the plural with the form that most
    numbers from 2 to 1,000 have, according to the header's `Plural-Forms`. Without a valid expression there, these are
    the first form and the last form. If both are the same form, as in Japanese, only the plural is a unit.

    In the old style of KDE, a context is the first line of a string (`_: context\n`) and is removed, and plural forms
    are lines (`_n: one\nmany`). The escapes are those of C. Line breaks (`\n`) are replaced as in `one_line`.

    Args:
        file: file opened in binary mode.
        name: name of the file in errors.

    Raises:
        UserError: a line is not part of an entry, an entry has no `msgid` or no `msgstr`, an escape is unknown, an
            entry is too long, or the file is not valid in its charset.
    """
    lines = numbered_lines(file, name)
    head, charset = _read_head(lines)
    reader = _PoReader(name, _check_charset(charset, name))
    for line_number, line in itertools.chain(head, lines):
        yield from reader.read(decode(line, reader.charset, name, line_number).strip(), line_number)
    yield from reader.end_entry()


def _read_head(lines: Iterator[tuple[int, bytes]]) -> tuple[list[tuple[int, bytes]], str]:
    """Read lines up to the charset of the header; return them and the charset, or UTF-8 if there is none."""
    head: list[tuple[int, bytes]] = []
    n_bytes = n_entries = 0
    for line_number, line in lines:
        head.append((line_number, line))
        n_bytes += len(line)
        n_entries += line.startswith(b"msgid")
        if n_bytes > _MAX_HEADER_SIZE or n_entries > 1:  # a charset in another entry would be text
            break
        if match := _CHARSET.match(line[:4096]):
            charset = match[1].decode("ascii", "replace")
            return head, "utf-8" if charset == "CHARSET" else charset  # templates contain the word CHARSET itself
    return head, "utf-8"


def _check_charset(charset: str, name: str) -> str:
    """Return a charset, after a check that it can be read.

    Raises:
        UserError: the charset is unknown, or is not a superset of ASCII, as PO requires.
    """
    try:
        encoded = _ASCII_SAMPLE.encode("ascii")
        is_superset = _ASCII_SAMPLE.encode(charset) == encoded and encoded.decode(charset) == _ASCII_SAMPLE
    except (LookupError, ValueError):
        is_superset = False
    if not is_superset:
        raise UserError(f"{name}: the charset {charset[:50]!r} of its header cannot be read: convert the file to UTF-8")
    return charset


class _PoReader:
    """State of `read_po` between lines.

    Attributes:
        keys: keys of source and target in units.
        plural_forms: indices of the translations for 1 and for most numbers; None: the first and the last.
        fields: strings of the open entry, by keyword.
        strings: strings of the open field.
        entry_line: line on which the open entry starts, from 1.
        n_characters: number of characters of the open entry.
        n_translations: number of `msgstr` fields of the open entry.
        is_fuzzy: whether the open entry is marked as fuzzy.
        is_next_fuzzy: whether the next entry is.
    """

    def __init__(self, name: str, charset: str) -> None:
        self.name, self.charset = name, charset
        self.keys = ("src", "tgt")
        self.plural_forms: tuple[int, int] | None = None
        self.fields: dict[str, list[str]] = {}
        self.strings: list[str] = []
        self.entry_line = 0
        self.n_characters = self.n_translations = 0
        self.is_fuzzy = self.is_next_fuzzy = False

    def read(self, line: str, line_number: int) -> Iterator[Unit]:
        """Read a line; yield the units of the entry that ends before it."""
        if not line:
            return
        if line.startswith("#"):
            if self.n_translations:  # a comment after the translations belongs to the next entry
                yield from self.end_entry()
            if line.startswith((",", "="), 1):
                self.is_next_fuzzy |= "fuzzy" in re.split(r"[\s,]+", line[2:])
            elif line.startswith("~", 1):
                self.is_next_fuzzy = False  # the flag belonged to this obsolete entry
            return
        match = _LINE.fullmatch(line)
        if not match:
            self._refuse("not a line of a gettext catalogue", line_number)
        keyword, strings = match.groups()
        if keyword == "domain" or (keyword in ("msgctxt", "msgid") and (self.n_translations or keyword in self.fields)):
            yield from self.end_entry()
        if keyword == "domain":
            return
        if keyword:
            self._begin_field(keyword, line_number)
        elif not self.fields:
            self._refuse("a string without a keyword, such as msgid", line_number)
        self.strings += [string[1:-1] for string in _STRINGS.findall(strings)]
        self.n_characters += len(line)
        if self.n_characters > MAX_UNIT:
            self._refuse(f"an entry of more than {MAX_UNIT:,} characters", self.entry_line)

    def _begin_field(self, keyword: str, line_number: int) -> None:
        if not self.fields:
            self.entry_line, self.n_characters, self.n_translations = line_number, 0, 0
            self.is_fuzzy, self.is_next_fuzzy = self.is_next_fuzzy, False
        if keyword in self.fields or (keyword.startswith("msgstr[") and keyword != f"msgstr[{self.n_translations}]"):
            self._refuse(f"{keyword} is not expected here", line_number)
        self.n_translations += keyword.startswith("msgstr")
        self.strings = self.fields[keyword] = []

    def end_entry(self) -> Iterator[Unit]:
        """Yield the units of the open entry, if there is one."""
        if not self.fields:
            return
        fields, self.fields, self.n_translations = self.fields, {}, 0
        texts = {keyword: self._unescape("".join(strings)) for keyword, strings in fields.items()}
        forms = [text for keyword, text in texts.items() if keyword.startswith("msgstr")]
        if "msgid" not in texts or not forms:
            self._refuse(f"an entry without {'msgstr' if 'msgid' in texts else 'msgid'}", self.entry_line)
        if not texts["msgid"] and "msgctxt" not in texts:
            self._read_header(forms[0])
        elif not self.is_fuzzy:
            for src, tgt in self._pairs(texts["msgid"], texts.get("msgid_plural"), forms):
                by_language = {self.keys[0]: [one_line(src)], self.keys[1]: [one_line(tgt)]}
                yield Unit(by_language, f"line {self.entry_line}")

    def _pairs(self, singular: str, plural: str | None, forms: list[str]) -> Iterator[tuple[str, str]]:
        """Yield the pairs of an entry: its string, or its singular and plural, with their translations."""
        if singular.startswith("_: "):
            singular = _KDE_CONTEXT.sub("", singular, count=1)
        if plural is None and singular.startswith("_n: "):
            singular, _, plural = singular.removeprefix("_n: ").partition("\n")
            forms = forms[0].split("\n")
        if plural is None:
            yield singular, forms[0]
            return
        singular_form, plural_form = self.plural_forms or (0, len(forms) - 1)
        if singular_form != plural_form:
            yield singular, forms[singular_form] if singular_form < len(forms) else ""
        yield plural, forms[plural_form] if plural_form < len(forms) else ""

    def _read_header(self, text: str) -> None:
        lines = (line.partition(":") for line in text.split("\n"))
        header = {key.strip().lower(): value.strip() for key, _, value in lines}
        self.keys = pair_keys(header.get("x-source-language"), header.get("language"))
        self.plural_forms = None
        if match := re.search(r"\bplural\s*=\s*([^;]+)", header.get("plural-forms", "")):
            self.plural_forms = _plural_forms(match[1])

    def _unescape(self, text: str) -> str:
        return _ESCAPE.sub(self._unescape_match, text) if "\\" in text else text

    def _unescape_match(self, match: re.Match[str]) -> str:
        """Return the text of an escape, or of a sequence of escaped bytes."""
        escape = match[0]
        if character := _ESCAPED.get(escape[1:]):
            return character
        try:
            data = bytes(int(x, 16) if x else int(o, 8) for x, o in _BYTE.findall(escape))
            return data.decode(self.charset) if data else self._refuse(f"unknown escape {escape}", self.entry_line)
        except ValueError:
            self._refuse(f"the escapes {escape[:50]} are not {self.charset.upper()}", self.entry_line)

    def _refuse(self, message: str, line_number: int) -> NoReturn:
        raise UserError(f"{self.name}, line {line_number}: {message}")


def _plural_forms(expression: str) -> tuple[int, int] | None:
    """Return the plural forms for 1 and for most numbers from 2 to 1,000; None if the expression is invalid."""
    try:
        form_of: Callable[[int], int] = gettext.c2py(expression)
        singular, plural = form_of(1), Counter(map(form_of, range(2, 1001))).most_common(1)[0][0]
    except (ValueError, ArithmeticError, RecursionError):
        return None
    return (singular, plural) if min(singular, plural) >= 0 else None
