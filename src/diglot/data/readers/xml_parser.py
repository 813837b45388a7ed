"""Streaming of translation units from XML files of any origin, which may be malicious."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import BinaryIO, ClassVar, NoReturn
from xml.parsers import expat

from diglot.data.readers.units import MAX_UNIT, Unit, one_line
from diglot.errors import UserError

CHUNK = 2**16  # number of bytes parsed at once
_INVALID_TOKEN = expat.errors.codes[expat.errors.XML_ERROR_INVALID_TOKEN]
# Limits of what is held in memory.
MAX_TOKEN = 2**20  # bytes of a tag or comment
MAX_DEPTH = 200  # nested elements
MAX_NAMES = 2**16  # characters of all different names of elements and attributes

# Inline elements whose content is not text: codes of the original document, and text inside these codes.
CODES = {"bpt", "ept", "ph", "it", "ut", "sub", "x", "bx", "ex", "sc", "ec", "sm", "em"}
# Values of the attributes `type` (TMX), `ctype` (XLIFF 1.2) and `subType` (XLIFF 2) of codes that break a line or page.
BREAKS = {"lb", "pb", "cb", "x-html-br", "xlf:lb", "xlf:pb"}


class XmlReader(ABC):
    """Base class of readers of XML, which are iterators over the units of a file. Each format has a subclass.

    Memory is bounded for any file: it is parsed in chunks, and the size of units and tags, the depth of elements and
    the size of all names have limits. No other file is read: a DOCTYPE may name a DTD, which is never opened, but it
    must not contain declarations. Supported encodings are UTF-8, UTF-16, ISO-8859-1, and Python's encodings with one
    byte per character.

    Elements are identified by their names. If the root element has a namespace prefix, as in `<xlf:xliff>`, this prefix
    is that of the format, and elements with another prefix are foreign. Inside a text, the content of codes (`<bpt>`,
    `<ph>`, ...) is skipped, and a code that breaks a line is a line break. The content of other elements (`<hi>`,
    `<g>`, `<mrk>`, `<pc>`, foreign ones) is text. Line breaks are replaced as in `one_line`, regardless of `xml:space`.

    A subclass implements `start`, `add_text` and `end_unit`. In `start`, it calls `begin_unit` for an element that is a
    unit, and `begin_text` for an element inside it that is a text.

    Args:
        file: file opened in binary mode.
        name: name of the file in errors.

    Attributes:
        root: name of the root element.
        units: complete units that are not yet yielded.
        place: position of the current unit in errors.
        parts: parts of the current text.

    Raises:
        UserError: the file is not well-formed, exceeds a limit, contains declarations, or has another root element.
    """

    root: ClassVar[str]

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.file, self.name = file, name
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.StartDoctypeDeclHandler = self._refuse_declarations
        self.parser.SkippedEntityHandler = self._refuse_entity
        self.units: list[Unit] = []
        self.place = ""
        self.parts: list[str] = []
        self._path: list[str] = []  # names of the open elements
        self._prefix = ""
        # Depths of the open unit, of the text in it, and of a code in the text; 0: there is none.
        self._unit_depth = self._text_depth = self._code_depth = 0
        self._n_bytes = 0  # number of bytes read
        self._unit_start = 0  # position of the unit in the file, in bytes
        self._names: set[str] = set()
        self._names_size = 0

    @abstractmethod
    def start(self, name: str, attributes: Mapping[str, str], parent: str) -> None:
        """Handle the start of an element outside of texts.

        Args:
            name: name of the element.
            attributes: attributes of the element.
            parent: name of the element around it; "" for the root element.
        """

    @abstractmethod
    def end_unit(self) -> None:
        """Handle the end of an element for which `start` has called `begin_unit`: append its units to `units`."""

    @abstractmethod
    def add_text(self, name: str, text: str) -> None:
        """Handle the text of an element for which `start` has called `begin_text`."""

    def start_inline(self, name: str, attributes: Mapping[str, str]) -> None:  # noqa: B027 - most formats ignore it
        """Handle the start of an element inside a text, other than a code."""

    def end_inline(self, name: str) -> None:  # noqa: B027
        """Handle the end of an element inside a text, other than a code."""

    def begin_unit(self) -> None:
        """Begin a unit at the current element. The size of a unit is limited."""
        if self._unit_depth:
            self.refuse(f"a unit inside the unit of {self.place}")
        self._unit_depth, self._unit_start = len(self._path) + 1, self.parser.CurrentByteIndex
        self.place = f"line {self.parser.CurrentLineNumber}"

    def begin_text(self) -> None:
        """Begin to collect the text of the current element, which is passed to `add_text`."""
        self._text_depth = len(self._path) + 1
        self.parser.CharacterDataHandler = self.parts.append

    def refuse(self, message: str) -> NoReturn:
        """Raise a UserError that names the current line."""
        raise UserError(f"{self.name}, line {self.parser.CurrentLineNumber}: {message}")

    def __iter__(self) -> Iterator[Unit]:
        while True:
            chunk = self.file.read(CHUNK)
            self._n_bytes += len(chunk)
            self._parse(chunk)
            yield from self.units
            self.units.clear()
            if not chunk:
                return
            if self._n_bytes - self.parser.CurrentByteIndex > MAX_TOKEN:
                self.refuse(f"a tag, comment or declaration of more than {MAX_TOKEN:,} bytes")
            if self._unit_depth and self._n_bytes - self._unit_start > MAX_UNIT:
                raise UserError(f"{self.name}, {self.place}: a unit of more than {MAX_UNIT:,} bytes")

    def _parse(self, chunk: bytes) -> None:
        try:
            self.parser.Parse(chunk, not chunk)
        except expat.ExpatError as error:
            reason = f"{expat.ErrorString(error.code)}, column {error.offset + 1}"
            index = self.parser.ErrorByteIndex - (self._n_bytes - len(chunk))
            if error.code == _INVALID_TOKEN and 0 <= index < len(chunk) and chunk[index] >= 0x80:
                reason += f"; byte 0x{chunk[index]:02x} is not UTF-8, or not in the encoding that the file declares"
            raise UserError(f"{self.name}, line {error.lineno}: not valid XML ({reason})") from None
        except (LookupError, ValueError) as error:
            reason = f"its XML declaration names an encoding that cannot be read ({error}): convert the file to UTF-8"
            raise UserError(f"{self.name}: {reason}") from None

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name not in self._names or not attributes.keys() <= self._names:
            self._add_names({name, *attributes})
        path = self._path
        if self._prefix:
            name = name.removeprefix(self._prefix)
        if self._text_depth:
            if not self._code_depth:
                self._start_in_text(name, attributes)
        else:
            if not path:
                name = self._check_root(name)
            self.start(name, attributes, path[-1] if path else "")
        path.append(name)
        if len(path) > MAX_DEPTH:
            self.refuse(f"more than {MAX_DEPTH} nested elements")

    def _start_in_text(self, name: str, attributes: Mapping[str, str]) -> None:
        if name not in CODES:
            self.start_inline(name, attributes)
            return
        self._code_depth = len(self._path) + 1
        self.parser.CharacterDataHandler = None
        if not BREAKS.isdisjoint(attributes.get(key, "") for key in ("type", "ctype", "subType")):
            self.parts.append("\n")

    def _end(self, _: str) -> None:
        depth = len(self._path)
        name = self._path.pop()
        if not self._text_depth:
            if depth == self._unit_depth:
                self._unit_depth = 0
                self.end_unit()
        elif depth == self._text_depth:
            self._text_depth = 0
            self.parser.CharacterDataHandler = None
            text = one_line("".join(self.parts))
            self.parts.clear()
            self.add_text(name, text)
        elif depth == self._code_depth:
            self._code_depth = 0
            self.parser.CharacterDataHandler = self.parts.append
        elif not self._code_depth:
            self.end_inline(name)

    def _check_root(self, name: str) -> str:
        prefix, _, local_name = name.rpartition(":")
        if local_name != self.root:
            self.refuse(f"the root element is <{name[:100]}>, not <{self.root}>")
        self._prefix = f"{prefix}:" if prefix else ""
        return local_name

    def _add_names(self, names: set[str]) -> None:
        new = names - self._names
        self._names |= new
        self._names_size += sum(map(len, new))
        if self._names_size > MAX_NAMES:
            self.refuse("too many different names of elements and attributes")

    def _refuse_declarations(self, name: str, system: str | None, public: str | None, has_declarations: bool) -> None:
        if has_declarations:
            reason = "entities can read other files or fill the memory"
            self.refuse(f"the DOCTYPE contains declarations ([...]), which are rejected because {reason}: remove them")

    def _refuse_entity(self, name: str, is_parameter: bool) -> None:
        self.refuse(f"the entity &{name[:100]}; is defined in another file, which is not read: write the character")
