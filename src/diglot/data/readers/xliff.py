"""Reading of XLIFF, the exchange format of localisation."""

from collections.abc import Iterator, Mapping
from typing import BinaryIO

from diglot.data.readers.units import Unit, one_line, pair_keys
from diglot.data.readers.xml_parser import XmlReader


def read_xliff(file: BinaryIO, name: str) -> Iterator[Unit]:
    """Yield the units of an XLIFF file of version 1.x or 2.x.

    Version 1: each `<trans-unit>` is a unit. If its `<seg-source>` and its `<target>` are divided into the same
    segments (`<mrk mtype="seg">`, with the same values of `mid`), each segment is a unit, and text between segments is
    skipped. The languages are `source-language` and `target-language` of the `<file>`. If there is no
    `target-language`, the `xml:lang` of the `<target>` is used. Proposals (`<alt-trans>`) are skipped.

    Version 2: each `<segment>` is a unit. The languages are `srcLang` and `trgLang` of the root. `<ignorable>`, and the
    matches and glossaries of modules, are skipped. A `<cp hex="...">` is replaced by its character.

    A unit without a target has an empty text. Languages that are missing or equal are replaced by "src" and "tgt". The
    attributes `state`, `approved` and `translate` are ignored, so that a target that is not final is also read.
    `XmlReader` describes the limits and the inline markup: codes (`<x>`, `<bx>`, `<ex>`, `<bpt>`, `<ept>`, `<ph>`,
    `<it>`, `<sc>`, `<ec>`) are skipped, with the `<sub>` in them, and the content of `<g>`, `<mrk>` and `<pc>` is text.

    Args:
        file: file opened in binary mode.
        name: name of the file in errors.

    Raises:
        UserError: a unit has no source; or `XmlReader` raises it.
    """
    return iter(_XliffReader(file, name))


class _XliffReader(XmlReader):
    """Reader of XLIFF.

    Attributes:
        root_languages: source and target language of the root element (version 2).
        src_lang: source language of the current `<file>`.
        tgt_lang: target language of the current `<file>`, or of the last `<target>`.
        has_tgt_lang: whether the target language is that of the `<file>`.
        texts: texts of the current unit by element: "source", "seg-source", "target".
        segments: `mid` and text of each `<mrk mtype="seg">` of the current unit, by the same elements.
        open_marks: for each open `<mrk>`, whether it is a segment, its `mid`, and the index of its first part in
            `parts`.
    """

    root = "xliff"

    def __init__(self, file: BinaryIO, name: str) -> None:
        super().__init__(file, name)
        self.root_languages: tuple[str | None, str | None] = (None, None)
        self.src_lang: str | None = None
        self.tgt_lang: str | None = None
        self.has_tgt_lang = False
        self.texts: dict[str, str] = {}
        self.segments: dict[str, list[tuple[str, str]]] = {}
        self.open_marks: list[tuple[bool, str, int]] = []

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
            self.open_marks.append((attributes.get("mtype") == "seg", attributes.get("mid", ""), len(self.parts)))
        elif name == "cp":
            self.parts.append(self._code_point_text(attributes.get("hex", "")))

    def end_inline(self, name: str) -> None:
        if name == "mrk":
            is_segment, mid, first_part = self.open_marks.pop()
            if is_segment:
                text = one_line("".join(self.parts[first_part:]))
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
        """Return the pairs of segments; an empty list if the two sides do not have the same segments."""
        src, tgt = self.segments.get("seg-source", []), self.segments.get("target", [])
        targets = dict(tgt)
        if len(src) != len(tgt) or len(targets) != len(tgt) or targets.keys() != dict(src).keys():
            return []
        return [(text, targets[mid]) for mid, text in src]

    def _code_point_text(self, code: str) -> str:
        try:
            character = chr(int(code, 16))
            character.encode()  # refuse surrogates
        except (ValueError, OverflowError):
            self.refuse(f'<cp hex="{code[:20]}"> is not a character')
        return character
