"""Several processes train the same model as one, and an interrupted run resumes exactly."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diglot.checkpoint import container
from diglot.config import without_secrets
from diglot.data.text import read_lines
from diglot.errors import UserError
from diglot.runs.plan import refuse_other_config
from diglot.system.interruption import Interrupted
from diglot.training import processes
from diglot.training.processes import Launcher, check_number
from support.commands import scalars

pytestmark = pytest.mark.end_to_end

HERE = Path(__file__).parents[1]
SPY = "+callbacks.spy._target_=support.spy.Spy"
TINY = (
    "trainer=cpu",
    "trainer.precision=64-true",  # sums in another order then differ by only 1e-16, which Adam cannot amplify much
    "trainer.log_every_n_steps=1",
    "model.d_model=32",
    "model.n_heads=2",
    "model.d_ff=48",
    "model.dropout=0",
    "search=greedy",
    "search.max_len_a=0",
    "search.max_len_b=6",
    "watch.attention.every=1",
    "watch.attention.sentences=1",
)


def start(*words: str, cwd: Path, module: tuple[str, ...] = (), **environment: str) -> subprocess.Popen:
    """Start diglot-train on one thread, with the environment that the spies need."""
    (cwd / "spied").mkdir(exist_ok=True)
    command = [sys.executable, *module, "-m", "diglot", "train", *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE), "SPY_FOLDER": str(cwd / "spied")}
    return subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**env, **environment}
    )


def finish(run: subprocess.Popen, code: int = 0) -> str:
    said, _ = run.communicate(timeout=500)  # before trainer.process_timeout
    assert run.returncode == code, said
    return said


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return container.read(folder / "last.ckpt")["state_dict"]


def spied(folder: Path, rank: int) -> list[dict]:
    return [json.loads(line) for line in (folder / "spied" / f"{rank}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Return overrides for seven sentences of different lengths as train, dev and test text."""
    folder = tmp_path_factory.mktemp("seven")
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    lines = [" ".join(words[i : i + 1 + (i * 5) % 7]) for i in range(7)]
    (folder / "a.en").write_text("".join(f"{line}\n" for line in lines))
    (folder / "a.de").write_text("".join(f"{line[::-1]}\n" for line in lines))
    files = [
        f"data.{split}.{side}={folder}/a.{end}" for split in ("train", "dev", "test") for side, end in SIDES.items()
    ]
    return ("data=files", *files, "data.vocab_size=290", "data.tokens_per_batch=60", "data.max_len=60", "run.passes=2")


SIDES = {"src": "en", "tgt": "de"}


@pytest.mark.reliability
def test_two_processes_make_the_updates_and_the_translations_of_one(tmp_path: Path, seven: tuple[str, ...]) -> None:
    folders = {}
    src, tgt = (next(word.partition("=")[2] for word in seven if f"dev.{side}" in word) for side in SIDES)
    seven = (*seven, f"data.further_dev={{old: {{src: {src}, tgt: {tgt}}}}}")
    for name, words in (("one", ()), ("two", ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2"))):
        folders[name] = cwd = tmp_path / name
        cwd.mkdir()
        said = finish(start(*seven, *TINY, *words, SPY, "run.validate_every=2", "run.folder=run", cwd=cwd))
        assert said.count("update 2 of ") == 1, said  # only one process reports
    one, two = folders["one"], folders["two"]

    # In each pass, the processes share all sentences without overlap, in equally many batches.
    alone, shares = spied(one, 0), [spied(two, rank) for rank in (0, 1)]
    assert [len(share) for share in shares] == [len(alone)] * 2
    for whole, *parts in zip(alone, *shares, strict=True):
        assert sorted(whole["pairs"]) == sorted(parts[0]["pairs"] + parts[1]["pairs"])
    seen = Counter(pair for share in shares for line in share for pair in line["pairs"])
    assert seen == Counter(dict.fromkeys(range(7), 2))

    # Weights, curves, scores and translations are equal, with every dev sentence once and in order.
    ours, theirs = weights(one / "run"), weights(two / "run")
    moved = max((theirs[name] - ours[name]).abs().max().item() for name in ours)
    assert moved < 1e-9
    steps, same = scalars(one / "run"), scalars(two / "run")
    assert steps.keys() == same.keys()
    for tag, values in steps.items():
        assert list(values) == list(same[tag]), tag
        if not tag.startswith("speed/") and tag != "train/padding":
            assert same[tag] == pytest.approx(values, rel=1e-5), tag
    translated = [read_lines(folder / "run" / "text" / "dev.translated.de") for folder in (one, two)]
    assert len(translated[0]) == 7
    assert translated[0] == translated[1]
    further = [read_lines(folder / "run" / "text" / "dev_old.translated.de") for folder in (one, two)]
    assert further == translated  # the same text
    assert steps["dev_old/bleu"] == steps["dev/bleu"]
    assert sum(1 for file in (two / "run").iterdir() if file.name.startswith("events")) == sum(
        1 for file in (one / "run").iterdir() if file.name.startswith("events")
    )


@pytest.mark.reliability
@pytest.mark.parametrize(
    "words",
    [
        ("freeze=[encoder,embeddings]", "learning_rates={decoder.norms:3}", "callbacks=[ema]"),
        ("lora={rank:2,on:[attention,up],train:[norms]}", "learning_rates={decoder:2}"),
    ],
    ids=["frozen", "lora"],
)
def test_two_processes_fine_tune_the_model_that_one_does(
    tmp_path: Path, seven: tuple[str, ...], words: tuple[str, ...]
) -> None:
    common = [*seven, *TINY, "watch=none", "run.validate_every=2", "run.test=false"]
    common = [word for word in common if not word.startswith("watch.")]
    finish(start(*common, "run.folder=base", cwd=tmp_path))
    common = [word for word in common if "vocab_size" not in word] + ["init_from=base/last.ckpt", *words]
    for name, shared in (("one", ()), ("two", ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2"))):
        finish(start(*common, *shared, f"run.folder={name}", cwd=tmp_path))
    ours, theirs = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert ours.keys() == theirs.keys()
    assert max((theirs[name] - ours[name]).abs().max().item() for name in ours) < 1e-9
    before = weights(tmp_path / "base")
    # Initial weights are read as float32.
    kept = {name for name, weight in before.items() if torch.equal(weight.float(), theirs[name].float())}
    assert 0 < len(kept) < len(before)


@pytest.mark.reliability
def test_processes_started_from_outside_share_one_folder(tmp_path: Path, seven: tuple[str, ...]) -> None:
    words = [*seven, *TINY, "trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "run.validate_every=9"]
    said = finish(start(*words, cwd=tmp_path, module=("-m", "torch.distributed.run", "--nproc-per-node", "2")))
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "results.json").exists(), said
    assert said.count("Made in ") == 1


@pytest.mark.reliability
def test_processes_that_are_not_as_many_as_the_config_says_are_refused(tmp_path: Path, seven: tuple[str, ...]) -> None:
    slurm = {"NTASKS": 2, "NTASKS_PER_NODE": 2, "PROCID": 0, "LOCALID": 0, "NODEID": 0, "NNODES": 1, "JOB_ID": 7}
    environment = {f"SLURM_{name}": str(value) for name, value in slurm.items()}
    words = [*seven, *TINY, "trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=3"]
    said = finish(start(*words, cwd=tmp_path, SLURM_JOB_NAME="train", **environment), code=2)
    assert said == "diglot-train: 2 processes were started, but trainer.devices x trainer.num_nodes is 3 x 1\n"
    assert not (tmp_path / "runs").exists()


def test_one_process_is_refused_where_srun_started_two_and_not_in_an_allocation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone: Any = SimpleNamespace(strategy=None, num_devices=1, num_nodes=1)
    for name, value in {"NTASKS": 2, "NTASKS_PER_NODE": 2, "JOB_NAME": "train", "PROCID": 0}.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    check_number(alone)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    with pytest.raises(UserError, match="2 processes were started"):
        check_number(alone)


def test_a_process_that_is_given_another_config_than_the_first_is_refused(compose_train: Callable[..., Any]) -> None:
    def refuse(*words: str) -> None:
        first = without_secrets(compose_train())
        second: Any = SimpleNamespace(shared=lambda _: first, rank=1, world_size=2)
        refuse_other_config(compose_train(*words), second)

    refuse("data.cache_dir=elsewhere", "logger=csv", "init_from=moved.ckpt")
    with pytest.raises(
        UserError, match="process 2 of 2 has a different config from the first one: seed was 1 and is 2"
    ):
        refuse("seed=2")


def ended(
    monkeypatch: pytest.MonkeyPatch,
    other: str,
    patience: float,
    function: Callable[[subprocess.Popen, list[int]], None],
) -> list[int]:
    """Return the exit statuses with which a launcher ends when its child, which runs `other` in sh, has ended."""
    codes: list[int] = []
    monkeypatch.setattr(processes, "_GRACE_SECONDS", patience)
    monkeypatch.setattr(processes.os, "_exit", codes.append)
    monkeypatch.setattr(processes.interruption, "outcome", lambda: (75, "It can go on."))
    environment: Any = SimpleNamespace(creates_processes_externally=False)
    launcher = Launcher(environment, 2, 1)
    started = subprocess.Popen(["sh", "-c", other])
    monkeypatch.setattr(launcher, "start_others", lambda: launcher.procs.append(started))
    monkeypatch.setenv("DIGLOT_FIRST_PROCESS", "")
    with contextlib.suppress(Interrupted):
        launcher.launch(function, started, codes)
    time.sleep(1)
    return codes


@pytest.mark.reliability
@pytest.mark.parametrize(
    ("other", "code", "says"),
    [
        ("exit 138", 75, "stopped by SIGUSR1. It can go on."),
        ("exit 75", 2, "process 2 of 2 failed with exit status 75"),  # for example, raised by a user's callback
        ("kill -9 $$", 2, "process 2 of 2 was killed by SIGKILL"),
    ],
)
def test_a_process_that_waits_ends_with_another_one_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, other: str, code: int, says: str
) -> None:
    def wait(_: subprocess.Popen, codes: list[int]) -> None:
        until(lambda: bool(codes))

    assert ended(monkeypatch, other, 0.3, wait) == [code]
    assert capsys.readouterr().err == f"diglot-train: {says}\n"


@pytest.mark.reliability
def test_a_process_that_ends_already_is_left_to_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(other: subprocess.Popen, _: list[int]) -> None:
        until(lambda: other.returncode is not None)  # until the launcher has noticed its end
        raise Interrupted

    assert ended(monkeypatch, "kill -9 $$", 1e9, interrupt) == []


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.exhaustive
def test_a_process_that_hangs_ends_the_run_after_the_timeout(tmp_path: Path, seven: tuple[str, ...]) -> None:
    words = [*seven, *TINY, SPY, "trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "run.folder=run"]
    began = time.monotonic()
    run = start(*words, "trainer.process_timeout=8", cwd=tmp_path, SPY_HANG_AT="1:1")
    try:
        said, _ = run.communicate(timeout=90)  # also waits for the other process, which shares the output
    finally:
        run.kill()
    assert run.returncode not in (0, None), said
    assert time.monotonic() - began < 80


@pytest.mark.reliability
def test_a_run_goes_on_where_it_was_killed_and_each_step_stands_once(tmp_path: Path, seven: tuple[str, ...]) -> None:
    words = [*seven[:-1], *TINY, SPY, "run.updates=12", "run.validate_every=5", "model.dropout=0.1"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    finish(start(*words, "run.folder=run", cwd=whole))
    finish(start(*words, "run.folder=run", cwd=cut, SPY_KILL_AT="0:8"), code=-9)
    said = finish(start(*words, "resume=run", cwd=cut))
    assert "12 updates, 5 of them done" in said
    assert all(torch.equal(value, weights(cut / "run")[name]) for name, value in weights(whole / "run").items())
    updates = [line["update"] for line in spied(cut, 0)]
    assert updates == [*range(1, 9), *range(6, 13)]
    by_update = {line["update"]: line["pairs"] for line in spied(whole, 0)}
    assert all(by_update[line["update"]] == line["pairs"] for line in spied(cut, 0))
    expected, found = scalars(whole / "run"), scalars(cut / "run")
    assert list(found["train/loss"]) == list(range(1, 13))
    assert list(found["dev/bleu"]) == [5, 10, 12]
    assert expected.keys() == found.keys()
    for tag in expected:
        if not tag.startswith("speed/"):
            assert expected[tag] == found[tag], tag

    # A finished run, a changed config and a folder without a run are each reported in one line.
    assert "this run is finished" in finish(start(*words, "resume=run", cwd=cut))
    (cut / "run" / "results.json").unlink()
    said = finish(start(*words, "resume=run", "seed=3", cwd=cut), code=2)
    assert "seed was 1 and is 3" in said.splitlines()[-1]
    assert "there is no run in it" in finish(start(*words, "resume=spied", cwd=cut), code=2)


@pytest.mark.reliability
def test_a_sanity_check_leaves_no_trace(tmp_path: Path, seven: tuple[str, ...]) -> None:
    words = [*seven[:-1], *TINY, "run.updates=4", "run.validate_every=2", "trainer.log_every_n_steps=3"]
    runs = [start(*words, f"run.folder=sanity{n}", f"trainer.num_sanity_val_steps={n}", cwd=tmp_path) for n in (0, 2)]
    for run in runs:
        finish(run)
    without, with_check = (scalars(tmp_path / name) for name in ("sanity0", "sanity2"))
    for found in (without, with_check):
        for tag in [tag for tag in found if tag.startswith("speed/")]:
            found.pop(tag)
    assert without == with_check
    assert without["best/bleu"]
    assert list(without["train/loss"]) == list(without["train/gradient_norm"]) == [3, 4]  # the last update is logged
    names = [sorted(file.name for file in (tmp_path / name).glob("*.ckpt")) for name in ("sanity0", "sanity2")]
    assert names[0] == names[1]
    assert all(
        torch.equal(value, weights(tmp_path / "sanity2")[name]) for name, value in weights(tmp_path / "sanity0").items()
    )
