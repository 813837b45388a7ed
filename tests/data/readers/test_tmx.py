"""TMX: all languages and alternatives of a unit, without the codes of its inline markup."""

import io
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diglot.data.readers.tmx import read_tmx
from diglot.data.readers.units import one_line
from diglot.errors import UserError

FILE = """\
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4">
<header srclang="*all*"><note>n</note><prop type="p">seg</prop></header>
<body>
  <tu tuid="1">
    <note>unseen</note>
    <tuv xml:lang="en-GB"><prop type="x">unseen</prop><seg>Turn on the light.</seg></tuv>
    <tuv xml:lang="DE"><seg>Schalte das Licht ein.</seg></tuv>
    <tuv xml:lang="DE"><seg>Mach Licht.</seg></tuv>
    <tuv lang="fr"><seg></seg></tuv>
  </tu>
  <tu><tuv xml:lang="DE"><seg xml:space="preserve">
     Ja,
     nein. </seg></tuv></tu>
  <tu/>
</body>
</tmx>
"""


def read(text: str) -> list[tuple[dict[str, list[str]], str]]:
    return [tuple(unit) for unit in read_tmx(io.BytesIO(text.encode()), "F")]  # type: ignore[misc]


def text_of(seg: str) -> str:
    """Return the text of a segment with inline markup."""
    [(texts, _)] = read(f'<tmx><body><tu><tuv xml:lang="de"><seg>{seg}</seg></tuv></tu></body></tmx>')
    return texts["de"][0]


def test_a_unit_has_all_languages_and_alternatives() -> None:
    english, german = ["Turn on the light."], ["Schalte das Licht ein.", "Mach Licht."]
    assert read(FILE) == [
        ({"en-GB": english, "DE": german, "fr": [""]}, "line 6"),
        ({"DE": ["Ja, nein."]}, "line 13"),
        ({}, "line 16"),
    ]


@pytest.mark.parametrize(
    ("seg", "text"),
    [
        ('<bpt i="1">&lt;b></bpt>Licht<ept i="1">&lt;/b></ept> an', "Licht an"),
        ('<it pos="begin">&lt;i></it>Licht <hi type="x">an<hi>!</hi></hi>', "Licht an!"),
        ('a<ph x="1">{0}<sub>unseen <bpt>b</bpt> c</sub> d</ph>e<ut>u</ut>f', "aef"),
        ('a<ph type="lb"/>b <ph type="lb">br</ph> c<ph type="image"/>d', "a b cd"),
        ("a <new>b <ph>c</ph></new> d", "a b  d"),
        ("<hi><ph><hi>x</hi></ph></hi>", ""),
    ],
)
def test_codes_are_skipped(seg: str, text: str) -> None:
    assert text_of(seg) == text


def test_a_text_without_a_language_is_refused() -> None:
    with pytest.raises(UserError, match=r"^F, line 2: a <tuv> without a language \(xml:lang\)$"):
        read("<tmx><body><tu>\n<tuv><seg>a</seg></tuv></tu></body></tmx>")


CHARACTERS = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff") | st.sampled_from("\n\t")
TEXTS = st.lists(st.text(CHARACTERS, max_size=12), min_size=1, max_size=3)


@settings(max_examples=25)
@given(st.lists(st.dictionaries(st.sampled_from(["en", "de-CH", "zh"]), TEXTS), max_size=4), st.sampled_from([8, 16]))
def test_written_units_are_read_back(units: list[dict[str, list[str]]], bits: int) -> None:
    def tuv(language: str, text: str) -> str:
        return f'<tuv xml:lang="{language}">\n<seg>{escape(text)}</seg></tuv>'

    tus = ["".join(tuv(language, text) for language in unit for text in unit[language]) for unit in units]
    content = f"<tmx><body>{''.join(f'<tu>{tu}</tu>' for tu in tus)}</body></tmx>"
    content = f'<?xml version="1.0" encoding="UTF-{bits}"?>\n{content}'
    found = [unit.texts for unit in read_tmx(io.BytesIO(content.encode(f"utf-{bits}")), "F")]
    assert found == [{language: list(map(one_line, texts)) for language, texts in unit.items()} for unit in units]
