"""Tokenizers of Marian, Pegasus, T5, mT5, M2M100, NLLB, mBART-50 and BART folders as diglot's tokenizer.

A folder has a SentencePiece model for each side or for both, and other files that number its pieces. A folder that the
library transformers has written may have only tokenizer.json (see `diglot.huggingface.fast`).

Text is segmented as by SentencePiece itself. Not followed are: special tokens that are spelt in text (they are text
here), pieces that vocab.json lacks (text is segmented into others, where Marian writes <unk>), a piece for spaces at
the end of a text (SentencePiece removes them, and some classes of transformers 5 do not), and the normalisation of
punctuation that some versions of MarianTokenizer offer but do not apply by themselves.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from diglot.data.byte_level import spelt
from diglot.data.pieces import BOS, CONTROL, EOS, PAD, UNKNOWN, USER_DEFINED, ImportedModel, load_processor
from diglot.data.tokenizer import Prefixes, Tokenizer
from diglot.errors import UserError
from diglot.huggingface.fast import FILE, added_pieces, read_fast
from diglot.huggingface.languages import LANGUAGE, M2M100, MBART50, WMT21
from diglot.huggingface.merges import byte_level_vocabulary, merges_of_lines
from diglot.huggingface.tokenizer_settings import check_ids, check_settings, is_integer, number
from diglot.huggingface.vocabulary import (
    OF_TEXT,
    Piece,
    SpecialNames,
    Vocabulary,
    rows_of,
    sentencepiece_model,
    with_text,
)
from diglot.system.console import warn
from diglot.system.quoting import printable

# What precedes sources and targets, by the model_type of config.json. Other types have a tag of the target language
# before the source, or nothing.
_PREFIXES = {
    "m2m_100": Prefixes(("src_lang",), ("tgt_lang",)),
    "mbart": Prefixes(("src_lang",), ("tgt_lang",)),
    "bart": Prefixes(("<s>",), ("<s>",)),
}
_SETTINGS = "tokenizer_config.json"
_START_WITH_EOS = ("m2m_100", "mbart", "bart")  # types whose targets start with </s> if config.json does not say
METADATA = "diglot.json"  # file of an export of diglot that describes it
_FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")  # the first pieces of M2M100, NLLB and mBART


class ImportedTokenizer(NamedTuple):
    """A tokenizer from a folder.

    Attributes:
        tokenizer: the tokenizer.
        src_rows: the id in the folder of each source id.
        tgt_rows: the id in the folder of each target id.
    """

    tokenizer: Tokenizer
    src_rows: list[int]
    tgt_rows: list[int]


def read_tokenizer(folder: Path, config: dict[str, Any]) -> ImportedTokenizer:
    """Read the tokenizer of a Hugging Face folder.

    Args:
        folder: the folder.
        config: content of its config.json.

    Raises:
        UserError: there is no tokenizer, or diglot cannot hold it; the message names the file or the reason.
    """
    try:
        return _Reader(folder, config).read()
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None
    except OSError as error:
        raise UserError(f"{folder}: {error.filename or 'its tokenizer'}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        reason = printable(f"{type(error).__name__}: {error}"[:200])
        raise UserError(f"{folder}: the files of its tokenizer have an unexpected content ({reason})") from None


class _Reader:
    """Reader of a folder; see `read_tokenizer`.

    Attributes:
        settings: content of tokenizer_config.json and special_tokens_map.json.
        fast: content of tokenizer.json; empty if there is none.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder, self.config, self.model_type = folder, config, str(config.get("model_type"))
        self.settings: dict[str, Any] = {}
        for name in ("special_tokens_map.json", _SETTINGS):
            content = self._json(name)
            check_settings(name, content)
            self.settings |= content
        self.fast = self._json(FILE)

    def read(self) -> ImportedTokenizer:
        """Return the tokenizer."""
        self._refuse_other_order()
        src, tgt = self._vocabularies()
        if src.is_byte_level and self.model_type != "bart":
            raise UserError(
                f"its tokenizer is a byte-level BPE, which is read only for model_type=bart, not {self.model_type}"
            )
        for vocabulary in (src, tgt):
            self._add_tokens(vocabulary)
        names, size = self._special_names(), self._size()
        src_rows = rows_of(src, names, size)
        tgt_rows = src_rows
        if src.ids() != tgt.ids():
            tgt_rows = rows_of(tgt, names, int(self.config.get("decoder_vocab_size") or size))
        start = self._start(tgt, names, tgt_rows)
        models = [sentencepiece_model(src, src_rows, start), sentencepiece_model(tgt, tgt_rows, start)]
        prefixes = self._prefixes()
        if prefixes == _PREFIXES["bart"]:
            has_bos = src.ids().get(names.bos) == src_rows[BOS]
            prefix = (load_processor(models[0]).id_to_piece(BOS),) if has_bos else ()
            prefixes = Prefixes(prefix, () if start == BOS else prefix)
        elif prefixes.tgt and not src.languages:
            raise UserError("no file lists its language tokens; special_tokens_map.json has them in most folders")
        tgt_model = None if models[0] == models[1] else models[1]
        return ImportedTokenizer(
            Tokenizer(models[0], None, tgt_model, tuple(src.languages), prefixes), src_rows, tgt_rows
        )

    def _prefixes(self) -> Prefixes:
        """Return what precedes sources and targets: in an export of diglot, its prefixes, or else those of the type.

        A MarianTokenizer of an export serves all types of models.
        """
        about = self._json(METADATA)
        if about.get("format") != "huggingface":
            return _PREFIXES.get(self.model_type, Prefixes())
        return Prefixes(*(tuple(map(str, about["prefixes"][side])) for side in Prefixes._fields))

    def _size(self) -> int:
        """Return the number of rows of the embedding matrix."""
        size = self.config.get("vocab_size")
        if not is_integer(size):
            raise UserError(f"vocab_size={'null' if size is None else size} in config.json: must be an integer")
        return int(size)  # type: ignore[arg-type]

    def _refuse_other_order(self) -> None:
        """Refuse the order of mBART-cc25, which ends a source with its language and starts a target with its own."""
        name = str(self.settings.get("tokenizer_class") or self.config.get("tokenizer_class") or "MBartTokenizer")
        if self.model_type == "mbart" and name.removesuffix("Fast") == "MBartTokenizer":
            raise UserError(
                "its tokenizer is that of mBART-cc25, which ends a source with the tag of its language, and starts a "
                "target with its tag instead of </s>; the folders of mBART-50 fit"
            )

    def _vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """Return the vocabularies of source and target."""
        if self._has("source.spm", "target.spm", "vocab.json"):
            return self._marian()
        if self._has("sentencepiece.bpe.model", "vocab.json"):
            both = self._m2m100()
        elif self._has("sentencepiece.bpe.model") and self.model_type in ("m2m_100", "mbart"):
            both = self._fairseq()
        elif self._has("spiece.model"):
            both = self._pegasus() if "pegasus" in self.model_type else self._t5()
        elif self.fast:
            with _unexpected(FILE):
                both = read_fast(self.fast)
        elif self._has("vocab.json", "merges.txt"):
            both = self._byte_level()
        else:
            raise UserError(
                "it has no tokenizer: needed are source.spm, target.spm and vocab.json, or sentencepiece.bpe.model, or "
                f"spiece.model, or {FILE}"
            )
        return both, both

    def _marian(self) -> tuple[Vocabulary, Vocabulary]:
        src_ids, is_separate = self._ids("vocab.json"), bool(self.settings.get("separate_vocabs"))
        tgt_ids = self._ids("target_vocab.json") if is_separate else src_ids
        return self._with_ids("source.spm", src_ids), self._with_ids("target.spm", tgt_ids)

    def _m2m100(self) -> Vocabulary:
        ids = self._ids("vocab.json")
        vocabulary = self._with_ids("sentencepiece.bpe.model", ids)
        codes = WMT21 if self.settings.get("language_codes") == "wmt21" else M2M100
        tags = [f"__{code}__" for code in codes if f"__{code}__" not in ids]
        vocabulary.pieces |= {len(ids) + number: Piece(text) for number, text in enumerate(tags)}
        return vocabulary

    def _fairseq(self) -> Vocabulary:
        """Return the vocabulary of NLLB or mBART-50, whose ids are one more than those of the SentencePiece model."""
        pieces, options = self._sentencepiece("sentencepiece.bpe.model")
        found = dict(enumerate(map(Piece, _FAIRSEQ))) | {i + 1: piece for i, piece in pieces.items() if i >= 3}
        known = {piece.text for piece in found.values()} | {token["content"] for token in self._tokens_with_ids()}
        lists = [self.settings.get(key) or [] for key in ("additional_special_tokens", "extra_special_tokens")]
        names = [_text(name) for name in next(filter(None, lists), [])]
        tags = [name for name in names if name not in known and LANGUAGE.fullmatch(name)]
        if self.model_type == "mbart" and not any(map(LANGUAGE.fullmatch, {*known, *tags})):
            tags = list(MBART50)
        mask = [_text(self.settings.get("mask_token") or "<mask>")] if tags else []
        found |= {len(pieces) + 1 + number: Piece(name) for number, name in enumerate(tags + mask)}
        return Vocabulary(found, options, {})

    def _pegasus(self) -> Vocabulary:
        pieces, options = self._sentencepiece("spiece.model")
        offset = number(_SETTINGS, self.settings, "offset", 103, self._size())
        if not offset:
            return Vocabulary(pieces, options, {})
        marks = [_text(self.settings.get(key, name)) for key, name in _PEGASUS_MARKS.items()]
        specials = ["<pad>", "</s>", *marks, *(f"<unk_{i}>" for i in range(2, offset))][: offset + 2]
        found = dict(enumerate(map(Piece, specials)))
        return Vocabulary(found | {i + offset: piece for i, piece in pieces.items() if i >= 2}, options, {})

    def _t5(self) -> Vocabulary:
        pieces, options = self._sentencepiece("spiece.model")
        last = len(pieces) + number(_SETTINGS, self.settings, "extra_ids", 100, self._size()) - 1
        sentinels = {i: Piece(f"<extra_id_{last - i}>") for i in range(len(pieces), last + 1)}
        return Vocabulary(pieces | sentinels, options, {})

    def _byte_level(self) -> Vocabulary:
        merges = merges_of_lines((self.folder / "merges.txt").read_text(encoding="utf-8").split("\n"))
        return byte_level_vocabulary(self._ids("vocab.json"), merges, bool(self.settings.get("add_prefix_space")))

    def _with_ids(self, name: str, ids: dict[str, int]) -> Vocabulary:
        """Return the vocabulary of a SentencePiece model whose pieces another file numbers."""
        pieces, options = self._sentencepiece(name)
        found, n_missing = with_text({piece.text: piece for piece in pieces.values()}, ids)
        if n_missing:
            warn(
                f"{printable(self.folder / name)}: {n_missing:,} of {len(pieces):,} pieces are not in the vocabulary: "
                "text is segmented into the others, where transformers would write <unk>"
            )
        return Vocabulary(found, options, {})

    def _add_tokens(self, vocabulary: Vocabulary) -> None:
        """Add the tokens that other files number, and find the tags of languages."""
        if vocabulary.languages:  # of both sides, done for the source
            return
        for i, piece in added_pieces(self._tokens_with_ids()).items():
            if vocabulary.is_byte_level and piece.kind == USER_DEFINED:
                piece = piece._replace(text=spelt(piece.text))
            if vocabulary.pieces.get(i, piece).text == piece.text and vocabulary.pieces.get(i, piece).kind != UNKNOWN:
                vocabulary.pieces[i] = piece if piece.kind == CONTROL else vocabulary.pieces.get(i, piece)
        for i, piece in sorted(vocabulary.pieces.items()):
            if piece.kind not in OF_TEXT and (found := LANGUAGE.fullmatch(piece.text)):
                vocabulary.languages[next(filter(None, found.groups()))] = i

    def _tokens_with_ids(self) -> list[dict[str, Any]]:
        """Return the added tokens of all files that number them."""
        tokens: list[dict[str, Any]] = list(self.fast.get("added_tokens") or [])
        tokens += [{"id": i, **token} for i, token in (self.settings.get("added_tokens_decoder") or {}).items()]
        numbered = self._json("added_tokens.json")
        check_ids("added_tokens.json", numbered)
        return tokens + [{"id": i, "content": text} for text, i in numbered.items()]

    def _special_names(self) -> SpecialNames:
        """Return the texts of the special pieces."""
        default = SpecialNames()._asdict()
        return SpecialNames(*(_text(self.settings.get(f"{key}_token") or name) for key, name in default.items()))

    def _start(self, vocabulary: Vocabulary, names: SpecialNames, rows: list[int]) -> int:
        """Return diglot's id of the start of a target.

        Raises:
            UserError: it is not a special piece.
        """
        given = self.config.get("decoder_start_token_id")
        if given is None:
            given = self._json("generation_config.json").get("decoder_start_token_id")
        if given is None:
            return EOS if self.model_type in _START_WITH_EOS else PAD
        starts = [PAD, EOS, *([BOS] if vocabulary.ids().get(names.bos) == rows[BOS] else [])]
        for start in starts:
            if is_integer(given) and rows[start] == given:
                return start
        if not is_integer(given):
            raise UserError(f"decoder_start_token_id={printable(str(given)[:60])} in config.json: must be an integer")
        piece = vocabulary.pieces.get(given, Piece(f"id {given}")).text
        raise UserError(f"decoder_start_token_id={given} in config.json is {piece!r}: it must be <pad>, <s> or </s>")

    def _sentencepiece(self, name: str) -> tuple[dict[int, Piece], Any]:
        """Return the pieces of a SentencePiece model by their ids in it, and its parsed content."""
        content = (self.folder / name).read_bytes()
        try:
            load_processor(content)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
        options = ImportedModel.FromString(content)
        return {i: Piece(piece.piece, piece.score, piece.type) for i, piece in enumerate(options.pieces)}, options

    def _ids(self, name: str) -> dict[str, int]:
        """Return the ids of pieces in a file such as vocab.json.

        Raises:
            UserError: it does not number its pieces from 0.
        """
        ids = self._json(name)
        check_ids(name, ids)
        if sorted(ids.values()) != list(range(len(ids))):
            raise UserError(f"{name} does not number its {len(ids):,} pieces from 0 to {len(ids) - 1:,}")
        return ids

    def _has(self, *names: str) -> bool:
        return all((self.folder / name).is_file() for name in names)

    def _json(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file; an empty dictionary if there is no such file."""
        if not self._has(name):
            return {}
        try:
            content = json.loads((self.folder / name).read_bytes())
        except ValueError as error:
            raise UserError(f"{name}: is not JSON ({printable(error)})") from None
        if not isinstance(content, dict):
            raise UserError(f"{name}: is not a JSON object")
        return content


@contextmanager
def _unexpected(name: str) -> Iterator[None]:
    """Let errors that the content of a file causes name the file."""
    try:
        yield
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        reason = printable(f"{type(error).__name__}: {error}"[:200])
        raise UserError(f"{name}: its content is not that of a tokenizer ({reason})") from None


_PEGASUS_MARKS = {"mask_token_sent": "<mask_1>", "mask_token": "<mask_2>"}


def _text(token: str | Mapping[str, Any]) -> str:
    """Return the text of a token, which some files have with its properties."""
    return str(token["content"]) if isinstance(token, Mapping) else str(token)
