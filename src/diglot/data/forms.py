"""Unicode normalisation forms of the same text, and their unification for comparisons and tokenizers.

An accented letter may be one character (composed, NFC) or a letter and a combining mark (decomposed, NFD).
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import permutations, product
from typing import Literal

# Zero-width characters: soft hyphen, joiners, direction marks, variation selectors, byte order mark, tags.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]"
)
# Marks below a letter, in African languages: they are typed in any order and occur in no composed character.
_MORE_MARKS = "\u0320\u0329\u0331"
_POINTS = (
    "".join(map(chr, (*range(0x05B0, 0x05BE), 0x05BF, 0x05C1, 0x05C2, 0x05C7))),
    "".join(map(chr, (*range(0x064B, 0x0656), 0x0670))),
)
_MARK_BLOCKS = (
    *((0x0300, 0x0370), (0x0591, 0x05C8), (0x0610, 0x0671), (0x06D6, 0x06EE), (0x08D3, 0x0900)),
    *((first, first + 0x80) for first in range(0x0900, 0x1080, 0x80)),  # scripts of India, Thai, Lao, Tibetan, Burmese
)


def comparable(text: str) -> str:
    """Return a text in composed form without zero-width characters, so that texts that look the same are equal.

    Use the result only for comparison: joiners carry meaning in Persian and Hindi and must stay in text.
    """
    return text if text.isascii() else unicodedata.normalize("NFC", _INVISIBLE.sub("", text))


def form_of(text: str) -> Literal["composed", "decomposed"] | None:
    """Return the form of a text: "decomposed" if any part of it is decomposed; None if both forms are the same."""
    if text.isascii():
        return None
    if not unicodedata.is_normalized("NFC", text):
        return "decomposed"
    return None if unicodedata.is_normalized("NFD", text) else "composed"


def count_forms(lines: Iterable[str]) -> dict[str, int]:
    """Count the composed and the decomposed lines among those that can be written in either form."""
    counts = Counter(map(form_of, lines))
    return {"composed": counts["composed"], "decomposed": counts["decomposed"]}


def mixed_forms(counts: Mapping[str, Mapping[str, int]]) -> str | None:
    """Return a description of the texts that are not composed; None if all texts are in one form.

    Args:
        counts: counts of several texts, by name; see `count_forms`.
    """
    if len({form for forms in counts.values() for form, n in forms.items() if n}) < 2:
        return None
    told = [f"{name} {forms['decomposed']:,} of {n:,}" for name, forms in counts.items() if (n := sum(forms.values()))]
    return f"lines not in NFC, out of those with accents or similar marks: {', '.join(told)}"


@cache
def composing_rules() -> str:
    """Return rules that compose text, in SentencePiece's format: per line, code points, a tab, and their composition.

    SentencePiece replaces the longest match and never examines a replacement again. So the rules list all ways to write
    a character, and marks in any order as far as languages use them: two on a letter, three if they are Hebrew or
    Arabic points. No list is complete, because a letter may carry any number of marks. Composed text matches no rule.
    """
    rules: dict[str, str] = {}

    def add(text: str) -> None:
        composed = unicodedata.normalize("NFC", text)
        if composed != text:
            rules[text] = composed

    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    decomposable = [c for c in characters if unicodedata.normalize("NFD", c) != c]
    pairs = []
    for character in decomposable:
        for spelling in _spellings(character):
            add(spelling)
        parts = unicodedata.decomposition(character).split()
        if len(parts) == 2 and unicodedata.is_normalized("NFC", character):
            pairs.append((chr(int(parts[0], 16)), chr(int(parts[1], 16))))
    for text in _with_marks(pairs):
        add(text)
    return "".join(f"{_codes(text)}\t{_codes(composed)}\n" for text, composed in sorted(rules.items()))


def _with_marks(pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield texts with several marks in any order, including orders that NFC changes.

    Args:
        pairs: pairs of a letter and a mark that compose.
    """
    marks = sorted({mark for _, mark in pairs if unicodedata.combining(mark)} | set(_MORE_MARKS))
    for (base, mark), between in product(pairs, marks):
        if 0 < unicodedata.combining(mark) != unicodedata.combining(between):
            yield base + between + mark
            yield unicodedata.normalize("NFC", base + between) + mark
    for first, last in _MARK_BLOCKS:  # for letters that do not compose with them: NFC only reorders the marks
        for one, other in product(range(first, last), repeat=2):
            yield chr(one) + chr(other)
    for points in _POINTS:  # a shin's dot, dagesh and vowel; shadda, vowel and hamza
        for three in product(points, repeat=3):
            yield "".join(three)
            yield "\u05e9" + "".join(three)  # else the rules above would match shin with only two points


def _spellings(character: str) -> set[str]:
    """Return all texts that compose to a character, or to its canonical replacement in Unicode."""
    whole = unicodedata.normalize("NFD", character)
    found = {character}
    for marks in set(permutations(whole[1:])):
        text = whole[0] + "".join(marks)
        if unicodedata.normalize("NFD", text) == whole:
            found |= {unicodedata.normalize("NFC", text[:n]) + text[n:] for n in range(1, len(text))}
    return found


def _codes(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)
