"""Tests that ids decode to the original text, and that training reports its result or the reason for its failure."""

import io
import pickle
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st

from diglot.data.corpus import Sample
from diglot.data.pieces import adopt
from diglot.data.text import ParallelText
from diglot.data.tokenizer import (
    BOS,
    EOS,
    MAX_LINE_BYTES,
    PAD,
    SLOTS,
    UNK,
    Encoded,
    Tokenizer,
    TokenizerFiles,
    TokenizerTrainer,
)
from diglot.errors import UserError

SPECIAL = {PAD, UNK, BOS, EOS}
PLACEHOLDER = r"\{[^{}\s]+\}"


def sources(lines: list[str]) -> ParallelText:
    """Return a text with these lines as sources."""
    return ParallelText(lines, lines)


def trainer(**options: object) -> TokenizerTrainer:
    return TokenizerTrainer(**({"model_type": "unigram", "vocab_size": 400, "placeholder": PLACEHOLDER} | options))  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def either(
    request: pytest.FixtureRequest, sample_lines: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    return trainer(model_type=request.param).train(sources(sample_lines), tmp_path_factory.mktemp("cache"), ["src"])[0]


def there_and_back(tokenizer: Tokenizer, line: str) -> str:
    (encoded,) = tokenizer.encode([line])
    assert not SPECIAL & set(encoded.ids)
    return tokenizer.decode(encoded.ids, encoded.placeholders)


# -------------------------------------------------------------------------------------------------------------- ids


def test_the_special_ids_are_the_first_four(either: Tokenizer) -> None:
    assert (either.pad_id, either.unk_id, either.bos_id, either.eos_id) == (0, 1, 2, 3)
    assert either.pieces(range(4), "src") == ["<pad>", "<unk>", "<s>", "</s>"]
    assert either.src_vocab_size == either.tgt_vocab_size == 400
    assert len(set(either.pieces(range(400), "src"))) == 400


@pytest.mark.parametrize(
    "text", ["<pad>", "<unk>", "<s>", "</s>", "a </s> b", "<s></s>", "<0x41>", " </s>", "⁇", " ⁇ "]
)
def test_text_that_looks_special_is_text(either: Tokenizer, text: str) -> None:
    assert there_and_back(either, text) == text


# ------------------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "a  b",
        " a",
        "a ",
        "  a   ",
        "a\tb",
        "２０２４ ＡＢＣ",
        "︰",
        "👩‍👩‍👧 ok 🇩🇪",
        "e\u0301 and é",
        "\u200bzero\u00a0width",
        "a\rb\u2028c\x00d\x85e",
        "漢字とかな",
        "\ufeffmark",
    ],
)
def test_text_is_decoded_unchanged(either: Tokenizer, text: str) -> None:
    assert there_and_back(either, text) == text


# Private-use characters U+E000-U+E007 have a test of their own.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=["\u2581", "\n", *SLOTS]), max_size=40)


@given(TEXT)
@example("{a} {b} {c} {d} {e} {f} {g} {h} {i} {j} {a}")
@example("{ a}{}{a}")
def test_any_text_is_decoded_unchanged(tokenizer: Tokenizer, text: str) -> None:
    assert there_and_back(tokenizer, text) == text


@pytest.mark.parametrize(("text", "back"), [("a\u2581b", "a b"), ("\u2581", " "), ("a \u2581b", "a  b")])
def test_the_one_character_that_changes_is_sentencepiece_s_own_mark_for_a_blank(
    either: Tokenizer, text: str, back: str
) -> None:
    assert there_and_back(either, text) == back


def test_a_normalising_tokenizer_decodes_normalised_text(sample_lines: list[str], tmp_path: Path) -> None:
    made, _ = trainer(normalisation="nfkc").train(sources(sample_lines), tmp_path, ["src"])
    assert there_and_back(made, " ２０２４  e\u0301 ") == "2024 é"


# ------------------------------------------------------------------------------------------------------ placeholders


@pytest.mark.parametrize(
    "text",
    [
        "Turn on {name}.",
        "{never_seen_0815} and {name}",
        "{a}{a} {b} {a}",
        "{1} {2} {3} {4} {5} {6} {7} {8} {9} {10} {1}",
        "raw \ue003 here",
        "raw \ue003 and {name} and \ue000\ue003",
        "{a\ue001b} and {c}",
    ],
)
def test_placeholders_are_decoded_unchanged(either: Tokenizer, text: str) -> None:
    assert there_and_back(either, text) == text


def test_a_placeholder_is_one_token_whatever_its_name(either: Tokenizer) -> None:
    known, unknown = either.encode(["{name} x {b}", "{an_unseen_name} x {c}"])
    assert known.ids == unknown.ids
    assert (known.placeholders, unknown.placeholders) == (("{name}", "{b}"), ("{an_unseen_name}", "{c}"))
    assert [piece for piece in either.pieces(known.ids, "src") if piece in SLOTS] == list(SLOTS[:2])


def test_a_target_takes_the_slots_of_its_source(either: Tokenizer) -> None:
    (source,) = either.encode(["{a} then {b}"])
    (target,) = either.encode_targets(["{b}, {a}, {b}"], [source])
    assert [piece for piece in either.pieces(target, "tgt") if piece in SLOTS] == [SLOTS[1], SLOTS[0], SLOTS[1]]
    assert either.decode(target, source.placeholders) == "{b}, {a}, {b}"
    assert source.placeholders == ("{a}", "{b}")


def test_a_target_s_own_placeholder_is_spelt(either: Tokenizer) -> None:
    (source,) = either.encode(["{a}"])
    (target,) = either.encode_targets(["{a} {other}"], [source])
    assert either.decode(target, source.placeholders) == "{a} {other}"
    assert either.decode(target, ("{z}",)) == "{z} {other}"


def test_a_raw_slot_character_that_has_no_slot_becomes_a_replacement_character(either: Tokenizer) -> None:
    (target,) = either.encode_targets(["x \ue002"], [Encoded([], ("{a}",))])
    assert either.decode(target, ("{a}",)) == "x \N{REPLACEMENT CHARACTER}"
    nine = " ".join(f"{{{i}}}" for i in range(8)) + " \ue000"
    assert there_and_back(either, nine) == nine.replace("\ue000", "\N{REPLACEMENT CHARACTER}")


def test_a_slot_without_a_placeholder_is_dropped(either: Tokenizer) -> None:
    (encoded,) = either.encode(["{a} x {b}"])
    assert either.decode(encoded.ids, ("{z}",)) == "{z} x "
    assert either.decode(encoded.ids) == " x "


def test_a_placeholder_named_like_a_slot_fills_only_its_own(either: Tokenizer) -> None:
    text = "{x} \ue000 \ue001"
    (encoded,) = either.encode([text])
    assert encoded.placeholders == ("{x}", "\ue000", "\ue001")
    assert either.decode(encoded.ids, encoded.placeholders) == text


def test_without_a_pattern_nothing_is_a_placeholder(sample_lines: list[str], tmp_path: Path) -> None:
    made, _ = trainer(placeholder=None).train(sources(sample_lines), tmp_path, ["src"])
    (encoded,) = made.encode(["{name} \ue000"])
    assert encoded.placeholders == ()
    assert there_and_back(made, "{name} \ue000") == "{name} \ue000"
    assert made.find_placeholders("{name}") == []


def test_placeholders_are_found_in_order_with_repetitions(tokenizer: Tokenizer) -> None:
    assert tokenizer.find_placeholders("{b} {a}, {b} {no name} \ue000") == ["{b}", "{a}", "{b}"]


def test_the_names_of_placeholders_are_not_learnt(tmp_path: Path) -> None:
    lines = [f"say {{zyzzyva}} to word{i}" for i in range(200)]
    made, _ = trainer(vocab_size=298).train(sources(lines), tmp_path, ["src"])
    assert not [piece for piece in made.pieces(range(298), "src") if "z" in piece and not piece.startswith("<")]


# ----------------------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_training_is_deterministic(sample_lines: list[str], tmp_path: Path, model_type: str) -> None:
    models = [
        trainer(model_type=model_type, sample_size=300)
        .train(sources(sample_lines), tmp_path / str(i), ["src"])[0]
        .model
        for i in range(2)
    ]
    assert models[0] == models[1]


def test_the_same_training_is_not_done_twice(
    sample_lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, told = trainer().train(sources(sample_lines), tmp_path, ["src"])
    trained: list[list[str]] = []

    def train(self: TokenizerTrainer, lines: list[str], options: dict, key_name: str, file: Path) -> bytes:
        trained.append(lines)
        return first.model

    monkeypatch.setattr(TokenizerTrainer, "_train", train)
    assert trainer().train(sources(sample_lines), tmp_path, ["src"])[0].model == first.model
    assert trainer().train(sources(sample_lines), tmp_path, ["src"])[1] == told
    assert not trained
    trainer(vocab_size=401).train(sources(sample_lines), tmp_path, ["src"])
    trainer().train(sources(sample_lines[1:]), tmp_path, ["src"])
    trainer().train(sources([*sample_lines[:-2], "".join(sample_lines[-2:])]), tmp_path, ["src"])
    assert len(trained) == 3


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_a_vocabulary_that_the_text_cannot_fill_is_refused_naming_the_greatest(
    sample_lines: list[str], tmp_path: Path, model_type: str
) -> None:
    lines = sample_lines[:60]
    with pytest.raises(UserError, match=r"tokenizer.vocab_size=8000 .*: at most \d+$") as refused:
        trainer(model_type=model_type, vocab_size=8000).train(sources(lines), tmp_path, ["src"])
    greatest = int(str(refused.value).split()[-1])
    assert (
        trainer(model_type=model_type, vocab_size=greatest).train(sources(lines), tmp_path, ["src"])[0].src_vocab_size
        == greatest
    )
    with pytest.raises(UserError, match=f"at most {greatest}$"):
        trainer(model_type=model_type, vocab_size=greatest + 1).train(sources(lines), tmp_path, ["src"])
    assert sorted(file.suffix for file in (tmp_path / "tokenizers").iterdir()) == [".model", ".txt"]


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_a_vocabulary_too_small_for_the_characters_is_refused_naming_the_least(
    sample_lines: list[str], tmp_path: Path, model_type: str
) -> None:
    with pytest.raises(UserError, match=r"tokenizer.vocab_size=270 is too small .*: at least \d+$") as refused:
        trainer(model_type=model_type, vocab_size=270).train(sources(sample_lines), tmp_path, ["src"])
    least = int(str(refused.value).split()[-1])
    assert (
        trainer(model_type=model_type, vocab_size=least)
        .train(sources(sample_lines), tmp_path, ["src"])[0]
        .src_vocab_size
        == least
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"vocab_size": 260}, "vocab_size (260)"),
        ({"character_coverage": 0.5}, "character_coverage (0.5)"),
        ({"character_coverage": 1.1}, "character_coverage (1.1)"),
        ({"sample_size": 0}, "sample_size (0)"),
        ({"placeholder": "("}, "placeholder (()"),
    ],
)
def test_values_that_allow_no_training_are_refused_by_name(options: dict, named: str) -> None:
    with pytest.raises(ValueError) as refused:
        trainer(**options)
    assert named in str(refused.value)


def test_lines_that_cannot_be_trained_on_are_counted(sample_lines: list[str], tmp_path: Path) -> None:
    kept, skipped = "漢" * (MAX_LINE_BYTES // 3), "漢" * (MAX_LINE_BYTES // 3 + 1)  # the limit counts bytes
    lines = [*sample_lines[:400], kept, skipped, "", "  \t"]
    made, told = trainer().train(sources(lines), tmp_path, ["src"])
    assert told == "tokenizer: 404 lines read, 401 used, 3 skipped"
    assert made.src_vocab_size == 400


@pytest.mark.parametrize(
    ("odd", "is_used"),
    [
        ("zeppelin\N{LOWER FIVE EIGHTHS BLOCK}quixote", True),  # SentencePiece's mark for unknown characters
        ("zeppelin\u2581quixote", True),  # its mark for a space
        *((f"zeppelin{odd}quixote", True) for odd in ("\0", "\t", "\ufffd", "\uffff", "\ue000", "\u2047", "\u2028")),
        ("z" * MAX_LINE_BYTES, True),
        ("z" * (MAX_LINE_BYTES + 1), False),
        ("zeppelin " + "{name}" * 1000, True),  # the trainer reads a slot for each
        ("zeppelin " + "{n}" * (MAX_LINE_BYTES // 3 - 5) + " quixote", False),
        ("#" * (MAX_LINE_BYTES // 2), False),  # a slot is longer than this placeholder
        *((blank, False) for blank in ("\u2581", "\N{LOWER FIVE EIGHTHS BLOCK}", "\u3000", "\r")),
    ],
)
def test_the_lines_that_are_counted_as_used_are_those_that_sentencepiece_learns_from(
    odd: str, is_used: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = trainer(placeholder=r"\{[^{}\s]+\}|#", vocab_size=290)
    used, told = made._sample(sources([odd] * 20 + ["alpha beta gamma delta"] * 20), ["src"])
    assert told == f"tokenizer: 40 lines read, {40 if is_used else 20} used, {0 if is_used else 20} skipped"
    options = {"vocab_size": 290, "hard_vocab_limit": False, "byte_fallback": True, "model_type": "unigram"}
    options |= {"normalization_rule_name": "identity", "max_sentence_length": MAX_LINE_BYTES}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(used), model_writer=io.BytesIO(), minloglevel=0, **options
    )
    assert f"Loaded all {40 if is_used else 20} sentences" in capfd.readouterr().err


@pytest.mark.parametrize("rule", ["identity", "nmt_nfkc", "nfkc", "nfkc_cf", "nmt_nfkc_cf"])
def test_lines_of_which_normalisation_leaves_nothing_are_counted_as_skipped(rule: str) -> None:
    made = trainer(normalisation=rule)
    lines = ["\u200b", "\ufffd", "\u2581", "\x01", "\u00a0", "...", "Ka", "\u0301", "\u3164"]
    normaliser = sentencepiece.SentencePieceNormalizer(rule_name=rule)
    n_left = sum(bool(normaliser.normalize(line).replace("\u2581", " ").strip()) for line in lines)
    assert made._sample(sources(lines), ["src"])[1].endswith(f"{n_left} used, {9 - n_left} skipped")


def test_text_beside_sentencepiece_s_unknown_mark_is_learnt(tmp_path: Path) -> None:
    mark = "\N{LOWER FIVE EIGHTHS BLOCK}"
    lines = [f"zeppelin {mark * n} quixote{mark}" for n in range(1, 60)]
    made, told = trainer(vocab_size=280).train(sources(lines), tmp_path, ["src"])
    assert told.endswith("59 lines read, 59 used, 0 skipped")
    (found,) = made.encode([f"zeppelin {mark} quixote"])
    pieces = made.pieces(found.ids, "src")
    assert [piece for piece in pieces if piece.startswith("<0x")] == ["<0xE2>", "<0x96>", "<0x85>"]  # the mark's bytes
    assert made.decode(found.ids) == f"zeppelin {mark} quixote"


@pytest.mark.parametrize("lines", [[], ["", "   "], ["a" * (MAX_LINE_BYTES + 1)]])
def test_text_without_a_usable_line_is_refused(lines: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"none of {len(lines)} lines is usable"):
        trainer().train(sources(lines), tmp_path, ["src"])
    assert not list(tmp_path.iterdir())


def test_a_sample_is_drawn_from_the_whole_text(tmp_path: Path) -> None:
    lines = ["alpha beta gamma"] * 300 + ["omega sigma kappa"] * 300
    made, told = trainer(vocab_size=285, sample_size=200).train(sources(lines), tmp_path, ["src"])
    assert told == "tokenizer: 600 lines read, 200 used, 0 skipped"
    for line in ("alpha gamma", "omega kappa"):
        assert not [piece for piece in made.pieces(made.encode([line])[0].ids, "src") if piece.startswith("<0x")]


# -------------------------------------------------------------------------------------------------------------- files


def test_a_model_with_other_special_ids_is_refused(sample_lines: list[str]) -> None:
    foreign = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sample_lines), model_writer=foreign, vocab_size=100, minloglevel=2
    )
    with pytest.raises(UserError, match=r"has pad, unk, bos, eos at \[-1, 0, 1, 2\], not at \[0, 1, 2, 3\]"):
        Tokenizer(foreign.getvalue(), None)


@pytest.mark.parametrize(
    "damage", [lambda model: b"", lambda model: b"no model", lambda model: model[: len(model) // 2]]
)
def test_a_damaged_model_is_refused(tokenizer: Tokenizer, damage: object) -> None:
    with pytest.raises(UserError, match="SentencePiece model"):
        Tokenizer(damage(tokenizer.model), None)  # type: ignore[operator]


def test_a_line_break_spelt_in_bytes_becomes_a_space(tokenizer: Tokenizer) -> None:
    newline = next(i for i in range(tokenizer.src_vocab_size) if tokenizer.pieces([i], "src") == ["<0x0A>"])
    ids = [*tokenizer.encode(["ab"])[0].ids, newline, *tokenizer.encode(["c"])[0].ids]
    assert "\n" not in tokenizer.decode(ids)
    assert tokenizer.decode(ids).split() == ["ab", "c"]


# ----------------------------------------------------------------------------------------- separate and foreign models


def test_each_side_may_have_a_vocabulary_of_its_own(tmp_path: Path) -> None:
    train = Sample().read(tmp_path)["train"].load()
    made, told = trainer(joint=False, vocab_size=330, tgt_vocab_size=360).get(train, tmp_path)
    assert (made.src_vocab_size, made.tgt_vocab_size, made.is_joint) == (330, 360, False)
    assert told.endswith("330 source pieces and 360 target pieces")
    sources = made.encode(train.src[:200])
    targets = made.encode_targets(train.tgt[:200], sources)
    assert [made.decode(s.ids, s.placeholders, "src") for s in sources] == train.src[:200]
    assert [made.decode(t, s.placeholders) for t, s in zip(targets, sources)] == train.tgt[:200]
    # Each model is the one trained on its side alone.
    alone, _ = trainer(vocab_size=330).train(ParallelText(train.src, train.src), tmp_path, ["src"])
    assert made.model == alone.model != made.tgt_model
    again = pickle.loads(pickle.dumps(made))
    assert again.encode(train.src[:200]) == sources
    assert again.encode_targets(train.tgt[:200], sources) == targets


def test_a_target_vocabulary_that_cannot_be_filled_is_refused_by_its_own_name(tmp_path: Path) -> None:
    train = Sample().read(tmp_path)["train"].load()
    with pytest.raises(UserError, match=r"^tokenizer\.tgt_vocab_size=9000 is too large for this text: at most \d+$"):
        trainer(joint=False, tgt_vocab_size=9000).get(train.select(range(300)), tmp_path)


FOREIGN = {
    "sentencepiece's own ids": {},
    "as T5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "bpe with bytes": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 500},
    "looks special": {"bos_id": -1, "eos_id": -1, "user_defined_symbols": ["<s>", "</s>", "<2bol>", "<sep>"]},
    "further control pieces": {"control_symbols": ["<mask>", "<2bol>"], "bos_id": 6, "eos_id": 5, "unk_id": 4},
}


@pytest.fixture(params=FOREIGN.values(), ids=FOREIGN.keys())
def foreign(request: pytest.FixtureRequest, sample_lines: list[str]) -> bytes:
    model = io.BytesIO()
    options = {"vocab_size": 200, **request.param}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sample_lines), model_writer=model, minloglevel=2, num_threads=1, **options
    )
    return model.getvalue()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("languages", [(), ("bol", "en")])
@pytest.mark.parametrize("placeholder", [None, r"\{[^{}\s]+\}"])
def test_a_model_of_any_origin_is_usable(
    foreign: bytes, sample_lines: list[str], languages: tuple, placeholder: str | None, tmp_path: Path
) -> None:
    (tmp_path / "spm.model").write_bytes(foreign)
    source = TokenizerFiles(model=str(tmp_path / "spm.model"), placeholder=placeholder)
    made, told = source.get(sources(sample_lines), tmp_path, languages)
    assert told == f"tokenizer: {tmp_path / 'spm.model'}: {made.src_vocab_size:,} pieces"
    assert len(set(made.pieces(range(made.src_vocab_size), "src"))) == made.src_vocab_size
    theirs = sentencepiece.SentencePieceProcessor(model_proto=foreign)
    plain = [line for line in sample_lines if not made.find_placeholders(line)]
    ids = [encoded.ids for encoded in made.encode(plain)]
    # The given model may have another name for its piece of unknown characters.
    names = {theirs.id_to_piece(theirs.unk_id()): "<unk>"}
    assert [[names.get(p, p) for p in made.pieces(own, "src")] for own in ids] == [
        [names.get(theirs.id_to_piece(i), theirs.id_to_piece(i)) for i in line] for line in theirs.encode(plain)
    ]
    assert [made.decode(own) for own in ids] == [theirs.decode(line) for line in theirs.encode(plain)]
    for text in ("<s> a", "</s>", "<pad>", "a <unk> b", "<2bol>", "<2en> a"):
        assert not {PAD, BOS, EOS} & set(made.encode([text])[0].ids)
        assert not {made.encode([""], language)[0].ids[0] for language in languages} & set(made.encode([text])[0].ids)


def test_a_model_without_slots_is_refused_with_placeholders(foreign: bytes) -> None:
    with pytest.raises(UserError, match="no pieces for placeholders"):
        Tokenizer(adopt(foreign), r"\{\w+\}")


@pytest.mark.parametrize("content", [None, b"", b"no model"])
def test_a_file_that_is_no_model_is_refused_by_name(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "spm.model"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=rf"^tokenizer\.tgt_model={path}: "):
        TokenizerFiles(model=str(path), tgt_model=str(path))._read("tgt_model", str(path), (), ())


def test_a_tag_is_one_id_that_does_not_occur_in_text(either: Tokenizer, sample_lines: list[str]) -> None:
    tagged = Tokenizer(adopt(either.model, ["<2bol>", "<2en>"]), either.placeholder, None, ["bol", "en"])
    assert tagged.src_vocab_size == either.src_vocab_size + 2
    plain = [encoded.ids for encoded in either.encode(sample_lines)]
    for number, language in enumerate(("bol", "en")):
        tag = either.src_vocab_size + number
        assert [encoded.ids for encoded in tagged.encode(sample_lines, language)] == [[tag, *ids] for ids in plain]
        assert tagged.decode([tag, *plain[0]]) == either.decode(plain[0])
        assert tagged.pieces([tag], "src") == [f"<2{language}>"]
    assert [encoded.ids for encoded in tagged.encode(sample_lines)] == plain
    with pytest.raises(UserError, match=r"^fr is not a target language of this model, which has bol, en$"):
        tagged.encode(["a"], "fr")


INVISIBLE = ["\u200b", "\ufeff", "\ufffd\ufffd", "\u200b \u200c\t", "\u200e\u200f", " ", "", "\u3000", "\u2581"]


@pytest.fixture(scope="module")
def normalising(sample_lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Return a tokenizer whose normalisation removes zero-width characters."""
    made = trainer(normalisation="nmt_nfkc", placeholder=r"\{[^{}\s]+\}")
    return made.get(sources(sample_lines), tmp_path_factory.mktemp("nmt_nfkc"), ["bol", "cav"])[0]


@pytest.mark.parametrize("tgt_lang", [None, "bol"])
def test_a_line_that_normalisation_empties_is_blank_with_and_without_a_tag(
    normalising: Tokenizer, tgt_lang: str | None
) -> None:
    assert all(source.is_blank for source in normalising.encode(INVISIBLE, tgt_lang))
    assert not any(source.is_blank for source in normalising.encode(["Ka", "{name}", "\u200bKa"], tgt_lang))


def test_without_normalisation_only_white_space_is_blank(tokenizer: Tokenizer) -> None:
    lines = ["", " ", "\u3000\t", "\u200b", "\ufffd", "Ka"]
    assert [source.is_blank for source in tokenizer.encode(lines)] == [True, True, True, False, False, False]
