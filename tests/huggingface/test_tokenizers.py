"""Tokenizers of Hugging Face folders give the ids of the library transformers, on the lines of the sample corpus."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from diglot.data.corpus import Sample
from diglot.data.pieces import BOS, EOS, PAD, tag
from diglot.data.text import ParallelText
from diglot.data.tokenizer import Prefixes
from diglot.errors import UserError
from diglot.huggingface.tokenizers import ImportedTokenizer, read_tokenizer
from support.huggingface import byte_level_files

N_LINES = 200
T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
MORE = ["ﬁn  ２０２４ e\u0301", " Ler  nin", "Ω☃ ka", "a</s b"]  # for normalisation and unknown characters


@pytest.fixture(scope="module", autouse=True)
def offline() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        yield


@pytest.fixture(scope="module")
def text() -> ParallelText:
    return Sample().read(Path())["train"].load()


def trained(lines: list[str], **options: Any) -> bytes:
    """Return a SentencePiece model with the normalisation of the models on the hub."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        minloglevel=2,
        num_threads=1,
        **{"vocab_size": 300, "normalization_rule_name": "nmt_nfkc", "character_coverage": 1.0, **options},
    )
    return model.getvalue()


def pieces_of(model: bytes, first: int = 3) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(first, processor.get_piece_size())]


def write(folder: Path, files: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


def numbered(*pieces: str) -> dict[str, int]:
    return {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}


def marian(text: ParallelText, folder: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    src, tgt = trained(text.src[:800]), trained(text.tgt[:800], vocab_size=250)
    ids = numbered("</s>", "<unk>", *pieces_of(src), *pieces_of(tgt), ">>bol<<", ">>zho_Hans<<", "<pad>")
    settings = {"tokenizer_class": "MarianTokenizer"}
    files = {"source.spm": src, "target.spm": tgt, "vocab.json": ids, "tokenizer_config.json": settings}
    config = {"model_type": "marian", "vocab_size": len(ids), "decoder_start_token_id": ids["<pad>"]}
    return write(folder, files), config, {}


def marian_of_one_model(text: ParallelText, folder: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    both = trained(text.src[:800] + text.tgt[:800])
    ids = numbered("</s>", "<unk>", *pieces_of(both), "<pad>")
    settings = {"tokenizer_class": "MarianTokenizer"}
    files = {"source.spm": both, "target.spm": both, "vocab.json": ids, "tokenizer_config.json": settings}
    config = {"model_type": "marian", "vocab_size": len(ids), "decoder_start_token_id": ids["<pad>"]}
    return write(folder, files), config, {}


def marian_of_two_vocabularies(text: ParallelText, folder: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    src, tgt = trained(text.src[:800]), trained(text.tgt[:800], vocab_size=250)
    ids = [numbered("</s>", "<unk>", "<pad>", *pieces_of(model)) for model in (src, tgt)]
    settings = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": True}
    files = {"source.spm": src, "target.spm": tgt, "vocab.json": ids[0], "target_vocab.json": ids[1]}
    config = {"model_type": "marian", "vocab_size": len(ids[0]), "decoder_vocab_size": len(ids[1])}
    return write(folder, {**files, "tokenizer_config.json": settings}), {**config, "decoder_start_token_id": 2}, {}


def pegasus(text: ParallelText, folder: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    files = {
        "spiece.model": trained(text.src[:400] + text.tgt[:400], **T5_IDS),
        "tokenizer_config.json": {"tokenizer_class": "PegasusTokenizer"},
    }
    config = {"model_type": "pegasus", "vocab_size": 403, "decoder_start_token_id": 0}
    return write(folder, files), config, {}


def t5(text: ParallelText, folder: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    files = {
        "spiece.model": trained(text.src[:400] + text.tgt[:400], **T5_IDS),
        "tokenizer_config.json": {"tokenizer_class": "T5Tokenizer", "extra_ids": 100},
    }
    config = {"model_type": "t5", "vocab_size": 428, "decoder_start_token_id": 0}
    return write(folder, files), config, {}


def m2m100(text: ParallelText, folder: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    model = trained(text.src[:400] + text.tgt[:400], model_type="bpe")
    ids = numbered("<s>", "<pad>", "</s>", "<unk>", *pieces_of(model))
    settings = {"tokenizer_class": "M2M100Tokenizer"}
    files = {"sentencepiece.bpe.model": model, "vocab.json": ids, "tokenizer_config.json": settings}
    config = {"model_type": "m2m_100", "vocab_size": len(ids) + 108, "decoder_start_token_id": 2}
    return write(folder, files), config, {"src_lang": "de", "tgt_lang": "en"}


def nllb(text: ParallelText, folder: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """Write a folder with both files of the hub's folders."""
    from transformers import NllbTokenizer

    model = trained(text.src[:400] + text.tgt[:400], model_type="bpe")
    languages = {"src_lang": "deu_Latn", "tgt_lang": "eng_Latn"}
    write(folder, {"sentencepiece.bpe.model": model})
    codes = ["eng_Latn", "deu_Latn", "zho_Hans"]
    NllbTokenizer.from_pretrained(folder, extra_special_tokens=codes, **languages).save_pretrained(folder)
    config = {"model_type": "m2m_100", "vocab_size": 306, "decoder_start_token_id": 2}
    return write(folder, {"sentencepiece.bpe.model": model}), config, languages


def mbart50(text: ParallelText, folder: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    model = trained(text.src[:400] + text.tgt[:400])
    settings = {"tokenizer_class": "MBart50Tokenizer"}
    config = {"model_type": "mbart", "vocab_size": 354, "decoder_start_token_id": 2, **settings}
    files = {"sentencepiece.bpe.model": model, "tokenizer_config.json": settings}
    return write(folder, files), config, {"src_lang": "de_DE", "tgt_lang": "en_XX"}


def byte_level(text: ParallelText, folder: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    files = {**byte_level_files(), "tokenizer_config.json": {"tokenizer_class": "BartTokenizer"}}
    config = {"model_type": "bart", "vocab_size": 700, "decoder_start_token_id": 2}
    return write(folder, files), config, {}


FAMILIES: dict[str, Callable[[ParallelText, Path], tuple[Path, dict[str, Any], dict[str, Any]]]] = {
    "marian": marian,
    "marian of one model": marian_of_one_model,
    "marian of two vocabularies": marian_of_two_vocabularies,
    "pegasus": pegasus,
    "t5": t5,
    "m2m100": m2m100,
    "nllb": nllb,
    "mbart50": mbart50,
    "byte_level": byte_level,
}
# Folders of these classes have only tokenizer.json after they are saved.
FAST = ("pegasus", "t5", "nllb", "mbart50", "byte_level")


def same_ids(found: ImportedTokenizer, theirs: Any, text: ParallelText, languages: dict[str, str]) -> None:
    """Check that both tokenizers give the same ids for sources and targets, with special tokens and tags."""
    lines = ParallelText([*text.src[-N_LINES:], *MORE], [*text.tgt[-N_LINES:], *MORE])
    sources = found.tokenizer.encode(lines.src, languages.get("tgt_lang"), languages.get("src_lang"))
    targets = found.tokenizer.encode_targets(lines.tgt, sources)
    for line, source in zip(lines.src, sources, strict=True):
        assert [found.src_rows[i] for i in [*source.ids, EOS]] == theirs(line).input_ids, line
    for line, ids in zip(lines.tgt, targets, strict=True):
        assert [found.tgt_rows[i] for i in [*ids, EOS]] == theirs(text_target=line).input_ids, line


@pytest.mark.parametrize("family", FAMILIES)
def test_the_files_of_the_hub_give_the_ids_of_transformers(family: str, text: ParallelText, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder, config, languages = FAMILIES[family](text, tmp_path / "folder")
    (folder / "config.json").write_text(json.dumps(config))
    found = read_tokenizer(folder, config)
    same_ids(found, AutoTokenizer.from_pretrained(folder, **languages), text, languages)
    for rows, size in ((found.src_rows, config["vocab_size"]), (found.tgt_rows, config.get("decoder_vocab_size"))):
        assert sorted(rows) == list(range(size or config["vocab_size"]))
    assert found.tgt_rows[found.tokenizer.bos_id] == config["decoder_start_token_id"]
    # The text comes back, and the tokenizer segments it alone.
    sources = found.tokenizer.encode(text.src[:50], languages.get("tgt_lang"), languages.get("src_lang"))
    assert [found.tokenizer.decode(source.ids, (), "src") for source in sources] == text.src[:50]


@pytest.mark.parametrize("family", FAST)
def test_a_folder_with_only_tokenizer_json_gives_the_same(family: str, text: ParallelText, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder, config, languages = FAMILIES[family](text, tmp_path / "folder")
    (folder / "config.json").write_text(json.dumps(config))
    theirs = AutoTokenizer.from_pretrained(folder, **languages)
    theirs.save_pretrained(tmp_path / "saved")
    assert not list((tmp_path / "saved").glob("*.model"))
    found, expected = read_tokenizer(tmp_path / "saved", config), read_tokenizer(folder, config)
    same_ids(found, theirs, text, languages)
    assert (found.src_rows, found.tokenizer.prefixes) == (expected.src_rows, expected.tokenizer.prefixes)
    assert found.tokenizer.languages == expected.tokenizer.languages
    pieces = [made.tokenizer.pieces(range(made.tokenizer.src_vocab_size), "src") for made in (found, expected)]
    assert pieces[0] == pieces[1]


def test_a_bart_with_sentencepiece_begins_both_sides_with_s(text: ParallelText, tmp_path: Path) -> None:
    from transformers import BarthezTokenizer

    vocabulary = [["<s>", 0.0], ["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0]]
    model = trained(text.src[:800])
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocabulary += [[piece, processor.get_score(i)] for i, piece in enumerate(pieces_of(model), start=3)]
    theirs = BarthezTokenizer(vocab=[*map(tuple, [*vocabulary, ["<mask>", 0.0]])])
    theirs.save_pretrained(tmp_path)
    config = {"model_type": "bart", "vocab_size": 302, "decoder_start_token_id": 2}
    found = read_tokenizer(tmp_path, config)
    assert found.tokenizer.prefixes == Prefixes(("<s>",), ("<s>",))
    assert found.tokenizer.special == (PAD, 1, EOS, EOS)
    lines = [*text.src[-N_LINES:], "e\u0301  e\u0301"]
    for line, source in zip(lines, found.tokenizer.encode(lines), strict=True):
        ids = theirs(line, add_special_tokens=False).input_ids
        assert [found.src_rows[i] for i in [*source.ids, EOS]] == [0, *ids, 2]


def test_tags_become_languages_that_any_spelling_finds(text: ParallelText, tmp_path: Path) -> None:
    folder, config, _ = marian(text, tmp_path)
    made = read_tokenizer(folder, config).tokenizer
    assert made.languages == ("bol", "zho_Hans")
    assert made.find_language("zh-CN") == "zho_Hans"
    (source,) = made.encode(["Ler"], "zh")
    assert made.pieces(source.ids[:1], "src") == [tag("zho_Hans")]
    assert source.tgt_prefix == ()
    for language in ("m2m100", "mbart50", "nllb"):
        (tmp_path / language).mkdir()
        folder, config, _ = FAMILIES[language](text, tmp_path / language)
        made = read_tokenizer(folder, config).tokenizer
        (source,) = made.encode(["Ler"], "en", "de-DE")
        codes = {"m2m100": ("de", "en"), "mbart50": ("de_DE", "en_XX"), "nllb": ("deu_Latn", "eng_Latn")}[language]
        assert made.pieces([source.ids[0], *source.tgt_prefix], "src") == [tag(code) for code in codes]


def test_two_models_with_the_same_ids_are_one_vocabulary(text: ParallelText, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    one = read_tokenizer(*marian_of_one_model(text, tmp_path / "one")[:2])
    shared = read_tokenizer(*marian(text, tmp_path / "shared")[:2])
    separate = read_tokenizer(*marian_of_two_vocabularies(text, tmp_path / "separate")[:2])
    assert [made.tokenizer.tgt_model is None for made in (one, shared, separate)] == [True, False, False]
    assert [made.tokenizer.is_joint for made in (one, shared, separate)] == [True, True, False]
    assert shared.src_rows == shared.tgt_rows
    # A side never writes pieces that only the other side has.
    only_tgt = {*pieces_of((tmp_path / "shared/target.spm").read_bytes())}
    only_tgt -= {*pieces_of((tmp_path / "shared/source.spm").read_bytes())}
    only_tgt = {piece for piece in only_tgt if len(piece) > 1}
    for line, source in zip(text.tgt, shared.tokenizer.encode(text.tgt[:100])):
        assert not only_tgt & {*shared.tokenizer.pieces(source.ids, "src")}, line


def test_a_character_that_only_the_other_side_knows_has_its_id(text: ParallelText, tmp_path: Path) -> None:
    from transformers import MarianTokenizer

    src, tgt = trained([line.replace("8", "") for line in text.src[:800]]), trained(text.tgt[:800])
    assert "8" not in pieces_of(src)
    ids = numbered("</s>", "<unk>", *pieces_of(src), *pieces_of(tgt), "<pad>")
    folder = write(tmp_path, {"source.spm": src, "target.spm": tgt, "vocab.json": ids})
    found = read_tokenizer(folder, {"model_type": "marian", "vocab_size": len(ids)})
    theirs = MarianTokenizer.from_pretrained(folder)
    for line in [line for line in text.src if "8" in line and "88" not in line][:50]:
        rows = [found.src_rows[i] for i in [*found.tokenizer.encode([line])[0].ids, EOS]]
        assert ids["8"] in rows
        assert rows == theirs(line).input_ids


def test_pieces_that_vocab_json_lacks_are_counted_and_not_used(
    text: ParallelText, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import MarianTokenizer

    folder, config, _ = marian_of_one_model(text, tmp_path)
    ids = json.loads((folder / "vocab.json").read_text())
    lacking = [piece for piece in ids if len(piece) > 4 and piece[0] != "<"][:7]
    ids = numbered(*(piece for piece in ids if piece not in lacking))
    write(folder, {"vocab.json": ids})
    config |= {"vocab_size": len(ids), "decoder_start_token_id": ids["<pad>"]}
    found = read_tokenizer(folder, config)
    assert "source.spm: 7 of 300 pieces are not in the vocabulary" in caplog.text
    theirs = MarianTokenizer.from_pretrained(folder)
    n_unknown = 0
    for line, source in zip(text.src[:N_LINES], found.tokenizer.encode(text.src[:N_LINES])):
        assert found.tokenizer.decode(source.ids, (), "src") == line
        expected = theirs(line).input_ids
        if ids["<unk>"] in expected:
            n_unknown += 1
        else:
            assert [found.src_rows[i] for i in [*source.ids, EOS]] == expected
    assert n_unknown > 5


def test_ids_without_a_piece_never_match_text(text: ParallelText, tmp_path: Path) -> None:
    folder, config, _ = t5(text, tmp_path)
    made = read_tokenizer(folder, config)
    (last,) = made.tokenizer.pieces([made.src_rows.index(427)], "src")
    assert last == "<unused_427>"
    for name in (last, "<extra_id_0>", "</s>", "<pad>"):
        ids = made.tokenizer.encode([name])[0].ids
        assert not {PAD, EOS, *(made.src_rows.index(i) for i in range(300, 428))} & {*ids}


def test_a_folder_of_mbart_50_without_names_of_languages_has_the_usual_ones(text: ParallelText, tmp_path: Path) -> None:
    folder, config, _ = mbart50(text, tmp_path)
    made = read_tokenizer(folder, config)
    assert len(made.tokenizer.languages) == 52
    assert made.src_rows[made.tokenizer.encode([""], "en", "ar")[0].ids[0]] == 301


def test_a_folder_of_nllb_without_tokenizer_json_names_its_languages_in_order(
    text: ParallelText, tmp_path: Path
) -> None:
    model = trained(text.src[:400], model_type="bpe")
    names = {"additional_special_tokens": ["ace_Arab", "deu_Latn"]}
    write(tmp_path, {"sentencepiece.bpe.model": model, "special_tokens_map.json": names})
    config = {"model_type": "m2m_100", "vocab_size": 306, "decoder_start_token_id": 2}
    made = read_tokenizer(tmp_path, config)
    assert made.tokenizer.languages == ("ace_Arab", "deu_Latn")
    assert made.src_rows[made.tokenizer.encode([""], "de", "de")[0].ids[0]] == 302


@pytest.mark.parametrize("start", [None, 0, 1])
def test_the_start_is_that_of_the_config_or_of_generation_config_or_of_the_family(
    text: ParallelText, tmp_path: Path, start: int | None
) -> None:
    folder, config, _ = t5(text, tmp_path)
    del config["decoder_start_token_id"]
    if start is not None:
        write(folder, {"generation_config.json": {"decoder_start_token_id": start}})
    assert read_tokenizer(folder, config).tokenizer.bos_id == (EOS if start == 1 else PAD)


def test_s_may_be_the_start(text: ParallelText, tmp_path: Path) -> None:
    folder, config, _ = m2m100(text, tmp_path)
    assert read_tokenizer(folder, {**config, "decoder_start_token_id": 0}).tokenizer.bos_id == BOS


UNIGRAM = {
    "model": {"type": "Unigram", "vocab": [["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], ["a", -1.0]], "unk_id": 2},
    "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True},
}


@pytest.mark.parametrize(
    ("files", "config", "reason"),
    [
        ({}, {}, r"it has no tokenizer: needed are source\.spm"),
        ({}, {"model_type": "mbart"}, r"that of mBART-cc25, .* the folders of mBART-50 fit"),
        (
            {"tokenizer_config.json": {"tokenizer_class": "MBartTokenizerFast"}},
            {"model_type": "mbart", "tokenizer_class": "MBart50Tokenizer"},
            "that of mBART-cc25",
        ),
        ({"tokenizer.json": {"model": {"type": "WordPiece"}}}, {}, "its model is WordPiece"),
        ({"tokenizer.json": UNIGRAM | {"normalizer": {"type": "Lowercase"}}}, {}, "its normalizer Lowercase has no"),
        ({"tokenizer.json": UNIGRAM | {"pre_tokenizer": {"type": "Digits"}}}, {}, "its pre_tokenizer Digits has no"),
        ({"tokenizer.json": UNIGRAM | {"pre_tokenizer": None}}, {}, "no pre_tokenizer Metaspace"),
        ({"tokenizer.json": UNIGRAM}, {"vocab_size": 3}, r"vocab_size=3 in config\.json is too small: .* 'a'"),
        ({"tokenizer.json": UNIGRAM}, {"vocab_size": None}, r"vocab_size=null in config\.json: must be an int"),
        ({"tokenizer.json": UNIGRAM}, {"decoder_start_token_id": 3}, "decoder_start_token_id=3 .* is 'a'"),
        ({"tokenizer.json": UNIGRAM}, {"model_type": "m2m_100"}, "no file lists its language tokens"),
        ({"tokenizer.json": b"{"}, {}, r"tokenizer\.json: is not JSON"),
        ({"tokenizer.json": []}, {}, r"tokenizer\.json: is not a JSON object"),
        ({"tokenizer.json": {"model": 3}}, {}, r"tokenizer\.json: its content is not that of a tokenizer"),
        (
            {"tokenizer.json": UNIGRAM},
            {"decoder_start_token_id": [3]},
            r"decoder_start_token_id=\[3\] in .* an integer",
        ),
        ({"spiece.model": b"no model"}, {}, r"spiece\.model: this is not a SentencePiece model"),
        (
            {"tokenizer.json": UNIGRAM, "tokenizer_config.json": {"pad_token": "[PAD]"}},
            {},
            r"the tokenizer has no piece \[PAD\]",
        ),
    ],
)
def test_what_diglot_cannot_hold_is_refused_in_one_line_that_names_the_folder(
    tmp_path: Path, files: dict[str, Any], config: dict[str, Any], reason: str
) -> None:
    write(tmp_path, files)
    with pytest.raises(UserError, match=reason) as error:
        read_tokenizer(tmp_path, {"model_type": "t5", "vocab_size": 8, **config})
    assert str(error.value).startswith(f"{tmp_path}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["special_tokens_map.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    ("key", "value", "form"),
    [
        ("unk_token", {"text": "<unk>"}, "a text, or a mapping with the key content"),
        ("pad_token", 0, "a text, or a mapping with the key content"),
        ("additional_special_tokens", 5, "a list of texts"),
        ("extra_special_tokens", [1], "a list of texts"),
        ("added_tokens_decoder", [1], "a mapping from ids to mappings with the key content"),
        ("added_tokens_decoder", {"a": {"content": "b"}}, "a mapping from ids to mappings with the key content"),
        ("added_tokens_decoder", {"3": 1}, "a mapping from ids to mappings with the key content"),
    ],
)
def test_a_setting_of_another_form_is_refused_by_file_and_key(
    tmp_path: Path, name: str, key: str, value: Any, form: str
) -> None:
    write(tmp_path, {"tokenizer.json": UNIGRAM, name: {key: value}})
    with pytest.raises(UserError, match=rf"{name}: {key}=.*: must be {form}$"):
        read_tokenizer(tmp_path, {"model_type": "t5", "vocab_size": 8})


@pytest.mark.parametrize(("family", "key"), [("t5", "extra_ids"), ("pegasus", "offset")])
@pytest.mark.parametrize("value", [10**12, -1, 1.5, "x", True])
def test_a_number_of_pieces_that_the_vocabulary_cannot_hold_is_refused_before_memory_is_taken(
    text: ParallelText, tmp_path: Path, family: str, key: str, value: Any
) -> None:
    write(tmp_path, {"spiece.model": trained(text.src[:800], **T5_IDS), "tokenizer_config.json": {key: value}})
    with pytest.raises(UserError, match=rf"tokenizer_config\.json: {key}={value}: must be an integer from 0 to 500$"):
        read_tokenizer(tmp_path, {"model_type": family, "vocab_size": 500})


@pytest.mark.parametrize("i", ["0", 1.0, None, -1])
def test_an_id_that_is_no_integer_is_refused_by_its_piece(text: ParallelText, tmp_path: Path, i: Any) -> None:
    folder, config, _ = marian(text, tmp_path)
    write(folder, {"vocab.json": {"</s>": i, "<unk>": 1}})
    with pytest.raises(UserError, match=rf"vocab\.json: the id of '</s>' is {i}: must be an integer"):
        read_tokenizer(folder, config)


def test_a_vocabulary_with_gaps_is_refused(text: ParallelText, tmp_path: Path) -> None:
    folder, config, _ = marian(text, tmp_path)
    write(folder, {"vocab.json": {"</s>": 0, "<unk>": 1, "<pad>": 3}})
    with pytest.raises(UserError, match=r"vocab\.json does not number its 3 pieces from 0 to 2"):
        read_tokenizer(folder, config)


def test_a_model_with_bytes_spells_unknown_characters_also_from_tokenizer_json(
    text: ParallelText, tmp_path: Path
) -> None:
    model = trained(text.src[:400], byte_fallback=True, vocab_size=500, **T5_IDS)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocabulary = [[processor.id_to_piece(i), processor.get_score(i)] for i in range(500)]
    fast = UNIGRAM | {"model": {"type": "Unigram", "vocab": vocabulary, "unk_id": 2, "byte_fallback": True}}
    write(tmp_path, {"tokenizer.json": fast})
    made = read_tokenizer(tmp_path, {"model_type": "t5", "vocab_size": 500}).tokenizer
    (source,) = made.encode(["Ω☃"])
    assert made.decode(source.ids, (), "src") == "Ω☃"
    assert {piece[:3] for piece in made.pieces(source.ids[1:], "src")} == {"<0x"}
