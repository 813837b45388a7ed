"""Tokenizers of diglot as classes of transformers: ids, greedy outputs and log-probabilities are the same."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from diglot.checkpoint import file as checkpoints
from diglot.checkpoint.file import Checkpoint
from diglot.checkpoint.initial import initial_weights
from diglot.config import build
from diglot.data.corpus import Sample
from diglot.data.encoding import Prefixes, Tokenizer
from diglot.data.extension import TokenizerExtension
from diglot.data.pieces import EOS, tag
from diglot.data.text import ParallelText, write_lines
from diglot.decoding import BeamSearch
from diglot.errors import UserError
from diglot.export import huggingface_parity, parity, transformers_worker
from diglot.export.huggingface import generation_config
from diglot.export.parity import language_pairs, some_sentences
from diglot.export.writing import export
from diglot.huggingface.stock_tokenizer import StockTokenizer, stock_tokenizer
from support.commands import type_command
from support.huggingface import BYTE_LEVEL_TEXT, huggingface_folder
from support.made import checkpoint_content, of_kind, write_checkpoint

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
transformers = pytest.importorskip("transformers")
SIDES = {"src": "de", "tgt": "nds"}
OTHER_WAY = {"src": "nds", "tgt": "de"}
CLASSES = {
    "m2m100": "M2M100Tokenizer",
    "nllb": "NllbTokenizer",
    "mbart50": "MBart50Tokenizer",
    "bart": "PreTrainedTokenizerFast",
    "byte_level": "BartTokenizer",
    "t5": "MarianTokenizer",
    "pegasus": "MarianTokenizer",
}


@pytest.fixture(scope="module")
def text() -> ParallelText:
    test = Sample().read(Path())["test"].load()
    return ParallelText(test.src[:200], test.tgt[:200])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that writes the folder of a family once."""
    home = tmp_path_factory.mktemp("folders")
    return lambda family: home / family if (home / family).exists() else huggingface_folder(family, home / family)


def extended(loaded: Checkpoint, text: ParallelText, cache: Path, tgt_lang: str, **options: Any) -> Checkpoint:
    """Return a checkpoint whose tokenizer has more pieces, and a tag of a language."""
    source = TokenizerExtension(**options)
    source.start_from(loaded.tokenizer, tgt_lang)
    tokenizer, _ = source.get(text, cache, [])
    model = build(loaded.record["model"], "model", **tokenizer.vocab_sizes)
    model.load_state_dict(initial_weights(loaded, tokenizer))
    return loaded._replace(model=model.eval(), tokenizer=tokenizer, record={**loaded.record, "tgt_lang": tgt_lang})


def same_ids(
    theirs: Any, stock: StockTokenizer, tokenizer: Tokenizer, text: ParallelText, src_lang: str, tgt_lang: str
) -> None:
    """Check that a tokenizer of transformers gives the ids of all sources and targets of a text."""
    codes = {"src_lang": tokenizer.find_language(src_lang), "tgt_lang": tokenizer.find_language(tgt_lang)}
    for key, code in codes.items():
        if stock.language(code) is not None:
            setattr(theirs, key, stock.language(code))
    spelt = [next((codes[name] for name in prefix if name in codes), None) for prefix in tokenizer.prefixes]
    sources = tokenizer.encode(text.src, tgt_lang, src_lang)
    for line, source in zip(text.src, sources, strict=True):
        assert theirs(stock.spelt(line, spelt[0])).input_ids == [stock.src_ids[i] for i in [*source.ids, EOS]], line
    for line, ids in zip(text.tgt, tokenizer.encode_targets(text.tgt, sources), strict=True):
        found = theirs(text_target=stock.spelt(line, spelt[1])).input_ids
        assert found == [stock.tgt_ids[i] for i in [*ids, EOS]], line


def exported(loaded: Checkpoint, folder: Path) -> StockTokenizer:
    export(loaded, "huggingface", folder, "format", 0)
    return stock_tokenizer(loaded.tokenizer, loaded.record["model"], "format")


def compared(loaded: Checkpoint, folder: Path, stock: StockTokenizer, tmp_path: Path) -> dict[str, Any]:
    """Return the figures of the proof in this process, for sentences in several language pairs."""
    test = Sample().read(Path())["test"].load()
    write_lines(tmp_path / "in.txt", test.src[:12])
    loaded = loaded._replace(search=BeamSearch(beam_size=1, length_penalty=0.0, max_len_a=0.0, max_len_b=8))
    pairs = language_pairs(loaded.tokenizer, loaded.record)
    sentences = some_sentences(loaded, 12, str(tmp_path / "in.txt"), 80, pairs)
    assert set(sentences.languages) == set(pairs)
    return huggingface_parity.checked(loaded, folder, stock, sentences, 80, ask=transformers_worker.answer)[0]


@pytest.mark.parametrize("family", CLASSES)
def test_a_folder_goes_out_and_comes_back_the_same(
    family: str, folders: Callable[[str], Path], text: ParallelText, tmp_path: Path
) -> None:
    loaded = checkpoints.load(folders(family))
    stock = exported(loaded, tmp_path / "out")
    assert stock.name == CLASSES[family]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    pairs = language_pairs(loaded.tokenizer, loaded.record)
    assert len(pairs) == (6 if loaded.tokenizer.languages else 1)
    for src_lang, tgt_lang in pairs:
        same_ids(theirs, stock, loaded.tokenizer, text, src_lang, tgt_lang)
    figures = compared(loaded, tmp_path / "out", stock, tmp_path)
    assert figures["sentences"] == figures["identical"] + figures["near_ties"] == 12
    assert figures["lines"] == figures["lines_with_same_tokens"] == 12

    again = checkpoints.load(tmp_path / "out")
    assert (again.tokenizer.languages, again.tokenizer.prefixes) == (
        loaded.tokenizer.languages,
        loaded.tokenizer.prefixes,
    )
    for src_lang, tgt_lang in pairs:
        found, wanted = (each.tokenizer.encode(text.src, tgt_lang, src_lang) for each in (again, loaded))
        assert [source.ids for source in found] == [source.ids for source in wanted]
    if stock.name != "MarianTokenizer":  # whose ids are diglot's
        original = transformers.AutoTokenizer.from_pretrained(folders(family))
        if loaded.tokenizer.languages:
            original.src_lang = theirs.src_lang
        assert theirs(text.src).input_ids == original(text.src).input_ids
    with torch.inference_mode():
        src, tgt = torch.tensor([[9, 8, 7, EOS]]), torch.tensor([[loaded.tokenizer.bos_id, 5, 6]])
        torch.testing.assert_close(again.model(src, tgt), loaded.model(src, tgt))


@pytest.mark.parametrize(
    ("family", "tgt_lang", "pieces", "name"),
    [
        ("nllb", "nds_Latn", [], "NllbTokenizer"),
        ("nllb", "nds", [], "NllbTokenizer"),
        ("nllb", "nds", ["mRNA-7"], "MarianTokenizer"),
        ("m2m100", "en", ["mRNA-7"], "M2M100Tokenizer"),
        ("m2m100", "nds", [], "NllbTokenizer"),
        ("mbart50", "en", ["mRNA-7"], "MBart50Tokenizer"),
        ("mbart50", "nds", ["mRNA-7"], "MarianTokenizer"),
    ],
)
def test_added_pieces_and_tags_go_out(
    family: str,
    tgt_lang: str,
    pieces: list[str],
    name: str,
    folders: Callable[[str], Path],
    text: ParallelText,
    tmp_path: Path,
) -> None:
    loaded = checkpoints.load(folders(family))
    loaded = extended(loaded, text, tmp_path, tgt_lang, pieces=pieces)
    stock = exported(loaded, tmp_path / "out")
    assert stock.name == name
    src = [f"{line} mRNA-7, {line}" for line in text.src[:20]] + ["mRNA-7 nds", "sounds(mRNA-7)"]
    lines = ParallelText(src, [*text.tgt[:20], "mRNA-7", "nds ends"])
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for languages in (("de", tgt_lang), (tgt_lang, "en")):
        same_ids(theirs, stock, loaded.tokenizer, lines, *languages)
    figures = compared(loaded, tmp_path / "out", stock, tmp_path)
    assert figures["lines"] == figures["lines_with_same_tokens"] == 12
    again = checkpoints.load(tmp_path / "out")
    assert again.tokenizer.prefixes == Prefixes(("src_lang",), ("tgt_lang",))
    assert {*again.tokenizer.languages} == {*loaded.tokenizer.languages}
    rows = stock_tokenizer(again.tokenizer, again.record["model"], "format").src_ids
    found, wanted = (each.tokenizer.encode(lines.src, tgt_lang, "de") for each in (again, loaded))
    assert [[rows[i] for i in source.ids] for source in found] == [
        [stock.src_ids[i] for i in source.ids] for source in wanted
    ]


def test_an_added_piece_of_a_byte_level_bpe_goes_out(
    folders: Callable[[str], Path], text: ParallelText, tmp_path: Path
) -> None:
    loaded = extended(checkpoints.load(folders("byte_level")), text, tmp_path, "bol", pieces=["mRNA-7", "é-"])
    stock = exported(loaded, tmp_path / "out")
    assert stock.name == "BartTokenizer"
    src = [f"{line} mRNA-7, {line}" for line in text.src[:20]] + ["mRNA-7é- x", "sounds(mRNA-7)", *BYTE_LEVEL_TEXT]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    same_ids(theirs, stock, loaded.tokenizer, ParallelText(src, src), "avi", "bol")
    assert compared(loaded, tmp_path / "out", stock, tmp_path)["lines_with_same_tokens"] == 12
    again = checkpoints.load(tmp_path / "out").tokenizer
    assert [source.ids for source in again.encode(src)] == [source.ids for source in loaded.tokenizer.encode(src)]
    assert [again.decode(source.ids, (), "src") for source in again.encode(src)] == src


def test_a_tokenizer_that_no_class_holds_is_refused(folders: Callable[[str], Path]) -> None:
    loaded = checkpoints.load(folders("bart"))
    tokenizer = loaded.tokenizer
    other = Tokenizer(tokenizer.model, None, prefixes=Prefixes(("<s>", "<s>"), ("<s>",)))
    with pytest.raises(
        UserError,
        match=r"^export=huggingface: no tokenizer of transformers writes <s> <s> before a source and <s> before a "
        r"target; type export=ctranslate2 or export=safetensors$",
    ):
        stock_tokenizer(other, loaded.record["model"], "export")
    two = Tokenizer(tokenizer.model, None, tokenizer.model, prefixes=tokenizer.prefixes)
    with pytest.raises(UserError, match=r"needs tokenizer\.json, which cannot hold two SentencePiece models"):
        stock_tokenizer(two, loaded.record["model"], "export")


def test_the_first_token_is_forced_where_it_is_certain(folders: Callable[[str], Path], tmp_path: Path) -> None:
    forced = {}
    for family in ("nllb", "m2m100", "bart"):  # the folder of m2m100 names no languages
        exported(checkpoints.load(folders(family)), tmp_path / family)
        content = json.loads((tmp_path / family / "generation_config.json").read_text())
        forced[family] = content.get("forced_bos_token_id")
    assert forced == {"nllb": 301, "m2m100": None, "bart": 0}
    loaded = checkpoints.load(folders("nllb"))
    for corpora, common, expected in (
        ({"a": {}, "b": {}}, None, None),  # the extensions of the files tell
        ({"a": {}, "b": {"tgt_lang": "de"}}, "en", None),
        ({"a": {}, "b": {"tgt_lang": "eng_Latn"}}, "en", 301),
        ({"a": {"tgt_lang": "en"}, "b": {"tgt_lang": "en"}}, None, 301),
        ({"a": {"tgt_lang": 5}, "b": None}, "en", None),
    ):
        loaded.record["config"]["data"] = {"corpora": corpora, "tgt_lang": common}
        stock = stock_tokenizer(loaded.tokenizer, loaded.record["model"], "format")
        content = generation_config(loaded.model, loaded.record, loaded.tokenizer, stock, loaded.search)
        assert content.get("forced_bos_token_id") == expected, (corpora, common)


@pytest.mark.parametrize("kind", ["nllb", "marian"])
def test_the_example_of_the_model_card_translates(
    kind: str, folders: Callable[[str], Path], text: ParallelText, tmp_path: Path
) -> None:
    loaded = checkpoints.load(folders("nllb"))
    if kind == "marian":
        loaded = extended(loaded, text, tmp_path, "en", pieces=["mRNA-7"])
    stock = exported(loaded, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    code += "\nprint(found[0].tolist(), batch.input_ids.tolist())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "out", capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found, ids = json.loads("[" + done.stdout.splitlines()[-1].replace("] [", "], [") + "]")
    src, tgt = (stock.src_ids[loaded.tokenizer.encode([""], "en", code)[0].ids[0]] for code in ("de", "en"))
    assert (found[1], ids[0][0]) == (tgt, src)
    assert not re.search(">>|_Latn", done.stdout)  # tags are not part of the text
    assert "`forced_bos_token_id`" in card


@pytest.mark.parametrize("family", ["mt5", "marian"])
def test_rounding_is_told_from_an_error_without_a_fixed_limit(
    family: str, folders: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity, "NEAR", 0.0)
    loaded = checkpoints.load(folders(family))
    stock = exported(loaded, tmp_path / "out")
    assert compared(loaded, tmp_path / "out", stock, tmp_path)["log_probs"] > 0
    with torch.no_grad():
        loaded.model.decoder[0].feed_forward.sublayer.up.weight *= 1.001
    with pytest.raises(UserError, match=r"differ by .* from the model's, which is more than rounding"):
        compared(loaded, tmp_path / "out", stock, tmp_path)


@pytest.mark.end_to_end
def test_a_run_that_adds_a_language_to_an_imported_model_goes_out(
    folders: Callable[[str], Path], tmp_path: Path
) -> None:
    train = Sample().read(Path())["train"].load()
    for name, part in (("train", slice(60)), ("dev", slice(60, 70))):
        write_lines(tmp_path / f"{name}.de", train.src[part])
        write_lines(tmp_path / f"{name}.nds", train.tgt[part])
    texts = [f"data.{split}.{side}={split}.{code}" for split in ("train", "dev") for side, code in SIDES.items()]
    done = type_command(
        "diglot-train",
        *(f"init_from={folders('nllb')}", "tokenizer=extend", "data=files", *texts, "data.src_lang=de"),
        *("data.tgt_lang=nds", "export=huggingface", "trainer=cpu", "watch=none", "search=greedy", "run.test=false"),
        *("search.max_len_a=0.0", "search.max_len_b=6", "scheduler.lr=1e-3", "run.updates=2", "run.folder=run"),
        cwd=tmp_path,
    )
    assert "tokenizer: 20 of 20 lines without placeholders have the same tokens" in done.stdout.decode()
    settings = json.loads((tmp_path / "run/huggingface/tokenizer_config.json").read_text())
    wanted = ("NllbTokenizer", "deu_Latn", "__nds__")
    assert tuple(settings[key] for key in ("tokenizer_class", "src_lang", "tgt_lang")) == wanted
    content = json.loads((tmp_path / "run/huggingface/tokenizer.json").read_text())
    generation = json.loads((tmp_path / "run/huggingface/generation_config.json").read_text())
    assert generation["forced_bos_token_id"] == content["model"]["vocab"]["__nds__"] == 305


@pytest.mark.end_to_end
@pytest.mark.reliability
def test_a_run_adds_the_language_of_its_sources_if_sources_have_tags(
    folders: Callable[[str], Path], tmp_path: Path
) -> None:
    train = Sample().read(Path())["train"].load()
    for split, part in (("train", slice(60)), ("dev", slice(60, 70))):
        write_lines(tmp_path / f"{split}.nds", train.src[part])
        write_lines(tmp_path / f"{split}.de", train.tgt[part])
    texts = [f"data.{split}.{side}={split}.{code}" for split in ("train", "dev") for side, code in OTHER_WAY.items()]
    type_command(
        "diglot-train",
        *(f"init_from={folders('nllb')}", "tokenizer=extend", "data=files", *texts, "data.src_lang=nds"),
        *("data.tgt_lang=de", "trainer=cpu", "watch=none", "search=greedy", "run.test=false", "run.updates=2"),
        *("search.max_len_a=0.0", "search.max_len_b=6", "scheduler.lr=1e-3", "run.folder=run"),
        cwd=tmp_path,
    )
    made = checkpoints.load(tmp_path / "run").tokenizer
    (source,) = made.encode(["Lo"], "de", "nds")
    assert made.pieces(source.ids[:1], "src") == [tag("nds")]
    assert made.languages[-1] == "nds"


@pytest.mark.end_to_end
@pytest.mark.reliability
def test_a_tokenizer_that_cannot_go_out_is_refused_before_training(
    tokenizer: Tokenizer, compose_train: Callable[..., Any], tmp_path: Path
) -> None:
    config = compose_train("model=tiny", "model/position=sinusoidal")
    write_checkpoint(tmp_path / "start.ckpt", checkpoint_content(config, of_kind(tokenizer, "eos")))
    words = ("data=sample", "init_from=start.ckpt", "export=huggingface", "trainer=cpu", "run.folder=run")
    done = type_command("diglot-train", *words, cwd=tmp_path, code=2)
    wanted = "export=huggingface: a tokenizer that writes <s> before a source needs tokenizer.json"
    assert wanted in done.stderr.decode().splitlines()[-1]
    assert not (tmp_path / "run").exists()
