"""Gettext catalogues (PO), the translations of programs."""

import gettext
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import BinaryIO, NoReturn

from diglot.data.readers.units import MAX_UNIT, Unit, decode, numbered_lines, one_line, pair_keys
from diglot.errors import UserError

_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_STRINGS = re.compile(_STRING)
_LINE = re.compile(rf"(?:(domain|msgctxt|msgid_plural|msgid|msgstr(?:\[\d{{1,3}}\])?)\s*)?((?:{_STRING}\s*)+)")
_ESCAPE = re.compile(r"(?:\\(?:[0-7]{1,3}|x[0-9a-fA-F]{1,2}))+|\\.")
_BYTE = re.compile(r"\\(?:x([0-9a-fA-F]+)|([0-7]+))")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_CHARSET = re.compile(rb'[^#]*content-type:[^"]*?charset=([^\s\\";]+)', re.I)
_HEADER_SIZE = 2**18  # bytes in which the charset is searched
_ASCII = "".join(map(chr, range(32, 127))) + r"\u0041"
_KDE_CONTEXT = re.compile(r"_: ?[^\n]*\n")


def read_po(file: BinaryIO, name: str) -> Iterator[Unit]:
    r"""Yield the translated strings of a gettext catalogue (.po), and those without a translation with an empty text.

    The languages are the `Language` of the header and its `X-Source-Language`; without them, "tgt" and "src". The
    charset is that of the header, or UTF-8. The header entry itself, obsolete entries (`#~`), entries that are marked
    as fuzzy, contexts (`msgctxt`), previous strings (`#|`) and all other comments are skipped.

    An entry with plural forms yields two units: the singular with the form for 1, and the plural with the form that
    most numbers from 2 to 1,000 have, according to the `Plural-Forms` of the header. Without a valid expression, these
    are the first form and the last. If both have the same form (as in Japanese), only the plural is a unit.

    In the old style of KDE, contexts are the first line of a string, `_: context\n`, and are removed; plural forms are
    lines: `_n: one\nmany`. The escapes are those of C. Line breaks (`\n`) are handled as by `one_line`.

    Args:
        file: the file, opened in binary mode.
        name: its name in errors.

    Raises:
        UserError: a line is not part of an entry, an entry has no `msgid` or no `msgstr`, an escape is unknown, an
            entry is too long, or the file is not in its charset.
    """
    lines = numbered_lines(file, name)
    head, charset = _read_head(lines)
    reader = _PoReader(name, _checked(charset, name))
    for number, line in itertools.chain(head, lines):
        yield from reader.read(decode(line, reader.charset, name, number).strip(), number)
    yield from reader.end_entry()


def _read_head(lines: Iterator[tuple[int, bytes]]) -> tuple[list[tuple[int, bytes]], str]:
    """Read lines up to the charset; return them and the charset, or UTF-8 if the first entry has none."""
    head: list[tuple[int, bytes]] = []
    n_bytes = n_entries = 0
    for number, line in lines:
        head.append((number, line))
        n_bytes += len(line)
        n_entries += line.startswith(b"msgid")
        if n_bytes > _HEADER_SIZE or n_entries > 1:  # the charset would be text of another entry
            break
        if match := _CHARSET.match(line[:4096]):
            charset = match[1].decode("ascii", "replace")
            return head, "utf-8" if charset == "CHARSET" else charset  # CHARSET: of a template
    return head, "utf-8"


def _checked(charset: str, name: str) -> str:
    """Return a charset.

    Raises:
        UserError: it is unknown, or does not contain ASCII (as required in PO).
    """
    try:
        is_ascii = _ASCII.encode(charset) == _ASCII.encode("ascii") and _ASCII.encode("ascii").decode(charset) == _ASCII
    except (LookupError, ValueError):
        is_ascii = False
    if not is_ascii:
        raise UserError(f"{name}: the charset {charset[:50]!r} of its header cannot be read: convert the file to UTF-8")
    return charset


class _PoReader:
    """The state of `read_po` between lines."""

    def __init__(self, name: str, charset: str) -> None:
        self.name, self.charset = name, charset
        self.keys = ("src", "tgt")
        self.plural_forms: tuple[int, int] | None = None  # indices of the forms for 1 and for most numbers
        self.fields: dict[str, list[str]] = {}  # of the entry: by keyword, its strings
        self.field: list[str] = []  # the one that is being read
        self.number = 0  # of the entry's first line
        self.n_characters = self.n_forms = 0  # of the entry
        self.is_fuzzy = self.is_next_fuzzy = False

    def read(self, line: str, number: int) -> Iterator[Unit]:
        """Yield the units of the entry that ends before a line."""
        if not line:
            return
        if line.startswith("#"):
            if self.n_forms:  # after the entry, not in it
                yield from self.end_entry()
            if line.startswith((",", "="), 1):
                self.is_next_fuzzy |= "fuzzy" in re.split(r"[\s,]+", line[2:])
            elif line.startswith("~", 1):
                self.is_next_fuzzy = False  # the flag was that of an obsolete entry
            return
        match = _LINE.fullmatch(line)
        if not match:
            self._refuse("not a line of a gettext catalogue", number)
        keyword, strings = match.groups()
        if keyword == "domain" or (keyword in ("msgctxt", "msgid") and (self.n_forms or keyword in self.fields)):
            yield from self.end_entry()
        if keyword == "domain":
            return
        if keyword:
            self._begin_field(keyword, number)
        elif not self.fields:
            self._refuse("a string without a keyword, such as msgid", number)
        self.field += [string[1:-1] for string in _STRINGS.findall(strings)]
        self.n_characters += len(line)
        if self.n_characters > MAX_UNIT:
            self._refuse(f"an entry of more than {MAX_UNIT:,} characters", self.number)

    def _begin_field(self, keyword: str, number: int) -> None:
        if not self.fields:
            self.number, self.n_characters, self.n_forms = number, 0, 0
            self.is_fuzzy, self.is_next_fuzzy = self.is_next_fuzzy, False
        if keyword in self.fields or (keyword.startswith("msgstr[") and keyword != f"msgstr[{self.n_forms}]"):
            self._refuse(f"{keyword} is not expected here", number)
        self.n_forms += keyword.startswith("msgstr")
        self.field = self.fields[keyword] = []

    def end_entry(self) -> Iterator[Unit]:
        """Yield the units of the open entry, if there is one."""
        if not self.fields:
            return
        fields, self.fields, self.n_forms = self.fields, {}, 0
        texts = {keyword: self._unescaped("".join(strings)) for keyword, strings in fields.items()}
        forms = [text for keyword, text in texts.items() if keyword.startswith("msgstr")]
        if "msgid" not in texts or not forms:
            self._refuse(f"an entry without {'msgstr' if 'msgid' in texts else 'msgid'}", self.number)
        if not texts["msgid"] and "msgctxt" not in texts:
            self._read_header(forms[0])
        elif not self.is_fuzzy:
            for src, tgt in self._pairs(texts["msgid"], texts.get("msgid_plural"), forms):
                by_language = {self.keys[0]: [one_line(src)], self.keys[1]: [one_line(tgt)]}
                yield Unit(by_language, f"line {self.number}")

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
        one, many = self.plural_forms or (0, len(forms) - 1)
        if one != many:
            yield singular, forms[one] if one < len(forms) else ""
        yield plural, forms[many] if many < len(forms) else ""

    def _read_header(self, text: str) -> None:
        lines = (line.partition(":") for line in text.split("\n"))
        header = {key.strip().lower(): value.strip() for key, _, value in lines}
        self.keys = pair_keys(header.get("x-source-language"), header.get("language"))
        self.plural_forms = None
        if match := re.search(r"\bplural\s*=\s*([^;]+)", header.get("plural-forms", "")):
            self.plural_forms = _choose_forms(match[1])

    def _unescaped(self, text: str) -> str:
        return _ESCAPE.sub(self._character, text) if "\\" in text else text

    def _character(self, match: re.Match[str]) -> str:
        """Return the characters of an escape, or of several bytes that are escaped."""
        escape = match[0]
        if character := _ESCAPED.get(escape[1:]):
            return character
        try:
            data = bytes(int(x, 16) if x else int(o, 8) for x, o in _BYTE.findall(escape))
            return data.decode(self.charset) if data else self._refuse(f"unknown escape {escape}", self.number)
        except ValueError:
            self._refuse(f"the escapes {escape[:50]} are not {self.charset.upper()}", self.number)

    def _refuse(self, what: str, number: int) -> NoReturn:
        raise UserError(f"{self.name}, line {number}: {what}")


def _choose_forms(expression: str) -> tuple[int, int] | None:
    """Return the plural forms for 1 and for most of the numbers from 2 to 1,000; None if the expression is invalid."""
    try:
        form: Callable[[int], int] = gettext.c2py(expression)
        one, many = form(1), Counter(map(form, range(2, 1001))).most_common(1)[0][0]
    except (ValueError, ArithmeticError, RecursionError):
        return None
    return (one, many) if min(one, many) >= 0 else None
