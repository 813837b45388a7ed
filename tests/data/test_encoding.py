"""Tests of what precedes sources and targets: the start of a target, language tags, and other control pieces."""

import pickle

import pytest

from diglot.data.pieces import BOS, EOS, PAD, UNK, adopt, start_with, tag
from diglot.data.tokenizer import Prefixes, Tokenizer
from diglot.errors import UserError
from support.made import KINDS, of_kind

LINES = ["Ler nin gaser.", "{name} ka", ""]


def tagged(tokenizer: Tokenizer, prefixes: Prefixes, languages: tuple[str, ...] = ("deu_Latn", "en_XX")) -> Tokenizer:
    """Return a tokenizer with tags for languages."""
    model = adopt(tokenizer.model, [tag(language) for language in languages])
    return Tokenizer(model, tokenizer.placeholder, None, languages, prefixes)


@pytest.mark.parametrize(("kind", "start"), [("pad", PAD), ("eos", EOS), ("tags", EOS)])
def test_the_bos_piece_is_the_start_of_a_target(tokenizer: Tokenizer, kind: str, start: int) -> None:
    made = of_kind(tokenizer, kind)
    assert made.special == (PAD, UNK, start, EOS)
    assert made.bos_id == start
    assert tokenizer.special == (PAD, UNK, BOS, EOS)


def test_another_start_than_a_special_token_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"has pad, unk, bos, eos at \[0, 1, (-1|1|7), 3\], not at \[0, 1, 2, 3\]"):
        Tokenizer(start_with(tokenizer.model, 7), None)


def test_sources_and_targets_begin_with_their_prefixes(tokenizer: Tokenizer) -> None:
    plain = tokenizer.encode(LINES)
    expected = [source.ids for source in plain], tokenizer.encode_targets(LINES, plain)
    for kind, prefixes in {"pad": ([], []), "eos": ([BOS], [BOS]), "tags": ([-2], [-1])}.items():
        made = of_kind(tokenizer, kind)
        prefixes = [[i if i > 0 else made.src_vocab_size + i for i in prefix] for prefix in prefixes]
        sources = made.encode(LINES, "bol", "avi")
        assert [source.ids for source in sources] == [prefixes[0] + ids for ids in expected[0]]
        assert {source.tgt_prefix for source in sources} == {tuple(prefixes[1])}
        targets = made.encode_targets(LINES, sources)
        assert targets == [prefixes[1] + ids for ids in expected[1]]
        assert made.n_tgt_prefix == len(prefixes[1])
        assert [source.is_blank for source in sources] == [False, False, True]
        # Neither side's text shows the prefix.
        assert [made.decode(ids, source.placeholders) for ids, source in zip(targets, sources)] == LINES
        assert [made.decode(source.ids, source.placeholders, "src") for source in sources] == LINES


def test_a_language_is_found_by_any_spelling_of_its_code(tokenizer: Tokenizer) -> None:
    made = tagged(tokenizer, Prefixes(("src_lang", "tgt_lang"), ("tgt_lang",)))
    size = made.src_vocab_size
    for german in ("deu_Latn", "de", "deu", "de-DE", "de_AT"):
        (source,) = made.encode(["ka"], "en", german)
        assert source.ids[:2] == [size - 2, size - 1]
        assert source.tgt_prefix == (size - 1,)
    assert made.encode(["ka"])[0].ids == tokenizer.encode(["ka"])[0].ids
    assert (made.find_language("de"), made.find_language("fr")) == ("deu_Latn", None)
    with pytest.raises(UserError, match=r"^fr is not a source language of this model, which has deu_Latn, en_XX$"):
        made.encode(["ka"], "de", "fr")
    with pytest.raises(UserError, match=r"^fr is not a target language of this model, which has deu_Latn, en_XX$"):
        made.encode(["ka"], "fr", "de")


def test_of_many_languages_ten_are_named(tokenizer: Tokenizer) -> None:
    made = tagged(tokenizer, Prefixes(), tuple(f"x{i}" for i in range(12)))
    with pytest.raises(UserError, match=r"which has x0, x1, .*, x9 and 2 more$"):
        made.encode(["ka"], "de")


def test_only_a_prefix_with_a_source_language_reads_it(tokenizer: Tokenizer) -> None:
    assert tagged(tokenizer, Prefixes(("src_lang",))).reads_src_lang
    assert tagged(tokenizer, Prefixes((), ("src_lang",))).reads_src_lang
    assert not tagged(tokenizer, Prefixes(("tgt_lang",), ("tgt_lang",))).reads_src_lang
    assert not Tokenizer(tokenizer.model, None, prefixes=Prefixes(("src_lang",))).reads_src_lang


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        (("<nothing>",), "has no control piece <nothing>"),
        (("e",), "has no control piece e"),
        (("</s>",), "must not contain </s>, which pads or ends a sequence"),
        (("<pad>",), "must not contain <pad>"),
        (("<unk>",), "has no control piece <unk>"),
        (("<2de>",) * 9, "9 entries; at most 8"),
    ],
)
@pytest.mark.parametrize("side", ["src", "tgt"])
def test_a_prefix_of_anything_but_control_pieces_is_refused(
    tokenizer: Tokenizer, side: str, prefix: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        Tokenizer(tokenizer.model, None, prefixes=Prefixes()._replace(**{side: prefix}))


def test_the_start_of_a_target_may_precede_a_source_but_not_a_target(tokenizer: Tokenizer) -> None:
    assert Tokenizer(tokenizer.model, None, prefixes=Prefixes(("<s>",))).encode(["ka"])[0].ids[0] == BOS
    with pytest.raises(UserError, match="the prefix of a target must not contain its start"):
        Tokenizer(tokenizer.model, None, prefixes=Prefixes((), ("<s>",)))


def test_a_language_without_a_tag_is_refused_on_the_side_that_needs_it(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="has no tag <2de>"):
        Tokenizer(tokenizer.model, None, None, ["de"], Prefixes((), ("tgt_lang",)))
    Tokenizer(tokenizer.model, None, None, ["de"], Prefixes((), ()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_for_another_process_is_the_same_tokenizer(tokenizer: Tokenizer, kind: str) -> None:
    made = of_kind(tokenizer, kind)
    copy = pickle.loads(pickle.dumps(made))
    assert (copy.digest(), copy.special, copy.prefixes) == (made.digest(), made.special, made.prefixes)
    assert copy.encode(LINES, "bol", "avi") == made.encode(LINES, "bol", "avi")


def test_prefixes_and_start_enter_the_digest_and_the_defaults_do_not(tokenizer: Tokenizer) -> None:
    digests = {of_kind(tokenizer, kind).digest() for kind in KINDS} | {tokenizer.digest()}
    digests |= {tagged(tokenizer, prefixes).digest() for prefixes in (Prefixes(), Prefixes(("src_lang",)))}
    assert len(digests) == 6
    assert Tokenizer(tokenizer.model, tokenizer.placeholder, prefixes=Prefixes()).digest() == tokenizer.digest()


@pytest.mark.parametrize("kind", KINDS)
def test_adopting_a_model_keeps_its_start(tokenizer: Tokenizer, kind: str) -> None:
    made = of_kind(tokenizer, kind)
    adopted = Tokenizer(adopt(made.model, ["<new>"]), made.placeholder)
    assert adopted.special == made.special
    assert adopted.pieces(range(adopted.src_vocab_size), "src") == [
        *made.pieces(range(made.src_vocab_size), "src"),
        "<new>",
    ]
