"""Reading and editing of SentencePiece model files."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sentencepiece
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from diglot.errors import UserError

PAD, UNK, BOS, EOS = range(4)
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # types of pieces
MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
SYMBOL_TYPES = ("char", "word")  # models whose pieces are whole characters or words, without subwords and bytes
BLANK_MARK = "\N{LOWER ONE EIGHTH BLOCK}"  # of a space in a piece
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
# More fields, for models that are made from other formats. They are not in _FIELDS, because the order in which fields
# are written, and so the hash of a model, depends on which of them are known.
_MORE_FIELDS = {
    "TrainerSpec": {"byte_fallback": (35, "bool")},
    "NormalizerSpec": {
        "precompiled_charsmap": (2, "bytes"),
        "add_dummy_prefix": (3, "bool"),
        "remove_extra_whitespaces": (4, "bool"),
        "escape_whitespaces": (5, "bool"),
    },
}
COMPOSING_NAME = "diglot_nfc"  # name of the normalisation in a model for composed text; only diglot interprets it
BYTE_LEVEL_NAME = "diglot_byte_level"  # the same, for a byte-level BPE; see diglot.data.byte_level


class Piece(NamedTuple):
    """A piece of a model file: its text, its score and its type."""

    text: str
    score: float
    kind: int


def _model_class(all_fields: Mapping[str, Mapping[str, tuple[int, str]]]) -> Any:
    """Return a protobuf class for SentencePiece models.

    Args:
        all_fields: number and type of each field, by the names of messages and fields.
    """
    descriptor = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="model.proto", package="diglot", syntax="proto2")
    for message_name, fields in all_fields.items():
        message_type = file.message_type.add(name=message_name)
        for name, (number, type_) in fields.items():
            field = message_type.field.add(name=name, number=number, label=descriptor.LABEL_OPTIONAL)
            if type_ in all_fields:
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


_Model = _model_class(_FIELDS)
ImportedModel = _model_class({name: {**fields, **_MORE_FIELDS.get(name, {})} for name, fields in _FIELDS.items()})


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
    content.normalizer_spec.name = COMPOSING_NAME
    marked: bytes = content.SerializeToString(deterministic=True)
    return marked


def is_composing(model: bytes) -> bool:
    """Return whether text must be composed (NFC) before a model segments it.

    The rules in the model also compose text, except for combining marks in some rare orders.
    """
    name: str = read_model(model).normalizer_spec.name
    return name == COMPOSING_NAME


def model_type_of(model: bytes) -> str:
    """Return the type of a model file: unigram, bpe, word or char."""
    return MODEL_TYPES[read_model(model).trainer_spec.model_type]


def normalisation(model: bytes) -> str | None:
    """Return the name of a model file's normalisation, as in `tokenizer.normalisation`; None if it has no name."""
    return "nfc" if is_composing(model) else read_model(model).normalizer_spec.name or None


def adopt(model: bytes, controls: Sequence[str] = (), symbols: Sequence[str] = ()) -> bytes:
    """Return a model file that segments text like the given one and has <pad>, <unk>, <s> and </s> as ids 0-3.

    A model that has <pad>, <unk> and </s> as ids 0, 1 and 3, and one of them as the start of a target, keeps its ids.

    Args:
        model: model file of any origin. It may have these four pieces with other ids, or lack them.
        controls: control pieces, which do not occur in text. Missing ones are appended.
        symbols: user-defined pieces, which match wherever they occur in a text. Missing ones are appended.

    Raises:
        UserError: this is not a SentencePiece model.
    """
    processor, content = load_processor(model), read_model(model)
    ids = [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()]
    if [ids[0], ids[1], ids[3]] != [PAD, UNK, EOS] or ids[2] not in (PAD, EOS):
        content = _reordered(content, [*ids[:2], -1 if ids[2] in (ids[0], ids[3]) else ids[2], ids[3]])
    of_name = {piece.piece: piece for piece in content.pieces}
    for names, kind in ((controls, CONTROL), (symbols, USER_DEFINED)):
        for name in names:
            if name in of_name:
                of_name[name].type = kind
            else:
                content.pieces.add(piece=name, score=0.0, type=kind)
    content.trainer_spec.vocab_size = len(content.pieces)
    serialised: bytes = content.SerializeToString(deterministic=True)
    return serialised


def _reordered(content: Any, ids: list[int]) -> Any:
    """Return a model whose first four pieces are <pad>, <unk>, <s> and </s>, which are at `ids` now; -1: unknown."""
    positions = {piece.piece: i for i, piece in enumerate(content.pieces)}
    ids = [positions.get(name, -1) if i < 0 else i for i, name in zip(ids, SPECIAL)]
    reordered = _Model()
    reordered.CopyFrom(content)
    del reordered.pieces[:]
    for number, i in enumerate(ids):
        kind = UNKNOWN if number == UNK else CONTROL
        reordered.pieces.add(piece=content.pieces[i].piece if i >= 0 else SPECIAL[number], score=0.0, type=kind)
    for i, piece in enumerate(content.pieces):
        if i not in ids:
            reordered.pieces.add().CopyFrom(piece)
    spec = reordered.trainer_spec
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD, UNK, BOS, EOS
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = (piece.piece for piece in reordered.pieces[:4])
    return reordered


def start_with(model: bytes, start: int) -> bytes:
    """Return a model file with another start of targets (see `diglot.data.encoding.Tokenizer`).

    Args:
        model: model file with <pad>, <unk> and </s> as ids 0, 1 and 3.
        start: id of <pad>, of </s>, or of <s>, which is 2.
    """
    content = read_model(model)
    content.trainer_spec.bos_id, content.trainer_spec.bos_piece = start, content.pieces[start].piece
    serialised: bytes = content.SerializeToString(deterministic=True)
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
