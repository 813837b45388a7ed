"""Tests that a source in capitals has the pieces of one in lower case, after a mark, and that no other text changes."""

from pathlib import Path

import pytest

from diglot.data.capitals import CAPITALS, is_in_capitals
from diglot.data.text import ParallelText
from diglot.data.tokenizer import Tokenizer, TokenizerTrainer

SOURCES = [
    f"turn {state} the {color} light of {{name}} in room {i}"
    for i in range(30)
    for state in ("on", "off")
    for color in ("red", "green")
]
TARGETS = [f"schalte das Licht USB {i} von {{name}} um" for i in range(len(SOURCES))]


@pytest.mark.parametrize(
    "text",
    [
        "TURN ON THE LIGHT",
        "OK",
        "USB 2.0",
        "ПРИВЕТ, МИР",
        "ΑΝΟΙΞΕ ΤΟ ΦΩΣ",
        "DIE STRAßE",
        "RESTART YOUR iPhone NOW",
        "東京のUSB",
    ],
)
def test_text_in_capitals(text: str) -> None:
    assert is_in_capitals(text)


@pytest.mark.parametrize(
    "text", ["", "A", "I", "123", "Turn on", "turn on", "USB hub", "TVs", "iOS", "LaTeX", "東京", "Ü"]
)
def test_other_text(text: str) -> None:
    assert not is_in_capitals(text)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return trained(tmp_path_factory.mktemp("cache"), capitals="mark")


def trained(cache: Path, **options: object) -> Tokenizer:
    settings = {"model_type": "unigram", "vocab_size": 400, "must_fit": False, "placeholder": r"\{[^{}\s]+\}"} | options
    return TokenizerTrainer(**settings).get(ParallelText(SOURCES, TARGETS), cache)[0]  # type: ignore[arg-type]


def test_a_source_in_capitals_has_the_pieces_of_lower_case_after_a_mark(tokenizer: Tokenizer) -> None:
    plain, upper = tokenizer.encode(["turn on the light of {Name}", "TURN ON THE LIGHT OF {Name}"])
    assert tokenizer.pieces(upper.ids, "src") == [CAPITALS, *tokenizer.pieces(plain.ids, "src")]
    assert upper.placeholders == ("{Name}",)


def test_other_sources_and_all_targets_keep_their_case(tokenizer: Tokenizer) -> None:
    source, capitals = tokenizer.encode(["Turn on USB", "USB"])
    assert tokenizer.decode(source.ids, side="src") == "Turn on USB"
    (target,) = tokenizer.encode_targets(["USB UM"], [capitals])
    assert tokenizer.decode(target) == "USB UM"


def test_a_source_in_capitals_is_decoded_to_capitals(tokenizer: Tokenizer) -> None:
    (source,) = tokenizer.encode(["TURN ON {name}"])
    assert tokenizer.decode(source.ids, source.placeholders, "src") == "TURN ON {name}"


def test_text_cannot_spell_the_mark(tokenizer: Tokenizer) -> None:
    (source,) = tokenizer.encode([f"{CAPITALS} turn on"])
    assert CAPITALS not in tokenizer.pieces(source.ids, "src")


def test_the_language_tag_comes_first(tmp_path: Path) -> None:
    text = ParallelText(SOURCES, TARGETS)
    options = {"model_type": "bpe", "vocab_size": 320, "must_fit": False, "capitals": "mark"}
    tokenizer = TokenizerTrainer(**options).get(text, tmp_path, ["de", "fr"])[0]  # type: ignore[arg-type]
    (source,) = tokenizer.encode(["TURN ON"], "fr")
    assert tokenizer.pieces(source.ids, "src")[:2] == ["<2fr>", CAPITALS]


def test_no_pieces_are_learned_from_sources_in_capitals(tmp_path: Path) -> None:
    sources = [*SOURCES, *(source.upper() for source in SOURCES)]
    tokenizer = TokenizerTrainer(model_type="unigram", vocab_size=400, must_fit=False, capitals="mark").get(
        ParallelText(sources, ["x"] * len(sources)), tmp_path
    )[0]
    assert not [piece for piece in tokenizer.pieces(range(tokenizer.src_vocab_size), "src") if "TURN" in piece]


def test_without_the_mark_capitals_are_kept(tmp_path: Path) -> None:
    tokenizer = trained(tmp_path)
    (source,) = tokenizer.encode(["TURN ON"])
    assert not tokenizer.marks_capitals
    assert tokenizer.decode(source.ids, side="src") == "TURN ON"
    assert CAPITALS not in tokenizer.pieces(source.ids, "src")


def test_only_the_model_of_the_source_has_the_mark(tmp_path: Path) -> None:
    tokenizer = trained(tmp_path, capitals="mark", joint=False, vocab_size=350)
    assert CAPITALS in tokenizer.pieces(range(tokenizer.src_vocab_size), "src")
    assert CAPITALS not in tokenizer.pieces(range(tokenizer.tgt_vocab_size), "tgt")
