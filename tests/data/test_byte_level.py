"""A byte-level BPE on top of SentencePiece segments text as its merges say, and gives each text back."""

import pickle
import random
from pathlib import Path

import pytest

from diglot.data.byte_level import CHARACTERS, ByteLevelBpe, spelt, text_of
from diglot.data.encoding import Tokenizer
from diglot.data.extension import TokenizerExtension, added_ids
from diglot.data.pieces import UNK, USER_DEFINED, ImportedModel, Piece, append, load_processor
from diglot.data.sampling import Sampler
from diglot.data.text import ParallelText
from diglot.errors import UserError
from diglot.huggingface.merges import byte_level_vocabulary
from diglot.huggingface.vocabulary import SpecialNames, rows_of, sentencepiece_model

MERGES = [("a", "b"), ("ab", "c"), ("Ġ", "ab"), ("'", "s"), ("Ġ", "Ġ"), ("Ã", "©"), ("1", "2")]
CHARS = "abc  \t's12²½é中🎉\u0301\x00-"


def model_of(merges: list[tuple[str, str]], adds_space: bool = False) -> bytes:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *CHARACTERS.values(), *(left + right for left, right in merges)]
    vocabulary = byte_level_vocabulary({piece: i for i, piece in enumerate(pieces)}, merges, adds_space)
    rows = rows_of(vocabulary, SpecialNames(), len(pieces))
    return sentencepiece_model(vocabulary, rows, start=2)


def pieces_of(model: bytes, text: str) -> list[str]:
    made = Tokenizer(model, None)
    (encoded,) = made.encode([text])
    return made.pieces(encoded.ids, "src")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abc", ["abc"]),
        ("ab abc ab", ["ab", "Ġ", "abc", "Ġab"]),  # the merge of "abc" comes before that of "Ġab"
        ("abab'sc", ["ab", "ab", "'s", "c"]),
        ("12ab", ["12", "ab"]),
        ("1 2", ["1", "Ġ", "2"]),
        ("a   b", ["a", "ĠĠ", "Ġ", "b"]),
        ("é", ["Ã©"]),
        ("\u00bd1", ["Â", "½", "1"]),
        ("", []),
    ],
)
def test_words_are_merged_by_rank_and_never_across_their_borders(text: str, expected: list[str]) -> None:
    assert pieces_of(model_of(MERGES), text) == expected


def test_every_text_comes_back() -> None:
    draw = random.Random(1)
    texts = ["".join(draw.choices(CHARS, k=draw.randint(0, 30))) for _ in range(500)]
    made = Tokenizer(model_of(MERGES), None)
    encoded = made.encode(texts)
    assert [made.decode(each.ids) for each in encoded] == texts
    assert all(UNK not in each.ids for each in encoded)
    assert pickle.loads(pickle.dumps(made)).encode(texts) == encoded


def test_all_bytes_are_spelt_by_different_visible_characters() -> None:
    assert len({*CHARACTERS.values()}) == 256
    assert all(character.isprintable() and not character.isspace() for character in CHARACTERS.values())
    assert spelt("é ") == "Ã©Ġ"
    assert text_of("Ã©Ġ") == "é "
    assert text_of("Ã") == "\N{REPLACEMENT CHARACTER}"


def test_a_space_may_be_put_before_each_text() -> None:
    model = model_of(MERGES, adds_space=True)
    assert pieces_of(model, "ab") == ["Ġab"]
    assert pieces_of(model, "\tab") == ["ĉ", "ab"]
    assert Tokenizer(model, None).decode(Tokenizer(model, None).encode(["ab"])[0].ids) == "ab"


def test_an_added_piece_matches_across_words() -> None:
    model = append(model_of(MERGES), [Piece(spelt("é-12 b"), 0.0, USER_DEFINED)])
    assert pieces_of(model, "aé-12 bc ab") == ["a", spelt("é-12 b"), "c", "Ġab"]
    assert pieces_of(model, "é-12") == pieces_of(model_of(MERGES), "é-12")


def test_a_model_whose_pieces_are_not_bytes_is_refused() -> None:
    content = ImportedModel.FromString(model_of(MERGES))
    content.pieces.add(piece="中", score=-9.0, type=1)
    with pytest.raises(UserError, match="pieces that do not consist of bytes"):
        Tokenizer(content.SerializeToString(), None)
    del content.pieces[-1]
    del content.pieces[10]
    with pytest.raises(UserError, match="lacks pieces of single bytes"):
        Tokenizer(content.SerializeToString(), None)


def test_random_segmentation_is_refused() -> None:
    with pytest.raises(UserError, match=r"tokenizer\.samples: a byte-level BPE"):
        Sampler(model_of(MERGES), 0.1)


def test_ids_that_are_no_text_decode_to_nothing() -> None:
    model = model_of(MERGES)
    assert ByteLevelBpe(load_processor(model), model).decode([0, 1, 2, 3]) == ""


def test_an_extension_adds_pieces_whose_old_ids_are_those_of_their_text(tmp_path: Path) -> None:
    base = Tokenizer(model_of(MERGES), None)
    source = TokenizerExtension(pieces=["ab-12é", "abc"])
    source.start_from(base, "bol")
    found, note = source.get(ParallelText(["a"], ["a"]), tmp_path)
    assert note == "tokenizer: the checkpoint's, 1 of 2 given pieces and 0 learned pieces added"
    n_old = base.src_vocab_size
    (encoded,) = found.encode(["ab-12éabc ab"])
    assert (encoded.ids[0], found.decode(encoded.ids)) == (n_old, "ab-12éabc ab")
    assert found.encode(["abc ab'sé -12"]) == base.encode(["abc ab'sé -12"])
    assert [base.pieces(ids, "src") for ids in added_ids(base, found, "src")] == [["ab", "-", "12", "Ã©"]]
    with pytest.raises(UserError, match=r"tokenizer\.learn=5: the checkpoint's tokenizer is of type bpe"):
        TokenizerExtension(learn=5).start_from(base, "bol")
