"""Byte-level BPE (Radford et al., 2019), the tokenizer of GPT-2 and BART, on top of a SentencePiece model.

A text is split into words, and each byte of a word becomes a visible character. SentencePiece then merges these
characters within each word: the pair whose piece has the best score first. If the scores are the ranks of the merges,
this gives the pieces of a byte-level BPE.
"""

from collections.abc import Sequence

import regex
import sentencepiece

from diglot.data.pieces import BYTE_LEVEL_NAME, NORMAL, UNK, USER_DEFINED, ImportedModel, read_model
from diglot.errors import UserError

# Words of a text: English contractions, and letters, digits or other characters, with one space before them.
_WORD = regex.compile(r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
_VISIBLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))  # bytes that are spelt as their own character
_OTHER = tuple(byte for byte in range(256) if byte not in _VISIBLE)
# The character of each byte.
CHARACTERS = {byte: chr(byte) for byte in _VISIBLE} | {byte: chr(0x100 + i) for i, byte in enumerate(_OTHER)}
_BYTES = {character: byte for byte, character in CHARACTERS.items()}
_TO_CHARACTERS = {byte: CHARACTERS[byte] for byte in range(256)}  # for str.translate of text that is read as Latin-1
_BETWEEN = " "  # separates words. No piece has this character, so that SentencePiece never merges across it


def is_byte_level(model: bytes) -> bool:
    """Return whether a model file is that of a byte-level BPE."""
    name: str = read_model(model).normalizer_spec.name
    return name == BYTE_LEVEL_NAME


def spelt(text: str) -> str:
    """Return a text as the characters of its bytes in UTF-8."""
    return text.encode("utf-8").decode("latin-1").translate(_TO_CHARACTERS)


def text_of(characters: str) -> str:
    """Return the text whose bytes in UTF-8 are spelt by characters; other bytes become U+FFFD."""
    return bytes(_BYTES[character] for character in characters).decode("utf-8", errors="replace")


class ByteLevelBpe:
    """Encoder and decoder of a byte-level BPE.

    Args:
        processor: a SentencePiece processor, whose pieces consist of the characters of bytes.
        model: content of its model file.

    Raises:
        UserError: a piece has other characters, or a byte has no piece.
    """

    def __init__(self, processor: sentencepiece.SentencePieceProcessor, model: bytes) -> None:
        self.processor = processor
        content = ImportedModel.FromString(model)
        pieces = content.pieces
        self._begins_with_space = content.normalizer_spec.add_dummy_prefix
        self._texts = [piece.piece if piece.type in (NORMAL, USER_DEFINED) else "" for piece in pieces]
        if not {*_BYTES} <= {*self._texts}:
            raise UserError("the SentencePiece model of a byte-level BPE lacks pieces of single bytes")
        if not {*"".join(self._texts)} <= {*_BYTES}:
            raise UserError("the SentencePiece model of a byte-level BPE has pieces that do not consist of bytes")
        # A piece that was added later is not split into words.
        added = sorted((text_of(piece.piece) for piece in pieces if piece.type == USER_DEFINED), key=len, reverse=True)
        self._added = regex.compile("|".join(map(regex.escape, added))) if added else None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of texts."""
        if self._begins_with_space:
            texts = [text if not text or text[0].isspace() else f" {text}" for text in texts]
        spelt_texts = [_BETWEEN.join(map(spelt, self._words(text))) for text in texts]
        sequences: list[list[int]] = self.processor.encode(spelt_texts, num_threads=1)
        return [[i for i in ids if i != UNK] for ids in sequences]  # the character between two words is unknown

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, in which bytes that are not UTF-8 become U+FFFD."""
        text = text_of("".join(self._texts[i] for i in ids))
        return text.removeprefix(" ") if self._begins_with_space else text

    def _words(self, text: str) -> list[str]:
        if self._added is None:
            return _WORD.findall(text)
        words, end = list[str](), 0
        for match in self._added.finditer(text):
            words += [*_WORD.findall(text[end : match.start()]), match.group()]
            end = match.end()
        return words + _WORD.findall(text[end:])
