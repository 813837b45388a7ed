"""Reading and editing of SentencePiece model files."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import sentencepiece
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from diglot.errors import UserError

PAD, UNK, BOS, EOS = range(4)
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # types of pieces
MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
# The fields of sentencepiece_model.proto that are needed here, with their numbers. All other fields are preserved.
# SentencePiece ships classes for all fields, but these reject every release of protobuf except the one that generated
# them.
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
_COMPOSING_NAME = "diglot_nfc"  # name of the normalisation in a model for composed text; only diglot interprets it


class Piece(NamedTuple):
    """A piece of a model file: its text, its score and its type."""

    text: str
    score: float
    kind: int


def _model_class() -> Any:
    """Return a protobuf class for SentencePiece models."""
    descriptor = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="model.proto", package="diglot", syntax="proto2")
    for message_name, fields in _FIELDS.items():
        message_type = file.message_type.add(name=message_name)
        for name, (number, type_) in fields.items():
            field = message_type.field.add(name=name, number=number, label=descriptor.LABEL_OPTIONAL)
            if type_ in _FIELDS:
                field.type, field.type_name = descriptor.TYPE_MESSAGE, f".diglot.{type_}"
            else:
                field.type = getattr(descriptor, f"TYPE_{type_.upper()}")
            if name in ("pieces", "input"):
                field.label = descriptor.LABEL_REPEATED
            if name in ("type", "model_type"):
                field.default_value = "1"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("diglot.Model"))


_Model = _model_class()


def tag(tgt_lang: str) -> str:
    """Return the piece that makes a multilingual model translate into a language (Johnson et al., 2017)."""
    return f"<2{tgt_lang}>"


def load_processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Return the SentencePiece processor of a model file.

    Args:
        model: content of the file.

    Raises:
        UserError: this is not a SentencePiece model.
    """
    if not model:  # SentencePiece would accept it and print a message to stderr
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
    content = read_model(model)
    if not content.trainer_spec.input and not content.trainer_spec.model_prefix:
        return model
    content.trainer_spec.ClearField("input")
    content.trainer_spec.ClearField("model_prefix")
    stripped: bytes = content.SerializeToString(deterministic=True)
    return stripped


def mark_composing(model: bytes) -> bytes:
    """Return a model file that is marked as made for composed text (NFC); see `is_composing`."""
    content = read_model(model)
    content.normalizer_spec.name = _COMPOSING_NAME
    marked: bytes = content.SerializeToString(deterministic=True)
    return marked


def is_composing(model: bytes) -> bool:
    """Return whether text must be composed (NFC) before a model segments it.

    The rules in the model also compose text, except for combining marks in some rare orders.
    """
    name: str = read_model(model).normalizer_spec.name
    return name == _COMPOSING_NAME


def model_type_of(model: bytes) -> str:
    """Return the type of a model file: unigram, bpe, word or char."""
    return MODEL_TYPES[read_model(model).trainer_spec.model_type]


def normalisation(model: bytes) -> str | None:
    """Return the name of a model file's normalisation, as in `tokenizer.normalisation`; None if it has no name."""
    return "nfc" if is_composing(model) else read_model(model).normalizer_spec.name or None


def adopt(model: bytes, controls: Sequence[str] = (), symbols: Sequence[str] = ()) -> bytes:
    """Return a model file that segments text like the given one and has <pad>, <unk>, <s> and </s> as ids 0-3.

    Args:
        model: model file of any origin. It may have these four pieces with other ids, or lack them.
        controls: control pieces, which do not occur in text. Missing ones are appended.
        symbols: user-defined pieces, which match wherever they occur in a text. Missing ones are appended.

    Raises:
        UserError: this is not a SentencePiece model.
    """
    processor, content = load_processor(model), read_model(model)
    ids = [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()]
    positions = {piece.piece: i for i, piece in enumerate(content.pieces)}
    ids = [positions.get(name, -1) if i < 0 else i for i, name in zip(ids, SPECIAL)]
    adopted = _Model()
    adopted.CopyFrom(content)
    del adopted.pieces[:]
    for number, i in enumerate(ids):
        kind = UNKNOWN if number == UNK else CONTROL
        adopted.pieces.add(piece=content.pieces[i].piece if i >= 0 else SPECIAL[number], score=0.0, type=kind)
    for i, piece in enumerate(content.pieces):
        if i not in ids:
            adopted.pieces.add().CopyFrom(piece)
    for names, kind in ((controls, CONTROL), (symbols, USER_DEFINED)):
        for name in names:
            if name in positions:
                next(piece for piece in adopted.pieces if piece.piece == name).type = kind
            else:
                adopted.pieces.add(piece=name, score=0.0, type=kind)
    spec = adopted.trainer_spec
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD, UNK, BOS, EOS
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = (piece.piece for piece in adopted.pieces[:4])
    spec.vocab_size = len(adopted.pieces)
    serialised: bytes = adopted.SerializeToString(deterministic=True)
    return serialised


def append(model: bytes, pieces: Sequence[Piece]) -> bytes:
    """Return a model file with further pieces after those of the given one, which keep their ids, scores and types.

    Args:
        model: model file.
        pieces: pieces that the model lacks.
    """
    if not pieces:
        return model
    content = read_model(model)
    for piece in pieces:
        content.pieces.add(piece=piece.text, score=piece.score, type=piece.kind)
    content.trainer_spec.vocab_size = len(content.pieces)
    serialised: bytes = content.SerializeToString(deterministic=True)
    return serialised
