"""XML from anywhere is read in bounded memory, and nothing else is read: each reader of XML refuses malicious files."""

import io
import itertools
import tracemalloc
from collections.abc import Callable, Iterator
from typing import BinaryIO

import pytest

from diglot.data.readers import xml_parser
from diglot.data.readers.tmx import read_tmx
from diglot.data.readers.units import MAX_UNIT, Unit
from diglot.data.readers.wmt import read_wmt
from diglot.data.readers.xliff import read_xliff
from diglot.data.readers.xml_parser import MAX_DEPTH
from diglot.errors import UserError

Reader = Callable[[BinaryIO, str], Iterator[Unit]]
# By root element: the reader, and what comes before and after a text, all on the first line.
FORMATS: dict[str, tuple[Reader, str, str]] = {
    "tmx": (read_tmx, '<body><tu><tuv xml:lang="de"><seg>', "</seg></tuv></tu></body>"),
    "xliff": (read_xliff, "<file><body><trans-unit><source>", "</source></trans-unit></body></file>"),
    "dataset": (read_wmt, '<doc id="d"><src lang="de"><seg id="1">', "</seg></src></doc>"),
}
every_format = pytest.mark.parametrize("root", FORMATS)


def document(root: str, text: str, before: str = "") -> str:
    _, start, end = FORMATS[root]
    return f"{before}<{root}>{start}{text}{end}</{root}>"


def texts(root: str, content: bytes) -> list[str]:
    """Return the first text of each unit."""
    return [next(iter(unit.texts.values()))[0] for unit in FORMATS[root][0](io.BytesIO(content), "F")]


class Endless(io.RawIOBase):
    """A file with a start and then the same bytes again and again; counts what is read."""

    def __init__(self, start: str, repeated: str | Iterator[str]) -> None:
        self.n_read, self.rest = 0, start.encode()
        self.parts = itertools.repeat(repeated) if isinstance(repeated, str) else repeated

    def read(self, size: int = -1) -> bytes:
        while len(self.rest) < size:
            self.rest += "".join(itertools.islice(self.parts, 1000)).encode()
        data, self.rest = self.rest[:size], self.rest[size:]
        self.n_read += len(data)
        return data


@every_format
@pytest.mark.parametrize(
    ("encoding", "declared"),
    [("utf-8", ""), ("utf-8-sig", "UTF-8"), ("utf-16", "UTF-16"), ("iso-8859-1", "ISO-8859-1"), ("cp1252", "cp1252")],
)
def test_the_declared_encoding_is_read(root: str, encoding: str, declared: str) -> None:
    before = f'<?xml version="1.0" encoding="{declared}"?>\n' if declared else ""
    assert texts(root, document(root, "ä ß", before).encode(encoding)) == ["ä ß"]


@pytest.mark.parametrize("declared", ["shift_jis", "unknown", "zlib", "utf-7"])
def test_an_encoding_that_cannot_be_read_is_refused(declared: str) -> None:
    with pytest.raises(UserError, match=r"^F: its XML declaration names an encoding .* convert the file to UTF-8$"):
        texts("tmx", document("tmx", "a", f'<?xml version="1.0" encoding="{declared}"?>').encode())


@every_format
def test_character_references_of_xml_are_replaced(root: str) -> None:
    content = document(root, "&lt;&#228;&#x1F600;&amp;amp;<![CDATA[<b>&lt;]]><!-- c --><?p i?>")
    assert texts(root, content.encode()) == ["<ä😀&amp;<b>&lt;"]


@every_format
def test_a_dtd_that_a_doctype_names_is_not_opened(root: str, tmp_path) -> None:
    (tmp_path / "x.dtd").write_text('<!ENTITY e "secret">')
    for system in (str(tmp_path / "x.dtd"), (tmp_path / "x.dtd").as_uri(), "http://127.0.0.1:9/x.dtd"):
        doctype = f'<!DOCTYPE {root} SYSTEM "{system}">\n'
        assert texts(root, document(root, "a", doctype).encode()) == ["a"]
        with pytest.raises(UserError, match=r"^F, line 2: the entity &e; is defined in another file"):
            texts(root, document(root, "a&e;b", doctype).encode())


LAUGHS = "".join(f'<!ENTITY l{i + 1} "{f"&l{i};" * 10}">' for i in range(9))
DECLARATIONS = {
    "billion laughs": f'<!ENTITY l0 "lol">{LAUGHS}',
    "quadratic blow-up": f'<!ENTITY l9 "{"a" * 50_000}">',
    "external entity": '<!ENTITY l9 SYSTEM "file:///etc/passwd">',
    "external DTD": '<!ENTITY % d SYSTEM "http://127.0.0.1:9/x.dtd"> %d;',
    "parameter entity": '<!ENTITY % d "x"> %d;',
    "unparsed entity": '<!NOTATION n SYSTEM "n"><!ENTITY l9 SYSTEM "x" NDATA n>',
    "attribute by default": f'<!ATTLIST seg a CDATA "{"a" * 50_000}">',
}


@every_format
@pytest.mark.parametrize("name", DECLARATIONS)
def test_declarations_are_refused(root: str, name: str) -> None:
    content = document(root, "&l9;" * 1000, f"<!DOCTYPE {root} [{DECLARATIONS[name]}]>\n")
    with pytest.raises(UserError, match=r"^F, line 1: the DOCTYPE contains declarations .*: remove them$"):
        texts(root, content.encode())


def endless(root: str) -> dict[str, tuple[Endless, str]]:
    """Return endless files, and the error of each."""
    start = f"<{root}>{FORMATS[root][1]}\n"
    count = itertools.count()
    return {
        "text": (Endless(start, "some text\n"), "line 1: a unit of more than"),
        "references": (Endless(start, "&#228;"), "line 1: a unit of more than"),
        "inline elements": (Endless(start, "<hi>a</hi>"), "line 1: a unit of more than"),
        "attribute": (Endless(f"{start}<hi a='", "a"), "line 2: a tag, comment or declaration of more than"),
        "attributes": (Endless(f"{start}<hi", (f" a{i}=''" for i in count)), "line 2: a tag, comment or declaration"),
        "comment": (Endless(f"{start}<!-- ", "a"), "line 2: a tag, comment or declaration of more than"),
        "doctype": (Endless("<!DOCTYPE x SYSTEM '", "a"), "line 1: a tag, comment or declaration of more than"),
        "names": (Endless(start, (f"<a{i}/>" for i in count)), "line 2: too many different names"),
        "names of attributes": (Endless(start, (f"<a b{i}=''/>" for i in count)), "line 2: too many different names"),
        "nesting": (Endless(f"<{root}>\n", "<a>"), f"line 2: more than {MAX_DEPTH} nested elements"),
        "nesting in a text": (Endless(start, "<g>"), f"line 2: more than {MAX_DEPTH} nested elements"),
        "nesting in a code": (Endless(start, "<ph>"), f"line 2: more than {MAX_DEPTH} nested elements"),
    }


@every_format
@pytest.mark.parametrize("name", endless("tmx"))
def test_an_endless_file_is_refused_in_bounded_memory(root: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Smaller than they are, to be quick.
    for limit, value in {"MAX_UNIT": 2**17, "MAX_TOKEN": 2**16, "MAX_NAMES": 2**12}.items():
        monkeypatch.setattr(xml_parser, limit, value)
    file, error = endless(root)[name]
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=rf"^F, {error}"):
            list(FORMATS[root][0](file, "F"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert file.n_read <= 2**18
    assert peak < 2**22


def test_the_limits_are_large_enough_for_text() -> None:
    file = Endless(f"<tmx>{FORMATS['tmx'][1]}", "some text\n")
    with pytest.raises(UserError, match=r"^F, line 1: a unit of more than 16,777,216 bytes$"):
        list(read_tmx(file, "F"))
    assert MAX_UNIT < file.n_read < MAX_UNIT + 2**17
    assert len(texts("tmx", document("tmx", "a" * 10_000_000).encode())[0]) == 10_000_000
    assert texts("tmx", document("tmx", f"a<hi x='{'b' * 1_000_000}'/>").encode()) == ["a"]


@pytest.mark.parametrize(
    ("root", "unit"),
    [("tmx", "<body><tu>"), ("xliff", "<trans-unit>"), ("xliff", "<unit><segment>"), ("dataset", "<doc>")],
)
def test_a_unit_in_a_unit_is_refused(root: str, unit: str) -> None:
    with pytest.raises(UserError, match=r"^F, line 2: a unit inside the unit of line 1$"):
        texts(root, f"<{root}>{unit}\n{unit}".encode())


@every_format
def test_skipped_content_takes_no_memory_and_long_files_are_read_to_the_end(root: str) -> None:
    _, start, end = FORMATS[root]
    unit = f"<!-- {'c' * 3000} --><note>{'n' * 50_000}</note>{start}a{end}\n".replace("<note>", "<note><![CDATA[")
    unit = unit.replace("</note>", "]]></note>")
    content = f"<{root}>\n{unit * 300}</{root}>".encode()
    tracemalloc.start()
    try:
        n_units = sum(1 for _ in FORMATS[root][0](io.BytesIO(content), "F"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert n_units == 300
    assert peak < 2**21 < len(content)


@every_format
@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", r"line 1: not valid XML \(no element found, column 1\)"),
        ("{root}", r"line 1: not valid XML \(syntax error"),
        ("<{root}>\n<a>", r"line 2: not valid XML \(no element found"),
        ("<{root}>\n<a></b>", r"line 2: not valid XML \(mismatched tag, column 6\)"),
        ("<{root}>\n\n&nbsp;", r"line 3: not valid XML \(undefined entity"),
        ("<{root}>\ud8ff", r"line 1: not valid XML \(not well-formed"),
        ("\n<html></html>", r"line 2: the root element is <html>, not <{root}>"),
    ],
)
def test_an_invalid_file_is_refused_with_the_line(root: str, content: str, error: str) -> None:
    data = content.replace("{root}", root).encode("utf-8", "surrogatepass")
    with pytest.raises(UserError, match=f"^F, {error.replace('{root}', root)}"):
        texts(root, data)


def test_lines_beyond_65535_are_counted() -> None:
    content = document("tmx", "a", "<?xml version='1.0'?>" + "\n" * 70_000)
    assert [unit.place for unit in read_tmx(io.BytesIO(content.encode()), "F")] == ["line 70001"]


def test_a_prefix_of_the_root_is_that_of_the_format() -> None:
    content = "<x:tmx xmlns:x='u'><x:body><x:tu><x:tuv xml:lang='de'><x:seg>a<y:ph>b</y:ph><x:ph>c</x:ph></x:seg>"
    content += "<y:seg>d</y:seg></x:tuv></x:tu></x:body></x:tmx>"
    assert texts("tmx", content.encode()) == ["ab"]
