"""Encoding of text as token ids with SentencePiece (Kudo and Richardson, 2018), and decoding.

A placeholder such as {name} is a single token.
"""

import difflib
import hashlib
import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from itertools import repeat
from typing import Any, NamedTuple

from diglot.data.byte_level import ByteLevelBpe, is_byte_level
from diglot.data.capitals import CAPITALS, is_in_capitals
from diglot.data.forms import comparable
from diglot.data.language import find_language
from diglot.data.line_sample import Side
from diglot.data.pieces import (
    BLANK_MARK,
    BOS,
    EOS,
    PAD,
    SYMBOL_TYPES,
    UNK,
    is_composing,
    load_processor,
    model_type_of,
    tag,
)
from diglot.data.placeholders import Placeholders
from diglot.data.sampling import Sampler
from diglot.data.special_ids import SpecialIds
from diglot.errors import UserError

# Slots are private-use characters that replace the placeholders of a line before it is encoded: the first placeholder
# of the source line becomes the first slot, and so on. So the model learns where to put a placeholder, not how to spell
# it, and can also translate placeholders that are not in the training text.
SLOTS = tuple(chr(0xE000 + i) for i in range(8))
_SLOT = re.compile(f"[{SLOTS[0]}-{SLOTS[-1]}]")
MAX_PREFIX = 8  # entries of a prefix
_LANGUAGES = ("src_lang", "tgt_lang")  # entries of a prefix that stand for tags
BOTH: tuple[Side, Side] = ("src", "tgt")


class Prefixes(NamedTuple):
    """What precedes each source and each target.

    "src_lang" and "tgt_lang" stand for the tags of the two languages, if the tokenizer has languages. Anything else is
    a control piece, such as <s>.

    Attributes:
        src: what precedes a source.
        tgt: what precedes a target. It is part of the target: training predicts it, and a search is forced to begin
            with it.
    """

    src: tuple[str, ...] = ("tgt_lang",)
    tgt: tuple[str, ...] = ()


class Encoded(NamedTuple):
    """A line as token ids, without <s> and </s>.

    Attributes:
        ids: ids of the prefix (see `Prefixes`), such as a language tag, id of the mark of a source in capitals (see
            `diglot.data.capitals`), if it is one, and ids of the pieces.
        placeholders: placeholders of the line, in the order of their slots.
        is_blank: whether the line has only whitespace, or only characters that the tokenizer's normalisation removes.
        tgt_prefix: ids with which the target of this line begins; see `Prefixes`.
    """

    ids: list[int]
    placeholders: tuple[str, ...]
    is_blank: bool = False
    tgt_prefix: tuple[int, ...] = ()


class Tokenizer:
    """Tokenizer of both sides, with one SentencePiece model for both or one for each.

    Args:
        model: content of a SentencePiece .model file with <pad>, <unk> and </s> as ids 0, 1 and 3 (see
            `diglot.data.pieces.adopt`). If it has the control piece <capitals>, a source in capitals is encoded in
            lower case after this piece.
        placeholder: regular expression of placeholders, such as {name}; None: there are none.
        tgt_model: model file of the target; None: `model`. Its bos piece is the start of a target: <s> with id 2, or,
            in models of other origin, <pad> or </s>.
        languages: codes of the languages that have tags; empty if there is only one target language.
        prefixes: what precedes sources and targets.

    Raises:
        UserError: a model is invalid or lacks a piece that is needed.
    """

    pad_id, unk_id, eos_id = PAD, UNK, EOS

    def __init__(
        self,
        model: bytes,
        placeholder: str | None,
        tgt_model: bytes | None = None,
        languages: Sequence[str] = (),
        prefixes: Prefixes = Prefixes(),  # noqa: B008 - it is immutable
    ) -> None:
        self.model, self.placeholder, self.tgt_model, self.languages = model, placeholder, tgt_model, tuple(languages)
        self.prefixes = prefixes
        self._src = _SideModel(model, has_slots=placeholder is not None)
        self._tgt = self._src if tgt_model is None else _SideModel(tgt_model, has_slots=placeholder is not None)
        processor = self._src.processor
        capitals_id = processor.piece_to_id(CAPITALS)
        self._capitals_ids = [capitals_id] if processor.is_control(capitals_id) else []
        self._prefix_ids = {"src": self._src.prefix_ids(prefixes.src, self.languages)}
        self._prefix_ids["tgt"] = self._tgt.prefix_ids(prefixes.tgt, self.languages)
        if self.bos_id in self._prefix_ids["tgt"].values():
            raise UserError("the prefix of a target must not contain its start")
        self._find_language = cache(lambda code: find_language(code, self.languages))
        self._placeholders = Placeholders(placeholder) if placeholder else None
        self._placeholders_and_slots = Placeholders(placeholder, _SLOT.pattern) if placeholder else None

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self.model, self.placeholder, self.tgt_model, self.languages, self.prefixes)

    def extended(self, model: bytes, tgt_model: bytes | None, languages: Sequence[str]) -> "Tokenizer":
        """Return a tokenizer like this one with other model files and languages."""
        return Tokenizer(model, self.placeholder, tgt_model, languages, self.prefixes)

    @property
    def is_joint(self) -> bool:
        """Whether both sides share one vocabulary: an id is the same piece on both, even if they have two models."""
        if self._src is self._tgt:
            return True
        sizes = self.src_vocab_size, self.tgt_vocab_size
        return sizes[0] == sizes[1] and self.pieces(range(sizes[0]), "src") == self.pieces(range(sizes[1]), "tgt")

    @property
    def marks_capitals(self) -> bool:
        """Whether a source in capitals is encoded in lower case after the piece <capitals>."""
        return bool(self._capitals_ids)

    @property
    def bos_id(self) -> int:
        """The id with which a target starts."""
        return self._tgt.bos_id

    @property
    def special(self) -> SpecialIds:
        """Ids of the special tokens."""
        return SpecialIds(self.pad_id, self.unk_id, self.bos_id, self.eos_id)

    @property
    def vocab_sizes(self) -> dict[str, int]:
        """Sizes of both vocabularies, by the names of a model's arguments."""
        return {"src_vocab_size": self.src_vocab_size, "tgt_vocab_size": self.tgt_vocab_size}

    @property
    def src_vocab_size(self) -> int:
        return self._src.processor.get_piece_size()

    @property
    def tgt_vocab_size(self) -> int:
        return self._tgt.processor.get_piece_size()

    def digest(self) -> str:
        """Return a hash of everything that determines the ids of a text."""
        options: list[Any] = [self.placeholder, self.languages]
        if self.prefixes != Prefixes():  # caches from before the prefixes stay valid
            options.append(tuple(self.prefixes))
        parts = [self.model, self.tgt_model or b"", repr(tuple(options)).encode()]
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()

    def pieces(self, ids: Sequence[int], side: Side) -> list[str]:
        """Return the piece of each id."""
        return (self._src if side == "src" else self._tgt).processor.id_to_piece(list(ids))

    @property
    def n_tgt_prefix(self) -> int:
        """Number of ids that precede each target, if both of its languages are given."""
        return sum(name not in _LANGUAGES or bool(self.languages) for name in self.prefixes.tgt)

    @property
    def reads_src_lang(self) -> bool:
        """Whether the ids of a pair depend on the source language."""
        return bool(self.languages) and "src_lang" in self.prefixes.src + self.prefixes.tgt

    def find_language(self, code: str) -> str | None:
        """Return the code in `languages` of the language that a code means: deu_Latn for de; None if there is none."""
        found: str | None = self._find_language(code)
        return found

    def encode(self, lines: Sequence[str], tgt_lang: str | None = None, src_lang: str | None = None) -> list[Encoded]:
        """Encode source lines.

        Args:
            lines: lines without line breaks.
            tgt_lang: code of the language to translate into, which selects its tag; None: no tag.
            src_lang: code of the language of the lines, in the same way.

        Raises:
            UserError: the tokenizer has tags, but none for this language.
        """
        texts, placeholders = list(lines), [tuple[str, ...]()] * len(lines)
        for i in self._lines_with_placeholders(lines):
            names: list[str] = []
            texts[i] = self._insert_slots(lines[i], names, may_add=True)
            placeholders[i] = tuple(names)
        src_prefix, tgt_prefix = (self._prefix(side, tgt_lang, src_lang) for side in BOTH)
        in_capitals = self._lower(texts)
        sequences = self._src.encode(texts)
        blank = list(map(is_blank, lines, sequences))
        for i in in_capitals:
            sequences[i] = self._capitals_ids + sequences[i]
        if src_prefix:
            sequences = [src_prefix + ids for ids in sequences]
        return list(map(Encoded, sequences, placeholders, blank, repeat(tuple(tgt_prefix))))

    def encode_targets(self, lines: Sequence[str], sources: Sequence[Encoded]) -> list[list[int]]:
        """Encode target lines, which begin with their prefix (see `Prefixes`).

        A placeholder has the same slot as in the source line.

        Args:
            lines: target lines without line breaks.
            sources: their encoded sources.
        """
        texts = list(lines)
        for i in self._lines_with_placeholders(lines):
            texts[i] = self._insert_slots(lines[i], list(sources[i].placeholders), may_add=False)
        return [[*source.tgt_prefix, *ids] for source, ids in zip(sources, self._tgt.encode(texts), strict=True)]

    def _prefix(self, side: Side, tgt_lang: str | None, src_lang: str | None) -> list[int]:
        """Return the ids of the prefix of a side, without the tag of a language that is None."""
        codes, ids = {"src_lang": src_lang, "tgt_lang": tgt_lang}, list[int]()
        for name in getattr(self.prefixes, side):
            if name not in codes:
                ids.append(self._prefix_ids[side][name])
            elif self.languages and (code := codes[name]) is not None:
                language = self.find_language(code)
                if language is None:
                    kind = "target language" if name == "tgt_lang" else "source language"
                    raise UserError(f"{code} is not a {kind} of this model, which has {listed(self.languages)}")
                ids.append(self._prefix_ids[side][language])
        return ids

    def _lower(self, texts: list[str]) -> list[int]:
        """Put the texts in capitals in lower case, in place, and return their indices."""
        if not self._capitals_ids:
            return []
        indices = [i for i, text in enumerate(texts) if is_in_capitals(text)]
        for i in indices:
            texts[i] = texts[i].lower()
        return indices

    def samplers(self, alpha: float) -> tuple[Sampler, Sampler]:
        """Return a sampler of random segmentations for each side; see `Sampling`."""
        src = Sampler(self.model, alpha)
        return src, src if self.tgt_model is None else Sampler(self.tgt_model, alpha)

    def decode(self, ids: Sequence[int], placeholders: Sequence[str] = (), side: Side = "tgt") -> str:
        """Decode ids to a line of text.

        A slot without a placeholder is dropped. A model of characters or words writes an unknown symbol as one visible
        sign. A source that was marked as one in capitals is returned in upper case.

        Args:
            ids: token ids.
            placeholders: placeholders of the source line, in the order of their slots.
            side: side of the ids.
        """
        text = (self._src if side == "src" else self._tgt).decode(list(ids))
        if side == "src" and any(i in self._capitals_ids for i in ids):
            text = text.upper()
        if not self._placeholders_and_slots:
            return text
        # Replace all slots at once, because a placeholder may itself contain the character of a slot.
        names = dict(zip(SLOTS, placeholders))
        return _SLOT.sub(lambda slot: names.get(slot.group(), ""), text)

    def find_placeholders(self, line: str) -> list[str]:
        """Return the placeholders in a line."""
        return self._placeholders.find(line) if self._placeholders else []

    def _lines_with_placeholders(self, lines: Sequence[str]) -> list[int]:
        """Return the indices of the lines that contain placeholders or slots."""
        if not self._placeholders_and_slots:
            return []
        return [i for i, line in enumerate(lines) if self._placeholders_and_slots.occurs_in(line)]

    def _insert_slots(self, line: str, names: list[str], may_add: bool) -> str:
        """Return a line with its placeholders replaced by slots.

        Args:
            line: the line.
            names: placeholders that have a slot, in the order of the slots.
            may_add: whether other placeholders are added to `names`. Otherwise, a placeholder without a slot gets that
                of a name that differs only in Unicode form (see `comparable`), if there is one.
        """

        def slot_of(name: str) -> str:
            if name in names:
                return SLOTS[names.index(name)]
            if may_add and len(names) < len(SLOTS):
                names.append(name)
                return SLOTS[len(names) - 1]
            known_names = [] if may_add else list(map(comparable, names))
            if comparable(name) in known_names:
                return SLOTS[known_names.index(comparable(name))]
            return "\N{REPLACEMENT CHARACTER}" if name in SLOTS else name

        assert self._placeholders_and_slots
        return self._placeholders_and_slots.replace(line, slot_of)


def is_blank(line: str, ids: Sequence[int], n_prefix: int = 0) -> bool:
    """Return whether a line is blank (see `Encoded`), given the ids of its pieces after a prefix of `n_prefix` ids."""
    return len(ids) <= n_prefix or not line.strip()


def listed(languages: Sequence[str]) -> str:
    """Return languages as text for a message, the first ten if there are more."""
    remainder = f" and {len(languages) - 10} more" if len(languages) > 10 else ""
    return ", ".join(languages[:10]) + remainder


def to_select(key: str, languages: Sequence[str], code: str | None = None) -> str:
    """Return which languages a model has tags for, and what to type to select one, as the end of a message.

    Args:
        key: src_lang or tgt_lang.
        languages: the languages.
        code: the language that was requested; the example is the one that is spelled most alike.
    """
    nearest = [*difflib.get_close_matches(code or "", languages, 1), languages[0]][0]
    return f"its languages are {listed(languages)}: type one of them, such as {key}={nearest}"


class _SideModel:
    """SentencePiece model of a side.

    Args:
        model: content of a model file; see `Tokenizer`.
        has_slots: whether the model must have pieces for slots.

    Raises:
        UserError: the model is invalid, or lacks a piece.
    """

    def __init__(self, model: bytes, has_slots: bool) -> None:
        self.processor = load_processor(model)
        self._composes, self._type = is_composing(model), model_type_of(model)
        processor = self.processor
        self._byte_level = ByteLevelBpe(processor, model) if is_byte_level(model) else None
        ids = [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()]
        self.bos_id = ids[2]
        if self.bos_id not in (PAD, BOS, EOS) or [*ids[:2], BOS, ids[3]] != [PAD, UNK, BOS, EOS]:
            raise UserError(f"the SentencePiece model has pad, unk, bos, eos at {ids}, not at {[PAD, UNK, BOS, EOS]}")
        if has_slots and any(processor.piece_to_id(slot) == UNK for slot in SLOTS):
            raise UserError("the SentencePiece model has no pieces for placeholders")

    def prefix_ids(self, prefix: Sequence[str], languages: Sequence[str]) -> dict[str, int]:
        """Return the ids of what a prefix may contain: its pieces, and the tags of languages by their codes.

        Raises:
            UserError: the model has no such control piece, the piece pads or ends a sequence, or the prefix is too
                long.
        """
        if len(prefix) > MAX_PREFIX:
            raise UserError(f"a prefix has {len(prefix)} entries; at most {MAX_PREFIX} are possible")
        pieces = {name: name for name in prefix if name not in _LANGUAGES}
        tags = {language: tag(language) for language in languages if set(prefix) & {*_LANGUAGES}}
        ids = {name: self.processor.piece_to_id(piece) for name, piece in {**tags, **pieces}.items()}
        for name, i in ids.items():
            if not self.processor.is_control(i):
                kind, piece = ("tag", tags[name]) if name in tags else ("control piece", name)
                raise UserError(f"the SentencePiece model has no {kind} {piece}")
            if i in (PAD, EOS):
                raise UserError(f"a prefix must not contain {name}, which pads or ends a sequence")
        return ids

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of texts."""
        if self._byte_level is not None:
            return self._byte_level.encode(texts)
        if self._composes:
            texts = [unicodedata.normalize("NFC", text) for text in texts]
        if self._type == "word":
            texts = [" ".join(text.split()) for text in texts]
        sequences = self.processor.encode(texts, num_threads=1)  # more threads cost more time than they save
        if self._type not in SYMBOL_TYPES:
            return sequences
        return [self._expand_unknown(text, ids) if UNK in ids else ids for text, ids in zip(texts, sequences)]

    def _expand_unknown(self, text: str, ids: list[int]) -> list[int]:
        """Return the ids of a text with one <unk> per unknown symbol; SentencePiece has one per run of such symbols."""
        pieces = self.processor.encode(text, out_type=str)
        counts = [piece.count(BLANK_MARK) if self._type == "word" else len(piece) for piece in pieces]
        return [i for i, count in zip(ids, counts, strict=True) for _ in range(max(1, count) if i == UNK else 1)]

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids. A line break, which a model can spell with byte tokens, becomes a space."""
        decode = self.processor.decode if self._byte_level is None else self._byte_level.decode
        text: str = decode(ids).replace("\n", " ")
        return text.lstrip(" ") if self._type == "word" else text  # the text of an unknown word begins with a space
