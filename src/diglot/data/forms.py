"""Unicode normalisation forms of text: detecting them, comparing text across them, and composing text in a tokenizer.

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
# Marks below a letter in African languages. They are typed in any order and are part of no composed character.
_AFRICAN_MARKS = "\u0320\u0329\u0331"
_POINT_SETS = (  # the points of Hebrew and those of Arabic
    "".join(map(chr, (*range(0x05B0, 0x05BE), 0x05BF, 0x05C1, 0x05C2, 0x05C7))),
    "".join(map(chr, (*range(0x064B, 0x0656), 0x0670))),
)
_MARK_BLOCKS = (  # ranges of code points with combining marks, as (start, stop)
    *((0x0300, 0x0370), (0x0591, 0x05C8), (0x0610, 0x0671), (0x06D6, 0x06EE), (0x08D3, 0x0900)),
    *((first, first + 0x80) for first in range(0x0900, 0x1080, 0x80)),  # scripts of India, Thai, Lao, Tibetan, Burmese
)


def comparable(text: str) -> str:
    """Return a text in composed form and without zero-width characters, so that texts that look the same are equal.

    Use the result only for comparisons: zero-width joiners have a meaning in Persian and Hindi and must stay in text.
    """
    return text if text.isascii() else unicodedata.normalize("NFC", _INVISIBLE.sub("", text))


def form_of(text: str) -> Literal["composed", "decomposed"] | None:
    """Return the form of a text: "decomposed" if any part of it is decomposed, None if both forms are the same."""
    if text.isascii():
        return None
    if not unicodedata.is_normalized("NFC", text):
        return "decomposed"
    return None if unicodedata.is_normalized("NFD", text) else "composed"


def count_forms(lines: Iterable[str]) -> dict[str, int]:
    """Count the composed and the decomposed lines. Lines for which both forms are the same are not counted."""
    counts = Counter(map(form_of, lines))
    return {"composed": counts["composed"], "decomposed": counts["decomposed"]}


def mixed_forms(counts: Mapping[str, Mapping[str, int]]) -> str | None:
    """Return the shares of lines that are not composed, for a message; None if all texts are in the same form.

    Args:
        counts: counts of each text (see `count_forms`), by the name of the text.
    """
    if len({form for forms in counts.values() for form, n_lines in forms.items() if n_lines}) < 2:
        return None
    totals = {name: sum(forms.values()) for name, forms in counts.items()}
    shares = [f"{name} {counts[name]['decomposed']:,} of {total:,}" for name, total in totals.items() if total]
    return f"lines not in NFC, out of those with accents or similar marks: {', '.join(shares)}"


@cache
def composing_rules() -> str:
    """Return rules that compose text, in SentencePiece's format: per line, code points, a tab, and their composition.

    SentencePiece replaces the longest match and never examines a replacement again. So the rules must list every way to
    write a character, and every order of the marks on a letter. They cover two marks on a letter, and three if these
    are Hebrew or Arabic points. No list is complete, because a letter may have any number of marks. Composed text
    matches no rule.
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
    return "".join(f"{_code_points(text)}\t{_code_points(composed)}\n" for text, composed in sorted(rules.items()))


def _with_marks(pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield texts with several marks in any order, including orders that NFC changes.

    Args:
        pairs: pairs of a letter and a mark that compose.
    """
    marks = sorted({mark for _, mark in pairs if unicodedata.combining(mark)} | set(_AFRICAN_MARKS))
    for (base, mark), other_mark in product(pairs, marks):
        if 0 < unicodedata.combining(mark) != unicodedata.combining(other_mark):
            yield base + other_mark + mark
            yield unicodedata.normalize("NFC", base + other_mark) + mark
    for start, stop in _MARK_BLOCKS:  # for letters that do not compose with these marks, which NFC only reorders
        for first, second in product(range(start, stop), repeat=2):
            yield chr(first) + chr(second)
    for points in _POINT_SETS:  # such as the dot of a shin, dagesh and vowel, or shadda, vowel and hamza
        for sequence in product(points, repeat=3):
            yield "".join(sequence)
            yield "\u05e9" + "".join(sequence)  # otherwise the rules above would match a shin with only two points


def _spellings(character: str) -> set[str]:
    """Return all texts that compose to a character, or to the character that replaces it in NFC."""
    decomposed = unicodedata.normalize("NFD", character)
    spellings = {character}
    for marks in set(permutations(decomposed[1:])):
        text = decomposed[0] + "".join(marks)
        if unicodedata.normalize("NFD", text) == decomposed:
            spellings |= {unicodedata.normalize("NFC", text[:length]) + text[length:] for length in range(1, len(text))}
    return spellings


def _code_points(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)
