"""Checkpoint files are complete, are found, and are rebuilt exactly."""

import os
import signal
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig

from diglot.checkpoint import container
from diglot.checkpoint import file as checkpoint
from diglot.config import changes, resolved
from diglot.data.tokenizer import Tokenizer
from diglot.errors import UserError
from support.made import KINDS, checkpoint_content, of_kind, same, write_checkpoint, write_old_checkpoint


def test_a_run_from_before_a_choice_existed_resumes_with_its_default(compose_train):
    now = resolved(compose_train("search=beam"))
    assert now["search"]["length_penalty"] == 0.6
    long_before = ("word_reward", "coverage_penalty", "n_best", "min_len_a", "min_len_b", "length_penalty")
    before = now | {"search": {key: value for key, value in now["search"].items() if key not in long_before}}
    before.pop("export")
    assert changes(before, now) == []
    other = now | {"search": now["search"] | {"word_reward": 0.5, "length_penalty": 0.0}}
    assert {change.key: (change.stored, change.current) for change in changes(before, other)} == {
        "search.word_reward": (0.0, 0.5),
        "search.length_penalty": (0.6, 0.0),
    }
    # The options of another class, or of one that no longer exists, are unknown.
    for target in ("diglot.decoding.SamplingSearch", "diglot.decoding.Gone", None):
        other = {"_target_": target, "beam_size": 4}
        assert {change.key for change in changes({"search": other}, {"search": now["search"]})} >= {
            "search._target_",
            "search.length_penalty",
        }
    gone = {"_target_": "diglot.decoding.Gone", "beam_size": 4}
    assert [change.key for change in changes({"search": gone}, {"search": {**gone, "n_best": 1}})] == ["search.n_best"]


def write_old(path: Path, content: dict[str, Any]) -> None:
    torch.save(content, path)


def write_new(path: Path, content: dict[str, Any]) -> None:
    checkpoint.write(content, path)


@pytest.mark.parametrize("write", [write_old, write_new])
def test_no_run_resumes_from_a_damaged_checkpoint(tmp_path: Path, write: Callable) -> None:
    file = tmp_path / "last.ckpt"
    write(file, {"a": torch.zeros(3)})
    content = file.read_bytes()
    assert checkpoint.has_intact(tmp_path)
    found = set()
    for i in range(max(0, len(content) - 600), len(content)):  # in the old format, these are the records and the end
        file.write_bytes(content[:i] + bytes([content[i] ^ 0xFF]) + content[i + 1 :])
        found.add(checkpoint.has_intact(tmp_path))
    assert found == {True, False}  # some bytes have no effect, or belong to a tensor


@pytest.mark.parametrize("write", [write_old, write_new])
def test_has_whole_does_not_read_the_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable) -> None:
    write(tmp_path / "previous.ckpt", {"a": torch.zeros(3)})

    def read_all(*_: Any) -> None:
        raise AssertionError("all of it is read")

    monkeypatch.setattr(zipfile.ZipFile, "testzip", read_all)
    monkeypatch.setattr(container, "_read_tensor", read_all)
    assert checkpoint.has_intact(tmp_path)


def test_the_record_is_read_without_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: DictConfig, tokenizer: Tokenizer
) -> None:
    content = checkpoint_content(config, tokenizer)
    new = write_checkpoint(tmp_path / "new.ckpt", content)
    old = write_old_checkpoint(tmp_path / "old.ckpt", content)
    assert same(checkpoint.read_record(old), checkpoint.read(old)["diglot"])
    whole, names = checkpoint.read(new)["diglot"], []
    read = container._read_tensor
    monkeypatch.setattr(container, "_read_tensor", lambda *args: names.append(args[2]) or read(*args))
    assert same(checkpoint.read_record(new), whole)
    assert names == ["diglot/tokenizer"]
    write_checkpoint(tmp_path / "foreign.ckpt", {"state_dict": {}})
    with pytest.raises(UserError, match="not written by diglot"):
        checkpoint.read_record(tmp_path / "foreign.ckpt")


def test_a_checkpoint_of_format_1_has_the_same_content_as_one_of_format_2(
    config: DictConfig, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(checkpoint, "warn", said.append)
    content = checkpoint_content(config, tokenizer)
    old, new = write_old_checkpoint(tmp_path / "old.ckpt", content), write_checkpoint(tmp_path / "new.ckpt", content)
    assert same(checkpoint.read(old), checkpoint.read(new))
    assert same(checkpoint.load(old).model.state_dict(), checkpoint.load(new).model.state_dict())
    assert said == [f"checkpoint {old} is in the old format 1: make convert checkpoint={old} rewrites it"]


@pytest.mark.parametrize("write", [write_old, write_new])
def test_a_checkpoint_of_an_unknown_format_is_refused(tmp_path: Path, write: Callable) -> None:
    write(tmp_path / "x.ckpt", {"diglot": {"format": 3}, "state_dict": {}})
    with pytest.raises(UserError, match=r"x\.ckpt: written in format 3; this diglot reads formats 1 and 2"):
        checkpoint.read(tmp_path / "x.ckpt")


def test_a_callback_s_value_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    content = {"callbacks": {"Mine": {"seen": [1, {2}, object()]}}}
    with pytest.raises(UserError) as refused:
        write_new(tmp_path / "x.ckpt", content)
    assert str(refused.value) == (
        f"{tmp_path}/x.ckpt: the checkpoint cannot be written: callbacks.Mine.seen[2] is object: write plain data and "
        "tensors (the state of your own callbacks must consist of plain data and tensors)"
    )
    assert not [*tmp_path.iterdir()]


def test_a_pipe_of_a_checkpoint_s_name_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "last.ckpt")

    def give_up(*_: Any) -> None:
        raise KeyboardInterrupt("it waits for the pipe")  # not a subclass of Exception, which would be suppressed

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    try:
        assert not checkpoint.has_intact(tmp_path)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_holds_the_start_and_the_prefixes_of_its_tokenizer(compose_train, tokenizer, kind):
    made = of_kind(tokenizer, kind)
    record = checkpoint.record(compose_train(), made, "sample", "avi", "bol")
    container.check_tree({"diglot": record})
    found = checkpoint.tokenizer_of(record)
    assert (found.special, found.prefixes, found.digest()) == (made.special, made.prefixes, made.digest())
    assert checkpoint.has_tokenizer(record, made)
    assert not checkpoint.has_tokenizer(record, tokenizer)


def test_a_record_from_before_the_prefixes_has_the_default(compose_train, tokenizer):
    record = checkpoint.record(compose_train(), tokenizer, "sample", "avi", "bol")
    assert record.pop("prefixes") == {"src": ["tgt_lang"], "tgt": []}
    assert checkpoint.tokenizer_of(record).digest() == tokenizer.digest()
    assert checkpoint.has_tokenizer(record, tokenizer)


@pytest.mark.parametrize(
    ("prefixes", "reason"),
    [
        (["tgt_lang"], "its prefixes are not those of src and tgt"),
        ({"src": [], "tgt": [], "more": []}, "its prefixes are not those of src and tgt"),
        ({"src": [], "tgt": "<s>"}, r"its prefixes\.tgt is not a list of at most 8 pieces"),
        ({"src": [3], "tgt": []}, r"its prefixes\.src is not a list of at most 8 pieces"),
        ({"src": ["<s>"] * 9, "tgt": []}, r"its prefixes\.src is not a list of at most 8 pieces"),
        ({"src": ["x" * 101], "tgt": []}, r"its prefixes\.src is not a list of at most 8 pieces"),
        ({"src": ["<no piece>"], "tgt": []}, "has no control piece <no piece>"),
    ],
)
def test_prefixes_of_another_form_are_refused(compose_train, tokenizer, prefixes, reason):
    record = checkpoint.record(compose_train(), tokenizer, "sample", "avi", "bol") | {"prefixes": prefixes}
    with pytest.raises(UserError, match=reason):
        checkpoint.tokenizer_of(record)
