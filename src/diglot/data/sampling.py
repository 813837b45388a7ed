"""Random segmentation of words: subword regularisation (Kudo, 2018) and BPE-dropout (Provilkov et al., 2020).

SentencePiece also segments at random, but cannot draw the same segmentations in another process.
"""

import math
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple

from diglot.data.byte_level import is_byte_level
from diglot.data.pieces import BLANK_MARK, MODEL_TYPES, NORMAL, read_model
from diglot.errors import UserError

_MAX_CACHED_WORDS = 200_000


class Sampling(NamedTuple):
    """Options of random segmentation of training text.

    Attributes:
        samples: number of versions of the text; pass e (from 0) reads version e mod samples. 0: one version, which is
            not random.
        alpha: for unigram, the exponent of the probabilities: with 0, all segmentations are equally likely, and with a
            large value, only the best one is. For bpe, the share of merges that are dropped.
        seed: seed of the random draws.
    """

    samples: int = 0
    alpha: float = 0.1
    seed: int = 1


class Sampler:
    """Sampler of random segmentations for text that is already segmented.

    Args:
        model: content of a SentencePiece .model file of type unigram or bpe.
        alpha: amount of randomness; see `Sampling`.

    Raises:
        UserError: the model is of another type or a byte-level BPE, or alpha is above 1 for BPE.
    """

    def __init__(self, model: bytes, alpha: float) -> None:
        content = read_model(model)
        model_type = MODEL_TYPES[content.trainer_spec.model_type]
        if model_type not in ("unigram", "bpe"):
            raise UserError(f"tokenizer.samples: a {model_type} model has only one segmentation of each text")
        if is_byte_level(model):
            raise UserError("tokenizer.samples: a byte-level BPE is not segmented at random; type tokenizer.samples=0")
        if model_type == "bpe" and alpha > 1:
            raise UserError(f"tokenizer.alpha={alpha:g}: the share of dropped merges of a bpe model must be at most 1")
        # Pieces other than subwords (bytes, slots, the unknown piece) have no text here, and are never resegmented.
        self.texts = [piece.piece if piece.type == NORMAL else "" for piece in content.pieces]
        ids = {text: i for i, text in enumerate(self.texts) if text}
        scores = {text: content.pieces[i].score for text, i in ids.items()}
        # If pieces may extend over spaces, a text is segmented as one word.
        self.has_words = not any(BLANK_MARK in text[1:] for text in self.texts)
        self._segment: Callable[[str, Random], list[int] | None]
        self._segment = _Unigram(ids, scores, alpha) if model_type == "unigram" else _BpeDropout(ids, scores, alpha)

    def __call__(self, ids: Sequence[int], random: Random) -> list[int]:
        """Return a random segmentation of a text.

        Args:
            ids: ids of the text.
            random: source of random numbers.
        """
        sampled: list[int] = []
        for word, plain_ids in self._words(ids):
            segmentation = self._segment(word, random) if word else None
            sampled += plain_ids if segmentation is None else segmentation
        return sampled

    def _words(self, ids: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
        """Yield the words of a text with their ids. For an id that is not a subword, the word is empty."""
        word, word_ids = "", list[int]()
        for i in ids:
            text = self.texts[i]
            if word_ids and (not text or (self.has_words and text[0] == BLANK_MARK)):
                yield word, word_ids
                word, word_ids = "", []
            if text:
                word, word_ids = word + text, [*word_ids, i]
            else:
                yield "", [i]
        if word_ids:
            yield word, word_ids


class _Unigram:
    """Sampler that draws a segmentation in proportion to its probability to the power of alpha.

    It uses forward filtering and backward sampling.
    """

    def __init__(self, ids: dict[str, int], scores: dict[str, float], alpha: float) -> None:
        self.ids = ids
        self.weights = {text: alpha * score for text, score in scores.items()}
        self.longest = max(map(len, ids), default=0)
        self.lattices: dict[str, list[tuple[list[float], list[tuple[int, int]]]] | None] = {}

    def __call__(self, word: str, random: Random) -> list[int] | None:
        if word not in self.lattices:
            if len(self.lattices) > _MAX_CACHED_WORDS:
                self.lattices.clear()
            self.lattices[word] = self._lattice(word)
        lattice = self.lattices[word]
        if lattice is None:
            return None
        sampled: list[int] = []
        end = len(word)
        while end:
            shares, edges = lattice[end]
            end, i = edges[min(bisect(shares, random.random()), len(edges) - 1)]
            sampled.append(i)
        sampled.reverse()
        return sampled

    def _lattice(self, word: str) -> list[tuple[list[float], list[tuple[int, int]]]] | None:
        """Return for each position in a word the pieces that end there, as (start, id), and their cumulative shares.

        Return None if the word is not a sequence of pieces.
        """
        # For each position, the logarithm of the sum of the weights of all segmentations up to it.
        log_sums = [0.0] + [-math.inf] * len(word)
        lattice: list[tuple[list[float], list[tuple[int, int]]]] = [([], [])]
        for end in range(1, len(word) + 1):
            edges, weights = [], []
            for start in range(max(0, end - self.longest), end):
                piece = word[start:end]
                if piece in self.ids and log_sums[start] > -math.inf:
                    edges.append((start, self.ids[piece]))
                    weights.append(log_sums[start] + self.weights[piece])
            if edges:
                max_weight = max(weights)
                shares = [math.exp(weight - max_weight) for weight in weights]
                log_sums[end] = max_weight + math.log(sum(shares))
                lattice.append(([share / sum(shares) for share in accumulate(shares)], edges))
            else:
                lattice.append(([], []))
        return lattice if log_sums[-1] > -math.inf else None


class _BpeDropout:
    """Sampler that merges neighbouring parts like BPE, the best first, but drops a share of the merges at each step."""

    def __init__(self, ids: dict[str, int], scores: dict[str, float], alpha: float) -> None:
        self.ids, self.scores, self.alpha = ids, scores, alpha

    def __call__(self, word: str, random: Random) -> list[int] | None:
        parts = list(word)
        draw, alpha, scores = random.random, self.alpha, self.scores
        while True:
            best_score, position = -math.inf, -1
            for i in range(len(parts) - 1):
                score = scores.get(parts[i] + parts[i + 1])
                if score is not None and score > best_score and draw() >= alpha:
                    best_score, position = score, i
            if position < 0:
                break
            parts[position : position + 2] = [parts[position] + parts[position + 1]]
        if not all(part in self.ids for part in parts):
            return None
        return [self.ids[part] for part in parts]
