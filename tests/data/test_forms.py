"""Tests that texts of the same appearance compare as equal, and that a tokenizer can unify their Unicode forms."""

import itertools
import pickle
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st

from diglot.data.doctor import diagnose
from diglot.data.forms import comparable, form_of, mixed_forms
from diglot.data.pieces import adopt, is_composing, normalisation
from diglot.data.preparation import Cleaning, prepare
from diglot.data.split import grouped_split, normalise
from diglot.data.text import ParallelText, hash_pair
from diglot.data.tokenizer import Tokenizer, TokenizerTrainer
from diglot.evaluation.translation_memory import nearest

TEXTS = {
    "French": "Où êtes-vous né, à Orléans ?",
    "Vietnamese": "Tiếng Việt: ợ ẫ ự Ỡ, nước uống",
    "Yoruba": "Ẹ̀kọ́ ọ̀rọ̀ ṣé ẹ̀yin é̩ ò̩ m̀bẹ",
    "Korean": "한국어 값 가각 읽다",
    "Hindi": "क़लम ख़बर ऩ ऱ सड़क बढ़ना",
    "Bengali": "বাংলা কো কৌ ড়",
    "Tamil": "கொ கோ கௌ",
    "Greek": "ᾆ ΐ ὦ άνθρωπος",
    "Russian": "ёлка йод ї",
    "Arabic": "آمن أكل إلى مؤمن مُدَرِّس",
    "Hebrew": "שָׁלוֹם בְּרֵאשִׁית",
    "Japanese": "がぎぐ ぱぴ ヴ",
    "Symbols": "Å Ω K ≠ 豈",
}


def decomposed(text: str) -> str:
    return unicodedata.normalize("NFD", text)


def composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def composing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Return a tokenizer that composes its input."""
    trainer = TokenizerTrainer(
        model_type=request.param, vocab_size=412, normalisation="nfc", placeholder=r"\{[^{}\s]+\}"
    )
    lines = [*TEXTS.values(), *map(decomposed, TEXTS.values())] * 3
    return trainer.get(ParallelText(lines, lines), tmp_path_factory.mktemp(request.param))[0]


# ------------------------------------------------------------------------------------------------------------ comparing


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_both_forms_of_a_text_are_equal(text: str) -> None:
    forms = [text, composed(text), decomposed(text), f"\ufeff{text}\u200b", text.replace(" ", "\u200d \u200c")]
    assert {comparable(form) for form in forms} == {composed(text)}
    assert len({normalise(form) for form in forms}) == 1
    assert len({hash_pair(form, form) for form in forms}) == 1


def test_texts_that_look_different_are_not_equal() -> None:
    assert comparable("ﬁ") != comparable("fi")  # compatibility characters stay
    assert comparable("a b") != comparable("ab")
    assert comparable("é") != comparable("e")
    assert comparable("A") != comparable("a")


def test_the_form_of_a_text_depends_on_every_character() -> None:
    assert [form_of(text) for text in ("plain", "中文", "", "क")] == [None] * 4
    assert [form_of(text) for text in ("é", "한", "ế 中")] == ["composed"] * 3
    assert [form_of(text) for text in ("e\u0301", "é e\u0301", "\u212b")] == ["decomposed"] * 3


def test_a_translation_memory_finds_a_sentence_in_either_form() -> None:
    memory = ["nothing of it", decomposed(TEXTS["Yoruba"]), "\ufeffplain"]
    assert [(found.index, found.similarity) for found in nearest([TEXTS["Yoruba"], "plain"], memory)] == [
        (1, 100.0),
        (2, 100.0),
    ]


def test_pairs_that_differ_only_in_form_stay_in_one_split() -> None:
    words = [f"{chr(0xE0 + i % 20)}{'abcdefghij'[i // 20]}" for i in range(200)]
    pairs = ParallelText(words + list(map(decomposed, words)), [f"{w}x" for w in words + words])
    splits, _ = grouped_split(pairs, 20, 20, seed=1)
    keys = [{composed(line) for line in split.src} for split in splits.values()]
    assert not keys[0] & keys[1]
    assert not keys[0] & keys[2]
    assert not keys[1] & keys[2]


def test_pairs_that_differ_only_in_form_are_duplicates_and_such_sides_identical(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    word = "né à Orléans"
    text = ParallelText(["Ka é", decomposed("Ka é"), "Ka\u200b é", word], ["Lo", "Lo", "Lo", decomposed(word)])
    shards = prepare(text, tokenizer, tmp_path, max_len=100, cleaning=Cleaning(duplicates=True, identical=True))
    assert shards.metadata["corpora"]["train"] == {"read": 4, "kept": 1, "dropped": {"duplicates": 2, "identical": 1}}


# --------------------------------------------------------------------------------------------------------------- doctor


def test_held_out_pairs_that_are_in_train_in_another_form_are_found(tokenizer: Tokenizer, tmp_path: Path) -> None:
    lines = [f"là {word} où" for word in "abcdefghij"]
    train, dev = ParallelText(list(map(decomposed, lines)), list(map(decomposed, lines))), ParallelText(lines, lines)
    found = diagnose(train, {"dev": dev}, prepare(train, tokenizer, tmp_path, max_len=99), tokenizer, tmp_path)
    assert found.overlap["dev"].pairs == 10
    assert "dev: 10 of 10 pairs are also in train" in found.faults


def test_forms_that_differ_between_splits_are_counted_and_reported(tokenizer: Tokenizer, tmp_path: Path) -> None:
    lines = [f"là {word}" for word in "abcdefghij"]
    train = ParallelText(["plain"] * 10, [*map(decomposed, lines[:5]), *lines[5:]])
    dev = ParallelText(["simple"] * 3, [f"où {word}" for word in "abc"])
    found = diagnose(train, {"dev": dev}, prepare(train, tokenizer, tmp_path, max_len=99), tokenizer, tmp_path)
    assert found.forms == {
        "train source": {"composed": 0, "decomposed": 0},
        "train target": {"composed": 5, "decomposed": 5},
        "dev source": {"composed": 0, "decomposed": 0},
        "dev target": {"composed": 3, "decomposed": 0},
    }
    assert "not in NFC, out of those with accents or similar marks: train target 5 of 10, dev target 0 of 3" in (
        found.summary()
    )


@pytest.mark.parametrize("form", [composed, decomposed])
def test_text_in_one_form_is_not_reported(form, tokenizer: Tokenizer, tmp_path: Path) -> None:
    lines = [form(f"là {word}") for word in "abcdefghij"]
    train, dev = ParallelText(lines, lines), ParallelText([form("où")], [form("né")])
    found = diagnose(train, {"dev": dev}, prepare(train, tokenizer, tmp_path, max_len=99), tokenizer, tmp_path)
    assert mixed_forms(found.forms) is None
    assert "NFC" not in found.summary()


# ------------------------------------------------------------------------------------------------------------ tokenizer


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_composing_tokenizer_reads_every_form_alike_and_gives_back_the_composed_one(
    composing: Tokenizer, text: str
) -> None:
    ids = [source.ids for source in composing.encode([composed(text), decomposed(text), text])]
    assert ids[0] == ids[1] == ids[2]
    assert composing.encode_targets([decomposed(text)], composing.encode(["a"])) == ids[:1]
    assert composing.decode(ids[0]) == composed(text)
    assert pickle.loads(pickle.dumps(composing)).encode([decomposed(text)])[0].ids == ids[0]


MARKED = st.text(st.sampled_from("aeiouEOUnsdmgyzɛɔ"), min_size=1, max_size=1)
MARKS = st.text(st.sampled_from("\u0300\u0301\u0302\u0303\u0304\u0306\u0308\u030c\u031b\u0323\u0327\u0328\u0329\u0331"))


@given(st.lists(st.tuples(MARKED, MARKS.map(lambda marks: marks[:2])), max_size=6))
def test_two_marks_on_a_letter_are_composed_in_any_order(composing: Tokenizer, letters: list[tuple[str, str]]) -> None:
    text = "".join(base + marks for base, marks in letters)
    assert composing.decode(composing.encode([text])[0].ids) == composed(text)


POINTED = {
    "Hebrew": ("\u05e9", "\u05c1\u05bc\u05b8\u0591"),  # shin, its dot, dagesh, qamats, and an accent
    "Vietnamese": ("o", "\u0302\u0301\u0323"),
    "Arabic": ("\u0628", "\u0651\u064e\u0655"),
    "Hindi": ("\u0928", "\u093c\u094d\u0951"),
    "Tibetan": ("\u0f40", "\u0f71\u0f74\u0f7e"),
    "Greek": ("α", "\u0313\u0301\u0345"),
}


@pytest.mark.parametrize(("letter", "marks"), POINTED.values(), ids=POINTED)
def test_any_number_of_marks_in_any_order_is_read_as_its_composed_form(
    composing: Tokenizer, letter: str, marks: str
) -> None:
    texts = [f"{letter}{''.join(order)} x" for order in itertools.permutations(marks)]
    sources = composing.encode(texts)
    for text, source, target in zip(texts, sources, composing.encode_targets(texts, sources), strict=True):
        assert source.ids == target == composing.encode([composed(text)])[0].ids, text
        assert composing.decode(source.ids) == composed(text)


@given(st.text(st.characters(categories=["Mn", "Mc", "Lo"]), max_size=9))
def test_text_with_any_marks_is_read_as_its_composed_form(composing: Tokenizer, text: str) -> None:
    assert composing.encode([text])[0].ids == composing.encode([composed(text)])[0].ids


def test_the_model_file_alone_composes_the_points_of_hebrew_and_arabic(composing: Tokenizer) -> None:
    alone = sentencepiece.SentencePieceProcessor(model_proto=composing.model)
    for letter, marks in (("\u05e9", "\u05c1\u05bc\u05b8"), POINTED["Arabic"]):
        for order in itertools.permutations(marks):
            assert alone.decode(alone.encode(letter + "".join(order))) == composed(letter + marks)


def test_a_model_file_for_composed_text_stays_marked(composing: Tokenizer, tokenizer: Tokenizer) -> None:
    assert is_composing(composing.model)
    assert is_composing(adopt(composing.model, ["<2de>"]))
    assert not is_composing(tokenizer.model)
    assert (normalisation(composing.model), normalisation(tokenizer.model)) == ("nfc", "identity")


@example("{a}")
@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Co"], exclude_characters="\u2581"), max_size=12))
def test_a_composing_tokenizer_decodes_composed_text_unchanged(composing: Tokenizer, text: str) -> None:
    (encoded,) = composing.encode([composed(text)])
    assert composing.decode(encoded.ids, encoded.placeholders) == composed(text)


def test_joiners_and_blanks_stay_in_text(composing: Tokenizer) -> None:
    text = "می\u200cخواهم  क्\u200dष \u200b x "
    assert composing.decode(composing.encode([text])[0].ids) == text


def test_placeholders_that_differ_only_in_form_have_the_same_slot(composing: Tokenizer) -> None:
    sources = composing.encode(["Où {né} ?"])
    (target,) = composing.encode_targets([decomposed("là {né}")], sources)
    assert composing.decode(target, sources[0].placeholders) == "là {né}"
    (both,) = composing.encode(["{né} " + decomposed("{né}")])
    assert composing.decode(both.ids, both.placeholders) == "{né} " + decomposed("{né}")
