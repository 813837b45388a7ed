"""What stands in a SentencePiece model file, and what may be put into it."""

from collections.abc import Sequence
from typing import Any

import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from diglot.errors import UserError

PAD, UNK, BOS, EOS = range(4)
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
proto: Any = sentencepiece_model_pb2  # made when it is imported: type checkers see nothing in it
Kind = proto.ModelProto.SentencePiece.Type


def tag(tgt_lang: str) -> str:
    """The piece that tells a model of several pairs to write this language (Johnson et al., 2017)."""
    return f"<2{tgt_lang}>"


def read_model(model: bytes) -> Any:
    """What a model file says.

    Raises:
        UserError: it is none.
    """
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        if not processor.get_piece_size():
            raise UserError("this is no SentencePiece model (it is empty)")
        return proto.ModelProto.FromString(model)
    except (RuntimeError, DecodeError) as error:
        raise UserError(f"this is no SentencePiece model ({error})") from None


def adopt(model: bytes, controls: Sequence[str] = (), symbols: Sequence[str] = ()) -> bytes:
    """A model that segments text as the given one does, with <pad>, <unk>, <s> and </s> as the ids 0-3.

    Args:
        model: of any origin, with these pieces anywhere or nowhere.
        controls: further pieces that no text yields. Those that are missing are added behind all others.
        symbols: pieces that stand for themselves wherever a text has them; likewise.

    Raises:
        UserError: it is no model.
    """
    given = read_model(model)
    spec = given.trainer_spec
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()]
    place = {piece.piece: i for i, piece in enumerate(given.pieces)}
    ids = [place.get(name, -1) if i < 0 else i for i, name in zip(ids, SPECIAL)]
    made = proto.ModelProto()
    made.CopyFrom(given)
    del made.pieces[:]
    for number, i in enumerate(ids):
        kind = Kind.UNKNOWN if number == UNK else Kind.CONTROL
        made.pieces.add(piece=given.pieces[i].piece if i >= 0 else SPECIAL[number], score=0.0, type=kind)
    for i, piece in enumerate(given.pieces):
        if i not in ids:
            made.pieces.add().CopyFrom(piece)
    for names, kind in ((controls, Kind.CONTROL), (symbols, Kind.USER_DEFINED)):
        for name in names:
            if name in place:
                next(piece for piece in made.pieces if piece.piece == name).type = kind
            else:
                made.pieces.add(piece=name, score=0.0, type=kind)
    spec = made.trainer_spec
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD, UNK, BOS, EOS
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = (piece.piece for piece in made.pieces[:4])
    spec.vocab_size = len(made.pieces)
    adopted: bytes = made.SerializeToString(deterministic=True)
    return adopted
