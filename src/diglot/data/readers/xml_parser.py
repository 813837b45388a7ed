"""Streaming XML that is safe for files from anywhere, and texts with inline markup."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import BinaryIO, ClassVar, NoReturn
from xml.parsers import expat

from diglot.data.readers.units import MAX_UNIT, Unit, one_line
from diglot.errors import UserError

CHUNK = 2**16  # bytes parsed at once
MAX_TOKEN = 2**20  # bytes of a tag or comment, which the parser holds in memory
_INVALID_TOKEN = expat.errors.codes[expat.errors.XML_ERROR_INVALID_TOKEN]
MAX_DEPTH = 200  # of nested elements
MAX_NAMES = 2**16  # characters of all different names of elements and attributes, which the parser holds in memory

# Inline elements whose content is not text: codes of the original document, and text inside these codes.
CODES = {"bpt", "ept", "ph", "it", "ut", "sub", "x", "bx", "ex", "sc", "ec", "sm", "em"}
# Values of the attributes `type` (TMX), `ctype` (XLIFF 1.2) and `subType` (XLIFF 2) of a code that breaks a line.
BREAKS = {"lb", "pb", "cb", "x-html-br", "xlf:lb", "xlf:pb"}


class XmlReader(ABC):
    """A reader of units from XML, as an iterator; a format is a subclass.

    Memory is bounded, whatever the file contains: it is parsed in chunks, and a unit, a tag, the depth of elements and
    the number of their names have limits. Nothing but the file is read: a DOCTYPE may name a DTD, which is never
    opened, but may not declare anything itself. Encodings are UTF-8, UTF-16, ISO-8859-1, and the 8-bit ones of Python.

    Elements are compared by their names. If the root element has a prefix, as in `<xlf:xliff>`, this prefix is that of
    the format; elements with another prefix are foreign. Inside a text, the content of codes (`<bpt>`, `<ph>`, ...) is
    skipped, and a code that breaks a line is a line break. The content of other elements (`<hi>`, `<g>`, `<mrk>`,
    `<pc>`, foreign ones) is text. Line breaks are handled as by `one_line`, regardless of `xml:space`.

    Args:
        file: the file, opened in binary mode.
        name: its name in errors.

    Raises:
        UserError: the file is not well-formed, exceeds a limit, contains declarations, or is of another format.
    """

    root: ClassVar[str]  # the name of the root element

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.file, self.name = file, name
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.StartDoctypeDeclHandler = self._refuse_declarations
        self.parser.SkippedEntityHandler = self._refuse_entity
        self.units: list[Unit] = []  # complete, not yet yielded
        self.place = ""  # of the current unit
        self.parts: list[str] = []  # of the current text
        self._path: list[str] = []  # the open elements
        self._prefix = ""
        # The depths of the elements that are the open unit, the text in it, and a code in the text; 0: none.
        self._unit_depth = self._text_depth = self._code_depth = 0
        self._n_bytes = 0  # read
        self._unit_start = 0  # byte index of the unit
        self._names: set[str] = set()
        self._names_size = 0

    @abstractmethod
    def start(self, name: str, attributes: Mapping[str, str], parent: str) -> None:
        """Handle the start of an element outside of texts; `parent` is the name of the element around it, or ""."""

    @abstractmethod
    def end_unit(self) -> None:
        """Append the units of the element for which `start` has called `begin_unit` to `units`."""

    @abstractmethod
    def add_text(self, name: str, text: str) -> None:
        """Handle the text of an element for which `start` has called `begin_text`."""

    def start_inline(self, name: str, attributes: Mapping[str, str]) -> None:  # noqa: B027 - most formats ignore it
        """Handle the start of an element inside a text, other than a code."""

    def end_inline(self, name: str) -> None:  # noqa: B027
        """Handle the end of an element inside a text, other than a code."""

    def begin_unit(self) -> None:
        """Begin a unit at the current element, whose size is limited."""
        if self._unit_depth:
            self.refuse(f"a unit inside the unit of {self.place}")
        self._unit_depth, self._unit_start = len(self._path) + 1, self.parser.CurrentByteIndex
        self.place = f"line {self.parser.CurrentLineNumber}"

    def begin_text(self) -> None:
        """Collect the text of the current element, for `add_text`."""
        self._text_depth = len(self._path) + 1
        self.parser.CharacterDataHandler = self.parts.append

    def refuse(self, what: str) -> NoReturn:
        """Raise a UserError that names the current line."""
        raise UserError(f"{self.name}, line {self.parser.CurrentLineNumber}: {what}")

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
            why = f"{expat.ErrorString(error.code)}, column {error.offset + 1}"
            place = self.parser.ErrorByteIndex - (self._n_bytes - len(chunk))
            if error.code == _INVALID_TOKEN and 0 <= place < len(chunk) and chunk[place] >= 0x80:
                why += f"; byte 0x{chunk[place]:02x} is not UTF-8, or not in the encoding that the file declares"
            raise UserError(f"{self.name}, line {error.lineno}: not valid XML ({why})") from None
        except (LookupError, ValueError) as error:
            why = f"its XML declaration names an encoding that cannot be read ({error}): convert the file to UTF-8"
            raise UserError(f"{self.name}: {why}") from None

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
        prefix, _, local = name.rpartition(":")
        if local != self.root:
            self.refuse(f"the root element is <{name[:100]}>, not <{self.root}>")
        self._prefix = f"{prefix}:" if prefix else ""
        return local

    def _add_names(self, names: set[str]) -> None:
        new = names - self._names
        self._names |= new
        self._names_size += sum(map(len, new))
        if self._names_size > MAX_NAMES:
            self.refuse("too many different names of elements and attributes")

    def _refuse_declarations(self, name: str, system: str | None, public: str | None, has_declarations: bool) -> None:
        if has_declarations:
            why = "entities can read other files or fill the memory"
            self.refuse(f"the DOCTYPE contains declarations ([...]), which are refused because {why}: remove them")

    def _refuse_entity(self, name: str, is_parameter: bool) -> None:
        self.refuse(f"the entity &{name[:100]}; is defined elsewhere, and nothing else is read: write the character")
