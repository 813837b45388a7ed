"""Language codes: their writing systems, on which scores depend, and their use in the names of files and columns."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

# sacreBLEU's tokenizers. A test compares the lists. Tokenizers with a trained model read it from sacreBLEU's cache.
BleuTokenizer = Literal[
    "none", "zh", "13a", "intl", "char", "ja-mecab", "ko-mecab", "spm", "flores101", "flores200", "spBLEU-1K"
]
TOKENIZERS: tuple[str, ...] = get_args(BleuTokenizer)


class Writing(NamedTuple):
    """Properties of a writing system on which scores depend.

    Attributes:
        name: name of the writing system in messages.
        tokenizer: tokenizer of sacreBLEU that separates words or characters.
        has_blanks: whether spaces separate words.
        has_ter: whether TER's tokenizer separates words or characters.
    """

    name: str
    tokenizer: str
    has_blanks: bool
    has_ter: bool


SPACED = Writing("space-separated words", "13a", has_blanks=True, has_ter=True)
CHINESE = Writing("Chinese characters", "zh", has_blanks=False, has_ter=True)
JAPANESE = Writing("Japanese script", "ja-mecab", has_blanks=False, has_ter=True)
KOREAN = Writing("Hangul", "ko-mecab", has_blanks=True, has_ter=True)

# Scripts without spaces between words that no word tokenizer of sacreBLEU segments. The keys are ISO 15924 codes, and
# the values are the first word of the Unicode names of their letters.
_UNSPACED = {
    **{"Thai": "THAI", "Laoo": "LAO", "Khmr": "KHMER", "Mymr": "MYANMAR", "Tibt": "TIBETAN", "Java": "JAVANESE"},
    **{"Bali": "BALINESE", "Yiii": "YI", "Talu": "NEW", "Tale": "TAI", "Lana": "TAI", "Tavt": "TAI"},
}
_UNSPACED_WRITINGS = {
    name: Writing(f"{name.capitalize()} script", "char", has_blanks=False, has_ter=False)
    for name in ("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "JAVANESE", "BALINESE", "YI")
} | {name: Writing("Tai script", "char", has_blanks=False, has_ter=False) for name in ("NEW", "TAI")}
_BY_CODE = {
    **dict.fromkeys(("Hani", "Hans", "Hant", "Hanb", "Bopo"), CHINESE),
    **dict.fromkeys(("Jpan", "Hrkt", "Hira", "Kana"), JAPANESE),
    **dict.fromkeys(("Kore", "Hang"), KOREAN),
    **{code: _UNSPACED_WRITINGS[name] for code, name in _UNSPACED.items()},
}
# Scripts that are not alphabets, by the first word of their letters' Unicode names.
_NON_ALPHABETIC = {"CJK", "HIRAGANA", "KATAKANA", "HANGUL", *_UNSPACED_WRITINGS}
# Valid language codes that here name a side, or that name no particular language.
_NO_LANGUAGE = {"src", "tgt", "trg", "und", "mul", "mis", "zxx"}


def writing_of_code(code: str) -> Writing | None:
    """Return the writing system of a language, given its code; None if the code is unknown.

    All spellings of a code are accepted: `zh`, `zho`, `cmn`, `zh-CN`, `zh_TW`, `zho_Hans`, `ZH`. If the code names a
    script, the result is that of this script (`zh-Latn` has spaces). Otherwise, it is that of the language's most
    likely script.
    """
    tag = re.split(r"[.@]", code)[0].strip().replace("_", "-")  # drop a locale's encoding and variant
    for candidate in (tag, tag.split("-")[0]):
        try:
            language = _language(candidate)
        except ValueError:
            language = None
        if language is not None:
            if candidate.lower() in _NO_LANGUAGE or not _is_language(language.language):
                return None
            return _BY_CODE.get(language.maximize().script or "", SPACED)
    return None


def writing_of_text(lines: Iterable[str], is_alphabetic: bool = False) -> Writing | None:
    """Return the writing system of most of a text; None if it has no letters.

    Args:
        lines: the text.
        is_alphabetic: whether the language's code implies an alphabet. The text then counts as alphabetic unless more
            than half of its letters are not alphabetic.
    """
    counts: Counter[str] = Counter()
    for letter, n in Counter("".join(lines)).items():
        if letter.isalpha():
            counts[letter_script(letter)] += n
    if is_alphabetic and 2 * sum(counts[script] for script in _NON_ALPHABETIC) <= counts.total() > 0:
        return SPACED
    kana = counts.pop("HIRAGANA", 0) + counts.pop("KATAKANA", 0)
    # An alphabetic word has several letters. So an ideograph counts as 4 letters and a Hangul syllable as 2. Otherwise,
    # Chinese text with names in Latin letters would count as alphabetic.
    ideographs, syllables = counts.pop("CJK", 0), counts.pop("HANGUL", 0)
    if kana or ideographs:
        # Chinese text may contain a few kana (a name, a の). Of Japanese text, at least a tenth is kana.
        is_japanese = kana > 0.05 * (kana + ideographs)
        counts["JAPANESE" if is_japanese else "CHINESE"] = kana + 4 * ideographs
    if syllables:
        counts["KOREAN"] = 2 * syllables
    if not counts:
        return None
    main_script = counts.most_common(1)[0][0]
    east_asian = {"JAPANESE": JAPANESE, "CHINESE": CHINESE, "KOREAN": KOREAN}
    return east_asian.get(main_script) or _UNSPACED_WRITINGS.get(main_script, SPACED)


def writing_of(code: str, lines: Iterable[str]) -> Writing:
    """Return the writing system of a text, from its language's code, or from its script if the code is unknown.

    The script also decides if the language has an alphabet, but more than half of the text's letters are not
    alphabetic. The code then probably means a country (`kr` is Kanuri, `tw` Twi, `la` Latin), or the two sides are
    swapped. In the opposite case the code decides, because a Chinese text may consist of names and program code.
    """
    of_code = writing_of_code(code)
    if of_code not in (None, SPACED):
        return of_code
    return writing_of_text(lines, is_alphabetic=of_code == SPACED) or SPACED


def lacks_segmentation(tokenizer: str, writing: Writing) -> bool:
    """Return whether a tokenizer would take entire sentences for words in a writing system."""
    if tokenizer in ("13a", "intl", "none"):
        return not writing.has_blanks
    # These tokenizers segment the scripts for which they are made, and other text only at spaces.
    segmented = {"zh": (CHINESE,), "ja-mecab": (CHINESE, JAPANESE), "ko-mecab": (CHINESE, JAPANESE)}
    return tokenizer in segmented and not writing.has_blanks and writing not in segmented[tokenizer]


_SCRIPTS: dict[str, str] = {}


def letter_script(letter: str) -> str:
    """Return the script of a letter: the first word of its Unicode name, or CJK for an ideograph."""
    script = _SCRIPTS.get(letter)
    if script is None:
        name = unicodedata.name(letter, "?").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ")
        name = name.split()[0].split("-")[0]
        script = _SCRIPTS[letter] = "CJK" if name == "IDEOGRAPHIC" else name
    return script


# ---------------------------------------------------------------------------------------------------------- file names

# Endings that name a format, a processing step, a side or a split, not a language.
_ENDINGS = {
    *("txt", "tok", "raw", "bpe", "spm", "sp", "tc", "lc", "sgm", "xml", "tsv", "csv"),
    *("src", "tgt", "trg", "ref", "hyp", "out"),
    *("dev", "devtest", "tst", "trn", "val", "new", "old"),
}
_COMPRESSED = {"gz", "zst", "xz", "bz2", "zip"}
# Other parts of file names that are words, although they are valid language codes.
_COMMON_WORDS = {"all", "run", "cat", "mt", "to", "my", "in", "is", "no"}
# Languages with a region whose code is also a language code (tw is Twi, ch is Chamorro), where the region is not the
# most likely one of the language.
_WITH_REGION = {
    *("zh-tw", "zh-mo", "zh-sg", "de-ch", "fr-ch", "it-ch", "nl-be", "en-ie", "en-in", "en-sg", "ar-sa"),
    *("nb-no", "nn-no"),  # here `no` is also the code of Norwegian
}
_CODE_PATTERN = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*")


def language_of_file(path: str | None) -> str | None:
    """Return the language code in a file's name; None if there is none.

    For example, the code is `de` in `train.de`, `zh` in `t.zh.txt.gz`, and `zho_Hans` in `zho_Hans.devtest`.

    The last extension may be any code, known or unknown. Any other part of the name must be a known code. A pair of
    languages, such as `en-zh`, is not a code, but a language with its script or region is, such as `zh-tw` (see
    `_is_pair`).
    """
    stem, *parts = Path(path or "").name.split(".")
    while parts and parts[-1].lower() in _COMPRESSED:
        parts.pop()
    if parts and _is_possible_code(parts[-1]):
        return parts[-1]
    return next((part for part in (*reversed(parts), stem) if _is_certain_code(part)), None)


def language_of_column(name: object) -> str | None:
    """Return the name of a column if it is a known language code, otherwise None."""
    is_code = isinstance(name, str) and _is_possible_code(name) and writing_of_code(name) is not None
    return str(name) if is_code else None


def _is_possible_code(part: str) -> bool:
    """Return whether a part of a name may be a language code."""
    return bool(_CODE_PATTERN.fullmatch(part)) and part.lower() not in _ENDINGS and not _is_pair(part)


def _is_certain_code(part: str) -> bool:
    """Return whether a part of a name is certainly a language code. Three letters alone may also be a word."""
    language = _language(part) if _is_possible_code(part) and part.lower() not in _COMMON_WORDS else None
    if language is None:
        return False
    return len(language.language or "") == 2 or language.script is not None


def _is_pair(part: str) -> bool:
    """Return whether a part of a name may be two languages, such as en-zh.

    The second half may be the code both of a language and of a region. It then counts as a language (es-ar, fr-ca,
    en-vi), with two exceptions. It counts as a region if this is the most likely region of the first language (ko-kr,
    sv-se) but not of the second one (ca-es, tt-ru). It also counts as a region if the part is in `_WITH_REGION`.
    """
    subtags = re.split("[-_]", part)
    if len(subtags) != 2 or not part.islower() or not all(map(writing_of_code, subtags)):
        return False
    first, second = (language and language.maximize().territory for language in map(_language, subtags))
    is_own_region = first == subtags[1].upper() != second
    return subtags[0] != subtags[1] and not is_own_region and "-".join(subtags) not in _WITH_REGION


def ambiguous_pair(path: str, code: str) -> tuple[str, ...]:
    """Return the two languages of which a file's name may consist, such as fr and ca.

    Return an empty tuple if the name contains no such pair or also a language code, or if the pair includes the
    language of `code`.
    """
    pairs = [part for part in Path(path).name.split(".") if _is_pair(part)]
    if not pairs or language_of_file(path) is not None:
        return ()
    halves = tuple(re.split("[-_]", pairs[-1]))
    return () if base_language(code) in map(base_language, halves) else halves


def has_same_language(one: str, other: str) -> bool:
    """Return whether two codes have the same language, regardless of script and region: de and de-AT, en and eng."""
    return (base_language(one) or one).lower() == (base_language(other) or other).lower()


@cache
def base_language(code: str) -> str | None:
    """Return the language of a code in its shortest spelling, without script and region; an invalid code as it is."""
    tag = code.replace("_", "-")
    language = _language(tag)
    return code if language is None else language.language


def iso_639(code: str) -> str | None:
    """Return the language of a code as ISO 639 spells it: de for deu_Latn and de_DE; None if it names no language."""
    language = _language(code.replace("_", "-"))
    subtag: str | None = None if language is None else language.language
    return subtag if _is_language(subtag) else None


def _is_language(subtag: str | None) -> bool:
    """Return whether a subtag names a particular language, and not a side or a private use."""
    return subtag is not None and subtag not in _NO_LANGUAGE and re.fullmatch("q[a-t][a-z]", subtag) is None


def find_language(code: str, among: Sequence[str]) -> str | None:
    """Return the language that a code means; None if there is none.

    It is the code itself if there is one. Otherwise, it is a language that is written in the same script, preferably
    one of the same region: deu_Latn or de_DE for de, zho_Hant for zh-TW, arb_Arab for ar.

    Args:
        code: a code in any spelling, such as de, deu, de-DE or deu_Latn.
        among: the codes to choose from.
    """
    if code in among:
        return code
    wanted = _likely_tag(code)
    if wanted is None:
        return None
    found = [other for other in among if (tag := _likely_tag(other)) is not None and tag[:2] == wanted[:2]]
    return next((other for other in found if _likely_tag(other) == wanted), found[0] if found else None)


@cache
def _likely_tag(code: str) -> tuple[str | None, str | None, str | None] | None:
    """Return the language, script and region of a code, the likely ones where it has none; None if it is invalid.

    A language that belongs to a macrolanguage counts as that: arb (Standard Arabic) as ar. Norwegian counts as Bokmål.
    """
    import langcodes  # see `_language`

    tag = code.replace("_", "-")
    if not langcodes.tag_is_valid(tag):
        return None
    likely = langcodes.Language.get(langcodes.standardize_tag(tag, macro=True)).maximize()
    return "nb" if likely.language == "no" else likely.language, likely.script, likely.territory


def _language(tag: str) -> Any | None:
    """Return a tag's langcodes.Language, or None if the tag is invalid."""
    import langcodes  # imported only here: its tables take longer to load than a sentence takes to translate

    return langcodes.Language.get(tag) if langcodes.tag_is_valid(tag) else None
