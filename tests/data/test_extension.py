"""An extended tokenizer keeps the old ids, segments old text as before, and uses its new pieces."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from diglot.data.extension import TokenizerExtension, added_ids, source_from
from diglot.data.pieces import Piece, append, tag
from diglot.data.text import ParallelText, write_lines
from diglot.data.tokenizer import UNK, Tokenizer, TokenizerTrainer
from diglot.errors import UserError

PLACEHOLDER = r"\{[^{}\s]+\}"
NEW_WORDS = ["Kardiologo", "kardiogramo", "stetoskopo"]


def text_of(lines: list[str]) -> ParallelText:
    return ParallelText(lines, lines)


def extended(
    base: Tokenizer, folder: Path, text: ParallelText | None = None, languages: Sequence[str] = (), **options: object
) -> tuple[Tokenizer, str]:
    source = TokenizerExtension(**options)  # type: ignore[arg-type]
    source.start_from(base, "bol")
    return source.get(text or text_of(["a"]), folder, languages)


def ids_of(tokenizer: Tokenizer, lines: list[str]) -> list[list[int]]:
    sources = tokenizer.encode(lines)
    return [*(source.ids for source in sources), *tokenizer.encode_targets(lines, sources)]


def trained(model_type: str, lines: list[str], folder: Path, **options: object) -> Tokenizer:
    size = {"unigram": 400, "bpe": 400}.get(model_type)
    defaults: dict[str, object] = {"placeholder": None if model_type == "word" else PLACEHOLDER, "must_fit": False}
    made = TokenizerTrainer(model_type=model_type, vocab_size=size, **(defaults | options))  # type: ignore[arg-type]
    # Equal vocabularies of both sides would be one vocabulary.
    text = ParallelText(lines, [line.swapcase() for line in lines]) if options.get("joint") is False else text_of(lines)
    return made.get(text, folder)[0]


@pytest.mark.parametrize("model_type", ["unigram", "bpe", "char", "word"])
def test_given_pieces_match_wherever_they_occur_and_other_text_is_segmented_as_before(
    model_type: str, sample_lines: list[str], tmp_path: Path
) -> None:
    base = trained(model_type, sample_lines, tmp_path)
    pieces = ["mRNA", "aser", "nim"]  # the last two are parts of words of the sample
    pieces += [] if model_type == "word" else ["no"]  # overlaps with frequent pieces
    found, note = extended(base, tmp_path, pieces=pieces)
    assert (
        note == f"tokenizer: the checkpoint's, {len(pieces)} of {len(pieces)} given pieces and 0 learned pieces added"
    )
    n_old = base.src_vocab_size
    assert found.pieces(range(n_old), "src") == base.pieces(range(n_old), "src")
    blank = "\N{LOWER ONE EIGHTH BLOCK}" if model_type == "word" else ""
    assert found.pieces(range(n_old, found.src_vocab_size), "src") == [f"{blank}{piece}" for piece in pieces]
    old = [line for line in sample_lines if not any(piece in line for piece in pieces)]
    assert len(old) > 50
    assert ids_of(found, old) == ids_of(base, old)
    if model_type == "word":  # only whole words
        assert found.encode(["nim mRNA nimer"])[0].ids == [n_old + 2, n_old, *base.encode(["nimer"])[0].ids]
        return
    new = [line for line in sample_lines if any(piece in line for piece in pieces) and "{" not in line][:200]
    for line in [*new, "Lo{name}mRNA!Kin gaser"]:
        (encoded,) = found.encode([line])
        for i, piece in enumerate(pieces):
            assert encoded.ids.count(n_old + i) == line.count(piece), line
        assert found.decode(encoded.ids, encoded.placeholders) == line


def test_learned_pieces_shorten_the_new_text_and_leave_the_old_one(sample_lines: list[str], tmp_path: Path) -> None:
    base = trained("unigram", sample_lines, tmp_path, capitals="mark")
    new = [f"{word} ta pere." for word in NEW_WORDS] * 20
    found, note = extended(base, tmp_path, text_of([*sample_lines, *new]), learn=6)
    assert note == "tokenizer: the checkpoint's, 0 of 0 given pieces and 6 learned pieces added"
    learned = found.pieces(range(base.src_vocab_size, found.src_vocab_size), "src")
    assert len(set(learned)) == 6
    ids = found.encode(new[: len(NEW_WORDS)])
    n_new = sum(i >= base.src_vocab_size for each in ids for i in each.ids)
    assert n_new >= len(NEW_WORDS)
    assert sum(len(each.ids) for each in ids) < 0.7 * sum(len(each.ids) for each in base.encode(new[: len(NEW_WORDS)]))
    names = [piece.strip("\N{LOWER ONE EIGHTH BLOCK}") for piece in learned]
    old = [line for line in sample_lines if not any(name in line for name in names)]
    assert len(old) > 50
    assert ids_of(found, old) == ids_of(base, old)


def test_characters_that_were_bytes_become_pieces(sample_lines: list[str], tmp_path: Path) -> None:
    base = trained("unigram", sample_lines, tmp_path)
    words = ["сердце", "сердечный"]
    found, _ = extended(base, tmp_path, text_of([f"{a} {b}" for a in words for b in words] * 30), learn=14)
    for word in words:
        assert len(found.encode([word])[0].ids) < len(word) < len(base.encode([word])[0].ids)


def test_each_learned_piece_is_used_for_its_own_text(sample_lines: list[str], tmp_path: Path) -> None:
    """Among pieces that contain each other, the longest one is used."""
    base = trained("unigram", sample_lines, tmp_path)
    roots, ends = ["kardio", "gastro", "neuro", "derm"], ["logo", "logia", "grafo", "patia", ""]
    words = [f"{root}{end}" for root in roots for end in ends]
    lines = [f"{word} ta {other}" for word in words for other in words[:7]]
    found, _ = extended(base, tmp_path, text_of([*sample_lines, *lines]), learn=40)
    blank = "\N{LOWER ONE EIGHTH BLOCK}"
    learned = found.pieces(range(base.src_vocab_size, found.src_vocab_size), "src")
    starts = [piece for piece in learned if piece.startswith(blank)]
    assert any(one != other and one.startswith(other) for one in starts for other in starts)
    for piece in starts:
        assert found.pieces(found.encode([piece.strip(blank)])[0].ids, "src") == [piece]


def test_pieces_come_from_a_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_lines(tmp_path / "terms.txt", ["mRNA", "", "  COVID-19 "])
    found, _ = extended(tokenizer, tmp_path, pieces=str(tmp_path / "terms.txt"))
    assert found.pieces(range(tokenizer.src_vocab_size, found.src_vocab_size), "src") == ["mRNA", "COVID-19"]
    write_lines(tmp_path / "terms.txt", ["mRNA", "two words"])
    with pytest.raises(UserError, match=r"terms\.txt, line 2: 'two words' cannot be a piece: .* without whitespace$"):
        extended(tokenizer, tmp_path, pieces=str(tmp_path / "terms.txt"))
    with pytest.raises(UserError, match=r"none\.txt"):
        extended(tokenizer, tmp_path, pieces=str(tmp_path / "none.txt"))


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([""], "tokenizer.pieces: '' cannot be a piece: a piece is a text without whitespace"),
        (["a{name}"], "tokenizer.pieces: 'a{name}' cannot be a piece: tokenizer.placeholder matches it"),
        (["<unk>", "</s>"], "tokenizer=extend adds nothing: the checkpoint's tokenizer has all pieces and tags"),
        (None, "tokenizer=extend adds nothing"),
    ],
)
def test_what_cannot_be_added_is_refused(
    tokenizer: Tokenizer, tmp_path: Path, pieces: list[str] | None, message: str
) -> None:
    with pytest.raises(UserError) as error:
        extended(tokenizer, tmp_path, pieces=pieces)
    assert str(error.value).startswith(message)


def test_text_without_a_new_subword_is_refused_without_advice_to_learn(tmp_path: Path) -> None:
    lines = ["ab ba abba"] * 50
    base = trained("unigram", lines, tmp_path)
    with pytest.raises(UserError, match=r"tokenizer\.learn=3 finds no subword .*, or type tokenizer\.pieces=FILE$"):
        extended(base, tmp_path, text_of(lines), learn=3)


def test_text_that_normalisation_changes_is_refused_or_composed(sample_lines: list[str], tmp_path: Path) -> None:
    composing = trained("unigram", sample_lines, tmp_path, normalisation="nfc")
    found, _ = extended(composing, tmp_path, pieces=["cafe\u0301"])
    assert found.pieces([composing.src_vocab_size], "src") == ["café"]
    assert composing.src_vocab_size in found.encode(["le cafe\u0301 ner"])[0].ids
    folding = trained("unigram", sample_lines, tmp_path, normalisation="nmt_nfkc_cf")
    with pytest.raises(UserError, match="'COVID' cannot be a piece: the tokenizer's normalisation changes it"):
        extended(folding, tmp_path, pieces=["COVID"])
    assert extended(folding, tmp_path, pieces=["covid"])[0].encode(["COVID"])[0].ids[-1] == folding.src_vocab_size


@pytest.mark.parametrize("side", ["src", "tgt", "both"])
def test_separate_vocabularies_are_extended_on_the_chosen_side(
    side: str, sample_lines: list[str], tmp_path: Path
) -> None:
    base = trained("unigram", sample_lines, tmp_path, joint=False)
    found, note = extended(base, tmp_path, pieces=["mRNA"], sides=side, languages=["avi", "bol"])
    n_src, n_tgt = (side in ("src", "both")) + 2, side in ("tgt", "both")
    assert found.vocab_sizes == {
        "src_vocab_size": base.src_vocab_size + n_src,
        "tgt_vocab_size": base.tgt_vocab_size + n_tgt,
    }
    assert note.endswith("; tags added for avi, bol")
    assert found.encode(["Lo"], "avi")[0].ids == [found.src_vocab_size - 2, *base.encode(["Lo"])[0].ids]
    learned, _ = extended(base, tmp_path, text_of(NEW_WORDS * 50), learn=2, sides=side)
    n_learned = 2 * (side in ("src", "both")), 2 * (side in ("tgt", "both"))
    assert (learned.src_vocab_size - base.src_vocab_size, learned.tgt_vocab_size - base.tgt_vocab_size) == n_learned


def test_options_must_suit_the_tokenizer(tokenizer: Tokenizer, sample_lines: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.sides=src: the checkpoint has one vocabulary for both sides"):
        extended(tokenizer, tmp_path, pieces=["mRNA"], sides="src")
    with pytest.raises(UserError, match=r"tokenizer\.learn=5: the checkpoint's tokenizer is of type bpe"):
        extended(trained("bpe", sample_lines, tmp_path), tmp_path, learn=5)
    with pytest.raises(UserError, match="type init_from=CHECKPOINT, too"):
        source_from(TokenizerExtension(pieces=["mRNA"]), None, "bol")
    with pytest.raises(UserError, match="type init_from=CHECKPOINT, too"):
        TokenizerExtension(pieces=["mRNA"]).get(text_of(["a"]), tmp_path)
    with pytest.raises(ValueError, match=r"learn \(-1\)"):
        TokenizerExtension(learn=-1)


def test_other_sources_give_way_to_the_checkpoints_tokenizer(tokenizer: Tokenizer) -> None:
    source = TokenizerTrainer(model_type="char", vocab_size=None)
    assert source_from(source, tokenizer, "bol") is tokenizer
    assert source_from(source, None, "bol") is source


def test_a_new_target_language_gets_a_tag(tokenizer: Tokenizer, tmp_path: Path) -> None:
    both, _ = extended(tokenizer, tmp_path, languages=["avi", "bol"])
    assert both.languages == ("avi", "bol")
    source = TokenizerExtension()
    source.start_from(both, "cel")  # the target language of dev, as with data=files
    three, note = source.get(text_of(["a"]), tmp_path, ())
    assert three.languages == ("avi", "bol", "cel")
    assert note.endswith("; tags added for cel")
    assert three.pieces([three.src_vocab_size - 1], "src") == [tag("cel")]
    assert three.encode(["Lo"], "cel")[0].ids[1:] == three.encode(["Lo"], "avi")[0].ids[1:]


def test_the_old_ids_of_a_new_piece_are_those_of_its_text_inside_a_line(tokenizer: Tokenizer, tmp_path: Path) -> None:
    found, _ = extended(tokenizer, tmp_path, pieces=["gasertezer"], languages=["avi", "bol"])
    (text, *tags) = added_ids(tokenizer, found, "src")
    assert "".join(tokenizer.pieces(text, "src")) == "gasertezer"
    assert tags == [[], []]
    more, _ = extended(found, tmp_path, languages=["cel"])
    assert added_ids(found, more, "src") == [[found.src_vocab_size - 2, found.src_vocab_size - 1]]
    assert added_ids(found, found, "src") == []
    assert added_ids(more, found, "src") == []  # no extension


def test_unknown_characters_have_no_old_ids(sample_lines: list[str], tmp_path: Path) -> None:
    base = trained("char", sample_lines, tmp_path)
    found, _ = extended(base, tmp_path, pieces=["щ", "щer"])
    e, r = base.encode(["er"])[0].ids
    assert added_ids(base, found, "src") == [[], [e, r]]
    assert UNK not in (e, r)


def test_appended_pieces_leave_the_rest_of_a_model_file(tokenizer: Tokenizer) -> None:
    assert append(tokenizer.model, []) == tokenizer.model
    extended_model = Tokenizer(append(tokenizer.model, [Piece("mRNA", 1.0, 4)]), tokenizer.placeholder)
    assert extended_model.src_vocab_size == tokenizer.src_vocab_size + 1
    assert extended_model.special == tokenizer.special
