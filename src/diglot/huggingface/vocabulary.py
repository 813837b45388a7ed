"""Vocabularies of tokenizers in Hugging Face folders, and SentencePiece models with the same pieces in diglot's order.

diglot's order is <pad>, <unk>, <s> and </s>, and then all other pieces in the order of the folder.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from diglot.data.pieces import (
    BYTE,
    BYTE_LEVEL_NAME,
    CONTROL,
    EOS,
    NORMAL,
    PAD,
    SPECIAL,
    UNK,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    ImportedModel,
    tag,
)
from diglot.errors import UserError

OF_TEXT = (NORMAL, USER_DEFINED, BYTE)  # types of pieces into which text is segmented


class Piece(NamedTuple):
    """A piece of a vocabulary: its text, its score, and its type in a SentencePiece model."""

    text: str
    score: float = 0.0
    kind: int = CONTROL


@dataclass
class Vocabulary:
    """Vocabulary of one side of a tokenizer.

    Attributes:
        pieces: pieces by their ids in the folder. An id may have no piece.
        options: a parsed SentencePiece model with the options of training and normalisation. Its pieces are not read.
        languages: id of the tag of each language, by the language's code.
    """

    pieces: dict[int, Piece]
    options: Any
    languages: dict[str, int]

    @property
    def is_byte_level(self) -> bool:
        """Whether this is the vocabulary of a byte-level BPE."""
        return bool(self.options.normalizer_spec.name == BYTE_LEVEL_NAME)

    def ids(self) -> dict[str, int]:
        """Return the ids of all pieces by their texts."""
        return {piece.text: i for i, piece in self.pieces.items()}


class SpecialNames(NamedTuple):
    """Texts of the special pieces of a tokenizer."""

    pad: str = "<pad>"
    unk: str = "<unk>"
    bos: str = "<s>"
    eos: str = "</s>"


def rows_of(vocabulary: Vocabulary, names: SpecialNames, size: int) -> list[int]:
    """Return the id in the folder of each of diglot's ids.

    If there is no start piece <s>, diglot's id 2 is the first of the other pieces.

    Args:
        vocabulary: the vocabulary.
        names: its special pieces.
        size: number of rows of the embedding matrix.

    Raises:
        UserError: a special piece is missing, or a piece has no row.
    """
    ids = vocabulary.ids()
    for name in (names.pad, names.unk, names.eos):
        if name not in ids:
            raise UserError(f"the tokenizer has no piece {name}")
    if beyond := [piece.text for i, piece in vocabulary.pieces.items() if i >= size and piece.kind in OF_TEXT]:
        raise UserError(
            f"vocab_size={size} in config.json is too small: the tokenizer has {len(beyond)} more pieces, "
            f"such as {beyond[0]!r}"
        )
    others = [i for i in range(size) if i not in (ids[names.pad], ids[names.unk], ids[names.eos])]
    bos = ids.get(names.bos, -1)
    if bos not in others:
        bos = others[0]
    return [ids[names.pad], ids[names.unk], bos, ids[names.eos], *(i for i in others if i != bos)]


def sentencepiece_model(vocabulary: Vocabulary, rows: Sequence[int], start: int) -> bytes:
    """Return a SentencePiece model with the pieces of a vocabulary.

    An id without a piece becomes a control piece, which never matches text.

    Args:
        vocabulary: the vocabulary.
        rows: the id in the vocabulary of each id in the model.
        start: id in the model of the start of a target.
    """
    model = ImportedModel()
    model.CopyFrom(vocabulary.options)
    del model.pieces[:]
    for text, score, kind in _distinct(_named(vocabulary, rows)):
        model.pieces.add(piece=text, score=score, type=kind)
    spec = model.trainer_spec
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD, UNK, start, EOS
    spec.pad_piece, spec.unk_piece, spec.eos_piece = (SPECIAL[i] for i in (PAD, UNK, EOS))
    spec.bos_piece = model.pieces[start].piece
    spec.vocab_size = len(model.pieces)
    spec.byte_fallback = spec.byte_fallback and sum(piece.type == BYTE for piece in model.pieces) == 256
    spec.ClearField("input")
    spec.ClearField("model_prefix")
    serialised: bytes = model.SerializeToString(deterministic=True)
    return serialised


def _named(vocabulary: Vocabulary, rows: Sequence[int]) -> Iterator[Piece]:
    """Yield the pieces of a model with diglot's names for special pieces and tags."""
    tags = {i: tag(language) for language, i in vocabulary.languages.items()}
    for new, old in enumerate(rows):
        piece = vocabulary.pieces.get(old, Piece(f"<unused_{old}>"))
        if new in (PAD, UNK, EOS):
            yield Piece(SPECIAL[new], kind=UNKNOWN if new == UNK else CONTROL)
        elif old in tags:
            yield Piece(tags[old])
        elif piece.kind == UNKNOWN:  # a model has only one such piece
            yield Piece(piece.text)
        else:
            yield piece


def _distinct(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Yield pieces with other texts for control pieces that would occur twice."""
    all_pieces = list(pieces)
    taken = {piece.text for piece in all_pieces if piece.kind in OF_TEXT} | {SPECIAL[i] for i in (PAD, UNK, EOS)}
    for number, piece in enumerate(all_pieces):
        if number not in (PAD, UNK, EOS) and piece.kind not in OF_TEXT:
            text = piece.text
            while text in taken:
                text = f"{text}_"
            taken.add(text)
            yield piece._replace(text=text)
        else:
            yield piece


def with_text(pieces: Mapping[str, Piece], ids: Mapping[str, int]) -> tuple[dict[int, Piece], int]:
    """Return the pieces of a vocabulary that a SentencePiece model segments text into, by their ids.

    Args:
        pieces: pieces of the model by their texts.
        ids: ids of the vocabulary by text. A text that the model lacks is one of the other side. It is unused, except
            for a character: the model returns unknown characters as they are, and the vocabulary numbers them.

    Returns:
        The pieces, and the number of the model's pieces that the vocabulary lacks.
    """
    unlikely = min((piece.score for piece in pieces.values()), default=0.0) - 10  # SentencePiece's score of the unknown
    found = {}
    for text, i in ids.items():
        of_other_side = Piece(text, unlikely, NORMAL) if len(text) == 1 else Piece(text, kind=UNUSED)
        found[i] = pieces.get(text, of_other_side)
    return found, sum(piece.kind in OF_TEXT and text not in ids for text, piece in pieces.items())
