"""Reading and writing of tokenizer.json, the format of the library tokenizers, for SentencePiece models.

Such files hold the same scores or merges, and the same normalisation, as the SentencePiece models they come from.
"""

import base64
from collections.abc import Iterator, Sequence
from typing import Any

from diglot.data.pieces import (
    BLANK_MARK,
    BYTE,
    COMPOSING_NAME,
    CONTROL,
    EOS,
    MODEL_TYPES,
    NORMAL,
    SPECIAL,
    UNK,
    UNKNOWN,
    USER_DEFINED,
    ImportedModel,
)
from diglot.errors import UserError
from diglot.huggingface.merges import byte_level_vocabulary
from diglot.huggingface.vocabulary import Piece, Vocabulary

FILE = "tokenizer.json"
_NUMBERS = {name: number for number, name in MODEL_TYPES.items()}


def read_fast(content: dict[str, Any]) -> Vocabulary:
    """Return the vocabulary in a tokenizer.json.

    Args:
        content: the parsed file.

    Raises:
        UserError: a SentencePiece model cannot hold it; the message names the part.
    """
    model, options = content["model"], ImportedModel()
    if byte_level := _byte_level_node(content.get("pre_tokenizer")):
        return _byte_level(content, byte_level)
    if model["type"] not in ("Unigram", "BPE"):
        raise UserError(f"{FILE}: its model is {model['type']}; only Unigram and BPE of SentencePiece can be read")
    spec, normalizer = options.trainer_spec, options.normalizer_spec
    spec.model_type = _NUMBERS["unigram" if model["type"] == "Unigram" else "bpe"]
    spec.byte_fallback = bool(model.get("byte_fallback"))
    normalizer.add_dummy_prefix = _adds_space(content.get("pre_tokenizer"))
    normalizer.name, normalizer.remove_extra_whitespaces, normalizer.escape_whitespaces = "identity", True, True
    for node in _flat(content.get("normalizer"), "normalizers"):
        _add_rule(normalizer, node)
    pieces = _unigram(model) if model["type"] == "Unigram" else _bpe(model)
    if spec.byte_fallback:
        pieces = {i: piece._replace(kind=BYTE) if _is_byte(piece.text) else piece for i, piece in pieces.items()}
    return Vocabulary(pieces | added_pieces(content.get("added_tokens") or []), options, {})


def added_pieces(tokens: list[dict[str, Any]]) -> dict[int, Piece]:
    """Return added tokens: special ones, which text does not contain, and others, which match wherever they occur."""
    return {
        int(token["id"]): Piece(str(token["content"]))
        if token.get("special")
        else Piece(str(token["content"]), kind=USER_DEFINED)
        for token in tokens
    }


def _unigram(model: dict[str, Any]) -> dict[int, Piece]:
    pieces = {i: Piece(str(text), float(score), NORMAL) for i, (text, score) in enumerate(model["vocab"])}
    if (unk := model.get("unk_id")) is not None:
        pieces[unk] = pieces[unk]._replace(kind=UNKNOWN)
    return pieces


def _bpe(model: dict[str, Any]) -> dict[int, Piece]:
    """Return pieces whose scores are their ranks: SentencePiece merges the pair with the highest score first."""
    ranks: dict[str, int] = {}
    for left, right in _merges(model):
        ranks.setdefault(left + right, len(ranks))
    pieces = {int(i): Piece(text, -float(ranks.get(text, len(ranks))), NORMAL) for text, i in model["vocab"].items()}
    unk = str(model.get("unk_token"))
    if unk in model["vocab"]:
        pieces[model["vocab"][unk]] = Piece(unk, kind=UNKNOWN)
    return pieces


def _merges(model: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        yield left, right


def _byte_level_node(pre_tokenizer: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the pre_tokenizer of a byte-level BPE; None if it is another one."""
    return next((node for node in _flat(pre_tokenizer, "pretokenizers") if node["type"] == "ByteLevel"), None)


def _byte_level(content: dict[str, Any], node: dict[str, Any]) -> Vocabulary:
    """Return the vocabulary of a byte-level BPE.

    Raises:
        UserError: it splits text in another way than GPT-2 and BART; the message names the part.
    """
    model, pre_tokenizer = content["model"], content["pre_tokenizer"]
    if model["type"] != "BPE":
        raise UserError(f"{FILE}: its model is {model['type']} with a byte-level pre_tokenizer; only BPE can be read")
    if pre_tokenizer["type"] != "ByteLevel" or not node.get("use_regex", True):
        raise UserError(f"{FILE}: its pre_tokenizer splits text into words in another way than GPT-2 and BART")
    if (normalizer := content.get("normalizer")) is not None:
        raise UserError(f"{FILE}: its normalizer {normalizer['type']} has no counterpart in a byte-level BPE")
    for key in ("ignore_merges", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise UserError(f"{FILE}: its {key}={model[key]} has no counterpart")
    return byte_level_vocabulary(model["vocab"], _merges(model), bool(node.get("add_prefix_space", True)))


def _is_byte(text: str) -> bool:
    return len(text) == 6 and text.startswith("<0x") and text.endswith(">")


def _flat(node: dict[str, Any] | None, parts: str) -> Iterator[dict[str, Any]]:
    """Yield the parts of a node of type Sequence, or else the node itself."""
    if node is not None and node["type"] == "Sequence":
        for part in node[parts]:
            yield from _flat(part, parts)
    elif node is not None:
        yield node


def _adds_space(pre_tokenizer: dict[str, Any] | None) -> bool:
    """Return whether a space is put before each text."""
    for node in _flat(pre_tokenizer, "pretokenizers"):
        if node["type"] not in ("Metaspace", "WhitespaceSplit"):
            raise UserError(f"{FILE}: its pre_tokenizer {node['type']} has no counterpart in SentencePiece")
        if node["type"] == "Metaspace":
            default = "always" if node.get("add_prefix_space", True) else "never"
            return bool(node.get("prepend_scheme", default) != "never")
    raise UserError(f"{FILE}: it has no pre_tokenizer Metaspace, so it is not from SentencePiece")


def _add_rule(normalizer: Any, node: dict[str, Any]) -> None:
    """Add a part of a normalizer to a specification. SentencePiece itself removes repeated and final spaces."""
    kind = node["type"]
    if kind == "Precompiled":
        normalizer.name = "nmt_nfkc"
        normalizer.precompiled_charsmap = base64.b64decode(node["precompiled_charsmap"])
    elif kind == "NFC":
        normalizer.name = COMPOSING_NAME
    elif kind not in ("Strip", "Replace") or (kind == "Replace" and node["content"] != " "):
        raise UserError(f"{FILE}: its normalizer {kind} has no counterpart in SentencePiece")


# ------------------------------------------------------------------------------------------------------------- writing


def fast_content(model: bytes, pieces: Sequence[Piece], prefix: Sequence[str]) -> dict[str, Any]:
    """Return the content of a tokenizer.json.

    Args:
        model: a SentencePiece model of type unigram or BPE without pieces that match wherever they occur.
        pieces: the pieces in the order of their ids; control pieces become special tokens.
        prefix: the pieces that precede a text. </s> follows it.
    """
    options = ImportedModel.FromString(model)
    ids = {piece.text: i for i, piece in enumerate(pieces)}
    scheme = "always" if is_set(options.normalizer_spec, "add_dummy_prefix") else "never"
    space = {"type": "Metaspace", "replacement": BLANK_MARK, "prepend_scheme": scheme, "split": True}
    around = [*prefix, SPECIAL[EOS]]
    special = {"single_word": False, "rstrip": False, "normalized": False, "special": True}
    template: list[dict[str, Any]] = [{"SpecialToken": {"id": text, "type_id": 0}} for text in around]
    template.insert(len(prefix), {"Sequence": {"id": "A", "type_id": 0}})
    is_unigram = options.trainer_spec.model_type == _NUMBERS["unigram"]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": piece.text, "lstrip": piece.text == "<mask>", **special}
            for i, piece in enumerate(pieces)
            if piece.kind in (CONTROL, UNKNOWN)
        ],
        "normalizer": {"type": "Sequence", "normalizers": _rules(options.normalizer_spec)},
        "pre_tokenizer": space,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": template,
            "pair": [*template[:-1], {"Sequence": {"id": "B", "type_id": 0}}, template[-1]],
            "special_tokens": {text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in around},
        },
        "decoder": space,
        "model": {
            **(_written_unigram(pieces, ids) if is_unigram else _written_bpe(pieces, ids)),
            "byte_fallback": any(piece.kind == BYTE for piece in pieces),
        },
    }


def is_set(spec: Any, flag: str) -> bool:
    """Return the value of a flag of a SentencePiece model's normalisation: true by default."""
    return bool(getattr(spec, flag)) if spec.HasField(flag) else True


def _rules(spec: Any) -> list[dict[str, Any]]:
    """Return the normalizers for a SentencePiece model's normalisation; see `_add_rule`."""
    rules: list[dict[str, Any]] = []
    if spec.precompiled_charsmap:
        charsmap = base64.b64encode(spec.precompiled_charsmap).decode()
        rules.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if spec.name == COMPOSING_NAME:
        rules.append({"type": "NFC"})
    if is_set(spec, "remove_extra_whitespaces"):
        rules.append({"type": "Strip", "strip_left": False, "strip_right": True})
        rules.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    return rules


def _written_unigram(pieces: Sequence[Piece], ids: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "Unigram",
        "unk_id": ids[SPECIAL[UNK]],
        "vocab": [[piece.text, piece.score if piece.kind in (NORMAL, BYTE) else 0.0] for piece in pieces],
    }


def _written_bpe(pieces: Sequence[Piece], ids: dict[str, int]) -> dict[str, Any]:
    """Return a BPE model that merges two pieces to a third one wherever SentencePiece does, in the order of scores."""
    normal = {piece.text: piece.score for piece in pieces if piece.kind == NORMAL}
    merges = [
        f"{text[:cut]} {text[cut:]}"
        for text in sorted(normal, key=lambda text: -normal[text])  # stable
        for cut in range(1, len(text))
        if text[:cut] in normal and text[cut:] in normal
    ]
    return {
        "type": "BPE",
        **{"dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None},
        **{"unk_token": SPECIAL[UNK], "fuse_unk": True, "ignore_merges": False},
        "vocab": ids,
        "merges": merges,
    }
