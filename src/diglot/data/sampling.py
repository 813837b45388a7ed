"""Random segmentation of words: subword regularisation (Kudo, 2018) and BPE-dropout (Provilkov et al., 2020).

SentencePiece also segments at random, but offers no way to draw the same segmentations in another process.
"""

import math
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple

from diglot.data.pieces import MODEL_TYPES, NORMAL, read_model
from diglot.errors import UserError

_BLANK = "\u2581"  # SentencePiece's mark of a space
_REMEMBERED = 200_000  # words


class Sampling(NamedTuple):
    """Options of random segmentation of training text.

    Attributes:
        samples: number of versions of the text; pass e reads version e mod samples. 0: a single one, not random.
        alpha: unigram: the exponent of the probabilities; 0 makes all segmentations equally likely, and a large value
            leaves only the best one. bpe: the share of merges that are dropped.
        seed: seed of the draws.
    """

    samples: int = 0
    alpha: float = 0.1
    seed: int = 1


class Sampler:
    """Sampler of other segmentations for text that is already segmented.

    Args:
        model: SentencePiece model, unigram or BPE.
        alpha: see Sampling.

    Raises:
        UserError: the model is of another type, or alpha is above 1 for BPE.
    """

    def __init__(self, model: bytes, alpha: float) -> None:
        content = read_model(model)
        kind = MODEL_TYPES[content.trainer_spec.model_type]
        if kind not in ("unigram", "bpe"):
            raise UserError(f"tokenizer.samples: a {kind} model has only one segmentation of each text")
        if kind == "bpe" and alpha > 1:
            raise UserError(f"tokenizer.alpha={alpha:g}: for a bpe model, the share of dropped merges, at most 1")
        # Pieces other than subwords (bytes, slots of placeholders, the unknown piece) stay as they are.
        self.texts = [piece.piece if piece.type == NORMAL else "" for piece in content.pieces]
        ids = {text: i for i, text in enumerate(self.texts) if text}
        scores = {text: content.pieces[i].score for text, i in ids.items()}
        # If pieces may extend over spaces, a text is segmented as one word.
        self.has_words = not any(_BLANK in text[1:] for text in self.texts)
        self._segment: Callable[[str, Random], list[int] | None]
        self._segment = _Unigram(ids, scores, alpha) if kind == "unigram" else _BpeDropout(ids, scores, alpha)

    def __call__(self, ids: Sequence[int], random: Random) -> list[int]:
        """Return other ids of the same text."""
        drawn: list[int] = []
        for word, best in self._words(ids):
            segmented = self._segment(word, random) if word else None
            drawn += best if segmented is None else segmented
        return drawn

    def _words(self, ids: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
        """Yield the words of a text with their ids; for an id that is not a subword, the word is empty."""
        word, inside = "", list[int]()
        for i in ids:
            text = self.texts[i]
            if inside and (not text or (self.has_words and text[0] == _BLANK)):
                yield word, inside
                word, inside = "", []
            if text:
                word, inside = word + text, [*inside, i]
            else:
                yield "", [i]
        if inside:
            yield word, inside


class _Unigram:
    """Sampler in proportion to probability to the power of alpha, by forward filtering and backward sampling."""

    def __init__(self, ids: dict[str, int], scores: dict[str, float], alpha: float) -> None:
        self.ids = ids
        self.weights = {text: alpha * score for text, score in scores.items()}
        self.longest = max(map(len, ids), default=0)
        self.lattices: dict[str, list[tuple[list[float], list[tuple[int, int]]]] | None] = {}

    def __call__(self, word: str, random: Random) -> list[int] | None:
        if word not in self.lattices:
            if len(self.lattices) > _REMEMBERED:
                self.lattices.clear()
            self.lattices[word] = self._lattice(word)
        lattice = self.lattices[word]
        if lattice is None:
            return None
        drawn: list[int] = []
        end = len(word)
        while end:
            shares, edges = lattice[end]
            end, i = edges[min(bisect(shares, random.random()), len(edges) - 1)]
            drawn.append(i)
        drawn.reverse()
        return drawn

    def _lattice(self, word: str) -> list[tuple[list[float], list[tuple[int, int]]]] | None:
        """Return, for each position in a word, the pieces that end there as (begin, id), with their cumulative shares.

        Return None if no sequence of pieces makes up the word.
        """
        total = [0.0] + [-math.inf] * len(word)  # log of the summed weights of all segmentations up to a position
        lattice: list[tuple[list[float], list[tuple[int, int]]]] = [([], [])]
        for end in range(1, len(word) + 1):
            edges, weights = [], []
            for begin in range(max(0, end - self.longest), end):
                text = word[begin:end]
                if text in self.ids and total[begin] > -math.inf:
                    edges.append((begin, self.ids[text]))
                    weights.append(total[begin] + self.weights[text])
            if edges:
                most = max(weights)
                shares = [math.exp(weight - most) for weight in weights]
                total[end] = most + math.log(sum(shares))
                lattice.append(([share / sum(shares) for share in accumulate(shares)], edges))
            else:
                lattice.append(([], []))
        return lattice if total[-1] > -math.inf else None


class _BpeDropout:
    """Sampler that merges neighbours, the best first, as BPE does, but drops some possible merges at each step."""

    def __init__(self, ids: dict[str, int], scores: dict[str, float], alpha: float) -> None:
        self.ids, self.scores, self.alpha = ids, scores, alpha

    def __call__(self, word: str, random: Random) -> list[int] | None:
        parts = list(word)
        draw, alpha, scores = random.random, self.alpha, self.scores
        while True:
            best, place = -math.inf, -1
            for i in range(len(parts) - 1):
                score = scores.get(parts[i] + parts[i + 1])
                if score is not None and score > best and draw() >= alpha:
                    best, place = score, i
            if place < 0:
                break
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        if not all(part in self.ids for part in parts):
            return None
        return [self.ids[part] for part in parts]
