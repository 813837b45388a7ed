"""Extension of a checkpoint's tokenizer by pieces and language tags, for a run that starts from the checkpoint.

The old pieces keep their ids. A text without a new piece is segmented as before.
"""

import math
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import sentencepiece

from diglot.data.byte_level import ByteLevelBpe, is_byte_level, spelt, text_of
from diglot.data.line_sample import Side
from diglot.data.pieces import (
    CONTROL,
    NORMAL,
    UNK,
    USER_DEFINED,
    Piece,
    append,
    is_composing,
    load_processor,
    model_type_of,
    normalisation,
    read_model,
    tag,
)
from diglot.data.text import Parallel, read_lines
from diglot.data.tokenizer import BOTH, NORMALISATIONS, Tokenizer, TokenizerSource, TokenizerTrainer, checked_sampling
from diglot.errors import UserError

_BLANK = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's sign for a space
# A private-use character, which is in no piece. Text after it is segmented as in the middle of a line.
_SEPARATOR = "\uf8ff"
# The score per character of a given piece in a unigram model, whose ordinary scores are logarithms of probabilities,
# from about -20 to 0. It outweighs whatever the rest of a line loses, so that the piece matches wherever it occurs.
_GIVEN_SCORE = 100.0
# The advantage of a learned piece over the old pieces that spell it, times the square of their number: enough to be
# preferred to them, and to shorter learned pieces inside of it.
_ADVANTAGE = 1e-3


class TokenizerExtension(TokenizerSource):
    """Tokenizer source that adds pieces and language tags to the tokenizer of a checkpoint.

    Tags are added for the languages of the training text that the tokenizer lacks: for target languages, and for source
    languages if the tokenizer has tags of these. `start_from` must be called before `get`.

    Args:
        pieces: texts that become one piece each and match wherever they occur: a list, or the path of a file with one
            text per line; None: there are none. A model of words matches only whole words.
        learn: number of subwords to learn from the training text, for unigram models; 0: none.
        sides: the vocabularies that get pieces, if source and target have separate ones.
        seed: seed of the draw of lines to learn from, and of random segmentation.
        samples: number of randomly segmented versions of the text; see `Sampling`.
        alpha: amount of randomness; see `Sampling`.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        *,
        pieces: str | list[str] | None = None,
        learn: int = 0,
        sides: Literal["both", "src", "tgt"] = "both",
        seed: int = 1,
        samples: int = 0,
        alpha: float = 0.1,
    ) -> None:
        if learn < 0:
            raise ValueError(f"learn ({learn}) must not be negative")
        self.pieces, self.learn, self.seed = pieces, learn, seed
        self.sides: tuple[Side, ...] = BOTH if sides == "both" else (sides,)
        self.sampling = checked_sampling(samples, alpha, seed, "unigram")
        self.is_joint = True
        self.placeholder: str | None = None
        self._base: Tokenizer | None = None
        self._tgt_lang: str | None = None

    def start_from(self, base: Tokenizer, tgt_lang: str) -> None:
        """Set the tokenizer to extend.

        Args:
            base: the tokenizer.
            tgt_lang: code of the target language of dev. It gets a tag if the tokenizer has tags.

        Raises:
            UserError: the options do not suit the tokenizer.
        """
        self._base, self._tgt_lang = base, tgt_lang
        self.is_joint, self.placeholder, self.tags_sources = base.is_joint, base.placeholder, base.reads_src_lang
        if base.is_joint and len(self.sides) == 1:
            raise UserError(f"tokenizer.sides={self.sides[0]}: the checkpoint has one vocabulary for both sides")
        if base.is_joint and base.tgt_model is not None and self.learn:
            raise UserError(
                f"tokenizer.learn={self.learn}: the checkpoint's tokenizer has two models with one vocabulary, which "
                "learn no further subwords; type tokenizer.pieces=FILE instead"
            )
        kinds = {side: model_type_of(model) for side, model in self._models().items()}
        if self.learn and (kind := next((kind for kind in kinds.values() if kind != "unigram"), None)):
            raise UserError(
                f"tokenizer.learn={self.learn}: the checkpoint's tokenizer is of type {kind}, and only unigram "
                "can learn further subwords; type tokenizer.pieces=FILE instead"
            )

    def _models(self) -> dict[Side, bytes]:
        """Return the model files to extend, by side; that of both sides as "src"."""
        assert self._base is not None, "call start_from first"
        if self._base.tgt_model is None:
            return {"src": self._base.model}
        models: dict[Side, bytes] = {"src": self._base.model, "tgt": self._base.tgt_model}
        return {side: models[side] for side in self.sides}

    def get(self, text: Parallel, cache_dir: Path, languages: Sequence[str] = ()) -> tuple[Tokenizer, str]:
        """Return the extended tokenizer, and a one-line note for the user; see TokenizerSource.

        Raises:
            UserError: a piece cannot be added, or there is nothing to add.
        """
        base = self._base
        if base is None:
            raise UserError(_NEEDS_CHECKPOINT)
        needed = {*languages, *([self._tgt_lang] if base.languages and self._tgt_lang else [])}
        tags = sorted(code for code in needed if base.find_language(code) is None)
        given = list(self._given(base))
        models: dict[str, bytes] = {}
        parts = []
        for side, model in self._models().items():
            added = _given_pieces(model, given)
            n_given = len(added)
            if self.learn:
                added += self._learned(side, model, {piece.text for piece in added}, text, cache_dir)
            models[side] = append(model, added)
            name = "" if base.is_joint else f"{side}: "
            parts.append(
                f"{name}{n_given} of {len(given)} given pieces and {len(added) - n_given} learned pieces added"
            )
        tag_pieces = [Piece(tag(language), 0.0, CONTROL) for language in tags]
        src, tgt = append(models.get("src", base.model), tag_pieces), models.get("tgt", base.tgt_model)
        if tgt is not None and (base.is_joint or base.n_tgt_prefix):  # targets have tags, or the same ids
            tgt = append(tgt, tag_pieces)
        extended = base.extended(src, tgt, [*base.languages, *tags])
        if extended.digest() == base.digest():
            learned = f", and tokenizer.learn={self.learn} finds no subword that saves tokens" if self.learn else ""
            raise UserError(
                f"tokenizer=extend adds nothing: the checkpoint's tokenizer has all pieces and tags{learned}; "
                f"remove it, or type tokenizer.pieces=FILE{'' if self.learn else ' or tokenizer.learn=N'}"
            )
        parts += [f"tags added for {', '.join(tags)}"] if tags else []
        return extended, f"tokenizer: the checkpoint's, {'; '.join(parts)}"

    def _given(self, base: Tokenizer) -> Iterator[str]:
        """Yield the texts of `pieces`, in the form in which the tokenizer reads text.

        Raises:
            UserError: a text cannot be a piece.
        """
        models = list(self._models().values())
        composes, processors = any(map(is_composing, models)), list(map(load_processor, models))
        for where, text in _located(self.pieces):
            if not text or any(character.isspace() or character == _BLANK for character in text):
                raise UserError(f"{where}: {text!r} cannot be a piece: a piece is a text without whitespace")
            if base.find_placeholders(text):
                raise UserError(f"{where}: {text!r} cannot be a piece: tokenizer.placeholder matches it")
            if composes:
                text = unicodedata.normalize("NFC", text)
            for processor in processors:
                if not _is_normal(processor, text):
                    raise UserError(f"{where}: {text!r} cannot be a piece: the tokenizer's normalisation changes it")
            yield text

    def _learned(self, side: Side, model: bytes, taken: set[str], text: Parallel, cache_dir: Path) -> list[Piece]:
        """Return the subwords of a unigram model of the training text that save most tokens.

        Args:
            side: the side of the text to learn from, if each has a vocabulary of its own.
            model: the model file to extend.
            taken: texts of further pieces that it gets.
            text: the training text.
            cache_dir: folder for trained models.
        """
        base = self._base
        assert base is not None
        old, rule = load_processor(model), normalisation(model)
        trainer = TokenizerTrainer(
            model_type="unigram",
            vocab_size=old.get_piece_size() + self.learn,
            must_fit=False,
            normalisation=next((known for known in NORMALISATIONS if known == rule), "identity"),
            placeholder=base.placeholder,
            capitals="mark" if base.marks_capitals and side == "src" else "keep",
            seed=self.seed,
        )
        trained, _ = trainer.train(text, cache_dir, BOTH if base.is_joint else [side], node="tokenizer.learn")
        taken = {*taken, *(piece.piece for piece in read_model(model).pieces)}
        lowest = min(piece.score for piece in read_model(model).pieces if piece.type == NORMAL)
        ranked: list[tuple[float, Piece]] = []
        for piece in read_model(trained.model).pieces:
            if piece.type != NORMAL or piece.piece in taken or not _is_normal(old, piece.piece):
                continue
            ids = old_ids(old, piece.piece)
            score = max(sum(map(old.get_score, ids)) + _ADVANTAGE * len(ids) ** 2, lowest)
            # The order is that of the logarithm of the share of tokens that a piece saves. A known character saves one.
            n_saved = len(ids) - 1 + ids.count(UNK)
            if n_saved > 0:
                ranked.append((-piece.score - math.log(n_saved), Piece(piece.piece, score, NORMAL)))
        return [piece for _, piece in sorted(ranked)[: self.learn]]


_NEEDS_CHECKPOINT = "tokenizer=extend adds pieces to the tokenizer of a checkpoint: type init_from=CHECKPOINT, too"


def source_from(source: TokenizerSource, base: Tokenizer | None, tgt_lang: str) -> TokenizerSource | Tokenizer:
    """Return a run's tokenizer, or its source.

    Args:
        source: the source that the config names.
        base: tokenizer of the checkpoint that the run starts from; None: it starts from none.
        tgt_lang: code of the target language of dev.

    Raises:
        UserError: the source extends a tokenizer, and there is none or it does not suit.
    """
    if not isinstance(source, TokenizerExtension):
        return source if base is None else base
    if base is None:
        raise UserError(_NEEDS_CHECKPOINT)
    source.start_from(base, tgt_lang)
    return source


def added_ids(old: Tokenizer, new: Tokenizer, side: Side) -> list[list[int]]:
    """Return, for each piece that an extension has added on a side, the old ids that stand for it.

    These are the ids of its segmentation by the old tokenizer. A tag has those of the old tags. A list is empty if
    there are no such ids. Nothing is returned for a tokenizer that is no extension of the old one.
    """
    n_old, n_new = (t.src_vocab_size if side == "src" else t.tgt_vocab_size for t in (old, new))
    if new.pieces(range(n_old) if n_new >= n_old else [], side) != old.pieces(range(n_old), side):
        return []
    model = old.model if side == "src" or old.tgt_model is None else old.tgt_model
    processor, segment = load_processor(model), _segmentation(model)
    tags = {tag(language) for language in new.languages}
    old_tags = [processor.piece_to_id(tag(language)) for language in old.languages]
    return [
        old_tags if piece in tags else [i for i in segment(piece) if i != UNK]
        for piece in new.pieces(range(n_old, n_new), side)
    ]


def _segmentation(model: bytes) -> Callable[[str], list[int]]:
    """Return a function that returns the ids of a piece's text in a model."""
    processor = load_processor(model)
    if not is_byte_level(model):
        return partial(old_ids, processor)
    bpe = ByteLevelBpe(processor, model)
    return lambda piece: bpe.encode([text_of(piece)])[0]


def old_ids(processor: sentencepiece.SentencePieceProcessor, piece: str) -> list[int]:
    """Return the ids of a piece's text in the middle of a line."""
    before = processor.encode(_SEPARATOR)
    ids: list[int] = processor.encode(_SEPARATOR + piece.replace(_BLANK, " "))
    return ids[len(before) :]


def _given_pieces(model: bytes, texts: Sequence[str]) -> list[Piece]:
    """Return the given texts that a model file lacks, as pieces of a type and a score with which they match."""
    kind, known = model_type_of(model), {piece.piece for piece in read_model(model).pieces}
    names = [f"{_BLANK}{text}" if kind == "word" else text for text in dict.fromkeys(texts)]
    if is_byte_level(model):
        names = list(map(spelt, names))
    missing = [name for name in names if name not in known]
    if kind == "unigram":  # SentencePiece's own score of user-defined pieces may lose against a piece that overlaps
        return [Piece(name, _GIVEN_SCORE * len(name) + len(name) ** 2, NORMAL) for name in missing]
    return [Piece(name, 0.0, NORMAL if kind == "word" else USER_DEFINED) for name in missing]


def _located(pieces: str | list[str] | None) -> list[tuple[str, str]]:
    """Return the given texts, each with the place that names it in messages. Blank lines of a file are skipped.

    Raises:
        UserError: the file cannot be read.
    """
    if not isinstance(pieces, str):
        return [("tokenizer.pieces", text) for text in pieces or ()]
    lines = read_lines(Path(pieces).expanduser())
    return [(f"{pieces}, line {i}", line.strip()) for i, line in enumerate(lines, start=1) if line.strip()]


def _is_normal(processor: sentencepiece.SentencePieceProcessor, piece: str) -> bool:
    """Return whether a model's normalisation leaves a piece as it is."""
    normal: str = processor.normalize(piece.lstrip(_BLANK))
    return normal.strip(_BLANK) == piece.lstrip(_BLANK)
