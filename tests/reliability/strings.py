"""The tokenizer restores any text exactly, and never encodes text as special ids."""

import random
import tempfile
import unicodedata
from pathlib import Path

from diglot.data.text import ParallelText
from diglot.data.tokenizer import Tokenizer, TokenizerTrainer

MARK = "\u2581"  # SentencePiece's symbol for a space, the only character that is not restored
SLOTS = {chr(c) for c in range(0xE000, 0xE008)}  # characters that replace placeholders
WORDS = [
    "</s>",
    "<s>",
    "<pad>",
    "<unk>",
    "<2de>",
    "<2en>",
    "{name}",
    "{}",
    "{ a}",
    "<0x0A>",
    "a  b",
    " ",
    "\t",
    "é",
    "e\u0301",
]


def trained() -> Tokenizer:
    """Train a small tokenizer with placeholders and a language tag."""
    draw = random.Random(1)
    lines = [
        " ".join(draw.choices(["one", "two", "{x} three", "Straße", "été", "слово", "字"], k=5)) for _ in range(300)
    ]
    trainer = TokenizerTrainer(model_type="unigram", vocab_size=285, placeholder=r"\{[^{}\s]+\}")
    with tempfile.TemporaryDirectory() as folder:
        return trainer.get(ParallelText(lines, lines), Path(folder), ["de"])[0]


def draw_text(draw: random.Random) -> str:
    """Draw a text of characters from all planes, and words that look like special tokens."""
    parts = []
    for _ in range(draw.randint(0, 12)):
        kind = draw.random()
        if kind < 0.25:
            parts.append(draw.choice(WORDS))
        else:
            top = 0x7F if kind < 0.5 else 0x2FFF if kind < 0.8 else 0x10FFFF
            parts.append("".join(chr(draw.randint(0, top)) for _ in range(draw.randint(1, 6))))
    text = "".join(parts)
    return "".join(c for c in text if unicodedata.category(c) != "Cs" and c not in SLOTS | {MARK, "\n"})


def strings(count: int, seed: int) -> None:
    """Encode and decode `count` random texts.

    Raises:
        AssertionError: a text was not restored, or was encoded with a special id.
    """
    tokenizer, draw = trained(), random.Random(seed)
    (tag,) = tokenizer.encode([""], "de")[0].ids
    own = {tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id, tag}
    for start in range(0, count, 1000):
        texts = [draw_text(draw) for _ in range(min(1000, count - start))]
        for text, encoded in zip(texts, tokenizer.encode(texts, "de"), strict=True):
            assert encoded.ids[0] == tag
            assert not own & set(encoded.ids[1:]), f"seed {seed}: {text!r} yields an id of the model's own"
            back = tokenizer.decode(encoded.ids[1:], encoded.placeholders)
            assert back == text, f"seed {seed}: {text!r} comes back as {back!r}"
