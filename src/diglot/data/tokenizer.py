"""Sources of a run's tokenizer: training with SentencePiece (Kudo and Richardson, 2018), and existing models.

The tokenizer itself is in diglot.data.encoding.
"""

import hashlib
import io
import json
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import sentencepiece

from diglot.data.capitals import CAPITALS, is_in_capitals
from diglot.data.encoding import BOTH, SLOTS, Encoded, Prefixes, Tokenizer, is_blank, listed, to_select
from diglot.data.forms import composing_rules
from diglot.data.line_sample import Side, draw_lines
from diglot.data.pieces import (
    BLANK_MARK,
    BOS,
    EOS,
    PAD,
    SYMBOL_TYPES,
    UNK,
    adopt,
    load_processor,
    mark_composing,
    tag,
)
from diglot.data.placeholders import Placeholders, check_placeholder
from diglot.data.sampling import Sampling
from diglot.data.text import Parallel, read_lines, write_bytes, write_lines
from diglot.errors import UserError
from diglot.system.atomic import scratch_folder

# Names of other modules that belong to this one for its users.
__all__ = [
    "BOS",
    "BOTH",
    "EOS",
    "PAD",
    "SLOTS",
    "UNK",
    "Encoded",
    "Prefixes",
    "Side",
    "Tokenizer",
    "TokenizerFiles",
    "TokenizerPerSide",
    "TokenizerSource",
    "TokenizerTrainer",
    "is_blank",
    "listed",
    "to_select",
]

# SentencePiece's trainer skips lines of more bytes than this, and lines with its mark for unknown characters.
MAX_LINE_BYTES = 4192
_UNKNOWN_MARK = "\N{LOWER FIVE EIGHTHS BLOCK}"
_WORD_CHARACTER = re.compile(r"\w")  # no normalisation removes these characters
_FORMAT = 2  # increment when the same text and options give another model
_UNKNOWN_SURFACE = "\N{DOUBLE QUESTION MARK}"  # text that such a model writes for an unknown symbol

Normalisation = Literal["identity", "nfc", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"]
NORMALISATIONS: tuple[Normalisation, ...] = get_args(Normalisation)


class TokenizerSource(Protocol):
    """Interface of sources of a run's tokenizer.

    Attributes:
        is_joint: whether both sides share one vocabulary.
        placeholder: regular expression of placeholders; see `Tokenizer`.
        sampling: options of the random segmentation of training text.
        tags_sources: whether the languages of sources need tags as well as those of targets.
    """

    is_joint: bool
    placeholder: str | None
    sampling: Sampling
    tags_sources: bool = False

    def get(self, text: Parallel, cache_dir: Path, languages: Sequence[str] = ()) -> tuple[Tokenizer, str]:
        """Return the tokenizer, and a one-line note for the user.

        Args:
            text: text to train on.
            cache_dir: folder for trained models.
            languages: codes of the languages that need a tag; see `Tokenizer`.
        """


class _TooLargeError(UserError):
    """Error about a vocabulary size that a text cannot fill.

    Args:
        key: config key of the size.
        size: value of the key.
        limit: greatest size that the text can fill.
    """

    def __init__(self, key: str, size: int, limit: int) -> None:
        super().__init__(f"{key}={size} is too large for this text: at most {limit}")
        self.limit = limit


def _cache_path(cache_dir: Path, key: list[Any]) -> Path:
    """Return the path of a trained model in the cache."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:20]
    return cache_dir / "tokenizers" / f"{digest}.model"


class TokenizerTrainer(TokenizerSource):
    """Tokenizer source that trains a tokenizer on the training text.

    Args:
        model_type: unigram (Kudo, 2018) or bpe (Sennrich et al., 2016) for subwords; char for characters (Unicode code
            points, of which a space is one); word for words, which whitespace separates.
        vocab_size: number of pieces, including special tokens and the 256 byte tokens of subword models, but not the
            tags of languages. For characters and words, the most frequent ones get a piece, and the others are unknown.
            None: all characters or words of the text get a piece.
        must_fit: whether a size that the text cannot fill is an error; otherwise the largest possible size is used.
            None: it is an error. (In a config, None means: it is an error if the user typed the size.)
        joint: whether both sides share one vocabulary; otherwise each has its own.
        tgt_vocab_size: number of pieces of a separate target vocabulary; None: that of the source.
        character_coverage: share of the text's characters that get a piece. The others are spelt in bytes, or are
            unknown if the model has no bytes. It does not apply to words.
        normalisation: rule that is applied before encoding and stored in the model file. identity leaves text as it is,
            nfc composes it, and the others are SentencePiece's. With nfc, diglot also composes text before the model
            reads it, because the rules in the file (see diglot.data.forms) lack marks in some rare orders.
        placeholder: regular expression of placeholders; see `Tokenizer`.
        capitals: mark: a source in capitals is encoded in lower case after the piece <capitals> (see
            `diglot.data.capitals`). keep: it is encoded as it is.
        symbols: regular expression of texts that become one piece each among characters, such as the feature PST. Its
            matches in the training text are collected. The piece of a symbol matches wherever its text occurs. None:
            there are none.
        sample_size: greatest number of lines to train on, drawn at random.
        sample_characters: greatest number of characters of these lines in total, which limits the memory.
        seed: seed of the draw of lines, and of random segmentation.
        samples: number of randomly segmented versions of the text; see `Sampling`.
        alpha: amount of randomness; see `Sampling`.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        *,
        model_type: Literal["unigram", "bpe", "char", "word"],
        vocab_size: int | None,
        must_fit: bool | None = None,
        character_coverage: float = 0.9998,
        normalisation: Normalisation = "identity",
        placeholder: str | None = None,
        capitals: Literal["keep", "mark"] = "keep",
        symbols: str | None = None,
        joint: bool = True,
        tgt_vocab_size: int | None = None,
        sample_size: int = 1_000_000,
        sample_characters: int = 30_000_000,
        seed: int = 1,
        samples: int = 0,
        alpha: float = 0.1,
    ) -> None:
        if not 0.9 <= character_coverage <= 1:
            raise ValueError(f"character_coverage ({character_coverage}) must be from 0.9 to 1")
        n_needed = 4 if model_type in SYMBOL_TYPES else 4 + 256
        reason = "4 special tokens" + (" and 256 byte tokens" if n_needed > 4 else "")
        for name, size in (("vocab_size", vocab_size), ("tgt_vocab_size", tgt_vocab_size)):
            if size is not None and size <= n_needed:
                raise ValueError(f"{name} ({size}) must be above {n_needed}: {reason}")
        if vocab_size is None and model_type not in SYMBOL_TYPES:
            raise ValueError(f"vocab_size must be given for {model_type}")
        if model_type == "word" and (placeholder is not None or symbols is not None):
            raise ValueError("placeholder and symbols must be null for words, each of which is one piece already")
        if joint and tgt_vocab_size is not None:
            raise ValueError(f"tgt_vocab_size ({tgt_vocab_size}) requires a separate target vocabulary: joint=false")
        for name, size in (("sample_size", sample_size), ("sample_characters", sample_characters)):
            if size < 1:
                raise ValueError(f"{name} ({size}) must be positive")
        self._placeholders = Placeholders(placeholder) if placeholder is not None else None
        self._symbol_finder = Placeholders(symbols, key="symbols") if symbols is not None else None
        self.model_type, self.vocab_size, self.character_coverage = model_type, vocab_size, character_coverage
        self.must_fit, self.symbols = must_fit, symbols
        self.normalisation, self.placeholder, self.capitals = normalisation, placeholder, capitals
        removing_rule = "identity" if normalisation == "nfc" else normalisation  # neither removes characters
        self._normaliser = sentencepiece.SentencePieceNormalizer(rule_name=removing_rule)
        self.sample_size, self.sample_characters, self.seed = sample_size, sample_characters, seed
        self.is_joint, self.tgt_vocab_size = joint, tgt_vocab_size
        self.sampling = checked_sampling(samples, alpha, seed, model_type)

    def get(self, text: Parallel, cache_dir: Path, languages: Sequence[str] = ()) -> tuple[Tokenizer, str]:
        """See TokenizerSource."""
        if not self.is_joint:
            return _combine(self.train(text, cache_dir, ["src"]), self.train(text, cache_dir, ["tgt"]), languages)
        return _combine(self.train(text, cache_dir), None, languages)

    def train(
        self, text: Parallel, cache_dir: Path, sides: Sequence[Side] = BOTH, node: str = "tokenizer"
    ) -> tuple[Tokenizer, str]:
        """Train a model on one or both sides of a text, or read it from the cache if it was trained before.

        Args:
            text: text to train on.
            cache_dir: folder for trained models.
            sides: sides of the text.
            node: config key of this trainer, for messages.

        Returns:
            The tokenizer, and a one-line note with the numbers of lines read, used and skipped.

        Raises:
            UserError: no line is usable, or the vocabulary size does not suit the text. The message names the limit.
        """
        key_name, vocab_size = f"{node}.vocab_size", self.vocab_size
        if list(sides) == ["tgt"] and self.tgt_vocab_size is not None:
            key_name, vocab_size = f"{node}.tgt_vocab_size", self.tgt_vocab_size
        marks_capitals = self.capitals == "mark" and "src" in sides
        options = self._options(vocab_size) | ({"control_symbols": [CAPITALS]} if marks_capitals else {})
        cache_key = [
            _FORMAT,
            sentencepiece.__version__,
            options,
            self.placeholder,
            self.sample_size,
            self.seed,
            *sides,
            text.digest(),
        ]
        cache_key += [2, unicodedata.unidata_version] if self.normalisation == "nfc" else []
        cache_key += ["sample_characters", self.sample_characters]
        cache_key += ["capitals", 1] if marks_capitals else []
        cache_key += ["symbols", self.symbols] if self.symbols is not None else []
        model_file = _cache_path(cache_dir, cache_key)
        if self.must_fit is False and not model_file.exists():
            model_file = _cache_path(cache_dir, [*cache_key, "may be smaller"])
        note_file = model_file.with_suffix(".txt")
        if not (model_file.exists() and note_file.exists()):
            lines, note = self._sample(text, sides)
            if self._symbol_finder is not None:
                options["user_defined_symbols"] += self._find_symbols(lines, node)
                if vocab_size is not None and vocab_size <= (n_required := 4 + len(options["user_defined_symbols"])):
                    raise UserError(
                        f"{key_name}={vocab_size} is too small: there are {n_required} special tokens and symbols"
                    )
            try:
                model = self._train(lines, options, key_name, model_file)
            except _TooLargeError as error:
                if self.must_fit is not False:
                    raise
                model = self._train(lines, options | {"vocab_size": error.limit}, key_name, model_file)
                note += f"; {key_name}={vocab_size} is more than this text can fill: the largest possible size is used"
            write_lines(note_file, [note])
            write_bytes(model_file, model)
        try:
            return Tokenizer(model_file.read_bytes(), self.placeholder), read_lines(note_file)[0]
        except UserError as error:
            raise UserError(f"{model_file}: {error}: remove it") from None

    def _options(self, vocab_size: int | None) -> dict[str, Any]:
        """Return the options of SentencePiece's trainer, on which the name of a model in the cache depends."""
        options: dict[str, Any] = {
            "model_type": self.model_type,
            "vocab_size": vocab_size,
            "character_coverage": self.character_coverage,
            "normalization_rule_name": self.normalisation,
            "remove_extra_whitespaces": self.normalisation not in ("identity", "nfc"),
            "byte_fallback": True,
            "user_defined_symbols": list(SLOTS) if self.placeholder else [],
            "pad_id": PAD,
            "unk_id": UNK,
            "bos_id": BOS,
            "eos_id": EOS,
            "max_sentence_length": MAX_LINE_BYTES,
            "num_threads": 1,  # the result depends on the number of threads
        }
        if self.model_type not in SYMBOL_TYPES:
            return options
        is_word_model = self.model_type == "word"
        if is_word_model:
            options["character_coverage"] = 1.0  # SentencePiece would replace rare characters inside of words
        return options | {
            "vocab_size": 8000 if vocab_size is None else vocab_size,
            "use_all_vocab": vocab_size is None,  # takes precedence over vocab_size
            "byte_fallback": False,
            "remove_extra_whitespaces": is_word_model,
            "add_dummy_prefix": is_word_model,  # a blank before the text, because each word begins with a blank
            "unk_surface": f" {_UNKNOWN_SURFACE}" if is_word_model else _UNKNOWN_SURFACE,
        }

    def _find_symbols(self, lines: list[str], node: str) -> list[str]:
        """Return the sorted matches of `symbols` in lines.

        Raises:
            UserError: a match contains whitespace, which separates pieces.
        """
        assert self._symbol_finder
        symbols = sorted({symbol for line in lines for symbol in self._symbol_finder.find(line)} - {*SLOTS})
        if invalid := [symbol for symbol in symbols if len(symbol.split()) != 1 or symbol != symbol.strip()]:
            raise UserError(f"{node}.symbols={self.symbols} matches {invalid[0]!r}: a symbol has no whitespace")
        return symbols

    def _sample(self, text: Parallel, sides: Sequence[Side]) -> tuple[list[str], str]:
        """Return the lines to train on, and a note with their number. All sources come first, in the text's order."""
        sample = draw_lines(text, sides, self._is_usable, self.sample_size, self.sample_characters, self.seed)
        n_skipped = sample.n_lines - sample.n_usable
        if not sample.lines:
            raise UserError(
                f"tokenizer: none of {sample.n_lines:,} lines is usable: all are blank or longer than "
                f"{MAX_LINE_BYTES} bytes"
            )
        note = f"tokenizer: {sample.n_lines:,} lines read, {len(sample.lines):,} used, {n_skipped:,} skipped"
        return [self._lower(self._prepare_line(line), side) for side, line in sample.lines], note

    def _lower(self, line: str, side: Side) -> str:
        """Return a line as it is encoded: in lower case if it is a source in capitals, and capitals are marked."""
        return line.lower() if side == "src" and self.capitals == "mark" and is_in_capitals(line) else line

    def _prepare_line(self, line: str) -> str:
        """Return a line in the form that SentencePiece's trainer reads.

        Placeholders become slots, so that no pieces are learned from them. SentencePiece's mark for unknown characters
        is removed, because the trainer would skip the line. In text to encode, the mark is spelt in bytes.
        """
        if self._placeholders:
            line = self._placeholders.replace(line, lambda _: SLOTS[0])
        if self.normalisation == "nfc":
            line = unicodedata.normalize("NFC", line)
        line = line.replace(_UNKNOWN_MARK, " ")
        return " ".join(line.split()) if self.model_type == "word" else line

    def _is_usable(self, line: str) -> bool:
        """Return whether the trainer can use a line: it is short enough and has text after normalisation."""
        if len(line) * 4 > MAX_LINE_BYTES and len(self._prepare_line(line).encode()) > MAX_LINE_BYTES:
            return False
        if _WORD_CHARACTER.search(line):
            return True
        return bool(self._normaliser.normalize(self._prepare_line(line)).replace(BLANK_MARK, " ").strip())

    def _train(self, lines: list[str], options: dict, key_name: str, model_file: Path) -> bytes:
        """Train a model and return its file.

        Args:
            lines: lines to train on.
            options: options of SentencePiece's trainer.
            key_name: config key of the vocabulary size, for errors.
            model_file: path of the model. A temporary folder beside it holds the rules of nfc.

        Raises:
            UserError: the vocabulary size does not suit the text, or the folder cannot be written.
        """
        model = io.BytesIO()
        try:
            with scratch_folder(model_file) as folder:
                if self.normalisation == "nfc":
                    rules = folder / "nfc.tsv"
                    rules.write_text(composing_rules(), encoding="utf-8")
                    options = options | {"normalization_rule_name": "", "normalization_rule_tsv": str(rules)}
                sentencepiece.SentencePieceTrainer.train(
                    sentence_iterator=iter(lines), model_writer=model, minloglevel=2, **options
                )
        except OSError as error:
            raise UserError(f"{model_file}: cannot be written: {error.strerror or error}") from None
        except RuntimeError as error:
            too_large = re.search(r"value <= (\d+)", str(error))
            if too_large:
                raise _TooLargeError(key_name, options["vocab_size"], int(too_large.group(1))) from None
            too_small = re.search(r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)", str(error))
            if too_small:
                raise UserError(
                    f"{key_name}={options['vocab_size']} is too small for this text's characters: "
                    f"at least {too_small.group(1)}"
                ) from None
            raise UserError(f"tokenizer: SentencePiece could not train on this text ({error})") from None
        n_pieces = load_processor(model.getvalue()).get_piece_size()
        if self.model_type in SYMBOL_TYPES and not options["use_all_vocab"] and n_pieces < options["vocab_size"]:
            raise _TooLargeError(key_name, options["vocab_size"], n_pieces)
        return mark_composing(model.getvalue()) if self.normalisation == "nfc" else model.getvalue()


def _combine(
    src: tuple[Tokenizer, str], tgt: tuple[Tokenizer, str] | None, languages: Sequence[str]
) -> tuple[Tokenizer, str]:
    """Combine the tokenizers of two sides into one, with tags for languages; return it and a one-line note.

    Args:
        src: tokenizer of the source and the note about it.
        tgt: tokenizer of the target and the note about it; None: the target has the tokenizer of the source.
        languages: codes of the target languages; see `Tokenizer`.
    """
    tokenizer, note = src
    size, tgt_model = f"{tokenizer.src_vocab_size:,} pieces", None
    if tgt is not None:
        tgt_model, n_tgt = tgt[0].model, tgt[0].src_vocab_size
        note = f"{note}; target: {tgt[1].removeprefix('tokenizer: ')}"
        size = f"{tokenizer.src_vocab_size:,} source pieces and {n_tgt:,} target pieces"
    model = adopt(tokenizer.model, controls=[tag(language) for language in languages]) if languages else tokenizer.model
    tagged = f", {len(languages)} tags" if languages else ""
    return Tokenizer(model, tokenizer.placeholder, tgt_model, languages), f"{note}; {size}{tagged}"


class TokenizerPerSide(TokenizerSource):
    """Tokenizer source that trains a separate tokenizer for each side, such as characters and phonemes.

    Args:
        src: trainer of the source's tokenizer.
        tgt: trainer of the target's tokenizer.

    Raises:
        ValueError: the two trainers are not compatible.
    """

    is_joint = False

    def __init__(self, *, src: TokenizerTrainer, tgt: TokenizerTrainer) -> None:
        for name, trainer in (("src", src), ("tgt", tgt)):
            if not trainer.is_joint:
                raise ValueError(f"{name}.joint must be true: with per_side, each side has a vocabulary of its own")
        if src.placeholder != tgt.placeholder:
            raise ValueError(
                f"src.placeholder ({src.placeholder}) and tgt.placeholder ({tgt.placeholder}) must be the same"
            )
        if src.sampling != tgt.sampling:
            raise ValueError("samples, alpha and seed must be the same in src and tgt")
        self.src, self.tgt, self.placeholder = src, tgt, src.placeholder
        self.sampling = src.sampling

    def get(self, text: Parallel, cache_dir: Path, languages: Sequence[str] = ()) -> tuple[Tokenizer, str]:
        """See TokenizerSource."""
        src = self.src.train(text, cache_dir, ["src"], node="tokenizer.src")
        return _combine(src, self.tgt.train(text, cache_dir, ["tgt"], node="tokenizer.tgt"), languages)


class TokenizerFiles(TokenizerSource):
    """Tokenizer source that reads existing SentencePiece models of any origin.

    Args:
        model: path of the .model file of both sides, or of the source; required.
        tgt_model: path of the .model file of the target; None: `model`.
        placeholder: regular expression of placeholders; see `Tokenizer`.
        seed: seed of random segmentation.
        samples: number of randomly segmented versions of the text; see `Sampling`.
        alpha: amount of randomness; see `Sampling`.

    Raises:
        UserError: model is None.
        ValueError: another argument is invalid.
    """

    def __init__(
        self,
        *,
        model: str | None,
        tgt_model: str | None = None,
        placeholder: str | None = None,
        seed: int = 1,
        samples: int = 0,
        alpha: float = 0.1,
    ) -> None:
        if model is None:
            raise UserError("tokenizer.model is missing; type tokenizer.model=FILE, a SentencePiece model")
        check_placeholder(placeholder)
        self.model, self.tgt_model, self.placeholder = model, tgt_model, placeholder
        self.is_joint = tgt_model is None
        self.sampling = checked_sampling(samples, alpha, seed, "unigram")

    def get(self, text: Parallel, cache_dir: Path, languages: Sequence[str] = ()) -> tuple[Tokenizer, str]:
        """Read the models; see TokenizerSource."""
        symbols = SLOTS if self.placeholder else ()
        src = self._read("model", self.model, [tag(language) for language in languages], symbols)
        tgt = None if self.tgt_model is None else self._read("tgt_model", self.tgt_model, (), symbols)
        tokenizer = Tokenizer(src, self.placeholder, tgt, languages)
        description = f"{self.model}: {tokenizer.src_vocab_size:,} pieces"
        if self.tgt_model is not None:
            description += f", {self.tgt_model}: {tokenizer.tgt_vocab_size:,}"
        return tokenizer, f"tokenizer: {description}"

    def _read(self, key: str, path: str, controls: Sequence[str], symbols: Sequence[str]) -> bytes:
        try:
            return adopt(Path(path).expanduser().read_bytes(), controls, symbols)
        except OSError as error:
            raise UserError(f"tokenizer.{key}={path}: cannot be read: {error.strerror}") from None
        except UserError as error:
            raise UserError(f"tokenizer.{key}={path}: {error}") from None


def checked_sampling(samples: int, alpha: float, seed: int, model_type: str) -> Sampling:
    """Return the options of random segmentation, after a check of their ranges.

    Raises:
        ValueError: an option is out of range.
    """
    if samples and model_type in SYMBOL_TYPES:
        raise ValueError(f"samples ({samples}) must be 0 for {model_type}: a text has only one segmentation")
    if samples < 0:
        raise ValueError(f"samples ({samples}) must not be negative")
    if alpha < 0 or (model_type == "bpe" and alpha > 1):
        raise ValueError(f"alpha ({alpha}) must be at least 0" + (" and at most 1" if model_type == "bpe" else ""))
    return Sampling(samples, alpha, seed)
