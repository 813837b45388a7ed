"""XLIFF, the exchange format of localisation."""

from collections.abc import Iterator, Mapping
from typing import BinaryIO

from diglot.data.readers.units import Unit, one_line, pair_keys
from diglot.data.readers.xml_parser import XmlReader


def read_xliff(file: BinaryIO, name: str) -> Iterator[Unit]:
    """Yield the units of an XLIFF file, of version 1.x or 2.x.

    Version 1: each `<trans-unit>` is a unit. If its `<seg-source>` and its `<target>` are divided into the same
    segments (`<mrk mtype="seg">`, with the same values of `mid`), each segment is a unit, and text between segments is
    skipped. The languages are `source-language` and `target-language` of the `<file>`. If it has no target language,
    it is the `xml:lang` of the `<target>`. Proposals (`<alt-trans>`) are skipped.

    Version 2: each `<segment>` is a unit. The languages are `srcLang` and `trgLang` of the root. `<ignorable>`, and the
    matches and glossaries of modules, are skipped. A `<cp hex="...">` is its character.

    A unit without a target has an empty text. Languages that are missing or equal are replaced by "src" and "tgt". The
    attributes `state`, `approved` and `translate` are ignored: a target is taken whether it is final or not.
    `XmlReader` describes the limits and the inline markup: codes (`<x>`, `<bx>`, `<ex>`, `<bpt>`, `<ept>`, `<ph>`,
    `<it>`, `<sc>`, `<ec>`) are skipped, with the `<sub>` in them; the content of `<g>`, `<mrk>` and `<pc>` is text.

    Args:
        file: the file, opened in binary mode.
        name: its name in errors.

    Raises:
        UserError: a unit has no source, or `XmlReader` refuses the file.
    """
    return iter(_XliffReader(file, name))


class _XliffReader(XmlReader):
    root = "xliff"

    def __init__(self, file: BinaryIO, name: str) -> None:
        super().__init__(file, name)
        self.root_languages: tuple[str | None, str | None] = (None, None)
        self.src_lang: str | None = None
        self.tgt_lang: str | None = None
        self.has_tgt_lang = False  # whether it is not only that of a <target>
        self.texts: dict[str, str] = {}  # of the unit: by "source", "seg-source" and "target"
        self.segments: dict[str, list[tuple[str, str]]] = {}  # by the same: `mid` and text of each <mrk mtype="seg">
        self.marks: list[tuple[bool, str, int]] = []  # open <mrk>: whether it is a segment, its `mid`, its first part

    def start(self, name: str, attributes: Mapping[str, str], parent: str) -> None:
        if name in ("source", "target", "seg-source") and parent in ("trans-unit", "segment"):
            if name in self.texts:
                self.refuse(f"a second <{name}> in the unit of {self.place}")
            if name == "target" and not self.has_tgt_lang:
                self.tgt_lang = attributes.get("xml:lang", self.tgt_lang)
            self.segments[name] = []
            self.begin_text()
        elif name == "trans-unit" or (name == "segment" and parent == "unit"):
            self.texts, self.segments = {}, {}
            self.begin_unit()
        elif name == "file":
            src_lang, tgt_lang = self.root_languages
            self.src_lang = attributes.get("source-language", src_lang)
            self.tgt_lang = attributes.get("target-language", tgt_lang)
            self.has_tgt_lang = self.tgt_lang is not None
        elif name == "xliff":
            self.root_languages = attributes.get("srcLang"), attributes.get("trgLang")

    def start_inline(self, name: str, attributes: Mapping[str, str]) -> None:
        if name == "mrk":
            self.marks.append((attributes.get("mtype") == "seg", attributes.get("mid", ""), len(self.parts)))
        elif name == "cp":
            self.parts.append(self._character(attributes.get("hex", "")))

    def end_inline(self, name: str) -> None:
        if name == "mrk":
            is_segment, mid, first = self.marks.pop()
            if is_segment:
                text = one_line("".join(self.parts[first:]))
                next(reversed(self.segments.values())).append((mid, text))

    def add_text(self, name: str, text: str) -> None:
        self.texts[name] = text

    def end_unit(self) -> None:
        if "source" not in self.texts:
            self.refuse(f"no <source> in the unit of {self.place}")
        src_key, tgt_key = pair_keys(self.src_lang, self.tgt_lang)
        for src, tgt in self._segment_pairs() or [(self.texts["source"], self.texts.get("target", ""))]:
            self.units.append(Unit({src_key: [src], tgt_key: [tgt]}, self.place))

    def _segment_pairs(self) -> list[tuple[str, str]]:
        """Return the pairs of segments, or none if the two sides do not have the same."""
        src, tgt = self.segments.get("seg-source", []), self.segments.get("target", [])
        by_mid = dict(tgt)
        if len(src) != len(tgt) or len(by_mid) != len(tgt) or by_mid.keys() != dict(src).keys():
            return []
        return [(text, by_mid[mid]) for mid, text in src]

    def _character(self, code: str) -> str:
        try:
            character = chr(int(code, 16))
            character.encode()  # refuse surrogates
        except (ValueError, OverflowError):
            self.refuse(f'<cp hex="{code[:20]}"> is not a character')
        return character
