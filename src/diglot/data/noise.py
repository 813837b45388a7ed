"""Noise in training pairs that imitates text as people type it: capitals, typing errors, missing punctuation.

A model that is trained only on clean text fails on such input.
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

_DOTTED_I_LANGUAGES = {"tr", "az", "azj"}  # languages in which the capital of i is İ
_GREEK = regex.compile(r"[\u0370-\u03ff\u1f00-\u1fff]\p{M}*")
_DIALYTIKA = "\u0308"
# A letter at the start of a word, with or without punctuation before it. \p{Co} (private use) marks a placeholder.
_WORD_START = regex.compile(r"(?<!\S)([^\w\s\p{Co}]*)(\p{L})")
_LETTER_OR_OTHER = regex.compile(r"\p{L}\p{M}*|.", regex.DOTALL)
# Punctuation, except symbols that are read aloud, and except marks inside a number or word, as in 3.5 and don't.
_PUNCTUATION = regex.compile(r"(?![#%&*@/\\§])(?!(?<=[\w\p{Co}])['’.,:\-\u2010\u2011][\w\p{Co}])\p{P}")
_BETWEEN_WORDS = regex.compile(rf"(?<=\w){_PUNCTUATION.pattern}(?=\w)")
_FINAL_PUNCTUATION = regex.compile(r"[\p{Terminal_Punctuation}…]+\s*$")
_SENTENCE_END = regex.compile(
    r"(?<!\b(?:\w|\p{N}+))[\p{STerm}…]++[\p{Pe}\p{Pf}\p{Pi}\"']*+\s+(?!\p{Ll})"  # not after 1. or J.
    r"|[。！？｡]++[\p{Pe}\p{Pf}\p{Pi}\"']*+(?!\s)"
)
_LONG_WORD = regex.compile(r"(?:[\p{L}\p{N}]\p{M}*){5,}")
_CHARACTER = regex.compile(r"[\p{L}\p{N}]\p{M}*")
_TYPO_KINDS = ("swap", "drop", "double", "replace")
_SPAN_LENGTHS = (3, 10)  # least and greatest length of a copied span, in letters and digits


class NoisyPair(NamedTuple):
    """A pair that noise has changed.

    Attributes:
        number: index of the pair in its block.
        kind: kind of noise, one of KINDS.
        src: source with noise.
        tgt: target, which only merge, split and copy change.
    """

    number: int
    kind: str
    src: str
    tgt: str


@dataclass(frozen=True)
class Noise:
    """Noise in training pairs: at most one kind per pair and version of the text.

    The attribute of each kind is the probability that a pair gets it. A pair stays as it is if the kind cannot change
    it, such as upper case in a script without case. upper, title, typos and no_punctuation change only the source, and
    never a placeholder.

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
        samples: number of versions of the text, each with different noise; pass e (from 0) reads version e mod samples.
            With random segmentation (see `Sampling`), the number of versions is the larger of the two numbers.
        seed: seed of the random draws.

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
        """Probability of each of KINDS."""
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

        The result depends only on the arguments and the seed. The draws for a pair do not depend on which other pairs
        are kept.

        Args:
            pairs: pairs of the block.
            kept: indices of the pairs to train on.
            block: name of the block and version, which seeds the draws.
            src_lang: code of the source language, for its rules of upper case; None: unknown.
            find_placeholders: function that returns the placeholders in a line, in order.
        """
        bounds = list(accumulate(self.probabilities))
        kind_random = Random(f"noise {self.seed} {block}")
        kind_indices = [bisect(bounds, kind_random.random()) for _ in range(len(pairs))]
        noisy = []
        for position, index in enumerate(kept):
            if kind_indices[index] == len(KINDS):
                continue
            kind, random = KINDS[kind_indices[index]], Random(f"noise {self.seed} {block} {index}")
            src, tgt = original = pairs.src[index], pairs.tgt[index]
            if kind == "merge":
                if len(kept) > 1:
                    neighbour = kept[position + 1] if position + 1 < len(kept) else kept[position - 1]
                    src, tgt = join_texts(src, pairs.src[neighbour]), join_texts(tgt, pairs.tgt[neighbour])
            elif kind == "split":
                src, tgt = split_pair(src, tgt, random) or original
            elif kind == "copy":
                src, tgt = copy_span(src, tgt, random, find_placeholders(src)) or original
            else:
                src = self._change_source(kind, src, find_placeholders(src), src_lang, random)
            if (src, tgt) != original and src.strip() and tgt.strip():
                noisy.append(NoisyPair(index, kind, src, tgt))
        return noisy

    def _change_source(
        self, kind: str, line: str, placeholders: list[str], language: str | None, random: Random
    ) -> str:
        """Return a source with a kind of noise that does not change the target."""
        line, mark = mask_placeholders(line, placeholders)
        if kind == "upper":
            line = to_upper_case(line, language)
        elif kind == "title":
            line = _WORD_START.sub(lambda start: start[1] + to_title_case(start[2], language), line)
        elif kind == "typos":
            line = add_typos(line, self.typo_rate, random)
        else:
            line = remove_punctuation(line, only_last=random.random() < 0.5)
        return unmask_placeholders(line, placeholders, mark)


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
        """Yield all pairs in order, at most `size` at a time. No block holds pairs of two corpora."""
        number = 0
        for corpus, part in corpora_of(self.text).items():
            src_lang = self.src_langs.get(corpus)
            for pairs in part.blocks(size):
                src, tgt = list(pairs.src), list(pairs.tgt)
                kept = range(len(pairs))
                for pair in self.noise.apply(pairs, kept, f"0 {number}", src_lang, self.find_placeholders):
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


def mask_placeholders(line: str, placeholders: Sequence[str]) -> tuple[str, str]:
    """Return a line with its placeholders replaced by a mark, and the mark, which is a private-use character.

    Args:
        line: the line.
        placeholders: all placeholders of the line, in order.
    """
    mark = next(chr(code) for code in range(0xF0000, 0xFFFFE) if chr(code) not in line)
    parts, remaining = [], line
    for placeholder in placeholders:
        text, _, remaining = remaining.partition(placeholder)
        parts.append(text)
    return mark.join([*parts, remaining]), mark


def unmask_placeholders(line: str, placeholders: Sequence[str], mark: str) -> str:
    """Return a line with its marks replaced by the placeholders."""
    first_part, *other_parts = line.split(mark)
    return first_part + "".join(placeholder + part for placeholder, part in zip(placeholders, other_parts, strict=True))


def to_upper_case(text: str, language: str | None) -> str:
    """Return a text in upper case, by the rules of Unicode and of a language (None: unknown)."""
    base = base_language(language or "")
    if base in _DOTTED_I_LANGUAGES:
        text = text.replace("i", "İ")
    text = text.upper()
    return _GREEK.sub(lambda letter: _without_accents(letter[0]), text) if base == "el" else text


def _without_accents(letter: str) -> str:
    decomposed = unicodedata.normalize("NFD", letter)
    return unicodedata.normalize("NFC", decomposed[0] + "".join(mark for mark in decomposed[1:] if mark == _DIALYTIKA))


def to_title_case(letter: str, language: str | None) -> str:
    """Return a letter in title case, by the rules of Unicode and of a language (None: unknown)."""
    return "İ" if letter == "i" and base_language(language or "") in _DOTTED_I_LANGUAGES else letter.title()


def add_typos(line: str, rate: float, random: Random) -> str:
    """Return a line with typing errors.

    Args:
        line: the line.
        rate: probability of an error in each letter. In addition, one random letter always has an error.
        random: source of random numbers.
    """
    parts = _LETTER_OR_OTHER.findall(line)
    letters = [i for i, part in enumerate(parts) if part[0].isalpha()]
    if not letters:
        return line
    wrong_letters = {letters[int(random.random() * len(letters))], *(i for i in letters if random.random() < rate)}
    typed: list[str] = []
    for i, part in enumerate(parts):
        if i not in wrong_letters:
            typed.append(part)
            continue
        following = parts[i + 1] if i + 1 < len(parts) and parts[i + 1][0].isalpha() else ""
        preceding = bool(typed) and typed[-1][0].isalpha()
        error = _TYPO_KINDS[int(random.random() * len(_TYPO_KINDS))]
        if error == "swap" and following not in ("", part):
            typed.append(following)
            parts[i + 1] = part
        elif error == "drop" and (following or preceding):
            continue
        elif error == "replace" and (others := {parts[k] for k in letters if _have_same_case(parts[k], part)}):
            typed.append(sorted(others)[int(random.random() * len(others))])
        else:
            typed += [part, part]
    return "".join(typed)


def _have_same_case(letter: str, other: str) -> bool:
    """Return whether two letters differ, and both or none of them are capitals."""
    return letter != other and letter.isupper() == other.isupper()


def remove_punctuation(line: str, only_last: bool) -> str:
    """Return a line without its punctuation, or only without the punctuation at its end."""
    if only_last:
        return _FINAL_PUNCTUATION.sub("", line)
    stripped = _BETWEEN_WORDS.sub(" ", line)
    stripped = _PUNCTUATION.sub("", stripped)
    return line if stripped == line else " ".join(stripped.split())


def join_texts(first: str, second: str) -> str:
    """Join two texts, with a space between them if their script has spaces."""
    writing = writing_of_text([first, second])
    return first.rstrip() + (" " if writing is None or writing.has_blanks else "") + second.lstrip()


def sentence_ends(line: str) -> list[int]:
    """Return the position after each sentence of a line except the last one."""
    length = len(line.rstrip())
    return [match.end() for match in _SENTENCE_END.finditer(line) if match.end() < length]


def split_pair(src: str, tgt: str, random: Random) -> tuple[str, str] | None:
    """Cut both sides at the same sentence end, drawn at random, and return the part before or after it.

    Return None if the sides have only one sentence, or different numbers of sentences.
    """
    src_ends, tgt_ends = sentence_ends(src), sentence_ends(tgt)
    if not src_ends or len(src_ends) != len(tgt_ends):
        return None
    index = int(random.random() * len(src_ends))
    ends = src_ends[index], tgt_ends[index]
    if random.random() < 0.5:
        return src[: ends[0]].rstrip(), tgt[: ends[1]].rstrip()
    return src[ends[0] :], tgt[ends[1] :]


def copy_span(src: str, tgt: str, random: Random, placeholders: Sequence[str]) -> tuple[str, str] | None:
    """Add a part of a word of the source to both sides, at the start or the end. Return None without a long word.

    With a complete word, the model would learn to leave words untranslated.
    """
    words = _LONG_WORD.findall(mask_placeholders(src, placeholders)[0])
    if not words:
        return None
    characters = _CHARACTER.findall(words[int(random.random() * len(words))])
    min_length, max_length = _SPAN_LENGTHS[0], min(_SPAN_LENGTHS[1], len(characters) - 1)
    length = min_length + int(random.random() * (max_length - min_length + 1))
    start = int(random.random() * (len(characters) - length + 1))
    span = "".join(characters[start : start + length])
    if random.random() < 0.5:
        return join_texts(span, src), join_texts(span, tgt)
    return join_texts(src, span), join_texts(tgt, span)
