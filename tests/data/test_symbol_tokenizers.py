"""Tests of tokenizers whose pieces are characters or words, of another kind on each side, and of sizes that adapt."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diglot.data.text import ParallelText
from diglot.data.tokenizer import UNK, Tokenizer, TokenizerPerSide, TokenizerTrainer
from diglot.errors import UserError

LINES = [
    "walk V;PST;3",
    "zoo a  b",
    "it's a\tb",
    "e\u0301 \u200b漢 👩‍👩‍👧",
    " lead and trail ",
    "cafe\N{COMBINING ACUTE ACCENT}",
]
TEXT = ParallelText(LINES, [*reversed(LINES)])
KNOWN = sorted({character for line in LINES for character in line})


def characters(**options: Any) -> TokenizerTrainer:
    return TokenizerTrainer(**({"model_type": "char", "vocab_size": None, "character_coverage": 1.0} | options))


def words(**options: Any) -> TokenizerTrainer:
    return TokenizerTrainer(**({"model_type": "word", "vocab_size": None} | options))


@pytest.fixture(scope="module")
def by_character(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return characters().get(TEXT, tmp_path_factory.mktemp("characters"))[0]


@pytest.fixture(scope="module")
def by_word(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return words().get(TEXT, tmp_path_factory.mktemp("words"))[0]


def pieces(tokenizer: Tokenizer, line: str) -> list[str]:
    return tokenizer.pieces(tokenizer.encode([line])[0].ids, "src")


def there_and_back(tokenizer: Tokenizer, line: str) -> str:
    return tokenizer.decode(tokenizer.encode([line])[0].ids)


# --------------------------------------------------------------------------------------------------------- characters


def test_the_vocabulary_of_characters_is_those_of_the_text_without_bytes(by_character: Tokenizer) -> None:
    every = by_character.pieces(range(by_character.src_vocab_size), "src")
    assert every[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert sorted(every[4:]) == sorted(character.replace(" ", "\u2581") for character in KNOWN)


@given(st.text(st.sampled_from(KNOWN), max_size=30))
def test_known_characters_are_decoded_unchanged_with_one_token_each(by_character: Tokenizer, text: str) -> None:
    (encoded,) = by_character.encode([text])
    assert len(encoded.ids) == len(text)
    assert UNK not in encoded.ids
    assert by_character.decode(encoded.ids) == text


def test_every_unknown_character_is_one_token_and_one_visible_sign(by_character: Tokenizer) -> None:
    assert pieces(by_character, "xqa  ÿ") == ["<unk>", "<unk>", "a", "\u2581", "\u2581", "<unk>"]
    assert there_and_back(by_character, "xqa  ÿ") == "⁇⁇a  ⁇"
    assert not by_character.encode(["xq"])[0].is_blank


def test_nfc_makes_one_character_of_a_letter_and_its_mark(tmp_path: Path) -> None:
    composed = characters(normalisation="nfc").get(TEXT, tmp_path)[0]
    assert pieces(composed, "e\u0301") == pieces(composed, "é") == ["é"]


def test_texts_that_match_the_pattern_of_symbols_are_one_piece_each(tmp_path: Path) -> None:
    tokenizer = characters(symbols=r"[A-Z]+(?:;\w+)*").get(TEXT, tmp_path)[0]
    assert pieces(tokenizer, "awe V;PST;3") == ["a", "w", "e", "\u2581", "V;PST;3"]
    assert there_and_back(tokenizer, "awe V;PST;3") == "awe V;PST;3"
    other = characters(symbols="[A-Z]+").get(TEXT, tmp_path)[0]  # not that of the other pattern, from the cache
    assert pieces(other, "V;PST") == ["V", ";", "PST"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"symbols": "V.*"}, None),
        ({"symbols": "walk V"}, r"^tokenizer\.symbols=walk V matches 'walk V': a symbol has no whitespace$"),
        ({"symbols": "[A-Z]+", "vocab_size": 6}, r"^tokenizer\.vocab_size=6 is too small: there are 6 special"),
        ({"vocab_size": 99}, r"^tokenizer\.vocab_size=99 is too large for this text: at most 35$"),
    ],
)
def test_options_that_do_not_suit_the_text_are_refused(options: dict, message: str | None, tmp_path: Path) -> None:
    if message is None:
        characters(**options).get(TEXT, tmp_path)
        return
    with pytest.raises(UserError, match=message):
        characters(**options).get(TEXT, tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 4}, r"vocab_size \(4\) must be above 4: 4 special tokens$"),
        ({"samples": 2}, r"samples \(2\) must be 0 for char"),
        ({"symbols": "("}, r"symbols \(\(\) is not a regular expression"),
        ({"model_type": "word", "symbols": "A"}, "placeholder and symbols must be null for words"),
        ({"model_type": "word", "placeholder": "A"}, "placeholder and symbols must be null for words"),
        ({"model_type": "bpe"}, "vocab_size must be given for bpe"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        characters(**options)


# -------------------------------------------------------------------------------------------------------------- words


def test_words_are_what_whitespace_separates(by_word: Tokenizer) -> None:
    assert pieces(by_word, " it's\ta  V;PST;3\u3000b") == ["\u2581it's", "\u2581a", "\u2581V;PST;3", "\u2581b"]
    assert there_and_back(by_word, " it's\ta  V;PST;3\u3000b") == "it's a V;PST;3 b"
    assert [by_word.encode([line])[0].is_blank for line in ("", " ", "a")] == [True, True, False]


@pytest.mark.parametrize(
    ("line", "back"), [("a it", "a ⁇"), ("it it a", "⁇ ⁇ a"), ("a it it b", "a ⁇ ⁇ b"), ("it", "⁇")]
)
def test_every_unknown_word_is_one_token_and_one_visible_sign(by_word: Tokenizer, line: str, back: str) -> None:
    (encoded,) = by_word.encode([line])
    assert (len(encoded.ids), encoded.ids.count(UNK)) == (len(line.split()), line.count("it"))
    assert by_word.decode(encoded.ids) == back


def test_a_size_keeps_the_most_frequent_words(tmp_path: Path) -> None:
    text = ParallelText(["b b b c a a", "b a"], ["x", "y"])
    tokenizer = words(vocab_size=6).train(text, tmp_path, ["src"])[0]
    assert tokenizer.pieces(range(4, 6), "src") == ["\u2581b", "\u2581a"]


def test_a_word_of_any_length_and_script_is_a_piece(tmp_path: Path) -> None:
    long = "supercalifragilistic漢ж\u200b" * 5
    tokenizer = words().get(ParallelText([long, *["a"] * 5_000], ["b"] * 5_001), tmp_path)[0]
    assert there_and_back(tokenizer, f"a {long}") == f"a {long}"


# ---------------------------------------------------------------------------------------------------- a kind each side


def test_each_side_has_its_own_kind_and_a_tag_for_each_language(tmp_path: Path) -> None:
    text = ParallelText(["ab", "ba b"], ["AH0 B", "B AH0"])
    tokenizer, line = TokenizerPerSide(src=characters(), tgt=words()).get(text, tmp_path, ["de", "en"])
    assert line.endswith("; 7 source pieces and 6 target pieces, 2 tags")
    (source,) = tokenizer.encode(["ab b"], "en")
    assert tokenizer.pieces(source.ids, "src") == ["<2en>", "a", "b", "\u2581", "b"]
    (target,) = tokenizer.encode_targets(["B AH0 K"], [source])
    assert tokenizer.pieces(target, "tgt") == ["\u2581B", "\u2581AH0", "<unk>"]
    assert tokenizer.decode(source.ids, side="src") == "ab b"
    assert tokenizer.decode(target) == "B AH0 ⁇"


@pytest.mark.parametrize(
    ("src", "tgt", "message"),
    [
        (characters(joint=False), words(), r"src\.joint must be true"),
        (characters(placeholder="{x}"), words(), r"src\.placeholder \({x}\) and tgt\.placeholder \(None\)"),
        (TokenizerTrainer(model_type="bpe", vocab_size=300, samples=2), words(), "samples, alpha and seed"),
    ],
)
def test_sides_that_do_not_fit_each_other_are_refused(src: Any, tgt: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenizerPerSide(src=src, tgt=tgt)


def test_a_message_names_the_side_whose_size_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^tokenizer\.tgt\.vocab_size=99 is too large"):
        TokenizerPerSide(src=characters(), tgt=words(vocab_size=99)).get(TEXT, tmp_path)


# -------------------------------------------------------------------------------------------------- sizes that adapt


@pytest.mark.parametrize("model_type", ["unigram", "bpe", "char", "word"])
def test_a_size_that_need_not_fit_becomes_the_largest_possible_one(
    model_type: str, sample_lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ParallelText(sample_lines[:60], sample_lines[400:460])
    given: Any = {"model_type": model_type, "vocab_size": 8000}
    with pytest.raises(UserError, match=r"^tokenizer\.vocab_size=8000 .*at most (\d+)$") as refused:
        TokenizerTrainer(**given).get(text, tmp_path)
    most = int(str(refused.value).split()[-1])
    tokenizer, line = TokenizerTrainer(**given, must_fit=False).get(text, tmp_path)
    assert tokenizer.src_vocab_size == most
    told = "tokenizer.vocab_size=8000 is more than this text can fill: the largest possible size is used"
    assert line == f"tokenizer: 120 lines read, 120 used, 0 skipped; {told}; {most:,} pieces"
    with pytest.raises(UserError, match="too large"):  # whatever is in the cache
        TokenizerTrainer(**given, must_fit=True).get(text, tmp_path)
    monkeypatch.setattr(TokenizerTrainer, "_train", None)  # from here on, all is in the cache
    again = TokenizerTrainer(**given, must_fit=False).get(text, tmp_path)
    assert (again[0].model, again[1]) == (tokenizer.model, line)


def test_must_fit_has_no_effect_on_a_size_that_fits(
    sample_lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, given = ParallelText(sample_lines[:60], sample_lines[:60]), {"model_type": "bpe", "vocab_size": 310}
    first = TokenizerTrainer(**given, must_fit=False).get(text, tmp_path / "a")  # type: ignore[arg-type]
    second = TokenizerTrainer(**given).get(text, tmp_path / "b")  # type: ignore[arg-type]
    assert (first[0].model, first[1]) == (second[0].model, second[1])
    monkeypatch.setattr(TokenizerTrainer, "_train", None)  # the cache of earlier versions stays valid
    assert TokenizerTrainer(**given, must_fit=False).get(text, tmp_path / "b")[1] == first[1]  # type: ignore[arg-type]
