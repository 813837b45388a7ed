"""Reading of TMX, the exchange format of translation memories."""

from collections.abc import Iterator, Mapping
from typing import BinaryIO

from diglot.data.readers.units import Unit
from diglot.data.readers.xml_parser import XmlReader


def read_tmx(file: BinaryIO, name: str) -> Iterator[Unit]:
    """Yield the units of a TMX file (versions 1.1 to 1.4): each `<tu>`, with the texts of all of its languages.

    The language of a text is the `xml:lang` of its `<tuv>`, or `lang` in old versions, spelled as in the file. Several
    texts in a language are alternatives, in the order of the file. The header, notes, properties and all other
    attributes are ignored. `XmlReader` describes the limits and the inline markup: codes (`<bpt>`, `<ept>`, `<ph>`,
    `<it>`, `<ut>`) are skipped, with the `<sub>` in them, and the content of `<hi>` is text.

    Args:
        file: file opened in binary mode.
        name: name of the file in errors.

    Raises:
        UserError: a `<tuv>` has no language; or `XmlReader` raises it.
    """
    return iter(_TmxReader(file, name))


class _TmxReader(XmlReader):
    root = "tmx"

    def __init__(self, file: BinaryIO, name: str) -> None:
        super().__init__(file, name)
        self.texts: dict[str, list[str]] = {}
        self.language = ""

    def start(self, name: str, attributes: Mapping[str, str], parent: str) -> None:
        if name == "seg" and parent == "tuv":
            self.begin_text()
        elif name == "tuv" and parent == "tu":
            self.language = attributes.get("xml:lang") or attributes.get("lang") or ""
            if not self.language:
                self.refuse("a <tuv> without a language (xml:lang)")
        elif name == "tu" and parent == "body":
            self.texts = {}
            self.begin_unit()

    def add_text(self, name: str, text: str) -> None:
        self.texts.setdefault(self.language, []).append(text)

    def end_unit(self) -> None:
        self.units.append(Unit(self.texts, self.place))
