"""Byte-level BPE in the files of Hugging Face folders: vocab.json with merges.txt, or tokenizer.json."""

from collections.abc import Iterable, Mapping
from itertools import pairwise

from diglot.data.byte_level import CHARACTERS
from diglot.data.pieces import BYTE_LEVEL_NAME, MODEL_TYPES, NORMAL, ImportedModel
from diglot.errors import UserError
from diglot.huggingface.vocabulary import Piece, Vocabulary

_BPE = next(number for number, name in MODEL_TYPES.items() if name == "bpe")


def byte_level_vocabulary(ids: Mapping[str, int], merges: Iterable[tuple[str, str]], adds_space: bool) -> Vocabulary:
    """Return the vocabulary of a byte-level BPE.

    The score of a piece is the negative rank of its merge: SentencePiece merges the pair whose piece has the highest
    score first. It finds the same pieces as the merges if each piece is made by one merge, whose two parts are what all
    earlier merges leave of its text. This is so for merges that were learned from text.

    Args:
        ids: ids of the pieces.
        merges: the merges, in their order.
        adds_space: whether a space is put before each text.

    Raises:
        UserError: a byte has no piece, or the merges are not those of the pieces.
    """
    ranks: dict[str, int] = {}
    for left, right in merges:
        if left + right in ranks or not {left, right, left + right} <= ids.keys():
            raise UserError(f"its merge {left!r} {right!r} is not one that makes a new piece of two others")
        if _parts(left + right, len(ranks), ranks) != (left, right):
            raise UserError(f"its merge {left!r} {right!r} never takes place, because of the merges before it")
        ranks[left + right] = len(ranks)
    if missing := sum(character not in ids for character in CHARACTERS.values()):
        raise UserError(f"its byte-level BPE has no pieces for {missing} of 256 bytes")
    options = ImportedModel()
    options.trainer_spec.model_type = _BPE
    normalizer = options.normalizer_spec
    normalizer.name, normalizer.add_dummy_prefix = BYTE_LEVEL_NAME, adds_space
    normalizer.remove_extra_whitespaces, normalizer.escape_whitespaces = False, False
    characters = {*CHARACTERS.values()}
    pieces = {
        i: Piece(text, -float(ranks.get(text, len(ranks))), NORMAL)
        if text in ranks or text in characters
        else Piece(text)
        for text, i in ids.items()
    }
    return Vocabulary(pieces, options, {})


def merges_of_lines(lines: Iterable[str]) -> list[tuple[str, str]]:
    """Return the merges in the lines of a merges.txt.

    Raises:
        UserError: a line is not a merge; the message has its number.
    """
    merges = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        parts = line.rstrip("\r\n").split(" ")
        if len(parts) != 2 or not all(parts):
            raise UserError(f"merges.txt, line {number}: is not a merge of two pieces")
        merges.append((parts[0], parts[1]))
    return merges


def merges_of(model: bytes) -> list[tuple[str, str]]:
    """Return the merges of a byte-level BPE in the model file of a tokenizer, in their order."""
    pieces = ImportedModel.FromString(model).pieces
    ranked = sorted((-piece.score, piece.piece) for piece in pieces if piece.type == NORMAL and len(piece.piece) > 1)
    ranks = {text: rank for rank, text in ranked}
    return [_parts(text, rank, ranks) for rank, text in ranked]


def _parts(text: str, rank: float, ranks: Mapping[str, float]) -> tuple[str, str]:
    """Return the two parts that are left of a piece's text after all merges of a better rank."""
    parts = list(text)
    while len(parts) > 2:
        merged = [left + right for left, right in pairwise(parts)]
        best = min(range(len(merged)), key=lambda i: ranks.get(merged[i], rank))
        parts[best : best + 2] = [merged[best]]
    return parts[0], parts[1]
