"""Diglot's tokenizers as classes of the library transformers: the class that holds a tokenizer, its ids and its files.

| class | tokenizers |
|---|---|
| M2M100Tokenizer | tags of both languages, which are those of M2M100 or WMT21 |
| NllbTokenizer | tags of both languages, and a BPE model |
| MBart50Tokenizer | tags of both languages, which are some of mBART-50's, and a unigram model |
| BartTokenizer | control pieces before both sides, and a byte-level BPE |
| PreTrainedTokenizerFast | control pieces before both sides, such as <s> of BART |
| MarianTokenizer | all others; the tag of a language is spelt in the text, such as `>>de<<` |
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from diglot.config.stock_class import BART, MBART, class_name
from diglot.config.stock_class import M2M100 as M2M100_MODEL
from diglot.data.byte_level import is_byte_level, text_of
from diglot.data.capitals import CAPITALS
from diglot.data.encoding import BOTH, Prefixes, Tokenizer
from diglot.data.line_sample import Side
from diglot.data.pieces import (
    BOS,
    BYTE,
    CONTROL,
    EOS,
    PAD,
    SPECIAL,
    UNK,
    UNUSED,
    USER_DEFINED,
    ImportedModel,
    read_model,
    tag,
)
from diglot.data.text import write_bytes, write_json
from diglot.errors import UserError
from diglot.huggingface.fast import FILE, fast_content, is_set
from diglot.huggingface.languages import LANGUAGE, M2M100, MBART50, WMT21
from diglot.huggingface.merges import merges_of
from diglot.huggingface.vocabulary import Piece

MARIAN, M2M100_TOKENIZER, NLLB = "MarianTokenizer", "M2M100Tokenizer", "NllbTokenizer"
MBART50_TOKENIZER, FAST, BART_TOKENIZER = "MBart50Tokenizer", "PreTrainedTokenizerFast", "BartTokenizer"
_MASK, _SENTENCEPIECE = "<mask>", "sentencepiece.bpe.model"
_UNIGRAM, _BPE = 1, 2  # types of a SentencePiece model
_BOTH_TAGS = Prefixes(("src_lang",), ("tgt_lang",))
# Models whose ids begin with <s>, <pad>, </s> and <unk>. M2M100 counts positions from the id of <pad>.
_FAIRSEQ = (M2M100_MODEL, BART, MBART)


class StockTokenizer(NamedTuple):
    """A tokenizer of diglot as a class of transformers.

    Attributes:
        name: the name of the class.
        src_ids: the class's id of each source id.
        tgt_ids: the class's id of each target id.
        tags: the token of each language by diglot's code.
    """

    name: str
    src_ids: list[int]
    tgt_ids: list[int]
    tags: dict[str, str]

    def language(self, code: str | None) -> str | None:
        """Return the name of a language as the class's `src_lang` or `tgt_lang`; None if the class has none."""
        if code is None or self.name in (MARIAN, FAST, BART_TOKENIZER):
            return None
        return code if self.name == M2M100_TOKENIZER else self.tags[code]

    def spelt(self, line: str, code: str | None) -> str:
        """Return a line as the class reads it, with the tag of a language if the text spells it; None: no tag."""
        return line if code is None or self.name != MARIAN else self.tags[code] + line


def stock_tokenizer(tokenizer: Tokenizer, model: Mapping[str, Any], key: str) -> StockTokenizer:
    """Return a tokenizer as the class of transformers that holds it.

    Args:
        tokenizer: the tokenizer.
        model: the config of its model, which has a stock class.
        key: the config key that selects the format, for messages.

    Raises:
        UserError: no class holds it. The message gives the reason.
    """
    name = _class_of(tokenizer, key)
    is_fairseq = name != MARIAN or class_name(model) in _FAIRSEQ  # MBart50Tokenizer expects <unk> there
    first = (BOS, PAD, EOS, UNK) if is_fairseq else (PAD, UNK, BOS, EOS)
    src = _ids(first, range(4, tokenizer.src_vocab_size))
    tgt = src if tokenizer.is_joint else _ids(first, range(4, tokenizer.tgt_vocab_size))
    if name != MARIAN:
        src = tgt = _ids(first, _ordered(tokenizer, name))
    return StockTokenizer(name, src, tgt, {code: _TOKENS[name](code) for code in tokenizer.languages})


def _token(code: str) -> str:
    """Return the token of a language. A bare name such as `nds` would also match inside of words."""
    found = LANGUAGE.fullmatch(code)
    if found and found.group(3):
        return code
    return f"__{code}__" if LANGUAGE.fullmatch(f"__{code}__") else f">>{code}<<"


_TOKENS: dict[str, Callable[[str], str]] = {
    MARIAN: lambda code: f">>{code}<<",
    M2M100_TOKENIZER: lambda code: f"__{code}__",
    NLLB: _token,
    MBART50_TOKENIZER: _token,
    FAST: lambda code: code,
    BART_TOKENIZER: lambda code: code,
}


def _class_of(tokenizer: Tokenizer, key: str) -> str:
    languages = () if tokenizer.languages else ("src_lang", "tgt_lang")  # without tags, these stand for nothing
    src, tgt = (tuple(name for name in prefix if name not in languages) for prefix in tokenizer.prefixes)
    if (src, tgt) == _BOTH_TAGS:
        return _class_with_tags(tokenizer)
    if not tgt and src in ((), Prefixes().src) and not is_byte_level(tokenizer.model):
        return MARIAN
    if tokenizer.languages or tgt not in ((), src):
        raise UserError(
            f"{key}=huggingface: no tokenizer of transformers writes {' '.join(src) or 'nothing'} before a source and "
            f"{' '.join(tgt) or 'nothing'} before a target; type {key}=ctranslate2 or {key}=safetensors"
        )
    if is_byte_level(tokenizer.model) and tokenizer.tgt_model is None:
        return BART_TOKENIZER
    if reason := _unlike_fast(tokenizer):
        raise UserError(
            f"{key}=huggingface: a tokenizer that writes {' '.join(src)} before a source needs tokenizer.json, which "
            f"cannot hold {reason}; type {key}=ctranslate2 or {key}=safetensors"
        )
    return FAST


def _class_with_tags(tokenizer: Tokenizer) -> str:
    """Return the class for a tokenizer with tags of both languages: a MarianTokenizer if that of the family fails."""
    languages = {*tokenizer.languages}
    begins_with_s = tokenizer.tgt_model is None and tokenizer.pieces([BOS], "src") == [SPECIAL[BOS]]
    if begins_with_s and languages in ({*M2M100}, {*WMT21}):
        return M2M100_TOKENIZER
    content = ImportedModel.FromString(tokenizer.model)
    # What the classes do in any case.
    flags = all(is_set(content.normalizer_spec, flag) for flag in ("add_dummy_prefix", "remove_extra_whitespaces"))
    has_bytes = any(piece.type == BYTE for piece in content.pieces)
    if begins_with_s and flags and not has_bytes and _unlike_fast(tokenizer) is None:
        if content.trainer_spec.model_type == _BPE:
            return NLLB
        if languages <= {*MBART50}:
            return MBART50_TOKENIZER
    return MARIAN


def _unlike_fast(tokenizer: Tokenizer) -> str | None:
    """Return what a tokenizer.json cannot hold; None: it holds the tokenizer."""
    content = read_model(tokenizer.model)
    if tokenizer.tgt_model is not None:
        return "two SentencePiece models"
    if content.trainer_spec.model_type not in (_UNIGRAM, _BPE):
        return "pieces that are whole words or characters"
    # Text after such a piece would begin with a space there.
    found = next((piece.piece for piece in content.pieces if piece.type == USER_DEFINED), None)
    return None if found is None else f"a piece that matches wherever it occurs, such as {found!r}"


def _ordered(tokenizer: Tokenizer, name: str) -> list[int]:
    """Return the ids after the first four in the order of a class: pieces, tags of M2M100, and ids without a piece."""
    pieces = read_model(tokenizer.model).pieces
    tags: list[int] = []
    if name == M2M100_TOKENIZER:
        ids = {piece.piece: i for i, piece in enumerate(pieces)}
        tags = [ids[tag(code)] for code in _m2m100_languages(tokenizer)]
    hidden = [i for i in range(4, len(pieces)) if _is_hidden(pieces[i])]
    apart = {*tags, *hidden}
    return [*(i for i in range(4, len(pieces)) if i not in apart), *tags, *hidden]


def _m2m100_languages(tokenizer: Tokenizer) -> Sequence[str]:
    return M2M100 if {*tokenizer.languages} == {*M2M100} else WMT21


def _is_hidden(piece: Any) -> bool:
    """Return whether a piece of a model file stands for an id without a token in the tokenizer's files."""
    return piece.type == UNUSED or (piece.type == CONTROL and piece.piece.startswith("<unused_"))


def _ids(first: Sequence[int], others: Iterable[int]) -> list[int]:
    """Return the exported id of each of diglot's ids, given diglot's ids in the exported order."""
    order = [*first, *others]
    return sorted(range(len(order)), key=order.__getitem__)


# --------------------------------------------------------------------------------------------------------------- files


def write_tokenizer_files(
    stock: StockTokenizer, tokenizer: Tokenizer, languages: tuple[str, str], longest: int, folder: Path
) -> dict[str, str]:
    """Write the files of a tokenizer's class into a folder, and return the names of those with pieces by side.

    Args:
        stock: the tokenizer as a class.
        tokenizer: the tokenizer.
        languages: codes of the source and the target language, which need not have a tag.
        longest: greatest number of tokens of a source.
        folder: an existing folder.

    Raises:
        UserError: the folder cannot be written to.
    """
    pad, unk, bos, eos = tokenizer.pieces(tokenizer.special, "tgt")
    settings: dict[str, Any] = {
        "tokenizer_class": stock.name,
        "unk_token": unk,
        "eos_token": eos,
        "pad_token": pad,
        "bos_token": bos if stock.name == MARIAN else SPECIAL[BOS],
        "model_max_length": longest,
    }
    if stock.name == MARIAN:
        settings |= _write_marian(stock, tokenizer, languages, folder)
    else:
        write = {M2M100_TOKENIZER: _write_m2m100, BART_TOKENIZER: _write_byte_level}.get(stock.name, _write_fast)
        settings |= write(stock, tokenizer, folder)
        for key, code in zip(("src_lang", "tgt_lang"), languages, strict=True):
            settings |= {key: name} if (name := stock.language(tokenizer.find_language(code))) else {}
    write_json(folder / "tokenizer_config.json", settings)
    if stock.name == MARIAN:
        return {"src": "source.spm", "tgt": "target.spm"}
    name = {M2M100_TOKENIZER: _SENTENCEPIECE, BART_TOKENIZER: "vocab.json"}.get(stock.name, FILE)
    return dict.fromkeys(BOTH, name)


def _vocabulary(stock: StockTokenizer, tokenizer: Tokenizer, side: Side) -> dict[str, int]:
    """Return the ids of the class by the texts of the pieces of a side, with the class's tags."""
    tags = {tag(code): token for code, token in stock.tags.items()}
    ids = stock.src_ids if side == "src" else stock.tgt_ids
    pieces = tokenizer.pieces(range(len(ids)), side)
    return {tags.get(piece, piece): i for i, piece in zip(ids, pieces, strict=True)}


def _write_marian(
    stock: StockTokenizer, tokenizer: Tokenizer, languages: tuple[str, str], folder: Path
) -> dict[str, Any]:
    """Write the models and vocabularies of a MarianTokenizer, and return its own settings."""
    write_bytes(folder / "source.spm", tokenizer.model)
    write_bytes(folder / "target.spm", tokenizer.tgt_model or tokenizer.model)
    write_json(folder / "vocab.json", _vocabulary(stock, tokenizer, "src"))
    if not tokenizer.is_joint:
        write_json(folder / "target_vocab.json", _vocabulary(stock, tokenizer, "tgt"))
    return {
        "source_lang": languages[0],
        "target_lang": languages[1],
        # Releases before 5 of transformers know this name alone. A translation contains the tag of its language.
        "additional_special_tokens": [
            *([CAPITALS] if tokenizer.marks_capitals else []),
            *(stock.tags.values() if tokenizer.prefixes.tgt else []),
        ],
        "separate_vocabs": not tokenizer.is_joint,
    }


def _write_m2m100(stock: StockTokenizer, tokenizer: Tokenizer, folder: Path) -> dict[str, Any]:
    """Write the model and the vocabulary of an M2M100Tokenizer, which numbers its tags itself; return its settings."""
    write_bytes(folder / _SENTENCEPIECE, tokenizer.model)
    tags = {*stock.tags.values()}
    texts = [piece.text for piece in _shown(stock, tokenizer)]
    write_json(folder / "vocab.json", {text: i for i, text in enumerate(texts) if text not in tags})
    languages = _m2m100_languages(tokenizer)
    return {
        "language_codes": "m2m100" if languages is M2M100 else "wmt21",
        "additional_special_tokens": [stock.tags[code] for code in languages],
    }


def _write_byte_level(stock: StockTokenizer, tokenizer: Tokenizer, folder: Path) -> dict[str, Any]:
    """Write the vocabulary and the merges of a BartTokenizer, and return its settings."""
    ids = {piece: i for i, piece in enumerate(_shown(stock, tokenizer))}
    write_json(folder / "vocab.json", {piece.text: i for piece, i in ids.items() if piece.kind != USER_DEFINED})
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges_of(tokenizer.model))]
    write_bytes(folder / "merges.txt", "".join(f"{line}\n" for line in lines).encode())
    flags = {"special": False, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    added = {i: {"content": text_of(piece.text), **flags} for piece, i in ids.items() if piece.kind == USER_DEFINED}
    return {
        "add_prefix_space": is_set(ImportedModel.FromString(tokenizer.model).normalizer_spec, "add_dummy_prefix"),
        **({"added_tokens_decoder": added} if added else {}),
        **_marks(ids),
    }


def _write_fast(stock: StockTokenizer, tokenizer: Tokenizer, folder: Path) -> dict[str, Any]:
    """Write tokenizer.json, and return the settings of its special tokens."""
    pieces = _shown(stock, tokenizer)
    prefix = tokenizer.prefixes.src if stock.name == FAST else ()
    write_json(folder / FILE, fast_content(tokenizer.model, pieces, prefix))
    tags = {"additional_special_tokens": [*stock.tags.values()]} if stock.tags else {}
    return {**_marks(pieces), **tags}


def _marks(pieces: Iterable[Piece]) -> dict[str, str]:
    """Return the special tokens of a class besides those that all classes have."""
    mask = {"mask_token": _MASK} if any(piece.text == _MASK for piece in pieces) else {}
    return {"sep_token": SPECIAL[EOS], "cls_token": SPECIAL[BOS], **mask}


def _shown(stock: StockTokenizer, tokenizer: Tokenizer) -> list[Piece]:
    """Return the pieces that the files of a class have, in the order of its ids."""
    tags = {tag(code): token for code, token in stock.tags.items()}
    pieces = read_model(tokenizer.model).pieces
    in_order = [pieces[i] for i in sorted(range(len(pieces)), key=stock.src_ids.__getitem__)]
    return [Piece(tags.get(each.piece, each.piece), each.score, each.type) for each in in_order if not _is_hidden(each)]
