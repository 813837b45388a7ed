"""What a language code, a file's name or a text says of how a language is written, and what scores follow from that."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import langcodes

# sacreBLEU's tokenizers (a test compares). Those that need a trained model take it from sacreBLEU's cache.
BleuTokenizer = Literal[
    "none", "zh", "13a", "intl", "char", "ja-mecab", "ko-mecab", "spm", "flores101", "flores200", "spBLEU-1K"
]
TOKENIZERS: tuple[str, ...] = get_args(BleuTokenizer)


class Writing(NamedTuple):
    """How a language is written, as far as scores depend on it.

    Attributes:
        name: for messages.
        tokenizer: sacreBLEU's tokenizer that sees its words, or its characters.
        has_blanks: whether blanks separate its words.
        has_ter: whether TER's tokenizer sees its words, or its characters.
    """

    name: str
    tokenizer: str
    has_blanks: bool
    has_ter: bool


SPACED = Writing("words between blanks", "13a", has_blanks=True, has_ter=True)
CHINESE = Writing("Chinese characters", "zh", has_blanks=False, has_ter=True)
JAPANESE = Writing("Japanese script", "ja-mecab", has_blanks=False, has_ter=True)
KOREAN = Writing("Hangul", "ko-mecab", has_blanks=True, has_ter=True)

# Scripts that are written without blanks between words, and that no tokenizer of sacreBLEU segments: their code in
# ISO 15924, and the first word of their letters' names in Unicode.
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
_NO_ALPHABETS = {"CJK", "HIRAGANA", "KATAKANA", "HANGUL", *_UNSPACED_WRITINGS}  # scripts, by their letters' names
# Codes that a table of languages knows, and that here are names of a side, or of no language in particular.
_NO_LANGUAGE = {"src", "tgt", "trg", "und", "mul", "mis", "zxx"}


def writing_of_code(code: str) -> Writing | None:
    """How the language of a code is written; None where the code is not known.

    All spellings mean the same: `zh`, `zho`, `cmn`, `zh-CN`, `zh_TW`, `zho_Hans`, `ZH`. A script that the code names
    decides (`zh-Latn` has blanks), else the one that the language is most likely written in.
    """
    tag = re.split(r"[.@]", code)[0].strip().replace("_", "-")  # a locale's encoding and variant say nothing
    for candidate in (tag, tag.split("-")[0]):
        try:
            language = langcodes.Language.get(candidate) if langcodes.tag_is_valid(candidate) else None
        except ValueError:
            language = None
        if language is not None:
            is_private = re.fullmatch("q[a-t][a-z]", language.language or "")
            if candidate.lower() in _NO_LANGUAGE or language.language is None or is_private:
                return None
            return _BY_CODE.get(language.maximize().script or "", SPACED)
    return None


def writing_of_text(lines: Iterable[str], is_alphabetic: bool = False) -> Writing | None:
    """How most of a text is written; None where it has no letters.

    Args:
        lines: the text.
        is_alphabetic: whether its language's letters are an alphabet's, as far as is known: then over half of all
            letters have to be others.
    """
    counts: Counter[str] = Counter()
    for letter, n in Counter("".join(lines)).items():
        if letter.isalpha():
            counts[letter_script(letter)] += n
    if is_alphabetic and 2 * sum(counts[script] for script in _NO_ALPHABETS) <= counts.total() > 0:
        return SPACED
    kana = counts.pop("HIRAGANA", 0) + counts.pop("KATAKANA", 0)
    # A word of alphabetic text has several letters, so that Chinese with names in Latin letters stays Chinese.
    ideographs, syllables = counts.pop("CJK", 0), counts.pop("HANGUL", 0)
    if kana or ideographs:
        # Now and then a Chinese text has kana (a name, a の), while a tenth of Japanese is the least there is.
        is_japanese = kana > 0.05 * (kana + ideographs)
        counts["JAPANESE" if is_japanese else "CHINESE"] = kana + 4 * ideographs
    if syllables:
        counts["KOREAN"] = 2 * syllables
    if not counts:
        return None
    most = counts.most_common(1)[0][0]
    own = {"JAPANESE": JAPANESE, "CHINESE": CHINESE, "KOREAN": KOREAN}
    return own.get(most) or _UNSPACED_WRITINGS.get(most, SPACED)


def writing_of(code: str, lines: Iterable[str]) -> Writing:
    """How a text is written: by its language's code, and by its script where the code is not known, or where it is that
    of a language with alphabetic letters and over half of the text's are others: then it was meant as a country's (`kr`
    is Kanuri, `tw` Twi, `la` Latin), or the two sides are swapped.

    The other way round the code decides: a Chinese text may consist of names and code.
    """
    of_code = writing_of_code(code)
    if of_code not in (None, SPACED):
        return of_code
    return writing_of_text(lines, is_alphabetic=of_code == SPACED) or SPACED


def is_blind(tokenizer: str, writing: Writing) -> bool:
    """Whether a tokenizer takes whole sentences for words in a text that is written so."""
    if tokenizer in ("13a", "intl", "none"):
        return not writing.has_blanks
    # The others segment the scripts that they are made for, and other text at its blanks.
    segmented = {"zh": (CHINESE,), "ja-mecab": (CHINESE, JAPANESE), "ko-mecab": (CHINESE, JAPANESE)}
    return tokenizer in segmented and not writing.has_blanks and writing not in segmented[tokenizer]


_SCRIPTS: dict[str, str] = {}


def letter_script(letter: str) -> str:
    """The script of a letter: the first word of its name in Unicode, CJK for every ideograph."""
    found = _SCRIPTS.get(letter)
    if found is None:
        name = unicodedata.name(letter, "?").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ")
        name = name.split()[0].split("-")[0]
        found = _SCRIPTS[letter] = "CJK" if name == "IDEOGRAPHIC" else name
    return found


# ---------------------------------------------------------------------------------------------------------- file names

# Endings that name a format, a step of processing, a side or a split, and no language.
_ENDINGS = {
    *("txt", "tok", "raw", "bpe", "spm", "sp", "tc", "lc", "sgm", "xml", "tsv", "csv"),
    *("src", "tgt", "trg", "ref", "hyp", "out"),
    *("dev", "devtest", "tst", "trn", "val", "new", "old"),
}
_COMPRESSED = {"gz", "zst", "xz", "bz2", "zip"}
# Other parts of names that a table of languages knows, and that are words.
_WORDS = {"all", "run", "cat", "mt", "to", "my", "in", "is", "no"}
# Languages with a region that is not their likely one, whose code is that of a language, too: Twi, Chamorro, ...
_REGIONAL = {
    *("zh-tw", "zh-mo", "zh-sg", "de-ch", "fr-ch", "it-ch", "nl-be", "en-ie", "en-in", "en-sg", "ar-sa"),
    *("nb-no", "nn-no"),  # where the code says Norwegian, too
}
_LOOKS_LIKE_ONE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*")


def language_of_file(path: str | None) -> str | None:
    """The language code in a file's name: `de` of `train.de`, `zh` of `t.zh.txt.gz`, `zho_Hans` of `zho_Hans.devtest`;
    None if there is none.

    An extension may be any code; what stands before it, or is the whole name, has to be a known one. Two languages like
    `en-zh` are none, while a language and its script or region like `zh-tw` are one (see `_is_pair`).
    """
    stem, *parts = Path(path or "").name.split(".")
    while parts and parts[-1].lower() in _COMPRESSED:
        parts.pop()
    if parts and _may_be_one(parts[-1]):
        return parts[-1]
    return next((part for part in (*reversed(parts), stem) if _is_surely_one(part)), None)


def language_of_column(name: object) -> str | None:
    """The language code that a column's name is; None if it is none."""
    is_code = isinstance(name, str) and _may_be_one(name) and writing_of_code(name) is not None
    return str(name) if is_code else None


def _may_be_one(part: str) -> bool:
    """Whether part of a name can be a language code."""
    return bool(_LOOKS_LIKE_ONE.fullmatch(part)) and part.lower() not in _ENDINGS and not _is_pair(part)


def _is_surely_one(part: str) -> bool:
    """Whether part of a name can be nothing but a language code: three letters alone are often a word."""
    if not _may_be_one(part) or part.lower() in _WORDS or not langcodes.tag_is_valid(part):
        return False
    language = langcodes.Language.get(part)
    return len(language.language or "") == 2 or language.script is not None


def _is_pair(part: str) -> bool:
    """Whether a part of a name may be two languages, like en-zh.

    Where the second half is a language's code and a region's, it is the language's (es-ar, fr-ca, en-vi), but for the
    region where the first language is most likely spoken (ko-kr, sv-se), unless that is the second one's, too (ca-es,
    tt-ru), and for what is far more often met as one language (`_REGIONAL`).
    """
    subtags = re.split("[-_]", part)
    if len(subtags) != 2 or not part.islower() or not all(map(writing_of_code, subtags)):
        return False
    regions = [langcodes.Language.get(subtag).maximize().territory for subtag in subtags]
    is_own_region = regions[0] == subtags[1].upper() != regions[1]
    return subtags[0] != subtags[1] and not is_own_region and "-".join(subtags) not in _REGIONAL


def other_pair_of_file(path: str, code: str) -> tuple[str, ...]:
    """The two languages that a file's name may name, where it names none for certain and neither is that of a code;
    none elsewhere."""
    pairs = [part for part in Path(path).name.split(".") if _is_pair(part)]
    if not pairs or language_of_file(path) is not None:
        return ()
    halves = tuple(re.split("[-_]", pairs[-1]))
    return () if _base(code) in map(_base, halves) else halves


def _base(code: str) -> str | None:
    """The language of a code, without script and region, in its shortest spelling; a code that is none as it is."""
    tag = code.replace("_", "-")
    return langcodes.Language.get(tag).language if langcodes.tag_is_valid(tag) else code
