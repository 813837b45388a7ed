"""Gettext catalogues: which entries are pairs, plural forms, escapes, charsets, and files that are not valid."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diglot.data.readers import po
from diglot.data.readers.po import read_po
from diglot.data.readers.units import one_line
from diglot.errors import UserError

HEADER = 'msgid ""\nmsgstr ""\n"Language: {}\\n"\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: {}\\n"\n'
FILE = r"""
# A translator.
#, fuzzy
msgid ""
msgstr "Project-Id-Version: x\n"
"Language: de\n"
"X-Source-Language: en_GB\n"

#. a comment
#: a.c:1
msgid "Light"
msgstr "Licht"
#, fuzzy, c-format
#| msgid "old"
msgid "Off"
msgstr "Auf"

#, c-format
msgctxt "verb"
msgid ""
"Turn on the \"light\"\n"
"\tnow.\n"
msgstr ""
  "Schalte das " "Licht \\ \"L\" \x41\303\244\n"
  "jetzt ein.\n"

#, fuzzy
#~ msgid "obsolete"
#~ msgstr "obsolete"
msgctxt "noun"
msgid "On"
msgstr""

domain "other"
msgctxt ""
msgid ""
msgstr ""
"""


def read(content: str | bytes) -> list[tuple[dict[str, list[str]], str]]:
    data = content.encode() if isinstance(content, str) else content
    return [tuple(unit) for unit in read_po(io.BytesIO(data), "F")]  # type: ignore[misc]


def pairs(content: str | bytes) -> list[tuple[str, ...]]:
    return [tuple(side[0] for side in texts.values()) for texts, _ in read(content)]


def test_entries_are_pairs_in_the_languages_of_the_header() -> None:
    assert read(FILE) == [
        ({"en_GB": ["Light"], "de": ["Licht"]}, "line 11"),
        ({"en_GB": ['Turn on the "light" now.'], "de": ['Schalte das Licht \\ "L" Aä jetzt ein.']}, "line 19"),
        ({"en_GB": ["On"], "de": [""]}, "line 30"),
        ({"en_GB": [""], "de": [""]}, "line 35"),
    ]


def test_lines_end_in_any_way_and_entries_need_no_blank_lines() -> None:
    expected = [({"src": ["a"], "tgt": ["b"]}, "line 1"), ({"src": ["c"], "tgt": ["d"]}, "line 3")]
    content = '\ufeffmsgid "a"\nmsgstr "b"\n  msgid"c"\nmsgstr "d"'
    assert read(content) == read(content.replace("\n", "\r\n")) == expected


ONE_OTHER = "nplurals=2; plural=(n != 1);"
POLISH = "nplurals=3; plural=n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2;"
ARABIC = "nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5;"
LATVIAN = "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);"
SLOVENIAN = "nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0);"


@pytest.mark.parametrize(
    ("plural_forms", "n_forms", "one", "many"),
    [
        (ONE_OTHER, 2, "0", "1"),
        ("nplurals=2; plural=n>1", 2, "0", "1"),
        (POLISH, 3, "0", "2"),
        (ARABIC, 6, "1", "4"),
        (LATVIAN, 3, "0", "1"),
        (SLOVENIAN, 4, "1", "0"),
        ("nplurals=1; plural=0;", 1, None, "0"),
        (ONE_OTHER, 1, "0", ""),
        ("nplurals=INTEGER; plural=EXPRESSION;", 3, "0", "2"),
        ("nplurals=2; plural=n/0;", 2, "0", "1"),
        ("nplurals=2; plural=0-1;", 2, "0", "1"),
        (f"nplurals=2; plural={'(' * 300}n{')' * 300};", 2, "0", "1"),
        ("", 2, "0", "1"),
    ],
)
def test_plural_forms_are_those_of_their_numbers(plural_forms: str, n_forms: int, one: str | None, many: str) -> None:
    forms = "".join(f'msgstr[{i}] "{i}"\n' for i in range(n_forms))
    found = pairs(f'{HEADER.format("xx", plural_forms)}\nmsgid "file"\nmsgid_plural "files"\n{forms}')
    assert found == [("file", one)] * (one is not None) + [("files", many)]


def test_the_old_style_of_kde_is_read() -> None:
    head = HEADER.format("de", ONE_OTHER)
    entries = r"""
msgid ""
"_: a verb\n"
"Open"
msgstr "Öffnen"

msgid ""
"_n: One file\n"
"%n files"
msgstr ""
"Eine Datei\n"
"%n Dateien"
"""
    expected = [("Open", "Öffnen"), ("One file", "Eine Datei"), ("%n files", "%n Dateien")]
    assert pairs(head + entries) == expected
    assert pairs('msgid "_(a): b"\nmsgstr "_: c"') == [("_(a): b", "_: c")]


@pytest.mark.parametrize("charset", ["ISO-8859-1", "utf-8", "KOI8-R", "Shift_JIS", "GB18030", "CP1252"])
def test_the_charset_is_that_of_the_header(charset: str) -> None:
    text = {"KOI8-R": "свет", "Shift_JIS": "表示", "GB18030": "灯"}.get(charset, "Tür")
    assert "表".encode("shift_jis")[1:] == b"\\"  # a character that contains the byte of a backslash
    comment = f"# {text} charset=unknown\n#\n"
    content = f'{comment}{HEADER.format("xx", "").replace("UTF-8", charset)}\nmsgid "a"\nmsgstr "{text}"\n'
    assert pairs(content.encode(charset)) == [("a", text)]


def test_a_template_and_a_file_without_a_header_are_utf_8() -> None:
    assert pairs(f'{HEADER.format("", "").replace("UTF-8", "CHARSET")}\nmsgid "ä"\nmsgstr ""') == [("ä", "")]
    assert pairs('msgid "ä"\nmsgstr "ö"\n\nmsgid "Content-Type: charset=KOI8-R"\nmsgstr ""')[0] == ("ä", "ö")


@pytest.mark.parametrize("charset", ["UTF-16", "unknown", "zlib", "rot13", "unicode_escape", "utf-7", "idna"])
def test_a_charset_that_cannot_be_read_is_refused(charset: str) -> None:
    with pytest.raises(UserError, match=f"^F: the charset '{charset}' of its header .* convert the file to UTF-8$"):
        read(HEADER.format("de", "").replace("UTF-8", charset))


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ('msgid "a"\nmsgstr "b"\nhello', "line 3: not a line of a gettext catalogue"),
        ('msgid "a"b"\nmsgstr ""', "line 1: not a line of a gettext catalogue"),
        ('msgid "a', "line 1: not a line of a gettext catalogue"),
        ('msgid "a\\"\nmsgstr ""', "line 1: not a line of a gettext catalogue"),
        ('\n"a"', "line 2: a string without a keyword"),
        ('msgid "a"\n\nmsgid "b"\nmsgstr ""', "line 1: an entry without msgstr"),
        ('\nmsgstr "a"', "line 2: an entry without msgid"),
        ('msgid_plural "a"\nmsgstr[0] "a"', "line 1: an entry without msgid"),
        ('msgid "a"\nmsgstr "b"\nmsgstr "c"', "line 3: msgstr is not expected here"),
        ('msgid "a"\nmsgid_plural "b"\nmsgstr[1] "c"', r"line 3: msgstr\[1\] is not expected here"),
        ('msgid "a"\nmsgstr "\\d"', r"line 1: unknown escape \\d"),
        ('msgid "a"\nmsgstr "\\x"', r"line 1: unknown escape \\x"),
        ('msgid "a"\nmsgstr "\\xff"', r"line 1: the escapes \\xff are not UTF-8"),
        ('msgid "a"\nmsgstr "\\777"', r"line 1: the escapes \\777 are not UTF-8"),
        (b'msgid "a"\nmsgstr "\xff"', "line 2: not UTF-8"),
        ("<html>", "line 1: not a line of a gettext catalogue"),
    ],
)
def test_an_invalid_line_is_refused_with_its_number(content: str | bytes, error: str) -> None:
    with pytest.raises(UserError, match=f"^F, {error}"):
        read(content)


def test_an_entry_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(po, "MAX_UNIT", 1000)
    with pytest.raises(UserError, match=r"^F, line 2: an entry of more than 1,000 characters$"):
        read('\nmsgid "a"\n' + '"some text"\n' * 100)


@pytest.mark.parametrize("text", ['"' * 300_000, '"\\' * 100_000, '" ' * 100_000, "\\x" * 100_000, '""x' * 100_000])
def test_a_malicious_line_takes_linear_time(text: str) -> None:
    with pytest.raises(UserError, match=r"^F, line 2: not a line of a gettext catalogue$"):
        read(f'msgid "a"\nmsgstr "{text}')  # backtracking would take minutes


STRINGS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
ESCAPES = str.maketrans({"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\", "\0": "\\000"})


@settings(max_examples=25)
@given(st.lists(st.tuples(STRINGS, STRINGS, st.booleans()), max_size=5), st.integers(1, 20))
def test_written_units_are_read_back(entries: list[tuple[str, str, bool]], width: int) -> None:
    def quoted(text: str) -> str:
        parts = [text[i : i + width].translate(ESCAPES) for i in range(0, len(text), width)]
        return "\n".join(f'"{part}"' for part in parts)

    blocks = [f"{'#, fuzzy' * fuzzy}\nmsgid {quoted(src)}\nmsgstr {quoted(tgt)}\n" for src, tgt, fuzzy in entries]
    expected = [(one_line(src), one_line(tgt)) for src, tgt, fuzzy in entries if not fuzzy]
    assert pairs(HEADER.format("de", ONE_OTHER) + "".join(blocks)) == expected
