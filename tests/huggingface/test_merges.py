"""The files of a byte-level BPE are read as they are, and its merges come back."""

import json
from pathlib import Path
from typing import Any

import pytest

from diglot.data.byte_level import CHARACTERS
from diglot.errors import UserError
from diglot.huggingface.merges import merges_of, merges_of_lines
from diglot.huggingface.tokenizers import read_tokenizer
from support.huggingface import BYTE_LEVEL_TEXT, byte_level_files

CONFIG = {"model_type": "bart", "vocab_size": 700, "decoder_start_token_id": 2}
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
FAST = {"model": {"type": "BPE", "merges": []}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}}


def write(folder: Path, files: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


def vocabulary(*pieces: str) -> dict[str, int]:
    return {piece: i for i, piece in enumerate([*SPECIAL, *CHARACTERS.values(), *pieces])}


def test_the_ids_are_those_of_transformers_on_text_of_all_kinds(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    files = byte_level_files()
    tokens = {"700": {"content": "x-1", "special": False, "lstrip": False, "rstrip": False, "normalized": False}}
    settings = {"tokenizer_class": "BartTokenizer", "added_tokens_decoder": tokens}
    folder = write(tmp_path, {**files, "tokenizer_config.json": settings})
    made, theirs = (
        read_tokenizer(folder, CONFIG | {"vocab_size": 701}),
        transformers.BartTokenizer.from_pretrained(folder),
    )
    lines = [*BYTE_LEVEL_TEXT, "a x-1b x-1", "-- --- ---- -----", "  s  's 'S", "aaaa''''''  "]
    for line, source in zip(lines, made.tokenizer.encode(lines), strict=True):
        assert [made.src_rows[i] for i in source.ids] == theirs(line).input_ids[:-1], line
        assert made.tokenizer.decode(source.ids, (), "src") == line


def test_the_merges_come_back(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level_files())
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    merges = merges_of(read_tokenizer(folder, CONFIG).tokenizer.model)
    assert merges == merges_of_lines(lines)
    assert len(merges) > 400


@pytest.mark.parametrize(
    ("files", "config", "reason"),
    [
        ({"vocab.json": vocabulary(), "merges.txt": b"a b"}, {}, "its merge 'a' 'b' is not one that makes a new piece"),
        (
            {"vocab.json": vocabulary("abc", "ab", "bc"), "merges.txt": b"b c\na b\na bc\na bc"},
            {},
            "its merge 'a' 'bc' is not one that makes a new piece",
        ),
        ({"vocab.json": vocabulary("ab"), "merges.txt": b"a b c"}, {}, r"merges\.txt, line 1: is not a merge of two"),
        ({"vocab.json": vocabulary("ab"), "merges.txt": b"\xff"}, {}, "unexpected content"),
        ({"vocab.json": {"a": 0, "<unk>": 1}, "merges.txt": b""}, {}, "no pieces for 255 of 256 bytes"),
        ({"vocab.json": vocabulary(), "merges.txt": b""}, {"model_type": "t5"}, "is read only for model_type=bart"),
        # "b" and "c" are merged first, so that no "ab" is left beside a "c".
        (
            {"vocab.json": vocabulary("bc", "ab", "abc"), "merges.txt": b"b c\na b\nab c"},
            {},
            "its merge 'ab' 'c' never takes place, because of the merges before it",
        ),
        ({"tokenizer.json": FAST | {"model": {"type": "WordLevel"}}}, {}, "its model is WordLevel"),
        ({"tokenizer.json": FAST | {"normalizer": {"type": "NFC"}}}, {}, "its normalizer NFC has no counterpart"),
        (
            {"tokenizer.json": FAST | {"pre_tokenizer": {"type": "ByteLevel", "use_regex": False}}},
            {},
            "its pre_tokenizer splits text into words in another way",
        ),
        (
            {"tokenizer.json": FAST | {"model": {"type": "BPE", "ignore_merges": True}}},
            {},
            "its ignore_merges=True has no counterpart",
        ),
    ],
)
def test_another_tokenizer_is_refused_in_one_line(
    tmp_path: Path, files: dict[str, Any], config: dict[str, Any], reason: str
) -> None:
    folder = write(tmp_path, files)
    with pytest.raises(UserError, match=reason) as error:
        read_tokenizer(folder, {**CONFIG, "vocab_size": 263, **config})
    assert str(error.value).startswith(f"{folder}: ")
    assert "\n" not in str(error.value)
