"""Noise in training pairs, for text as people type it: capitals, typing errors, no punctuation, several sentences.

A model that is trained on clean text alone fails on such input.
"""

import hashlib
import unicodedata
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from random import Random
from typing import NamedTuple

import regex

from diglot.data.language import base_language, writing_of_text
from diglot.data.text import BLOCK, Parallel, ParallelText, corpora_of, join_blocks

KINDS = ("upper", "title", "typos", "no_punctuation", "merge", "split", "copy")

_DOTTED_I = {"tr", "az", "azj"}  # languages in which the capital of i is İ
_GREEK = regex.compile(r"[\u0370-\u03ff\u1f00-\u1fff]\p{M}*")
_DIALYTIKA = "\u0308"
# A letter at the start of a word, after punctuation at most. \p{Co} (private use) is the mark of a placeholder.
_WORD_START = regex.compile(r"(?<!\S)([^\w\s\p{Co}]*)(\p{L})")
_LETTER_OR_OTHER = regex.compile(r"\p{L}\p{M}*|.", regex.DOTALL)
# Punctuation, except signs that are read aloud, and except marks inside a number or word, as in 3.5 and don't.
_PUNCTUATION = regex.compile(r"(?![#%&*@/\\§])(?!(?<=[\w\p{Co}])['’.,:\-\u2010\u2011][\w\p{Co}])\p{P}")
_BETWEEN_WORDS = regex.compile(rf"(?<=\w){_PUNCTUATION.pattern}(?=\w)")
_LAST_MARKS = regex.compile(r"[\p{Terminal_Punctuation}…]+\s*$")
_SENTENCE_END = regex.compile(
    r"(?<!\b(?:\w|\p{N}+))[\p{STerm}…]++[\p{Pe}\p{Pf}\p{Pi}\"']*+\s+(?!\p{Ll})"  # not after 1. or J.
    r"|[。！？｡]++[\p{Pe}\p{Pf}\p{Pi}\"']*+(?!\s)"
)
_LONG_WORD = regex.compile(r"(?:[\p{L}\p{N}]\p{M}*){5,}")
_CHARACTER = regex.compile(r"[\p{L}\p{N}]\p{M}*")
_ERRORS = ("swap", "drop", "double", "replace")
_COPIED = (3, 10)  # least and greatest number of letters and digits in a copied span


class NoisyPair(NamedTuple):
    """A pair that noise has changed.

    Attributes:
        number: number of the pair in its block, from 0.
        kind: one of KINDS.
        src: changed source.
        tgt: target; changed only by merge, split and copy.
    """

    number: int
    kind: str
    src: str
    tgt: str


@dataclass(frozen=True)
class Noise:
    """Noise in training pairs: at most one kind per pair and version of the text.

    The values of KINDS are the probabilities that a pair gets each kind. A pair that a kind cannot change stays as it
    is, such as a source in a script without case that is to be in upper case. upper, title, typos and no_punctuation
    change the source only, never the target, and leave placeholders as they are.

    Attributes:
        upper: put the source in upper case. In Turkish and Azerbaijani, the capital of i is İ; Greek capitals have no
            accents.
        title: put the first letter of each word of the source in title case.
        typos: put typing errors into the source: a letter is swapped with the next one, dropped, doubled, or replaced
            by another letter of the line.
        typo_rate: share of letters with an error in a source that gets typing errors. There is at least one.
        no_punctuation: remove all punctuation of the source, or only that at the end.
        merge: join the pair with a neighbouring pair of its corpus, on both sides.
        split: cut both sides at the same sentence end and keep one part, if both have the same number of sentence ends.
        copy: put a part of a word of the source at the start or the end of both sides, like a name or a code.
        samples: number of versions of the text, each with other noise; pass e reads version e mod samples. With random
            segmentation (see `Sampling`), there are as many versions as the larger of both numbers.
        seed: seed of the draws.

    Raises:
        ValueError: a value is out of range, or the probabilities add up to more than 1.
    """

    upper: float = 0.0
    title: float = 0.0
    typos: float = 0.0
    typo_rate: float = 0.05
    no_punctuation: float = 0.0
    merge: float = 0.0
    split: float = 0.0
    copy: float = 0.0
    samples: int = 1
    seed: int = 1

    def __post_init__(self) -> None:
        for name in (*KINDS, "typo_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"noise.{name} ({getattr(self, name):g}) must be from 0 to 1")
        if self.samples < 1:
            raise ValueError(f"noise.samples ({self.samples}) must be at least 1")
        total = sum(self.probabilities)
        if total > 1 + 1e-9:
            given = " + ".join(name for name, share in zip(KINDS, self.probabilities) if share)
            raise ValueError(f"noise.{given} ({total:g}) must be at most 1: a pair gets at most one kind of noise")

    @property
    def probabilities(self) -> list[float]:
        """The probability of each of KINDS."""
        return [getattr(self, kind) for kind in KINDS]

    @property
    def is_on(self) -> bool:
        """Whether any pair may change."""
        return any(self.probabilities)

    @property
    def n_versions(self) -> int:
        """Number of versions of the text that noise needs."""
        return self.samples if self.is_on else 1

    def apply(
        self,
        pairs: ParallelText,
        kept: Sequence[int],
        block: str,
        src_lang: str | None,
        find_placeholders: Callable[[str], list[str]],
    ) -> list[NoisyPair]:
        """Return the pairs of a block that noise changes.

        The result depends only on the arguments and the seed. No draw depends on which other pairs are kept.

        Args:
            pairs: pairs of the block.
            kept: indices of the pairs to train on.
            block: name of the block and version, which selects the draws.
            src_lang: code of the source language, for its rules of case.
            find_placeholders: returns the placeholders in a line, in order.
        """
        bounds = list(accumulate(self.probabilities))
        first = Random(f"noise {self.seed} {block}")
        kinds = [bisect(bounds, first.random()) for _ in range(len(pairs))]
        noisy = []
        for place, index in enumerate(kept):
            if kinds[index] == len(KINDS):
                continue
            kind, random = KINDS[kinds[index]], Random(f"noise {self.seed} {block} {index}")
            src, tgt = before = pairs.src[index], pairs.tgt[index]
            if kind == "merge":
                if len(kept) > 1:
                    other = kept[place + 1] if place + 1 < len(kept) else kept[place - 1]
                    src, tgt = joined(src, pairs.src[other]), joined(tgt, pairs.tgt[other])
            elif kind == "split":
                src, tgt = split(src, tgt, random) or before
            elif kind == "copy":
                src, tgt = with_copy(src, tgt, random, find_placeholders(src)) or before
            else:
                src = self._changed(kind, src, find_placeholders(src), src_lang, random)
            if (src, tgt) != before and src.strip() and tgt.strip():
                noisy.append(NoisyPair(index, kind, src, tgt))
        return noisy

    def _changed(self, kind: str, line: str, placeholders: list[str], language: str | None, random: Random) -> str:
        """Return a source with a kind of noise that leaves the target as it is."""
        line, mark = masked(line, placeholders)
        if kind == "upper":
            line = upper(line, language)
        elif kind == "title":
            line = _WORD_START.sub(lambda start: start[1] + title(start[2], language), line)
        elif kind == "typos":
            line = mistyped(line, self.typo_rate, random)
        else:
            line = without_punctuation(line, only_last=random.random() < 0.5)
        return unmasked(line, placeholders, mark)


class NoisyText:
    """Text with the noise of its first version, for training a tokenizer.

    A tokenizer that is trained on text without noise has few pieces in upper case, so it splits such text into letters.

    Args:
        text: text without noise.
        noise: the noise.
        src_langs: language of the sources of each corpus.
        find_placeholders: see `Noise.apply`.
    """

    def __init__(
        self,
        text: Parallel,
        noise: Noise,
        src_langs: Mapping[str, str],
        find_placeholders: Callable[[str], list[str]],
    ) -> None:
        self.text, self.noise, self.src_langs = text, noise, dict(src_langs)
        self.find_placeholders = find_placeholders

    def blocks(self, size: int = BLOCK) -> Iterator[ParallelText]:
        """Yield all pairs in order, at most `size` at a time; no block holds pairs of two corpora."""
        number = 0
        for corpus, part in corpora_of(self.text).items():
            for pairs in part.blocks(size):
                src, tgt = list(pairs.src), list(pairs.tgt)
                lang, every = self.src_langs.get(corpus), range(len(pairs))
                for pair in self.noise.apply(pairs, every, f"0 {number}", lang, self.find_placeholders):
                    src[pair.number], tgt[pair.number] = pair.src, pair.tgt
                yield ParallelText(src, tgt)
                number += 1

    def digest(self) -> str:
        """Return a hash of the text and the noise."""
        options = {name: value for name, value in asdict(self.noise).items() if name != "samples"}
        parts = [self.text.digest(), sorted(options.items()), sorted(self.src_langs.items())]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def load(self) -> ParallelText:
        """Return all pairs, in memory."""
        return join_blocks(self.blocks())


def masked(line: str, placeholders: Sequence[str]) -> tuple[str, str]:
    """Return a line with its placeholders replaced by a mark, and the mark: a private-use character.

    Args:
        line: the line.
        placeholders: all placeholders of the line, in order.
    """
    mark = next(chr(code) for code in range(0xF0000, 0xFFFFE) if chr(code) not in line)
    parts, rest = [], line
    for name in placeholders:
        before, _, rest = rest.partition(name)
        parts.append(before)
    return mark.join([*parts, rest]), mark


def unmasked(line: str, placeholders: Sequence[str], mark: str) -> str:
    """Return a line with its placeholders in the places of their marks."""
    first, *rest = line.split(mark)
    return first + "".join(name + part for name, part in zip(placeholders, rest, strict=True))


def upper(text: str, language: str | None) -> str:
    """Return a text in upper case, by the rules of Unicode and of a language."""
    base = base_language(language or "")
    if base in _DOTTED_I:
        text = text.replace("i", "İ")
    text = text.upper()
    return _GREEK.sub(lambda letter: _without_accents(letter[0]), text) if base == "el" else text


def _without_accents(letter: str) -> str:
    parts = unicodedata.normalize("NFD", letter)
    return unicodedata.normalize("NFC", parts[0] + "".join(mark for mark in parts[1:] if mark == _DIALYTIKA))


def title(letter: str, language: str | None) -> str:
    """Return a letter in title case, by the rules of Unicode and of a language."""
    return "İ" if letter == "i" and base_language(language or "") in _DOTTED_I else letter.title()


def mistyped(line: str, rate: float, random: Random) -> str:
    """Return a line with typing errors.

    Args:
        line: the line.
        rate: probability of an error in each letter; one more letter is always wrong.
        random: source of the draws.
    """
    parts = _LETTER_OR_OTHER.findall(line)
    letters = [i for i, part in enumerate(parts) if part[0].isalpha()]
    if not letters:
        return line
    wrong = {letters[int(random.random() * len(letters))], *(i for i in letters if random.random() < rate)}
    typed: list[str] = []
    for i, part in enumerate(parts):
        if i not in wrong:
            typed.append(part)
            continue
        following = parts[i + 1] if i + 1 < len(parts) and parts[i + 1][0].isalpha() else ""
        preceding = bool(typed) and typed[-1][0].isalpha()
        error = _ERRORS[int(random.random() * len(_ERRORS))]
        if error == "swap" and following not in ("", part):
            typed.append(following)
            parts[i + 1] = part
        elif error == "drop" and (following or preceding):
            continue
        elif error == "replace" and (others := {parts[k] for k in letters if _are_alike(parts[k], part)}):
            typed.append(sorted(others)[int(random.random() * len(others))])
        else:
            typed += [part, part]
    return "".join(typed)


def _are_alike(letter: str, other: str) -> bool:
    """Return whether two different letters are both capitals or both not."""
    return letter != other and letter.isupper() == other.isupper()


def without_punctuation(line: str, only_last: bool) -> str:
    """Return a line without its punctuation, or only without the marks that end it."""
    if only_last:
        return _LAST_MARKS.sub("", line)
    bare = _BETWEEN_WORDS.sub(" ", line)
    bare = _PUNCTUATION.sub("", bare)
    return line if bare == line else " ".join(bare.split())


def joined(first: str, second: str) -> str:
    """Return two texts as one, with a space between them if their script has spaces."""
    writing = writing_of_text([first, second])
    return first.rstrip() + (" " if writing is None or writing.has_blanks else "") + second.lstrip()


def sentence_ends(line: str) -> list[int]:
    """Return the position after each sentence of a line except the last one."""
    length = len(line.rstrip())
    return [end.end() for end in _SENTENCE_END.finditer(line) if end.end() < length]


def split(src: str, tgt: str, random: Random) -> tuple[str, str] | None:
    """Return the part of both sides before or after the same sentence end.

    Return None if no side has two sentences, or if the sides have different numbers of them.
    """
    src_ends, tgt_ends = sentence_ends(src), sentence_ends(tgt)
    if not src_ends or len(src_ends) != len(tgt_ends):
        return None
    number = int(random.random() * len(src_ends))
    cuts = src_ends[number], tgt_ends[number]
    if random.random() < 0.5:
        return src[: cuts[0]].rstrip(), tgt[: cuts[1]].rstrip()
    return src[cuts[0] :], tgt[cuts[1] :]


def with_copy(src: str, tgt: str, random: Random, placeholders: Sequence[str]) -> tuple[str, str] | None:
    """Return both sides with a part of a word of the source; None if the source has no long word.

    A complete word would teach the model to leave words untranslated.
    """
    words = _LONG_WORD.findall(masked(src, placeholders)[0])
    if not words:
        return None
    characters = _CHARACTER.findall(words[int(random.random() * len(words))])
    least, greatest = _COPIED[0], min(_COPIED[1], len(characters) - 1)
    length = least + int(random.random() * (greatest - least + 1))
    start = int(random.random() * (len(characters) - length + 1))
    span = "".join(characters[start : start + length])
    if random.random() < 0.5:
        return joined(span, src), joined(span, tgt)
    return joined(src, span), joined(tgt, span)
