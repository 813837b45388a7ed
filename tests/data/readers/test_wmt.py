"""WMT test sets: sides are paired by ids, all references are kept, and SGML is not XML."""

import io
import itertools
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diglot.data.readers import wmt
from diglot.data.readers.units import Unit, one_line
from diglot.data.readers.wmt import Segment, join_sides, read_sgm, read_wmt
from diglot.errors import UserError

XML = """\
<?xml version='1.0' encoding='utf-8'?>
<dataset id="test">
<collection id="general">
<doc origlang="en" id="a">
  <src lang="en"><p><seg id="1">One.</seg></p>
    <p><seg id="2">Two
      &amp; three.</seg></p></src>
  <ref lang="de" translator="A"><p><seg id="2">Zwei</seg><seg id="1">Eins</seg></p></ref>
  <hyp system="x" lang="de"><seg id="1">unseen</seg></hyp>
  <ref lang="de" translator="B"><seg id="1">Ein</seg><seg id="2">Zwo</seg></ref>
  <ref lang="fr"><seg id="1">Un</seg><seg id="2">Deux</seg></ref>
</doc>
</collection>
<doc id="b"><src lang="en"><seg id="1">Three</seg></src></doc>
<doc id="c"><src><seg id="1">Four</seg></src><ref><seg id="1">Vier</seg></ref></doc>
<doc id="d"><src lang="en"><seg id="1">Five</seg></src><ref lang="en"><seg id="1">5</seg></ref></doc>
</dataset>
"""

SOURCE = """\
<!DOCTYPE srcset SYSTEM "mteval.dtd">
<SRCSET setid="test" srclang=any>
<DOC sysid="src" docid="a" genre='news' origlang="en">
<hl><seg id="1">A headline</seg></hl>
<p>
<seg id="2">Fish & chips &amp; 1 < 2 &lt;b> <b>&copy; &#228; &#xE4; &amp;lt; &#0; &#xD800;</seg><seg id="3"> <p> is
a tag </seg>
</p>
</DOC>
<doc docid=b
     sysid="src">
<p>
<SEG id=1> not closed
<seg
  id='2'>neither is this</p>
unseen
</doc>
unseen
</SRCSET>
"""
SEGMENTS = [
    ("a", "1", "A headline"),
    ("a", "2", "Fish & chips & 1 < 2 <b> <b>&copy; ä ä &lt; &#0; &#xD800;"),
    ("a", "3", "<p> is a tag"),
    ("b", "1", "not closed"),
    ("b", "2", "neither is this"),
]


def read_xml(text: str) -> list[Unit]:
    return list(read_wmt(io.BytesIO(text.encode()), "F"))


def segments(text: str) -> list[Segment]:
    return list(read_sgm(io.BytesIO(text.encode()), "F"))


def joined(sources: list[tuple[str, str, str]], *references: list[tuple[str, str, str]]) -> list[Unit]:
    others = itertools.chain(*references)
    return list(join_sides(itertools.starmap(Segment, sources), itertools.starmap(Segment, others), "S", "R"))


def test_xml_has_all_references_by_language() -> None:
    assert read_xml(XML) == [
        ({"en": ["One."], "de": ["Eins", "Ein"], "fr": ["Un"]}, "document a, segment 1"),
        ({"en": ["Two & three."], "de": ["Zwei", "Zwo"], "fr": ["Deux"]}, "document a, segment 2"),
        ({"en": ["Three"]}, "document b, segment 1"),
        ({"src": ["Four"], "tgt": ["Vier"]}, "document c, segment 1"),
        ({"src": ["Five"], "tgt": ["5"]}, "document d, segment 1"),
    ]


SEG = '<seg id="1">a</seg>'
OTHER = '<seg id="2">b</seg>'


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (f"<src>{SEG}</src><ref>{SEG}{OTHER}</ref>", "document d, segment 2 has no source"),
        (f"<src>{SEG}{OTHER}</src><ref>{SEG}{OTHER}</ref><ref>{OTHER}</ref>", "document d, segment 1 has no reference"),
        (f"<src>{SEG}</src><ref>{SEG}{SEG}</ref>", "document d, segment 1 occurs twice on one side"),
        ("<src><seg>a</seg></src>", "a <seg> without an id"),
        (f"<ref>{SEG}</ref>", r"document d has 0 sources \(<src>\); it must have one"),
        (f"<src>{SEG}</src><src>{OTHER}</src>", r"document d has 2 sources \(<src>\); it must have one"),
    ],
)
def test_xml_with_sides_that_do_not_correspond_is_refused(content: str, error: str) -> None:
    with pytest.raises(UserError, match=f"^F, line 2: {error}$"):
        read_xml(f'<dataset>\n<doc id="d">{content}</doc></dataset>')


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_sgml_is_read_by_its_own_rules(end: str) -> None:
    assert segments(SOURCE.replace("\n", end)) == SEGMENTS


def test_a_segment_without_an_end_ends_with_the_file_or_before_the_next_document() -> None:
    assert segments('<doc docid="a"><seg id="1">b<doc docid="c"><seg id="1">d') == [("a", "1", "b"), ("c", "1", "d")]
    assert segments('<doc docid="a"><seg id="1">b<p>c') == [("a", "1", "b")]
    assert segments('<doc docid="a"><seg id="1">b</refset>c') == [("a", "1", "b")]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("<seg id=1>a</seg>", "line 2: segment 1 is in no <doc>"),
        ("<doc docid=a><seg id=1>b</doc><seg id=2>a", "line 2: segment 2 is in no <doc>"),
        ("<doc docid=a>\n<seg>b</seg>", "line 3: a <seg> without an id"),
        ("<doc sysid=a>", "line 2: a <doc> without a docid"),
        ("<doc docid=a><seg id=1>a</seg>\n<seg id=1>a</seg>", "line 3: document a, segment 1 occurs twice"),
        ("<doc docid=a><seg id=1>\ud800", "line 2: not UTF-8"),
        ("<doc docid=a\n" + "b\n" * 3000, r"line \d+: a tag of more than 4,096 characters"),
    ],
)
def test_invalid_sgml_is_refused_with_the_line(content: str, error: str) -> None:
    with pytest.raises(UserError, match=f"^F, {error}"):
        list(read_sgm(io.BytesIO(b"<srcset>\n" + content.encode("utf-8", "surrogatepass")), "F"))


def test_a_segment_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wmt, "MAX_UNIT", 1000)
    with pytest.raises(UserError, match=r"^F, line 102: a segment of more than 1,000 characters$"):
        segments("<doc docid=a>\n<seg id=1>\n" + "some text\n" * 1000)


@pytest.mark.parametrize("text", ["<seg ", "<p", "<p>", "&#1", "&amp", "<seg id='", "< ", "a=" * 3])
def test_a_malicious_line_takes_linear_time(text: str) -> None:
    found = segments(f"<doc docid=a><seg id=1>{text * 50_000}</seg>")  # backtracking would take minutes
    assert found == [("a", "1", (text * 50_000).strip())]


def test_sides_are_paired_by_ids_in_the_order_of_the_source() -> None:
    source = [("a", "1", "s1"), ("a", "2", "s2"), ("b", "1", "s3")]
    one = [("b", "1", "r3"), ("a", "2", "r2"), ("a", "1", "r1")]
    two = [("a", "1", "t1"), ("a", "2", "t2")]
    assert joined(source, one, two) == [
        ({"src": ["s1"], "tgt": ["r1", "t1"]}, "document a, segment 1"),
        ({"src": ["s2"], "tgt": ["r2", "t2"]}, "document a, segment 2"),
        ({"src": ["s3"], "tgt": ["r3"]}, "document b, segment 1"),
    ]


@pytest.mark.parametrize(
    ("sources", "references", "error"),
    [
        (["1", "2"], ["1"], "R: document a, segment 2 is missing, but S has it"),
        (["1"], ["1", "2"], "S: document a, segment 2 is missing, but R has it"),
        (["1", "1"], ["1"], "S: document a, segment 1 occurs twice"),
        (
            ["1", "2"],
            ["1", "2", "1"],
            r"R: document a, segment 2 occurs 1 time\(s\), other segments of the document 2 time\(s\)",
        ),
    ],
)
def test_sides_that_do_not_correspond_are_refused(sources: list[str], references: list[str], error: str) -> None:
    with pytest.raises(UserError, match=f"^{error}$"):
        joined([("a", each, "s") for each in sources], [("a", each, "r") for each in references])


CHARACTERS = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff") | st.sampled_from(
    "\n<&>"
)
DOCUMENTS = st.lists(st.lists(st.tuples(*[st.text(CHARACTERS, max_size=12)] * 3), max_size=3), max_size=3)


@settings(max_examples=25)
@given(DOCUMENTS, st.randoms(use_true_random=False))
def test_written_units_are_read_back(documents: list[list[tuple[str, str, str]]], random) -> None:
    def segs(document: list[tuple[str, str, str]], side: int) -> str:
        found = [f'<seg id="{i}">{escape(texts[side])}</seg>\n' for i, texts in enumerate(document)]
        random.shuffle(found)
        return "".join(found) if side else "".join(sorted(found))

    def sgm(side: int) -> list[Segment]:
        docs = [f'<doc docid="{i}">\n{segs(document, side)}</doc>\n' for i, document in enumerate(documents)]
        return segments(f"<refset>\n{''.join(docs)}</refset>")

    sides = '<src lang="s">{}</src><ref lang="t">{}</ref><ref lang="t">{}</ref>'
    docs = [f'<doc id="{i}">{sides.format(*(segs(doc, j) for j in range(3)))}</doc>' for i, doc in enumerate(documents)]
    expected = [[one_line(text) for text in texts] for document in documents for texts in document]
    for units in (read_xml(f"<dataset>{''.join(docs)}</dataset>"), joined(sgm(0), sgm(1), sgm(2))):
        assert [[*src, *tgt] for src, tgt in (unit.texts.values() for unit in units)] == expected
