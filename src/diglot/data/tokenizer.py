"""From text to token ids and back: SentencePiece (Kudo and Richardson, 2018), with placeholders kept whole."""

import hashlib
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import sentencepiece

from diglot.data.text import Parallel, read_lines, write_bytes, write_lines
from diglot.errors import UserError

PAD, UNK, BOS, EOS = range(4)

# A placeholder stands in the token stream as one of these private-use characters, numbered in the order in which the
# source line names them. So a name never seen in training survives, and the model learns to place it, not to spell it.
SLOTS = tuple(chr(0xE000 + i) for i in range(8))
_SLOT = re.compile(f"[{SLOTS[0]}-{SLOTS[-1]}]")

# SentencePiece skips longer lines; it counts bytes.
LONGEST_LINE = 4192


class Encoded(NamedTuple):
    """A line as token ids, without <s> and </s>, and the placeholders that its slots stand for."""

    ids: list[int]
    placeholders: tuple[str, ...]


class Tokenizer:
    """A trained SentencePiece model.

    Args:
        model: the bytes of a SentencePiece .model file whose ids 0-3 are <pad>, <unk>, <s>, </s>.
        placeholder: regular expression of what stands in a text for something else, like {name}; None: nothing does.
    """

    pad_id, unk_id, bos_id, eos_id = PAD, UNK, BOS, EOS

    def __init__(self, model: bytes, placeholder: str | None) -> None:
        self.model, self.placeholder = model, placeholder
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            ids = [
                self._processor.pad_id(),
                self._processor.unk_id(),
                self._processor.bos_id(),
                self._processor.eos_id(),
            ]
        except RuntimeError as error:
            raise UserError(f"this is no SentencePiece model ({error})") from None
        if ids != [PAD, UNK, BOS, EOS]:
            raise UserError(f"the SentencePiece model has pad, unk, bos, eos at {ids}, not at {[PAD, UNK, BOS, EOS]}")
        self._pattern = placeholder and re.compile(f"{placeholder}|{_SLOT.pattern}")

    @property
    def vocab_size(self) -> int:
        return self._processor.get_piece_size()

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The subword that each id stands for."""
        return self._processor.id_to_piece(list(ids))

    def encode(self, lines: Sequence[str]) -> list[Encoded]:
        """Source lines to ids."""
        named: list[list[str]] = [[] for _ in lines]
        texts = [self._hide(line, names, may_add=True) for line, names in zip(lines, named, strict=True)]
        return [Encoded(ids, tuple(names)) for ids, names in zip(self._ids(texts), named, strict=True)]

    def encode_targets(self, lines: Sequence[str], sources: Sequence[Encoded]) -> list[list[int]]:
        """Target lines to ids; their placeholders take the slots that the source lines gave them."""
        texts = [
            self._hide(line, list(source.placeholders), may_add=False)
            for line, source in zip(lines, sources, strict=True)
        ]
        return self._ids(texts)

    def _ids(self, texts: list[str]) -> list[list[int]]:
        return self._processor.encode(texts, num_threads=1)  # more cost more than they save

    def decode(self, ids: Sequence[int], placeholders: Sequence[str] = ()) -> str:
        """Ids to a line of text. A slot that the source did not fill is dropped; a line break, which a model can spell
        in bytes, is a blank."""
        text = self._processor.decode(list(ids)).replace("\n", " ")
        if not self._pattern:
            return text
        # All at once: what stands in a slot may itself look like one.
        names = dict(zip(SLOTS, placeholders))
        return _SLOT.sub(lambda slot: names.get(slot.group(), ""), text)

    def find_placeholders(self, line: str) -> list[str]:
        """The placeholders that stand in a line."""
        return [match.group() for match in re.finditer(self.placeholder, line)] if self.placeholder else []

    def _hide(self, line: str, names: list[str], may_add: bool) -> str:
        """Put slots where placeholders stand. `names` grows by those that it lacks, if it may."""
        if not self._pattern:
            return line

        def slot(match: re.Match[str]) -> str:
            name = match.group()
            if name not in names:
                if not may_add or len(names) == len(SLOTS):
                    return "\N{REPLACEMENT CHARACTER}" if name in SLOTS else name
                names.append(name)
            return SLOTS[names.index(name)]

        return self._pattern.sub(slot, line)


class TokenizerTrainer:
    """How to train a joint tokenizer on both sides of the training text.

    Args:
        model_type: unigram (Kudo, 2018) or bpe (Sennrich et al., 2016).
        vocab_size: number of pieces, the special ones and 256 bytes included.
        character_coverage: share of the text's characters that get a piece; the rest is spelt in bytes.
        normalisation: SentencePiece's name of a rule applied before encoding; identity leaves text as it is.
        placeholder: see Tokenizer.
        sample_size: at most this many lines, drawn at random, are trained on.
        seed: of the draw.
    """

    def __init__(
        self,
        *,
        model_type: Literal["unigram", "bpe"],
        vocab_size: int,
        character_coverage: float = 0.9998,
        normalisation: Literal["identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"] = "identity",
        placeholder: str | None = None,
        sample_size: int = 1_000_000,
        seed: int = 1,
    ) -> None:
        if not 0.9 <= character_coverage <= 1:
            raise ValueError(f"character_coverage ({character_coverage}) must be from 0.9 to 1")
        if vocab_size < 4 + 256 + 1:
            raise ValueError(
                f"vocab_size ({vocab_size}) must be above {4 + 256}: the special ids and one for each byte"
            )
        if sample_size < 1:
            raise ValueError(f"sample_size ({sample_size}) must be positive")
        if placeholder is not None:
            try:
                re.compile(placeholder)
            except re.error as error:
                raise ValueError(f"placeholder ({placeholder}) is no regular expression: {error}") from None
            if re.search(placeholder, ""):
                raise ValueError(f"placeholder ({placeholder}) must not match where there is nothing")
        self.model_type, self.vocab_size, self.character_coverage = model_type, vocab_size, character_coverage
        self.normalisation, self.placeholder = normalisation, placeholder
        self.sample_size, self.seed = sample_size, seed

    def train(
        self, text: Parallel, cache_dir: Path, sides: Sequence[Literal["src", "tgt"]] = ("src", "tgt")
    ) -> tuple[Tokenizer, str]:
        """Train on these sides of a text, or take the model from the cache if the same training was done before.

        Returns:
            The tokenizer, and one line about how many lines were read, used and skipped.

        Raises:
            UserError: if no line is usable, or the text cannot fill the vocabulary (naming the greatest that it can).
        """
        options = {
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "character_coverage": self.character_coverage,
            "normalization_rule_name": self.normalisation,
            "remove_extra_whitespaces": self.normalisation != "identity",
            "byte_fallback": True,
            "user_defined_symbols": list(SLOTS) if self.placeholder else [],
            "pad_id": PAD,
            "unk_id": UNK,
            "bos_id": BOS,
            "eos_id": EOS,
            "max_sentence_length": LONGEST_LINE,
            "num_threads": 1,  # the result depends on the number of threads
        }
        key = [sentencepiece.__version__, options, self.placeholder, self.sample_size, self.seed, *sides, text.digest()]
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:20]
        file = cache_dir / "tokenizers" / f"{digest}.model"
        about = file.with_suffix(".txt")
        if not file.exists():
            used, told = self._sample(text, sides)
            model = self._train(used, options)
            write_lines(about, [told])
            write_bytes(file, model)
        return Tokenizer(file.read_bytes(), self.placeholder), read_lines(about)[0]

    def _sample(self, text: Parallel, sides: Sequence[Literal["src", "tgt"]]) -> tuple[list[str], str]:
        """The lines to train on, sources first, each side in the text's order, and a line about how many they are."""
        random = np.random.default_rng(self.seed)
        found: list[tuple[float, int, int, str]] = []  # the lines with the smallest random numbers stay
        highest, n_lines, n_usable = 1.0, 0, 0
        for pairs in text.blocks():
            for side, name in enumerate(sides):
                lines = pairs.src if name == "src" else pairs.tgt
                for number, (line, draw) in enumerate(zip(lines, random.random(len(lines)).tolist()), start=n_lines):
                    if line.strip() and (len(line) * 4 <= LONGEST_LINE or len(line.encode()) <= LONGEST_LINE):
                        n_usable += 1
                        if draw < highest:
                            found.append((draw, side, number, line))
            n_lines += len(pairs)
            if len(found) > 2 * self.sample_size:
                found = sorted(found)[: self.sample_size]
                highest = found[-1][0]
        n_all = n_lines * len(sides)
        if not n_usable:
            raise UserError(
                f"tokenizer: none of {n_all:,} lines can be trained on (blank, or over {LONGEST_LINE} bytes)"
            )
        used = [line for _, _, line in sorted(item[1:] for item in sorted(found)[: self.sample_size])]
        told = f"tokenizer: {n_all:,} lines read, {len(used):,} used, {n_all - n_usable:,} skipped"
        if self.placeholder:  # the trainer must not learn pieces from what the model will never see
            pattern = re.compile(self.placeholder)
            used = [pattern.sub(SLOTS[0], line) for line in used]
        return used, told

    def _train(self, lines: list[str], options: dict) -> bytes:
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines), model_writer=model, minloglevel=2, **options
            )
        except RuntimeError as error:
            limit = re.search(r"value <= (\d+)", str(error))
            if limit:
                raise UserError(
                    f"tokenizer.vocab_size={self.vocab_size} is more than this text can fill: at most {limit.group(1)}"
                ) from None
            least = re.search(r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)", str(error))
            if least:
                raise UserError(
                    f"tokenizer.vocab_size={self.vocab_size} is too small for this text's characters: "
                    f"at least {least.group(1)}"
                ) from None
            raise UserError(f"tokenizer: SentencePiece could not train on this text ({error})") from None
        return model.getvalue()
