"""A Hugging Face folder is a checkpoint: it translates as transformers does, and a bad one is refused by one line."""

import json
import os
import pickle
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from diglot.checkpoint import file as checkpoints
from diglot.checkpoint.huggingface_folder import (
    MAX_HEADER_BYTES,
    MAX_JSON_BYTES,
    digest,
    is_huggingface,
    read,
    search_node,
)
from diglot.data.corpus import Sample
from diglot.decoding import BeamSearch
from diglot.errors import UserError
from diglot.export.model_card import model_card
from diglot.huggingface.stock_tokenizer import stock_tokenizer
from diglot.huggingface.tokenizers import read_tokenizer
from support.commands import type_command
from support.huggingface import FAMILIES, huggingface_folder

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")
N_LINES, N_TOKENS = 12, 20
FIRST = "model.encoder.layers.0.fc1.weight"


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return Sample().read(Path())["test"].load().src[:N_LINES]


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return huggingface_folder("marian", tmp_path_factory.mktemp("folders") / "marian")


@pytest.fixture
def changed(marian: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a folder, with other content of some files (None: without the file)."""

    def made(**files: Any) -> Path:
        folder = tmp_path / "changed"
        folder.mkdir()
        for file in marian.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        for name, content in files.items():
            path = folder / name
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return folder

    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_search_gives_what_transformers_generates(family, tmp_path, lines):
    folder = huggingface_folder(family, tmp_path / family)
    loaded = checkpoints.load(folder)
    rows = read_tokenizer(folder, json.loads((folder / "config.json").read_text()))
    src_lang, tgt_lang = loaded.record["src_lang"], loaded.record["tgt_lang"]
    if family == "m2m100":  # which has no languages of its own
        src_lang, tgt_lang = "de", "en"
    encoded = loaded.tokenizer.encode(lines, tgt_lang, src_lang)
    eos = loaded.tokenizer.eos_id
    width = max(len(each.ids) for each in encoded) + 1
    sources = [[*each.ids, eos] for each in encoded]
    src = torch.tensor([ids + [0] * (width - len(ids)) for ids in sources])
    mask = torch.tensor([[True] * len(ids) + [False] * (width - len(ids)) for ids in sources])
    search = BeamSearch(beam_size=1, length_penalty=0.0, max_len_a=0.0, max_len_b=N_TOKENS)
    prefixes = [list(each.tgt_prefix) for each in encoded]
    found = search(loaded.model, src, mask, loaded.tokenizer.special, prefixes)
    ours = [[rows.tgt_rows[token] for token in hypotheses[0].tokens] for hypotheses in found]

    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True).eval()
    src_rows = torch.tensor(rows.src_rows)
    forced = [rows.tgt_rows[token] for token in prefixes[0]]
    special = loaded.tokenizer.special
    with torch.inference_mode():
        start = torch.full((len(lines), 1), theirs.config.decoder_start_token_id)
        outputs = theirs.generate(
            input_ids=src_rows[src],
            attention_mask=mask.long(),
            decoder_input_ids=torch.cat((start, torch.tensor(forced).expand(len(lines), -1)), 1) if forced else start,
            num_beams=1,
            do_sample=False,
            max_new_tokens=N_TOKENS - len(forced) + 1,
            max_length=None,
            suppress_tokens=[rows.tgt_rows[token] for token in {special.pad, special.unk, special.bos} - {eos}],
        )
    end = rows.tgt_rows[eos]
    expected = [row[1:] for row in outputs.tolist()]
    expected = [(row[: row.index(end)] if end in row else row)[:N_TOKENS] for row in expected]
    assert ours == expected
    assert len({tuple(row) for row in ours}) > N_LINES / 2  # the outputs are not all the same


def test_the_record_is_that_of_a_checkpoint(marian):
    assert is_huggingface(marian)
    assert checkpoints.find(marian) == marian
    record = checkpoints.read_record(marian)
    assert (record["src_lang"], record["tgt_lang"]) == ("avi", "bol")
    assert record["model"]["_target_"] == "diglot.model.Transformer"
    content = checkpoints.read(marian)
    assert content["diglot"].keys() == record.keys() >= checkpoints.KINDS.keys()
    assert all(tensor.dtype == torch.float32 for tensor in content["state_dict"].values())


def languages_of(folder: Path) -> tuple[str, str]:
    found = read(folder, with_weights=False)
    return found.src_lang, found.tgt_lang


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_the_tag_with_which_each_translation_begins_is_the_target_language(file, tmp_path):
    folder = huggingface_folder("mbart50", tmp_path / "many_to_one")
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer | {"src_lang": None, "tgt_lang": None}))
    assert languages_of(folder) == ("src", "tgt")
    content = json.loads((folder / file).read_text())
    wrong = (3, None, 10**9, "304", True)
    for forced, expected in ((304, "en_XX"), *((each, "tgt") for each in wrong)):
        (folder / file).write_text(json.dumps(content | {"forced_bos_token_id": forced}))
        assert languages_of(folder) == ("src", expected), forced
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))  # which names a language
    (folder / file).write_text(json.dumps(content | {"forced_bos_token_id": 304}))
    assert languages_of(folder) == ("de_DE", "en_XX")


@pytest.mark.parametrize("form", ["shards", "bin", "old bin", "half", "bfloat16"])
def test_weights_are_read_in_every_form(marian, tmp_path, form):
    weights = load_file(marian / "model.safetensors")
    kinds = {"half": torch.float16, "bfloat16": torch.bfloat16}
    if form in kinds:
        weights = {name: tensor.to(kinds[form]) for name, tensor in weights.items()}
    folder = tmp_path / "other"
    folder.mkdir()
    for file in marian.iterdir():
        if file.name != "model.safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    if form == "shards":
        names = sorted(weights)
        parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
        for file, part in parts.items():
            save_file({name: weights[name] for name in part}, folder / file)
        index = {"metadata": {}, "weight_map": {name: file for file, part in parts.items() for name in part}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    elif form.endswith("bin"):
        torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=form == "bin")
    else:
        save_file(weights, folder / "model.safetensors")
    read, expected = (checkpoints.read(each)["state_dict"] for each in (folder, marian))
    assert read.keys() == expected.keys()
    for name, tensor in read.items():
        wanted = expected[name].to(kinds.get(form, torch.float32)).float()
        assert torch.equal(tensor, wanted), name


@pytest.mark.parametrize(
    ("options", "search"),
    [
        ({}, {"beam_size": 1, "length_penalty": 0.0}),
        ({"num_beams": 4}, {"beam_size": 4, "length_penalty": "mean"}),
        ({"num_beams": 4, "length_penalty": 0.8}, {"beam_size": 4, "length_penalty": 0.8}),
        (
            {"num_beams": 6, "length_penalty": 1.0, "max_length": 512, "min_length": 10},
            {"beam_size": 6, "length_penalty": "mean", "max_len_a": 0.0, "max_len_b": 510, "min_len_b": 9},
        ),
        ({"max_length": 10**9, "min_length": 0}, {"max_len_a": 0.0, "max_len_b": 10_000, "length_penalty": 0.0}),
    ],
)
def test_the_search_is_that_of_the_generation_config(options, search):
    node = search_node(options)
    assert {key: value for key, value in node.items() if key in search} == search


def bomb(depth: int) -> bytes:
    return b'{"model_type": ' + b"[" * depth + b"]" * depth + b"}"


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no model": ({"config.json": {"model": "x"}}, "config.json: it has no model_type"),
    "another model": ({"config.json": {"model_type": "llama"}}, "config.json: model_type=llama"),
    "not JSON": ({"config.json": b"{"}, "config.json: not JSON"),
    "not text": ({"config.json": b"\xff"}, "config.json: not JSON"),
    "a list": ({"config.json": []}, "config.json: not a JSON object"),
    "a deep object": ({"config.json": bomb(100_000)}, "config.json: refused, its content is nested too deeply"),
    "a long file": ({"config.json": b" " * (MAX_JSON_BYTES + 1)}, "config.json: refused, it has more than 4,000,000"),
    "a key twice": ({"config.json": b'{"a": 1, "a": 2}'}, "config.json: refused, a key occurs twice"),
    "beams": ({"generation_config.json": {"num_beams": 10**6}}, "generation_config.json: num_beams is 1000000"),
    "a penalty": ({"generation_config.json": {"length_penalty": "x"}}, "generation_config.json: length_penalty is 'x'"),
    "a language": (
        {"tokenizer_config.json": {"tokenizer_class": "MarianTokenizer", "source_lang": "../../x"}},
        "tokenizer_config.json: source_lang='../../x'",
    ),
    "no tokenizer": ({"source.spm": None}, "tokenizer: it has no tokenizer"),
    "a damaged tokenizer": ({"source.spm": b"x"}, "source.spm: this is not a SentencePiece model"),
    "a huge tokenizer": ({"target.spm": b"x" * 16_000_001}, "target.spm has 16,000,001 bytes"),
    "a deep vocabulary": ({"vocab.json": bomb(100_000)}, "vocab.json: refused, its content is nested too deeply"),
    "a wide vocabulary": (
        {"vocab.json": b'{"a": [' + b"[]," * 3_000_000 + b"0]}"},
        "vocab.json: refused, its content other than tensors has too many values",
    ),
    "no weights": ({"model.safetensors": None}, "it has no weights (model.safetensors or pytorch_model.bin)"),
    "damaged weights": ({"model.safetensors": b"x" * 100}, "model.safetensors: damaged"),
    "a long header": (
        {"model.safetensors": struct.pack("<Q", MAX_HEADER_BYTES + 1) + b" " * 100},
        "model.safetensors: damaged, or refused: its header would have 10,000,001 bytes",
    ),
    "code": (
        {"model.safetensors": None, "pytorch_model.bin": pickle.dumps({"a": os.system})},
        "pytorch_model.bin: damaged, or of another form (UnpicklingError",
    ),
    "no mapping": (
        {"model.safetensors": None, "pytorch_model.bin": pickle.dumps([1])},
        "pytorch_model.bin: ",
    ),
    "a path": (
        {
            "model.safetensors": None,
            "model.safetensors.index.json": {"weight_map": {"a": "../marian/model.safetensors"}},
        },
        "model.safetensors.index.json: refused, it names the file '../marian/model.safetensors'",
    ),
    "an absolute path": (
        {"model.safetensors": None, "model.safetensors.index.json": {"weight_map": {"a": "/etc/passwd"}}},
        "refused, it names the file '/etc/passwd'",
    ),
    "a missing shard": (
        {"model.safetensors": None, "model.safetensors.index.json": {"weight_map": {"a": "b.safetensors"}}},
        "model.safetensors.index.json: the file b.safetensors is missing",
    ),
    "no map": (
        {"model.safetensors": None, "model.safetensors.index.json": {"weight_map": ["a"]}},
        "model.safetensors.index.json: it has no weight_map",
    ),
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_a_bad_folder_is_refused_by_one_line(changed, name):
    files, wanted = BAD[name]
    folder = changed(**files)
    with pytest.raises(UserError) as refused:
        checkpoints.load(folder)
    said = str(refused.value)
    assert said.startswith(f"checkpoint {folder}: ")
    assert wanted in said
    assert "\n" not in said
    assert len(said) < 700


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("encoder_layers", 10**6, "config.json says 1,000,002 layers, but there are only"),
        ("vocab_size", 10**9, "vocab_size is 1000000000, and must be a number from 1 to 2,000,000"),
        ("decoder_vocab_size", -1, "decoder_vocab_size is -1"),
        ("d_model", 65_536, "model.safetensors: config.json says"),
        ("d_model", "x", "config.json: d_model=x"),
        ("encoder_ffn_dim", 47, "config.json: decoder_ffn_dim=48"),
        ("auto_map", {"AutoModel": "evil.Model"}, None),  # never followed
    ],
)
def test_a_config_that_does_not_fit_the_weights_is_refused_before_they_are_allocated(
    marian, changed, key, value, wanted
):
    config = json.loads((marian / "config.json").read_text())
    folder = changed(**{"config.json": {**config, key: value}})
    if wanted is None:
        assert checkpoints.load(folder).model.d_model == 32
        return
    with pytest.raises(UserError) as refused:
        checkpoints.load(folder)
    assert wanted in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda weight: {FIRST: weight.to(torch.int8)}, f"{FIRST!r} is torch.int8"),
        (lambda weight: {FIRST: weight * torch.nan}, "is not finite"),
        (lambda weight: {FIRST: weight[:-1]}, f"{FIRST} has the shape [47, 32]"),
        (lambda weight: {"model.evil": weight.clone()}, "the folder's weights have model.evil"),
    ],
)
def test_other_weights_are_refused_by_name(marian, changed, change, wanted):
    weights = load_file(marian / "model.safetensors")
    folder = changed()
    save_file({**weights, **change(weights[FIRST])}, folder / "model.safetensors")
    with pytest.raises(UserError) as refused:
        checkpoints.load(folder)
    assert wanted in str(refused.value)


def test_a_pipe_is_not_waited_for(changed):
    folder = changed(**{"model.safetensors": None})
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(UserError, match="it has no weights"):
        checkpoints.load(folder)


def test_options_that_the_search_lacks_are_named_once(changed, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr("diglot.checkpoint.huggingface_folder.warn", said.append)
    folder = changed(**{"generation_config.json": {"no_repeat_ngram_size": 3, "do_sample": False}})
    checkpoints.load(folder)
    checkpoints.load(folder)
    assert len(said) == 1
    assert "the search does not follow no_repeat_ngram_size=3 in generation_config.json" in said[0]


def test_the_digest_depends_on_the_model_and_the_tokenizer_alone(changed):
    folder = changed()
    before = digest(folder)
    (folder / "README.md").write_text("# A model")
    assert digest(folder) == before
    (folder / "vocab.json").write_bytes((folder / "vocab.json").read_bytes() + b" ")
    assert digest(folder) != before


@pytest.mark.reliability
def test_commands_take_a_folder_in_the_place_of_a_checkpoint(marian, tmp_path, lines):
    (tmp_path / "marian").symlink_to(marian)
    short = ("search.max_len_a=0.0", "search.max_len_b=4")
    done = type_command(
        "diglot-translate", "checkpoint=marian", *short, "device=cpu", cwd=tmp_path, stdin="\n".join(lines)
    )
    assert done.stdout.count(b"\n") == len(lines)
    type_command("diglot-average", "checkpoint=marian", "output=mean.ckpt", cwd=tmp_path)
    again = type_command(
        "diglot-translate", "checkpoint=mean.ckpt", *short, "device=cpu", cwd=tmp_path, stdin="\n".join(lines)
    )
    assert again.stdout == done.stdout
    said = type_command("diglot-convert", "checkpoint=marian", cwd=tmp_path, code=2).stderr.decode()
    assert "every command reads this Hugging Face folder as it is" in said
    words = ["data=sample", "trainer=cpu", "init_from=marian", "watch=none", "search=greedy", *short, "run.test=false"]
    done = type_command("diglot-train", *words, "run.updates=1", "run.folder=run", cwd=tmp_path)
    assert "model: from marian, " in done.stdout.decode()
    (tmp_path / "marian").unlink()  # the run goes on without the folder
    done = type_command("diglot-train", *words, "run.updates=2", "resume=run", cwd=tmp_path)
    assert "update 2 of 2" in done.stdout.decode()


def test_the_model_card_of_a_folder_claims_no_training(marian):
    loaded = checkpoints.load(marian)
    stock = stock_tokenizer(loaded.tokenizer, loaded.record["model"], "format")
    card = model_card(loaded, "MarianMTModel", stock)
    assert "read from a folder of the library transformers by diglot" in card
    assert "The folder does not say how the model was trained." in card
    assert "that of the original model" in card
    assert not re.search("trained with|Corpus|Updates", card)
