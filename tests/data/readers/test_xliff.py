"""XLIFF: units of versions 1.2 and 2.x, their languages, segments, and inline markup."""

import io
from xml.sax.saxutils import escape, quoteattr

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diglot.data.readers.units import one_line
from diglot.data.readers.xliff import read_xliff
from diglot.errors import UserError

VERSION_1 = """\
<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file original="a" source-language="en" target-language="de" datatype="x">
<header><note>unseen</note></header>
<body>
<group><trans-unit id="1" approved="no"><source>Light</source>
  <target state="needs-review-translation" xml:lang="de-AT">Licht</target>
  <note>unseen</note>
  <alt-trans><source>unseen</source><target>unseen</target></alt-trans></trans-unit></group>
<trans-unit id="2"><source>On</source></trans-unit>
<trans-unit id="3" translate="no"><source>Off</source><target/></trans-unit>
<bin-unit id="4"><bin-source>unseen</bin-source></bin-unit>
</body></file>
<file source-language="en"><body>
<trans-unit id="5"><source>One</source><target xml:lang="fr">Un</target></trans-unit>
</body></file>
<file><body>
<trans-unit id="6"><source>Two</source><target>Zwei</target></trans-unit>
</body></file>
</xliff>
"""

VERSION_2 = """\
<xliff version="2.1" srcLang="en" trgLang="de" xmlns="urn:oasis:names:tc:xliff:document:2.0">
<file id="f"><notes><note>unseen</note></notes>
<group id="g"><unit id="1"><originalData><data id="d">unseen</data></originalData>
<segment id="s" state="initial"><source>Light.</source><target>Licht.</target></segment>
<ignorable><source> </source><target> </target></ignorable>
<segment><source>On.</source></segment>
<mtc:matches xmlns:mtc="m"><mtc:match ref="#s"><source>unseen</source><target>unseen</target></mtc:match></mtc:matches>
</unit></group></file></xliff>
"""

SEGMENTED = """\
<xliff version="1.2"><file source-language="en" target-language="de"><body><trans-unit id="1">
<source>One. Two.</source>
<seg-source><g id="1"><mrk mtype="seg" mid="1">One.</mrk></g> <mrk mtype="seg" mid="2">T<mrk mtype="x">w</mrk>o.</mrk>
</seg-source>
<target>{target}</target></trans-unit></body></file></xliff>
"""


def read(text: str) -> list[tuple[dict[str, list[str]], str]]:
    return [tuple(unit) for unit in read_xliff(io.BytesIO(text.encode()), "F")]  # type: ignore[misc]


def source_of(text: str) -> str:
    """Return the text of a source with inline markup."""
    [(texts, _)] = read(f"<xliff><file><body><trans-unit><source>{text}</source></trans-unit></body></file></xliff>")
    return texts["src"][0]


def test_version_1_has_a_pair_per_trans_unit_in_the_languages_of_its_file() -> None:
    assert read(VERSION_1) == [
        ({"en": ["Light"], "de": ["Licht"]}, "line 6"),
        ({"en": ["On"], "de": [""]}, "line 10"),
        ({"en": ["Off"], "de": [""]}, "line 11"),
        ({"en": ["One"], "fr": ["Un"]}, "line 15"),
        ({"src": ["Two"], "tgt": ["Zwei"]}, "line 18"),
    ]


def test_version_2_has_a_pair_per_segment_in_the_languages_of_the_root() -> None:
    assert read(VERSION_2) == [
        ({"en": ["Light."], "de": ["Licht."]}, "line 4"),
        ({"en": ["On."], "de": [""]}, "line 6"),
    ]


@pytest.mark.parametrize(
    ("target", "pairs"),
    [
        (
            '<mrk mtype="seg" mid="2">Zwei.</mrk> <mrk mtype="seg" mid="1">E<g>in</g>s.</mrk>',
            [("One.", "Eins."), ("Two.", "Zwei.")],
        ),
        ('<mrk mtype="seg" mid="1">Eins.</mrk> Zwei.', [("One. Two.", "Eins. Zwei.")]),
        ('<mrk mtype="seg" mid="1">A</mrk><mrk mtype="seg" mid="3">B</mrk>', [("One. Two.", "AB")]),
        ('<mrk mtype="seg" mid="1">A</mrk><mrk mtype="seg" mid="1">B</mrk>', [("One. Two.", "AB")]),
        ("Eins. Zwei.", [("One. Two.", "Eins. Zwei.")]),
        ("", [("One. Two.", "")]),
    ],
)
def test_segments_with_equal_ids_on_both_sides_are_pairs(target: str, pairs: list[tuple[str, str]]) -> None:
    found = [(texts["en"][0], texts["de"][0]) for texts, _ in read(SEGMENTED.format(target=target))]
    assert found == pairs


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ('a <g id="1">b<x id="2"/> <g id="3">c</g></g><bx id="4"/>d<ex id="4"/>', "a b cd"),
        ('<bpt id="1">&lt;b></bpt>a<ept id="1">x</ept><ph>{0}<sub>unseen</sub></ph><it>y</it> b', "a b"),
        ('a<x ctype="lb"/>b<x ctype="image"/>', "a b"),
        (
            '<pc id="1">a</pc><sc/> b<ec/> <mrk id="m" translate="no">c</mrk><sm/><em/><ph subType="xlf:lb"/>d',
            "a b c d",
        ),
        ('a<cp hex="001F"/>b<cp hex="000A"/>c<cp hex="1F600"/>', "a\x1fb c😀"),
        ('<mq:ch xmlns:mq="q" val="x">kept</mq:ch>', "kept"),
    ],
)
def test_codes_are_skipped(source: str, text: str) -> None:
    assert source_of(source) == text


@pytest.mark.parametrize("code", ["", "D800", "110000", "x", "FFFFFFFFFFFFFFFFFFFF", "-1"])
def test_a_code_point_that_is_no_character_is_refused(code: str) -> None:
    with pytest.raises(UserError, match=rf'^F, line 1: <cp hex="{code}"> is not a character$'):
        source_of(f'<cp hex="{code}"/>')


def test_invalid_units_are_refused() -> None:
    start = "<xliff><file><body>\n<trans-unit>\n"
    with pytest.raises(UserError, match=r"^F, line 3: no <source> in the unit of line 2$"):
        read(f"{start}<target>a</target></trans-unit></body></file></xliff>")
    with pytest.raises(UserError, match=r"^F, line 3: a second <source> in the unit of line 2$"):
        read(f"{start}<source>a</source><source>b</source></trans-unit></body></file></xliff>")


CHARACTERS = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff") | st.sampled_from("\n\t")
SIDES = st.tuples(st.text(CHARACTERS, max_size=20), st.text(CHARACTERS, max_size=20))


@settings(max_examples=40)
@given(st.lists(SIDES, max_size=4), st.sampled_from([1, 2]), st.sampled_from(["de", 'd"e', "en"]))
def test_written_units_are_read_back(pairs: list[tuple[str, str]], version: int, language: str) -> None:
    codes = f'{"source-language" if version == 1 else "srcLang"}="en" '
    codes += f"{'target-language' if version == 1 else 'trgLang'}={quoteattr(language)}"
    unit = "<trans-unit>{}</trans-unit>" if version == 1 else "<unit><segment>{}</segment></unit>"
    units = [unit.format(f"<source>{escape(a)}</source><target>{escape(b)}</target>") for a, b in pairs]
    file = f"<file {codes if version == 1 else ''}>{''.join(units)}</file>"
    found = [texts for texts, _ in read(f"<xliff {codes if version == 2 else ''}>{file}</xliff>")]
    src, tgt = ("src", "tgt") if language == "en" else ("en", language)
    assert found == [{src: [one_line(a)], tgt: [one_line(b)]} for a, b in pairs]
