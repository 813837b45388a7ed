"""Interface texts of Home Assistant, an open-source project, in about sixty languages."""

import difflib
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from diglot.data.corpus import Corpus, atomic_folder, check_sizes, prepared_folder, read_prepared, write_splits
from diglot.data.forms import comparable
from diglot.data.split import grouped_split
from diglot.data.text import Parallel, ParallelText, write_lines
from diglot.data.wheel import Wheel
from diglot.errors import UserError
from diglot.system.progress import step

WHEEL = Wheel(
    requirement="homeassistant==2026.11.0",
    file="homeassistant-2026.11.0-py3-none-any.whl",
    sha256="7ca5fbde9dea879ac7723949fc84347aac5182e6309c357b2e4973fd391b00f7",
    size="67.6 MB",
)
_CODES = (
    "af ar bg bn bs ca cs cy da de el en en-GB eo es es-419 et eu fa fi fr fy ga gl gsw he hi hr hu hy id is it ja ka "
    "ko lb lt lv mk ml nb ne nl nn pl pt pt-BR ro ru sk sl sq sr sr-Latn sv ta th tr uk ur vi zh-Hans zh-Hant"
)
LANGUAGES = tuple(_CODES.split())

_MIN_ENGLISH_WORDS = 3
_FORMAT = 2  # increment when the same options give other text
_TRANSLATIONS = re.compile(r"homeassistant/components/([^/]+)/translations/([^/]+)\.json")

Texts = dict[tuple[str, ...], str]  # (component, key, subkey, ...) -> text


class HomeAssistant(Corpus):
    """Corpus of Home Assistant's interface texts in any two languages, from the project's wheel (Apache-2.0).

    The wheel is downloaded with pip, or read from a path, as a ZIP archive of JSON files. Nothing in it is installed or
    run. `pair_texts` defines which texts become pairs.

    Args:
        pair: source and target language, such as "en-de" or "pt-BR-zh-Hans".
        wheel: path of the wheel; None: it is downloaded.
        dev_size: number of pairs for dev, at most a tenth of the corpus.
        test_size: number of pairs for test, at most a tenth of the corpus.
        split_seed: seed of the split.

    Raises:
        UserError: the pair does not name two different languages of `LANGUAGES`, or a size is not positive.
    """

    def __init__(
        self,
        *,
        pair: str = "en-de",
        wheel: str | None = None,
        dev_size: int = 500,
        test_size: int = 1000,
        split_seed: int = 1,
    ) -> None:
        super().__init__()
        self.name = "home_assistant"
        self.src_lang, self.tgt_lang = split_pair(pair)
        check_sizes(dev_size, test_size)
        self.wheel = wheel
        self.dev_size, self.test_size, self.split_seed = dev_size, test_size, split_seed

    def describe(self) -> str:
        return f"home_assistant: {self.src_lang}-{self.tgt_lang}, interface texts of {WHEEL.requirement} (Apache-2.0)"

    def read(self, cache_dir: Path) -> Mapping[str, Parallel]:
        return read_prepared(self._folder(cache_dir), self)

    def prepare(self, cache_dir: Path) -> None:
        folder = self._folder(cache_dir)
        if folder.is_dir():
            return
        wheel = WHEEL.get(self.wheel, folder.parent)
        with step(f"reading {self.src_lang} and {self.tgt_lang} texts"):
            texts = {language: read_texts(wheel, language) for language in {"en", self.src_lang, self.tgt_lang}}
            pairs = pair_texts(texts[self.src_lang], texts[self.tgt_lang], texts["en"])
            if not len(pairs):
                raise UserError(f"data.pair={self.src_lang}-{self.tgt_lang}: the two languages have no text in common")
            splits, n_dropped = grouped_split(pairs, self.dev_size, self.test_size, self.split_seed)
            with atomic_folder(folder) as temporary:
                write_splits(temporary, splits, self.src_lang, self.tgt_lang)
                write_lines(temporary / "SOURCE.txt", self._source_note(len(pairs), splits, n_dropped))

    def _folder(self, cache_dir: Path) -> Path:
        pair = f"{self.src_lang}-{self.tgt_lang}"
        options = [_FORMAT, WHEEL.sha256, pair, self.dev_size, self.test_size, self.split_seed]
        return prepared_folder(cache_dir, self.name, pair, options)

    def _source_note(self, n_pairs: int, splits: dict[str, ParallelText], n_dropped: int) -> list[str]:
        return [
            f"Interface texts of Home Assistant, {self.src_lang} to {self.tgt_lang}.",
            "",
            f"Source:   the Python package {WHEEL.requirement} ({WHEEL.file})",
            f"SHA-256:  {WHEEL.sha256}",
            "Licence:  Apache-2.0, the Home Assistant authors",
            "Made by:  diglot, data=home_assistant",
            "",
            "What was done: texts with the same component and key in components/*/translations were paired, and blanks",
            "collapsed. Pairs with an empty side, two equal sides, fewer than three English words or an English text",
            f"that came before were left out; {n_pairs} remained. Placeholders are as they were. The pairs were split",
            f"grouped by normalised source, seed {self.split_seed}, and {n_dropped} pairs whose normalised target is",
            "one of dev's or test's were dropped from train.",
            "",
            *(f"{split}: {len(pairs)} pairs" for split, pairs in splits.items()),
        ]


def split_pair(pair: str) -> tuple[str, str]:
    """Split a pair of languages, such as "en-zh-Hans" into "en" and "zh-Hans".

    Raises:
        UserError: the parts are not two different languages of `LANGUAGES`. The message names the most similar ones.
    """
    parts = pair.split("-")
    splits = [("-".join(parts[:i]), "-".join(parts[i:])) for i in range(1, len(parts))]
    for src, tgt in splits:
        if src in LANGUAGES and tgt in LANGUAGES:
            if src == tgt:
                raise UserError(f"data.pair={pair}: source and target are the same language")
            return src, tgt
    if not splits:
        languages = _list_languages(pair)
        raise UserError(f"data.pair={pair}: type two languages with a hyphen between them, as in en-de; {languages}")
    # Report the side that is unknown. If both sides are, report the first part.
    unknown = next((tgt for src, tgt in reversed(splits) if src in LANGUAGES), None)
    unknown = unknown or next((src for src, tgt in splits if tgt in LANGUAGES), splits[0][0])
    raise UserError(f"data.pair={pair}: no language {unknown!r}; {_list_languages(unknown)}")


def _list_languages(unknown: str) -> str:
    """Return all codes in one line, the most similar ones to an unknown code first."""
    unknown = unknown.lower()

    def similarity(code: str) -> tuple[bool, float]:
        code = code.lower()
        same_start = code.startswith(unknown) or unknown.startswith(code)  # so that zh is nearer to zh-Hans than to th
        return same_start, difflib.SequenceMatcher(None, unknown, code).ratio()

    nearest = sorted(LANGUAGES, key=similarity, reverse=True)[:3]
    return "available: " + " ".join([*nearest, *(code for code in LANGUAGES if code not in nearest)])


def read_texts(wheel: Path, language: str) -> Texts:
    """Return all texts in a language, by component and keys."""
    texts: Texts = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            match = _TRANSLATIONS.fullmatch(name)
            if match and match[2] == language:
                texts.update(_flatten(json.loads(archive.read(name)), (match[1],)))
    return texts


def pair_texts(src: Texts, tgt: Texts, english: Texts) -> ParallelText:
    """Pair texts with the same keys, in the order of components and keys.

    Runs of whitespace, including line breaks, become one space. A pair is left out if a side is empty or both sides are
    equal, if its English text has fewer than three space-separated words, or if an earlier pair has the same English
    text (case matters). The English text is used for every pair of languages. So en-de and de-en have the same pairs,
    and a key without an English text gives no pair.

    Args:
        src: texts in the source language.
        tgt: texts in the target language.
        english: texts in English.
    """
    pairs = ParallelText([], [])
    seen = set()
    for key in sorted(src.keys() & tgt.keys() & english.keys()):
        src_text, tgt_text, english_text = (" ".join(texts[key].split()) for texts in (src, tgt, english))
        if not src_text or not tgt_text or comparable(src_text) == comparable(tgt_text):
            continue
        if len(english_text.split()) < _MIN_ENGLISH_WORDS or comparable(english_text) in seen:
            continue
        seen.add(comparable(english_text))
        pairs.src.append(src_text)
        pairs.tgt.append(tgt_text)
    return pairs


def _flatten(node: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _flatten(value, (*path, key))
        elif isinstance(value, str):
            yield (*path, key), value
