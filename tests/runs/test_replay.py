"""A recorded update is repeated bit for bit, and the faults planted in it are found."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from diglot.checkpoint import file as checkpoint
from diglot.data.shards import open_shards
from diglot.errors import UserError
from diglot.runs.replay import Replay
from diglot.runs.replay_report import is_same, report
from support.commands import ROOT, SMALL, type_command
from support.made import write_checkpoint

WORDS = (
    *(word for word in SMALL if not word.startswith("watch")),
    *("~watch.attention", "~watch.heads", "~watch.position", "~watch.translations", "callbacks=ema"),
    *("run.updates=14", "run.validate_every=10", "run.test=false", "run.folder=run", "trainer.log_every_n_steps=2"),
    *("scheduler.warmup=0", "scheduler.lr=1e-2", "model.dropout=0.1", "data.batches_per_update=2"),
    *("trainer.precision=32-true", "+callbacks.low._target_=support.spy.LowBound"),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the working folder of a run with dropout, several batches per update, averages, and a record."""
    cwd = tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "tests"))
        type_command("diglot-train", *WORDS, cwd=cwd)
    return cwd


@pytest.fixture
def record(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the record of update 13, which starts from the checkpoint of update 10, in a copy of the run."""
    monkeypatch.chdir(trained)
    shutil.copytree(trained / "run", tmp_path / "run")
    (record,) = (tmp_path / "run" / "records").glob("*.json")
    assert record.name == "update_13.json"
    return record


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_an_update_is_repeated_bit_for_bit(trained: Path, record: Path) -> None:
    done = type_command("diglot-replay", f"record={record}", "pairs=3", cwd=trained).stdout.decode()
    values = json.loads(record.read_text())
    assert (
        f"Same loss as in the run, bit for bit: loss {values['loss']!r}, gradient norm {values['gradient_norm']!r}"
        in done
    )
    assert f"repeated from the checkpoint of update {values['start']}" in done
    assert "not finite" not in done
    assert "Pairs with the greatest loss" in done
    assert "decoder.0.feed_forward.sublayer.down" in done


def test_an_update_before_the_first_checkpoint_is_repeated_from_the_initial_weights(record: Path) -> None:
    values = json.loads(record.read_text())
    record.with_suffix(".ckpt").unlink()
    change(record, start=0)
    replay = Replay.of(str(record))
    repeated = replay.run()
    assert (repeated.loss, repeated.gradient_norm) == (values["loss"], values["gradient_norm"])
    assert "repeated from the initial weights" in report(replay, repeated, 1)


def test_an_infinite_weight_is_found(trained: Path, record: Path) -> None:
    file = record.with_suffix(".ckpt")
    content = checkpoint.read(file)
    for part in ("state_dict", "current_model_state"):
        content[part]["model.encoder.0.feed_forward.sublayer.down.weight"][0, 0] = torch.inf
    write_checkpoint(file, content)
    done = type_command("diglot-replay", f"record={record}", cwd=trained, code=2)
    lines = done.stdout.decode().splitlines()
    (forward,) = [line for line in lines if line.startswith("Forward")]
    assert "computed by encoder.0.feed_forward.sublayer.down from finite values; pair " in forward
    assert "source token 1 (" in forward
    (backward,) = [line for line in lines if line.startswith("Backward")]
    assert "at the output of " in backward
    (error,) = done.stderr.decode().splitlines()
    assert "did not come out the same: its loss is nan" in error
    assert "the run had callbacks (ema, low), which a replay does not run" in error


def test_a_poisoned_pair_stands_in_the_first_row(record: Path, tmp_path: Path) -> None:
    values = json.loads(record.read_text())
    original = open_shards(Path(values["data"]))
    copy = tmp_path / original.folder.name
    shutil.copytree(original.folder, copy)
    pair = max(values["pairs"], key=lambda number: len(original.tgt[number]))
    ids = np.array(original.tgt.ids)
    start, stop = original.tgt.offsets[pair : pair + 2]
    rarest = np.argsort(np.bincount(ids, minlength=int(ids.max()) + 1)[4:], kind="stable")[0] + 4
    ids[start:stop] = rarest
    ids.tofile(copy / "tgt.ids")
    replay = Replay.of(str(record), data=str(copy))
    repeated = replay.run()
    assert not is_same(replay, repeated)
    lines = report(replay, repeated, 3).splitlines()
    first_row = lines[next(i for i, line in enumerate(lines) if line.startswith("Pairs with")) + 3]
    assert first_row.split()[0] == f"{pair + 1:,}"


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def name_class(file: Path, node: str, target: str) -> None:
    config = yaml.safe_load(file.read_text())
    config[node]["_target_"] = target
    file.write_text(yaml.safe_dump(config))


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no checkpoint": (lambda file: file.with_suffix(".ckpt").unlink(), "its checkpoint update_.*ckpt is gone"),
    "a damaged checkpoint": (lambda file: cut(file.with_suffix(".ckpt")), "damaged|not a checkpoint|truncated"),
    "no config": (lambda file: file.with_suffix(".yaml").unlink(), "update_.*yaml, the run's config, is gone"),
    "no data": (lambda file: change(file, data="elsewhere"), "training text elsewhere is gone; make prepare"),
    "other data": (lambda file: change(file, data_key=1), "training text in .* is not the one of the run"),
    "other pairs": (lambda file: change(file, pairs=[0]), "does not have the pairs of the record|has other pairs"),
    "a pair too many": (lambda file: change(file, pairs=[10**9]), "pair 1.?000.?000.?000"),
    "another start": (lambda file: change(file, start=1), "is of update .*, not of 1"),
    "another version": (
        lambda file: change(file, machine={**json.loads(file.read_text())["machine"], "diglot": "9.9"}),
        r"written by diglot 9\.9",
    ),
    "several processes": (
        lambda file: change(file, machine={**json.loads(file.read_text())["machine"], "processes": 2}),
        "written by 2 processes",
    ),
    "a foreign model": (lambda file: name_class(file.with_suffix(".yaml"), "model", "evil.Model"), "evil.Model"),
    "a foreign optimizer": (
        lambda file: name_class(file.with_suffix(".yaml"), "optimizer", "evil.Optimizer"),
        "evil.Optimizer'?, a class that is not part of diglot",
    ),
    "an interpolation": (
        lambda file: name_class(file.with_suffix(".yaml"), "trainer", "${oc.env:HOME}"),
        "contains the interpolation",
    ),
    "a function as scheduler": (
        lambda file: name_class(file.with_suffix(".yaml"), "scheduler", "os.system"),
        "os.system'?, a class that is not part of diglot",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_repeated_is_said_in_one_line(case: str, record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = record.parent / "evil.py"
    evil.write_text("raise SystemExit('imported because a record says so')")
    monkeypatch.syspath_prepend(str(record.parent))
    spoil, message = CASES[case]
    spoil(record)
    with pytest.raises(UserError, match=message) as error:
        Replay.of(str(record)).run()
    assert "\n" not in str(error.value)
    assert os.fspath(record.parent.parent) in str(error.value) or case == "other pairs"
