"""Checkpoints of the old format are rewritten in place, exactly, or stay unchanged."""

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from diglot.checkpoint import container, conversion, format1
from diglot.checkpoint import file as checkpoint
from diglot.commands import convert
from diglot.errors import UserError
from diglot.runs import folder as folders
from support.commands import type_command
from support.made import checkpoint_content, same, write_checkpoint, write_old_checkpoint


@pytest.fixture
def content(config: Any, tokenizer: Any) -> dict[str, Any]:
    found = checkpoint_content(config, tokenizer)
    state, moment = found["state_dict"], torch.rand(8, 4)
    state["model.gaps"], state["model.turned"] = torch.arange(8)[::2], torch.rand(8, 4).T
    found["optimizer_states"] = [{"state": {0: {"step": torch.tensor(3.0), "exp_avg": moment}}}]
    found["callbacks"] = {"Mine": {"scores": [float("nan"), -0.0], "best": (1, None)}}
    return found


def test_a_run_s_folder_is_rewritten_with_its_hard_links(content: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "a run"
    run.mkdir()
    write_old_checkpoint(run / "best.ckpt", content)
    os.link(run / "best.ckpt", run / "update_100.ckpt")
    write_old_checkpoint(run / "last.ckpt", content | {"global_step": 7})
    write_checkpoint(run / "mean.ckpt", content)
    with (run / "best.ckpt").open("rb") as file:
        before = format1.read(file)
    before["diglot"]["format"] = 2
    done = type_command("diglot-convert", "checkpoint='a run'", cwd=tmp_path)
    lines = done.stdout.decode().splitlines()
    assert [line.partition(",")[0] for line in lines] == [
        "    best.ckpt = update_100.ckpt: rewritten",
        "    last.ckpt: rewritten",
        "    mean.ckpt: already in format 2",
        f"Rewritten in format 2: 2 of 3 checkpoints in {run}/",
    ]
    assert done.stderr == b""
    assert (run / "best.ckpt").samefile(run / "update_100.ckpt")
    assert sorted(file.name for file in run.iterdir()) == ["best.ckpt", "last.ckpt", "mean.ckpt", "update_100.ckpt"]
    found = container.read(run / "best.ckpt")
    before["state_dict"]["model.gaps"] = before["state_dict"]["model.gaps"].contiguous()
    assert same(found, before)
    assert checkpoint.read(run / "last.ckpt")["global_step"] == 7
    again = type_command("diglot-convert", "checkpoint='a run'", cwd=tmp_path).stdout.decode()
    assert f"Rewritten in format 2: 0 of 3 checkpoints in {run}/" in again


def test_damaged_ones_are_named_and_the_others_rewritten(content: dict[str, Any], tmp_path: Path) -> None:
    good = write_old_checkpoint(tmp_path / "last.ckpt", content).read_bytes()
    (tmp_path / "best.ckpt").write_bytes(good[:-1])
    (tmp_path / "link.ckpt").symlink_to(tmp_path / "last.ckpt")
    done = type_command("diglot-convert", "checkpoint=.", cwd=tmp_path, code=2)
    assert "best.ckpt: damaged" in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
    assert "Rewritten in format 2: 1 of 2" in done.stdout.decode()
    assert (tmp_path / "best.ckpt").read_bytes() == good[:-1]
    assert checkpoint.is_of_old_format(tmp_path / "best.ckpt")
    assert not checkpoint.is_of_old_format(tmp_path / "last.ckpt")


def test_nothing_is_done_while_a_run_is_at_work(
    content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_old_checkpoint(tmp_path / "last.ckpt", content)
    monkeypatch.setattr(folders, "LOCK_ATTEMPTS", 1)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        for path in (tmp_path, file):
            with pytest.raises(UserError, match="another process is training in it"):
                convert.convert_all(str(path))
    finally:
        os.close(descriptor)
    assert checkpoint.is_of_old_format(file)


def test_a_checkpoint_that_would_read_back_differently_is_not_rewritten(
    content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_old_checkpoint(tmp_path / "last.ckpt", content)
    read = container.read

    def otherwise(path: Path) -> Any:
        found = read(path)
        found["callbacks"]["Mine"]["scores"][1] = 0.0
        return found

    monkeypatch.setattr(container, "read", otherwise)
    with pytest.raises(UserError, match=r"last\.ckpt: left unchanged: it would not be restored exactly"):
        conversion.convert([file])
    assert checkpoint.is_of_old_format(file)
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize("number", [28, 30])
def test_a_checkpoint_that_cannot_be_written_is_left_unchanged(
    content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    file = write_old_checkpoint(tmp_path / "last.ckpt", content)

    def full(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(container, "write", full)
    with pytest.raises(UserError, match=rf"last\.ckpt: cannot be written \({os.strerror(number)}\)"):
        conversion.convert([file])
    assert checkpoint.is_of_old_format(file)


def test_a_path_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    for path, said in [(tmp_path / "x.ckpt", "no such file"), (tmp_path, "holds no checkpoint")]:
        with pytest.raises(UserError, match=said):
            conversion.files_of(str(path))


def test_a_difference_is_found_wherever_it_is() -> None:
    one = {"a": [1, 2.0, {"b": torch.ones(2, 3)}]}
    others: list[Any] = [
        {"a": [True, 2.0, {"b": torch.ones(2, 3)}]},
        {"a": [1, 2, {"b": torch.ones(2, 3)}]},
        {"a": (1, 2.0, {"b": torch.ones(2, 3)})},
        {"a": [1, 2.0, {"b": torch.ones(2, 3)}, 3]},
        {"a": [1, 2.0, {"c": torch.ones(2, 3)}]},
        {"a": [1, 2.0, {"b": torch.ones(3, 2)}]},
        {"a": [1, 2.0, {"b": torch.ones(3, 2).T}]},
        {"a": [1, 2.0, {"b": torch.ones(2, 3).double()}]},
        {"a": [1, 2.0, {"b": torch.ones(2, 3) * 2}]},
    ]
    assert conversion._same(one, {"a": [1, 2.0, {"b": torch.ones(2, 3)}]})
    assert not [other for other in others if conversion._same(one, other)]
