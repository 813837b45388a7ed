"""Reading of WMT test sets in XML, one file with sources and references, and in SGML (.sgm), a file for each side."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO, NamedTuple

from diglot.data.readers.units import MAX_UNIT, Unit, decode, numbered_lines, one_line, pair_keys
from diglot.data.readers.xml_parser import XmlReader
from diglot.errors import UserError


def read_wmt(file: BinaryIO, name: str) -> Iterator[Unit]:
    """Yield the segments of a WMT test set in XML, with all of their references.

    Source and references of a document are paired by the ids of their segments. Several references in a language are
    alternatives, in the order of the file. If a side has no attribute `lang`, its language is "src" or "tgt". A
    document may have fewer references than another one, or none. System outputs (`<hyp>`) are skipped. `XmlReader`
    describes the limits.

    Args:
        file: file opened in binary mode.
        name: name of the file in errors.

    Raises:
        UserError: the source and a reference of a document do not have the same segments, or an id is missing or occurs
            twice; or `XmlReader` raises it.
    """
    return iter(_WmtReader(file, name))


class _Side(NamedTuple):
    """Segments of a document on one side.

    Attributes:
        language: code of the language; None: not given.
        texts: texts of the segments by their ids.
    """

    language: str | None
    texts: dict[str, str]


class _WmtReader(XmlReader):
    root = "dataset"

    def __init__(self, file: BinaryIO, name: str) -> None:
        super().__init__(file, name)
        self.document = self.segment = ""  # ids of the open document and segment
        self.sources: list[_Side] = []
        self.references: list[_Side] = []
        self.side: _Side | None = None  # the open side

    def start(self, name: str, attributes: Mapping[str, str], parent: str) -> None:
        if name == "doc":
            self.begin_unit()
            self.document, self.sources, self.references = attributes.get("id", ""), [], []
        elif parent == "doc":
            self.side = _Side(attributes.get("lang"), {}) if name in ("src", "ref") else None
            if self.side:
                (self.sources if name == "src" else self.references).append(self.side)
        elif name == "seg" and self.side:
            self.segment = attributes.get("id", "")
            if not self.segment:
                self.refuse("a <seg> without an id")
            if self.segment in self.side.texts:
                self.refuse(f"{_place_of(self.document, self.segment)} occurs twice on one side")
            self.begin_text()

    def add_text(self, name: str, text: str) -> None:
        if self.side:
            self.side.texts[self.segment] = text

    def end_unit(self) -> None:
        self.side = None
        if len(self.sources) != 1:
            self.refuse(f"document {self.document} has {len(self.sources)} sources (<src>); it must have one")
        source = self.sources[0]
        for reference in self.references:
            if unpaired := source.texts.keys() ^ reference.texts.keys():
                segment = min(unpaired)
                missing = "reference" if segment in source.texts else "source"
                self.refuse(f"{_place_of(self.document, segment)} has no {missing}")
        keys = [pair_keys(source.language, reference.language) for reference in self.references]
        is_reference_language = source.language in [reference.language for reference in self.references]
        src_key = "src" if is_reference_language else source.language or "src"
        for segment, text in source.texts.items():
            texts = {src_key: [text]}
            for (_, tgt_key), reference in zip(keys, self.references):
                texts.setdefault(tgt_key, []).append(reference.texts[segment])
            self.units.append(Unit(texts, _place_of(self.document, segment)))


def _place_of(document: str, segment: str) -> str:
    return f"document {document}, segment {segment}"


class Segment(NamedTuple):
    """A segment of one side of a test set.

    Attributes:
        document: id of the document.
        segment: id of the segment in the document.
        text: text of the segment.
    """

    document: str
    segment: str
    text: str


def join_sides(
    sources: Iterable[Segment], references: Iterable[Segment], src_name: str, ref_name: str
) -> Iterator[Unit]:
    """Yield the segments of the source with all of their references, as units with the keys "src" and "tgt".

    Segments are paired by the ids of document and segment, not by their order. A document that occurs several times
    among the references, in one file or in several, has several references. All references are held in memory.

    Args:
        sources: segments of the source.
        references: segments of all references. `itertools.chain` joins those of several files.
        src_name: name of the source in errors.
        ref_name: name of the references in errors.

    Raises:
        UserError: a segment is missing on one side, occurs twice in the source, or has more or fewer references than
            the other segments of its document.
    """
    texts: dict[tuple[str, str], list[str]] = defaultdict(list)
    for document, segment, text in references:
        texts[document, segment].append(text)
    n_references: dict[str, int] = {}  # by document
    seen: set[tuple[str, str]] = set()
    for document, segment, text in sources:
        key, place = (document, segment), _place_of(document, segment)
        if key in seen:
            raise UserError(f"{src_name}: {place} occurs twice")
        seen.add(key)
        if key not in texts:
            raise UserError(f"{ref_name}: {place} is missing, but {src_name} has it")
        n_texts = len(texts[key])
        if n_texts != n_references.setdefault(document, n_texts):
            n_others = n_references[document]
            raise UserError(
                f"{ref_name}: {place} occurs {n_texts} time(s), other segments of the document {n_others} time(s)"
            )
        yield Unit({"src": [text], "tgt": texts[key]}, place)
    if unused := next((key for key in texts if key not in seen), None):
        raise UserError(f"{src_name}: {_place_of(*unused)} is missing, but {ref_name} has it")


_TAG = re.compile(r"<(/?)(seg|doc|srcset|refset|tstset|p|hl)(?=[\s/>])([^<>]*)>", re.I)
_UNFINISHED_TAG = re.compile(r"<(?:seg|doc|srcset|refset|tstset)(?:\s[^<>]*)?\Z", re.I)
_MAX_TAG = 2**12  # characters of a tag
_ATTRIBUTE = re.compile(r"""([\w-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"']+))""")
_REFERENCE = re.compile(r"&(?:(amp|lt|gt|quot|apos)|#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6}));")
_CHARACTERS = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}


def read_sgm(file: BinaryIO, name: str) -> Iterator[Segment]:
    """Yield the segments of an SGML file of a WMT or NIST test set, which contains one side.

    SGML is not XML. Only tags of test sets are tags; any other `<` is text. `&amp;`, `&lt;`, `&gt;`, `&quot;`,
    `&apos;` and numeric character references are replaced; any other `&` is text. Values of attributes may have no
    quotes, and names may be in any case. A segment ends at `</seg>`. If that is missing, it ends at the first `<p>`,
    `</p>`, `<hl>` or `</hl>`, or at the next segment or document. The text is UTF-8. Headlines (`<hl>`) are segments
    like others.

    Args:
        file: file opened in binary mode.
        name: name of the file in errors.

    Raises:
        UserError: a segment has no id or no document, an id occurs twice in a document, a segment, line or tag is too
            long, or the file is not UTF-8.
    """
    reader = _SgmReader(name)
    for number, line in numbered_lines(file, name):
        yield from reader.read(decode(line, "utf-8", name, number), number)
    yield from reader.end_segment()


class _SgmReader:
    """State of `read_sgm` between lines.

    Attributes:
        line_number: number of the current line, from 1.
        unfinished_tag: start of a tag that continues on the next line.
        document: id of the open document; None: no document is open.
        segment: id of the open segment; None: no segment is open.
        ids: ids of all segments of the open document.
        parts: parts of the text of the open segment.
        n_characters: number of characters of these parts.
        n_text_parts: number of parts before the first tag that ends a segment without `</seg>`; None: there is none.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.line_number = 0
        self.unfinished_tag = ""
        self.document: str | None = None
        self.segment: str | None = None
        self.ids: set[str] = set()
        self.parts: list[str] = []
        self.n_characters = 0
        self.n_text_parts: int | None = None

    def read(self, line: str, line_number: int) -> Iterator[Segment]:
        """Read a line; yield the segments that end in it."""
        self.line_number = line_number
        line = self.unfinished_tag + line
        end = len(line)
        if match := _UNFINISHED_TAG.search(line, max(line.rfind("<"), 0)):
            end = match.start()
        self.unfinished_tag = line[end:]
        if len(self.unfinished_tag) > _MAX_TAG:
            self._refuse(f"a tag of more than {_MAX_TAG:,} characters")
        start = 0
        for match in _TAG.finditer(line, 0, end):
            self._add_text(line[start : match.start()])
            start = match.end()
            yield from self._read_tag(match)
        self._add_text(line[start:end])

    def end_segment(self, *, is_closed: bool = False) -> Iterator[Segment]:
        """Yield the open segment, if there is one.

        Args:
            is_closed: whether the segment ends at `</seg>`.
        """
        if self.segment is not None and self.document is not None:
            text = "".join(self.parts if is_closed else self.parts[: self.n_text_parts])
            yield Segment(self.document, self.segment, one_line(_REFERENCE.sub(_replace_reference, text)))
        self.segment = None

    def _read_tag(self, match: re.Match[str]) -> Iterator[Segment]:
        is_end, tag = bool(match[1]), match[2].lower()
        if tag in ("p", "hl"):
            if self.n_text_parts is None:
                self.n_text_parts = len(self.parts)
            self._add_text(match[0])
            return
        yield from self.end_segment(is_closed=is_end and tag == "seg")
        if tag != "seg":
            self.document, self.ids = None, set()
        if is_end:
            return
        attributes = {name.lower(): "".join(values) for name, *values in _ATTRIBUTE.findall(match[3])}
        if tag == "doc":
            self.document = attributes.get("docid") or attributes.get("id")
            if not self.document:
                self._refuse("a <doc> without a docid")
        elif tag == "seg":
            self._begin_segment(attributes.get("id"))

    def _begin_segment(self, segment: str | None) -> None:
        if not segment:
            self._refuse("a <seg> without an id")
        elif self.document is None:
            self._refuse(f"segment {segment} is in no <doc>")
        elif segment in self.ids:
            self._refuse(f"{_place_of(self.document, segment)} occurs twice in the document")
        else:
            self.ids.add(segment)
        self.segment, self.parts, self.n_characters, self.n_text_parts = segment, [], 0, None

    def _add_text(self, text: str) -> None:
        if self.segment is None:
            return
        self.parts.append(text)
        self.n_characters += len(text)
        if self.n_characters > MAX_UNIT:
            self._refuse(f"a segment of more than {MAX_UNIT:,} characters")

    def _refuse(self, message: str) -> None:
        raise UserError(f"{self.name}, line {self.line_number}: {message}")


def _replace_reference(match: re.Match[str]) -> str:
    """Return the character of a character reference, or the reference itself if there is no such character."""
    name, decimal, hexadecimal = match.groups()
    if name:
        return _CHARACTERS[name]
    code_point = int(decimal) if decimal else int(hexadecimal, 16)
    is_valid = 0 < code_point < 0xD800 or 0xDFFF < code_point < 0x110000
    return chr(code_point) if is_valid else match[0]
