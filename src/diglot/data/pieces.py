"""Reading and editing of SentencePiece model files."""

from collections.abc import Sequence
from typing import Any

import sentencepiece
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from diglot.errors import UserError

PAD, UNK, BOS, EOS = range(4)
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")

# The fields of sentencepiece_model.proto that are needed here, by number; all others are preserved. SentencePiece ships
# classes for all of them, but these reject every release of protobuf except the one that generated them.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # types of pieces
MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_FIELDS = {
    "Piece": {"piece": (1, "string"), "score": (2, "float"), "type": (3, "int32")},
    "TrainerSpec": {
        "input": (1, "string"),
        "model_prefix": (2, "string"),
        "model_type": (3, "int32"),
        "vocab_size": (4, "int32"),
    }
    | {"unk_id": (40, "int32"), "bos_id": (41, "int32"), "eos_id": (42, "int32"), "pad_id": (43, "int32")}
    | {f"{name}_piece": (number, "string") for number, name in enumerate(("unk", "bos", "eos", "pad"), start=45)},
    "NormalizerSpec": {"name": (1, "string")},
    "Model": {"pieces": (1, "Piece"), "trainer_spec": (2, "TrainerSpec"), "normalizer_spec": (3, "NormalizerSpec")},
}
_COMPOSING = "diglot_nfc"  # normalisation name of a model for composed text; only diglot interprets it


def _model_class() -> Any:
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="model.proto", package="diglot", syntax="proto2")
    for message, fields in _FIELDS.items():
        made = file.message_type.add(name=message)
        for name, (number, type_) in fields.items():
            field = made.field.add(name=name, number=number, label=kind.LABEL_OPTIONAL)
            if type_ in _FIELDS:
                field.type, field.type_name = kind.TYPE_MESSAGE, f".diglot.{type_}"
            else:
                field.type = getattr(kind, f"TYPE_{type_.upper()}")
            if name in ("pieces", "input"):
                field.label = kind.LABEL_REPEATED
            if name in ("type", "model_type"):
                field.default_value = "1"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("diglot.Model"))


_Model = _model_class()


def tag(tgt_lang: str) -> str:
    """Return the piece that tells a multilingual model to write this language (Johnson et al., 2017)."""
    return f"<2{tgt_lang}>"


def opened(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Return the processor that segments text with a model file.

    Raises:
        UserError: this is not a SentencePiece model.
    """
    if not model:  # SentencePiece would accept it, with a message on stderr
        raise UserError("this is not a SentencePiece model (it is empty)")
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise UserError(f"this is not a SentencePiece model ({error})") from None


def read_model(model: bytes) -> Any:
    """Return the parsed content of a model file.

    Raises:
        UserError: this is not a SentencePiece model.
    """
    try:
        return _Model.FromString(model)
    except DecodeError as error:
        raise UserError(f"this is not a SentencePiece model ({error})") from None


def without_paths(model: bytes) -> bytes:
    """Return a model file without the paths of its training files and of its output."""
    made = read_model(model)
    if not made.trainer_spec.input and not made.trainer_spec.model_prefix:
        return model
    made.trainer_spec.ClearField("input")
    made.trainer_spec.ClearField("model_prefix")
    stripped: bytes = made.SerializeToString(deterministic=True)
    return stripped


def composing(model: bytes) -> bytes:
    """Return a model file with a mark that it is made for composed text (NFC); see `is_composing`."""
    made = read_model(model)
    made.normalizer_spec.name = _COMPOSING
    named: bytes = made.SerializeToString(deterministic=True)
    return named


def is_composing(model: bytes) -> bool:
    """Return whether text must be composed (NFC) before a model segments it.

    The model's own rules compose text too, except for marks in some rare orders, which no rules can list.
    """
    named: str = read_model(model).normalizer_spec.name
    return named == _COMPOSING


def model_type_of(model: bytes) -> str:
    """Return the type of a model: unigram, bpe, word or char."""
    return MODEL_TYPES[read_model(model).trainer_spec.model_type]


def normalisation(model: bytes) -> str | None:
    """Return the name of a model file's normalisation, as in `tokenizer.normalisation`; None if it names none."""
    return "nfc" if is_composing(model) else read_model(model).normalizer_spec.name or None


def adopt(model: bytes, controls: Sequence[str] = (), symbols: Sequence[str] = ()) -> bytes:
    """Return a model that segments text as the given one does, with <pad>, <unk>, <s> and </s> as ids 0-3.

    Args:
        model: model of any origin. It may have these four pieces anywhere, or lack them.
        controls: control pieces, which no text yields. Missing ones are appended.
        symbols: user-defined pieces, which match literally wherever they occur in a text. Missing ones are appended.

    Raises:
        UserError: this is not a SentencePiece model.
    """
    processor, given = opened(model), read_model(model)
    ids = [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()]
    place = {piece.piece: i for i, piece in enumerate(given.pieces)}
    ids = [place.get(name, -1) if i < 0 else i for i, name in zip(ids, SPECIAL)]
    made = _Model()
    made.CopyFrom(given)
    del made.pieces[:]
    for number, i in enumerate(ids):
        kind = UNKNOWN if number == UNK else CONTROL
        made.pieces.add(piece=given.pieces[i].piece if i >= 0 else SPECIAL[number], score=0.0, type=kind)
    for i, piece in enumerate(given.pieces):
        if i not in ids:
            made.pieces.add().CopyFrom(piece)
    for names, kind in ((controls, CONTROL), (symbols, USER_DEFINED)):
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
