"""A sweep survives its jobs: each has its own process, a failure is reported, and the same command continues."""

import csv
import fcntl
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from diglot import config
from diglot.commands import sweep as entry
from diglot.commands.frame import command
from diglot.commands.schema import TrainKeys
from diglot.commands.train import main as train_main
from diglot.config import hydra_seams
from diglot.data.text import write_bytes
from diglot.errors import UserError
from diglot.sweeps import job as one
from diglot.sweeps import sweep, tables
from diglot.sweeps.comparison import Comparison, openings
from diglot.sweeps.configuration import outcome
from diglot.system.interruption import STOP_SIGNALS
from diglot.system.quoting import quoted
from diglot.training.run import Budget
from hydra_plugins.diglot_launcher import sweeper
from hydra_plugins.diglot_launcher.sweeper import filled_in
from support.made import checkpoint_content, write_checkpoint

# A job that trains nothing. MODE is its behaviour, with the number of heads that it applies to: fail2, kill2, stop2,
# silent2, halt2 (its rule ends it), slow.
STUB = """\
import json, os, signal, sys, time
from pathlib import Path

import yaml

words = dict(word.partition("=")[::2] for word in sys.argv[1:])
folder = Path(words["resume"].strip("'"))
carried = folder / "composed.yaml"
heads = str(yaml.safe_load(carried.read_text())["model"]["n_heads"] if carried.exists() else 0)
mode = os.environ.get("MODE", "")
with (folder / "starts").open("a") as file:
    file.write(json.dumps([sys.argv[1:], dict(os.environ), os.getpid(), os.getsid(0)]) + "\\n")
print("update 1 of 2, pass 0.1, 0:00: dev BLEU 1.00", flush=True)
if mode == f"fail{heads}":
    print("diglot-train: data.train.src=x: no such file", file=sys.stderr)
    sys.exit(2)
if mode == f"kill{heads}":
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "edit":
    Path("confs/model/mine.yaml").write_text("defaults: [tiny]\\nd_ff: 128\\n")
if mode == f"stop{heads}":
    sys.exit(143)
if mode == f"halt{heads}":
    reason = "stopped: cannot win (update 1 of 2); 3.00 behind job 1 there, and it can catch up 1.00"
    (folder / "stopped.json").write_text(json.dumps({"reason": reason, "update": 1}))
    sys.exit(0)
if mode == f"silent{heads}":
    sys.exit(0)
if mode.startswith("slow"):
    if mode == "slow_deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / "slow").touch()
    for _ in range(6000):  # not one long sleep: a signal just before it would be answered after it
        time.sleep(0.02)
best = {"bleu": 10.0 + int(heads), "chrf": 20.0, "loss": 1.5 - int(heads), "perplexity": 4.5, "update": 2}
if mode.startswith("outputs"):
    # The files of a run that translates 40 sentences of dev. With "outputs_kill", job 2 is killed at its first start.
    n_starts = len((folder / "starts").read_text().splitlines())
    if mode == "outputs_kill" and folder.name.startswith("02") and n_starts < 2:
        os.kill(os.getpid(), signal.SIGKILL)
    seed = yaml.safe_load(carried.read_text())["seed"]
    right = [(7 * i + 3 * seed) % 10 < 2 * int(heads) for i in range(40)]
    outputs = [f"line {i}" if is_right else "x" for i, is_right in enumerate(right)]
    text = {"dev.avi": outputs, "dev.bol": [f"line {i}" for i in range(40)], "dev.best.bol": outputs}
    (folder / "text").mkdir(exist_ok=True)
    for name, lines in text.items():
        (folder / "text" / name).write_text("".join(f"{line}\\n" for line in lines))
    (folder / "text" / "dev.json").write_text(json.dumps({"name": "few", "memory": []}))
    best["accuracy"] = 100 * sum(right) / 40
results = {"finished": True, "best": best, "parameters": 1_000_000 + int(heads), "tokens_per_second": 1234.5}
(folder / "results.json").write_text(json.dumps({**results, "minutes": 0.5, "updates": 2, "checkpoint": "best.ckpt"}))
"""
WORDS = ("data=sample", "trainer=cpu", "hydra.launcher.module=stub_job", "watch=none")
SMALL = (
    "data=sample",
    "trainer=cpu",
    "model.d_model=32",
    "model.d_ff=64",
    "search=greedy",
    "search.max_len_a=0.0",
    "search.max_len_b=3",
    "watch=none",
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder, with the stub job on PYTHONPATH."""
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    (stubs / "stub_job.py").write_text(STUB)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(stubs))
    monkeypatch.delenv("MODE", raising=False)
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def type_sweep(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., tuple]:
    """Return a function that runs `diglot-sweep ...` and returns its stdout and stderr."""

    def typed(*words: str, code: int = 0, mode: str = "", always: tuple[str, ...] = WORDS) -> tuple[str, str]:
        monkeypatch.setenv("MODE", mode)
        monkeypatch.setattr(sys, "argv", ["diglot-sweep", *always, *words])
        GlobalHydra.instance().clear()
        status = 0
        try:
            entry.main()
        except SystemExit as stopped:
            status = stopped.code if isinstance(stopped.code, int) else 1
        out, err = capsys.readouterr()
        assert status == code, out + err
        return out, err

    return typed


def the_sweep(work: Path) -> Path:
    """Return the only sweep folder."""
    (folder,) = (work / "runs").iterdir()
    return folder


def table_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "jobs.csv").open() as file:
        return list(csv.DictReader(file))


def starts(folder: Path) -> list[list]:
    """Return a record of each start of a job."""
    return [json.loads(line) for line in (folder / "starts").read_text().splitlines()]


def test_each_job_has_a_folder_a_process_and_a_row(here, type_sweep, monkeypatch):
    for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE", "DIGLOT_RUN_FOLDER", "SLURM_NTASKS"):
        monkeypatch.setenv(name, "1")
    out, _ = type_sweep("model.n_heads=1,2,4")
    folder = the_sweep(here)
    jobs = sorted(path for path in folder.iterdir() if path.is_dir())
    assert [job.name for job in jobs] == ["01_n_heads-1", "02_n_heads-2", "03_n_heads-4"]
    sessions = set()
    for job, heads in zip(jobs, (1, 2, 4), strict=True):
        ((words, environment, process, session),) = starts(job)
        assert words == ["--config-path", str(job), "--config-name", "composed", f"resume={job.relative_to(here)}"]
        carried = OmegaConf.load(job / "composed.yaml")
        assert (carried.seed, carried.trainer.accelerator, carried.model.n_heads) == (1, "cpu", heads)
        assert not environment.keys() & one.DISTRIBUTED
        assert process == session != os.getsid(0)
        sessions.add(session)
        record = json.loads((job / "job.json").read_text())
        assert (record["status"], record["exit_status"], record["process"]) == ("finished", 0, None)
    assert len(sessions) == 3
    rows = table_of(folder)
    assert [row["overrides"] for row in rows] == ["model.n_heads=1", "model.n_heads=2", "model.n_heads=4"]
    assert list(rows[2].values())[2:9] == ["finished", "14.0", "20.0", "4.5", "1000004", "1234.5", "0.5"]
    assert rows[2]["checkpoint"] == str(jobs[2].relative_to(here) / "best.ckpt")
    assert (
        "| 3 | `model.n_heads=4` | finished | 14.00 | 20.00 | 4.50 | 1,000,004* | 1,234 | 0.5* |"
        in (folder / "table.md").read_text()
    )
    assert (folder / "table.png").read_bytes().startswith(b"\x89PNG")
    assert f"job 2 of 3: model.n_heads=2 -> {jobs[1].relative_to(here)}" in out
    assert "\n  update 1 of 2, pass 0.1, 0:00: dev BLEU 1.00\n" in out
    assert "Best by dev/bleu (14.00): job 3, model.n_heads=4" in out
    assert f"Made in {folder.relative_to(here)}/: report.html, table.csv, " in out
    assert "make sweep " in (folder / "report.html").read_text()
    assert " model.n_heads=1,2,4</code>" in (folder / "report.html").read_text()
    assert "\nTest opened by no run of this sweep\n" in out


def test_the_jobs_of_a_checkpoint_have_its_model(here, type_sweep, compose_train, tokenizer):
    first = compose_train("data=sample", "model.d_model=24", "model.n_heads=3", "model.dropout=0.3")
    write_checkpoint(Path("first.ckpt"), checkpoint_content(first, tokenizer))
    type_sweep("init_from=first.ckpt", "model.dropout=0.1,0.2")
    jobs = sorted(path for path in the_sweep(here).iterdir() if path.is_dir())
    carried = [OmegaConf.load(job / "composed.yaml").model for job in jobs]
    assert [(model.d_model, model.n_heads, model.dropout) for model in carried] == [(24, 3, 0.1), (24, 3, 0.2)]
    _, err = type_sweep("init_from=first.ckpt", "model.d_ff=100,768", code=2)
    assert "job model.d_ff=100: init_from=first.ckpt: model.d_ff is 768 in the checkpoint, but 100 here" in err


@pytest.mark.reliability
@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("fail2", "failed with exit status 2: diglot-train: data.train.src=x: no such file"),
        pytest.param("kill2", "was killed by SIGKILL", marks=pytest.mark.reliability),
        pytest.param("stop2", "was stopped by SIGTERM", marks=pytest.mark.reliability),
        pytest.param("silent2", "ended without results", marks=pytest.mark.reliability),
    ],
)
def test_other_jobs_continue_after_a_failure_and_the_same_command_resumes_the_failed_one(here, type_sweep, mode, says):
    out, err = type_sweep("model.n_heads=1,2,4", code=2, mode=mode)
    folder = the_sweep(here)
    broken = folder / "02_n_heads-2"
    line = next(line for line in out.splitlines() if line.startswith("job 2 of 3: ") and "->" not in line)
    assert says in line, "it is not named at once"
    assert out.index(line) < out.index("job 3 of 3")
    assert f"  its overrides: model.n_heads=2\n  its log: {broken.relative_to(here)}/output.txt" in out
    assert len(err.splitlines()) == 1
    assert f"1 of 3 jobs failed: model.n_heads=2 {says}" in err
    assert [row["status"] for row in table_of(folder)] == ["finished", "failed", "finished"]
    if mode == "fail2":
        assert "no such file" in (broken / "output.txt").read_text()

    out, _ = type_sweep("model.n_heads=1,2,4")
    assert the_sweep(here) == folder
    assert [len(starts(folder / name)) for name in ("01_n_heads-1", "02_n_heads-2", "03_n_heads-4")] == [1, 2, 1]
    assert "job 1 of 3: model.n_heads=1: finished before, dev BLEU 11.00" in out
    assert f"job 2 of 3: model.n_heads=2 resumes in {broken.relative_to(here)}" in out
    assert [row["status"] for row in table_of(folder)] == ["finished"] * 3


@pytest.mark.reliability
def test_a_sweep_that_was_killed_and_resumed_ends_in_the_same_files(here, type_sweep, monkeypatch):
    words = ["seed=1,2", "model.n_heads=1,2,4", "metric=accuracy", "sweep.folder=all"]
    written = []
    for name, modes in (("whole", ["outputs"]), ("killed", ["outputs_kill", "outputs"])):
        (here / name).mkdir()
        monkeypatch.chdir(here / name)
        for mode in modes:
            out, _ = type_sweep(*words, mode=mode, code=2 if mode == "outputs_kill" else 0)
        written.append({file.name: file.read_bytes() for file in Path("all").iterdir() if file.is_file()})
        assert "not compared" not in out
    whole, killed = written
    assert whole.keys() == {".lock", "jobs.csv", "table.csv", "table.md", "table.tex", "table.png", "report.html"}
    assert [name for name in whole if whole[name] != killed[name]] == []
    with Path("all/table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["jobs"] for row in rows] == ["1,4", "2,5", "3,6"]
    assert rows[0]["finding"] == "baseline"
    assert rows[2]["dev accuracy"] == "80.0"
    type_sweep(*words, "sweep.baseline=6", mode="outputs")
    with Path("all/table.csv").open() as file:
        assert [row["finding"] for row in csv.DictReader(file)][2] == "baseline"


@pytest.mark.reliability
def test_a_job_that_its_rule_ends_is_no_error_and_goes_on_only_without_a_rule(here, type_sweep):
    words = ["model.n_heads=1,2,4", "seed=1,2", "sweep.folder=mine"]
    out, err = type_sweep(*words, "sweep.stop=evidence", mode="halt2")
    assert err == ""
    assert "job 3 of 6: stopped: cannot win (update 1 of 2); 3.00 behind job 1 there" in out
    assert "job 4 of 6: model.n_heads=2 seed=2: stopped: cannot win, like job 3" in out
    ended = ["stopped: cannot win (update 1 of 2)", "stopped: cannot win, like job 3"]
    assert [row["status"] for row in table_of(Path("mine"))] == ["finished"] * 2 + ended + ["finished"] * 2
    out, _ = type_sweep(*words, "sweep.stop=evidence")
    assert "stopped before, stopped: cannot win (update 1 of 2)" in out
    assert [len(starts(path)) for path in sorted(Path("mine").glob("0*")) if (path / "starts").exists()] == [1] * 5
    out, _ = type_sweep(*words, "sweep.stop=null")
    assert out.count(" resumes in mine/") == 2
    assert [row["status"] for row in table_of(Path("mine"))] == ["finished"] * 6


@pytest.mark.reliability
@pytest.mark.end_to_end
def test_a_job_that_cannot_win_is_ended_after_a_validation_and_can_be_resumed(here, type_sweep):
    words = [*SMALL, "run.updates=4", "run.validate_every=2", "sweep.folder=mine"]
    type_sweep("model.n_heads=1,1", always=words)  # equal jobs are one
    (first,) = Path("mine").glob("0*")
    records = {path: json.loads(path.read_text()) for path in sorted(first.glob("validations/*"))}
    assert [record["update"] for record in records.values()] == [2, 4]
    for path, record in records.items():  # as if the first job were much better, from the start
        assert len(record["influences"]) >= 30
        path.write_text(json.dumps({**record, "value": 99.0}))
    out, _ = type_sweep("model.n_heads=1,2", "sweep.stop=evidence", always=words)
    assert "job 2 of 2: stopped: cannot win (update 2 of 4); " in out
    (second,) = Path("mine").glob("02*")
    assert (second / "best.ckpt").exists()
    assert not (second / "results.json").exists()
    assert "Traceback" not in (second / "output.txt").read_text()
    type_sweep("model.n_heads=1,2", "sweep.stop=null", always=words)
    assert [row["status"] for row in table_of(Path("mine"))] == ["finished"] * 2
    assert "update 2 of 4" not in (second / "output.txt").read_text().rpartition("Ended early")[2][100:], (
        "it began anew"
    )
    assert not (second / "stopped.json").exists()


@pytest.mark.reliability
def test_a_user_may_stop_at_the_first_failure(here, type_sweep):
    out, err = type_sweep("model.n_heads=1,2,4", "sweep.stop_at_first_failure=true", code=2, mode="fail2")
    assert [row["status"] for row in table_of(the_sweep(here))] == ["finished", "failed", "not started"]
    assert "model.n_heads=2 failed with exit status 2" in err
    assert "job 3 of 3" not in out
    type_sweep("model.n_heads=1,2,4")  # without stop_at_first_failure it is the same sweep
    assert [row["status"] for row in table_of(the_sweep(here))] == ["finished"] * 3


@pytest.mark.reliability
def test_a_sweep_is_extended_in_its_folder(here, type_sweep):
    type_sweep("model.n_heads=1,2", "sweep.folder=mine")
    type_sweep("model.n_heads=1,2,4", "sweep.folder=mine", "objective=dev/loss")
    rows = table_of(Path("mine"))
    assert [(row["job"], row["overrides"]) for row in rows] == [
        (str(i), f"model.n_heads={2 ** (i - 1)}") for i in (1, 2, 3)
    ]
    assert [len(starts(path)) for path in Path("mine").iterdir() if path.is_dir()] == [1, 1, 1]
    type_sweep("model.n_heads=1,2", "sweep.folder=mine", "seed=2")  # the same values of n_heads, but other jobs
    assert [row["overrides"] for row in table_of(Path("mine"))][3:] == [
        "model.n_heads=1 seed=2",
        "model.n_heads=2 seed=2",
    ]


@pytest.mark.reliability
def test_the_same_command_in_another_order_is_the_same_sweep(here, type_sweep):
    type_sweep("model.n_heads=1,2", "seed=3")
    type_sweep("seed=3", "model.n_heads=1,2", "objective=dev/chrf")
    type_sweep("seed=3", "model.n_heads=1,2", "objective=dev/loss", "sweep.stop_at_first_failure=true")
    folder = the_sweep(here)
    assert [len(starts(path)) for path in folder.iterdir() if path.is_dir()] == [1, 1]
    type_sweep("seed=3", "model.n_heads=1,2", "model.d_ff=100")
    assert len(list((here / "runs").iterdir())) == 2


@pytest.mark.reliability
def test_two_sweeps_never_share_a_folder_at_a_time(here, type_sweep):
    type_sweep("model.n_heads=1,2", "sweep.folder=mine")
    with Path("mine/.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        _, err = type_sweep("model.n_heads=1,2,4", "sweep.folder=mine", code=2)
    assert err == "diglot-sweep: another sweep is running in mine\n"
    assert len(table_of(Path("mine"))) == 2
    Path("other").mkdir()
    Path("other/thesis.txt").touch()
    _, err = type_sweep("model.n_heads=1,2", "sweep.folder=other", code=2)
    assert "sweep.folder=other exists and is not a sweep's folder" in err
    assert [path.name for path in Path("other").iterdir()] == ["thesis.txt"]
    Path("other/.lock").touch()  # other programs create files of this name, too
    Path("other/table.csv").write_text("somebody's")
    with pytest.raises(UserError, match=r"sweep\.folder=other exists and is not a sweep's folder"):
        sweep.Sweep(Path("other"), sweep.Objective("dev/bleu")).lock()


@pytest.mark.parametrize("name", [".lock", "01_seed-1"])
def test_a_sweep_writes_through_no_link_out_of_its_folder(tmp_path, name):
    folder = tmp_path / "sweep"
    for made in (folder, tmp_path / "mine"):
        made.mkdir()
    (folder / ".lock").touch()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "mine" / "new" if name == ".lock" else tmp_path / "mine")
    with pytest.raises(UserError, match=f"{name} is a link"):
        sweep.Sweep(folder, sweep.Objective("dev/bleu")).lock()
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], "nothing varies: name a sweep, like sweep=positions"),
        (["seed=2"], "nothing varies"),
        (["model.n_head=1,2"], "job model.n_head=1: there is no key model.n_head; did you mean model.n_heads?"),
        (["model=tiny,gru_attention", "model.n_heads=2,4"], "model=gru_attention has no model.n_heads"),
        (["model=tiny,gru_attention", "model/position=rotary,alibi"], "model=gru_attention has no model/position"),
        (["model/position=rotry,alibi"], "did you mean model/position=rotary?"),
        (["model/position=alibi,rotry"], "did you mean model/position=rotary?"),
        (["model.n_heads=1,5"], "job model.n_heads=5: model: n_heads (5) must divide d_model (192)"),
        (
            ["seed=1,2", "objective=dev/blue"],
            "objective=dev/blue: this run does not compute it; it computes dev/bleu",
        ),
        (["sweep=positions", "objective=bleu"], "objective=bleu: this run does not compute it; it computes dev/bleu"),
        (["seed=1,2", "objective=test/bleu"], "objective=test/bleu: nothing may be chosen by test scores"),
        (["seed=1,2", "run.test=true,false"], "run.test changes nothing of what a job trains"),
        (["sweep=positons"], "did you mean sweep=positions?"),
        (["seed=1,2", "sweep.stop_at_first_failure=3"], "must be true or false"),
        (["seed=1,2", "+sweep.foldr=x"], "no key sweep.foldr; did you mean sweep.folder?"),
        (
            ["seed=1,2", "run.folder=x"],
            "run.folder is for a single run; for the folder of all jobs, type sweep.folder=FOLDER",
        ),
        (["seed=1,2", "resume=x"], "resume is for a single run; type the sweep's command again"),
        (["seed=1,2", "hydra.sweep.dir=x"], "not supported; use sweep.folder"),
        (["seed=1,2", "sweep.baseline=3"], "sweep.baseline=3: there is no job 3; choose a number from 1 to 2"),
        (["seed=1,2", "sweep.baseline=first"], "sweep.baseline"),
        (["run.updates=10,0"], "job run.updates=0: run: updates (0) must be positive"),
        (["model.dropout=interval(0,1)"], "it is for hydra/sweeper=optuna"),
        (["hydra/sweeper=optuna", "seed=2"], "nothing varies: name values to search"),
        (["hydra/sweeper=optuna", "model.dropout=interval(1.5,1.9)"], "job model.dropout=1."),
        (["hydra/sweeper=optuna", "seed=1,2", "hydra.sweeper.n_trials=0"], "n_trials=0 must be a number of at least 1"),
        (
            ["hydra/sweeper=optuna", "seed=1,2", "hydra.sweeper.sampler._target_=optuna.samplers.CmaEsSampler"],
            "optuna.samplers.CmaEsSampler is not a class that a sweep may use",
        ),
        (["seed=1,2", "sweep.stop=evidence", "objective=dev/loss"], "objective=dev/loss is no metric of them"),
        (["seed=1,2", "sweep.stop=evidense"], "sweep.stop"),
        (["seed=1,2", "hydra/sweeper=optuna", "sweep.stop=evidence"], "type sweep.stop=median"),
        (["seed=1,2", "hydra/launcher=nope"], "there are diglot, submitit_local, submitit_slurm"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_made(here, type_sweep, words, wanted):
    out, err = type_sweep(*words, code=2)
    assert wanted in err
    assert len(err.splitlines()) == 1
    assert out == ""
    assert not list(here.iterdir())


def test_an_extra_that_is_missing_is_named(here, type_sweep, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)  # as if it were not installed
    _, err = type_sweep("seed=1,2", "hydra/sweeper=optuna", code=2, always=WORDS[:2])
    assert "optuna is not installed: pip install 'diglot[optuna]'" in err
    assert not list(here.iterdir())


@pytest.mark.skipif(find_spec("hydra_plugins.hydra_submitit_launcher") is not None, reason="it is installed")
def test_a_launcher_that_is_missing_is_named(here, type_sweep):
    ConfigStore.instance().store("submitit_slurm", {"defaults": [], "x": 1}, "hydra/launcher")  # as a plugin does
    _, err = type_sweep("seed=1,2", "hydra/launcher=submitit_slurm", code=2, always=WORDS[:2])
    assert "is not installed: pip install 'diglot[slurm]'" in err
    assert not list(here.iterdir())


SEARCH = ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "model.dropout=interval(0.0,0.3)", "model.n_heads=1,2,4")


@pytest.mark.reliability
def test_a_search_that_is_killed_goes_on_and_ends_in_the_same_tables(here, type_sweep, monkeypatch):
    pytest.importorskip("optuna")
    words = [*SEARCH, "sweep.folder=all"]
    for name in ("whole", "killed"):
        (here / name).mkdir()
        monkeypatch.chdir(here / name)
        if name == "killed":
            command = [sys.executable, "-m", "diglot", "sweep", *WORDS, *words]
            mode = {**os.environ, "MODE": "slow", "OMP_NUM_THREADS": "1"}
            search = subprocess.Popen(command, env=mode, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wait_for(lambda: next(Path("all").glob("*/slow"), None))
            search.kill()
            search.wait()
        out, _ = type_sweep(*words)
    assert "job 1 of 2: model.dropout=" in out
    assert " resumes in all/01_" in out
    whole, killed = (here / name / "all" for name in ("whole", "killed"))
    assert [row["status"] for row in table_of(killed)] == ["finished"] * 2
    for name in ("jobs.csv", "table.csv", "table.md", "table.tex", "search_history.png", "search_slices.png"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
    assert [len(starts(job)) for job in sorted(killed.glob("0*"))] == [2, 1]


@pytest.mark.reliability
def test_a_trial_of_a_search_that_fails_is_told_and_resumed_by_the_same_command(here, type_sweep, monkeypatch):
    pytest.importorskip("optuna")
    words = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=2", "seed=1,2"]
    words += ["model.n_heads=2", "hydra/sweeper/sampler=random"]
    _, err = type_sweep(*words, mode="fail2", code=2)
    assert "failed with exit status 2: diglot-train: data.train.src=x: no such file" in err
    folder = the_sweep(here)
    n_jobs = len(table_of(folder))
    assert {row["status"] for row in table_of(folder)} == {"failed"}
    type_sweep(*words)
    assert [row["status"] for row in table_of(folder)] == ["finished"] * n_jobs


def rows_of_table_3(base):
    rows = OmegaConf.to_container(OmegaConf.load(config.CONF / "sweep" / "table3.yaml").hydra.sweeper.rows)
    return filled_in(rows, base)


def test_the_rows_of_table_3_are_those_of_the_paper(compose_train):
    found = [" ".join(words) for words in rows_of_table_3(compose_train("model=base"))]
    wanted = ["", *(f"model.n_heads={h} model.d_head=null" for h in (1, 4, 16, 32))]
    wanted += ["model.d_head=16", "model.d_head=32"]
    wanted += [f"model.n_encoder_layers={n} model.n_decoder_layers={n}" for n in (2, 4, 8)]
    wanted += ["model.d_model=256 model.d_head=null", "model.d_model=1024 model.d_head=null"]
    wanted += ["model.d_ff=1024", "model.d_ff=4096", "model.dropout=0.0", "model.dropout=0.2"]
    assert found == [*wanted, "label_smoothing=0.0", "label_smoothing=0.2", "model/position=learned"]


@pytest.mark.reliability
@pytest.mark.parametrize(("model", "n_rows"), [("base", 19), ("tiny", 18), ("big", 19)])
def test_every_row_of_table_3_can_be_built(compose_train, model, n_rows):
    """Check the number of distinct rows: for the two layers of model=tiny, the factors 1/3 and 2/3 give the same."""
    jobs = rows_of_table_3(compose_train(f"model={model}"))
    for words in jobs:
        config.trial_build(compose_train(f"model={model}", *words))
    assert len({" ".join(words) for words in jobs}) == n_rows


@given(st.integers(1, 300), st.integers(1, 20), st.sampled_from([0.25, 0.5, 2, 4]))
def test_scaled_sizes_fit_together(half_width, n_heads, times):
    model = OmegaConf.create({"d_model": 2 * half_width, "n_heads": n_heads, "d_head": None})
    heads = sweeper.scaled_heads(model, times)
    assert heads >= 1
    assert model.d_model % (2 * heads) == 0
    assert sweeper.scaled_head(model, times) % 2 == 0
    assert sweeper.scaled_width(model, times) % (2 * n_heads) == 0
    assert sweeper.scaled(1, 1, 8) == 1


@pytest.mark.reliability
def test_rows_and_what_the_command_line_varies_are_multiplied(here, type_sweep):
    rows = "[{model.d_ff:100},{model.d_ff:'${diglot.scaled:${model.d_model},2}'},{model.d_ff:100}]"  # a row is repeated
    type_sweep(f"hydra.sweeper.rows={rows}", "model.d_model=48,96", "sweep.folder=mine")
    found = [row["overrides"] for row in table_of(Path("mine"))]
    assert found == [f"model.d_model={d} model.d_ff={f}" for d, f in ((48, 100), (48, 96), (96, 100), (96, 192))]


@pytest.mark.reliability
def test_positions_are_swept_by_train_too(here, type_sweep, monkeypatch):
    """Check that `make train sweep=positions` is a sweep, too."""
    monkeypatch.setattr(entry, "main", train_main)
    type_sweep("sweep=positions")
    assert len(table_of(the_sweep(here))) == 12
    assert the_sweep(here).name.startswith("sweep_positions_")


@pytest.mark.reliability
def test_the_jobs_of_another_launcher_are_such_processes_too(here, type_sweep, monkeypatch):
    monkeypatch.setattr(entry, "main", command("train", TrainKeys)(lambda c: sweep.run_in_subprocess(c, "stub_job")))
    words = ["-m", *WORDS[:2], "hydra/launcher=basic", "model.n_heads=1,2,4"]
    _, err = type_sweep(*words, code=2, mode="fail2", always=())
    folder = the_sweep(here)
    assert len(err.splitlines()) == 1
    assert "1 of 3 jobs failed: model.n_heads=2 failed with exit status 2: diglot-train: data.train.src=x" in err
    assert [row["status"] for row in table_of(folder)] == ["finished", "failed", "finished"]
    out, _ = type_sweep(*words, always=())
    assert [len(starts(job)) for job in sorted(folder.glob("0*"))] == [1, 2, 1]
    assert "Best by dev/bleu (14.00): job 3, model.n_heads=4" in out
    _, err = type_sweep(*words[:-1], "model.n_heads=1,5", code=2, always=())
    assert "job model.n_heads=5: model: n_heads (5) must divide" in err
    assert the_sweep(here) == folder


@pytest.mark.reliability
@pytest.mark.parametrize("launcher", ["diglot", "basic"])
def test_a_job_trains_what_was_composed_however_the_files_are_edited_meanwhile(here, type_sweep, monkeypatch, launcher):
    monkeypatch.setattr(entry, "main", command("train", TrainKeys)(lambda c: sweep.run_in_subprocess(c, "stub_job")))
    mine = here / "confs" / "model" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("defaults: [tiny]\nd_ff: 64\n")
    stub = WORDS if launcher == "diglot" else WORDS[:2]
    words = ["-m", "--config-dir", "confs", *stub, f"hydra/launcher={launcher}", "model=mine", "seed=1,2"]
    words.append("sweep.folder=all")

    def widths() -> list[int]:
        return [OmegaConf.load(file).model.d_ff for file in sorted(here.glob("all/*/composed.yaml"))]

    type_sweep(*words, mode="edit", always=())
    assert mine.read_text().endswith("d_ff: 128\n"), "the first job has not edited it"
    assert widths() == [64, 64]
    type_sweep(*words, always=())  # a new command composes the edited file, which gives new jobs
    assert widths() == [64, 64, 128, 128]
    assert [row["status"] for row in table_of(here / "all")] == ["finished"] * 4


def test_a_search_composes_all_its_trials_of_the_same_files(tmp_path):
    (tmp_path / "x.yaml").write_text("a: 1\nb: 2\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        compose("x")
        loader = GlobalHydra.instance().config_loader()
        hydra_seams.read_once(loader)
        before = loader.load_configuration("x", ["a=3"], RunMode.RUN)
        (tmp_path / "x.yaml").write_text("a: 1\nb: 9\n")
        after = pickle.loads(pickle.dumps(loader)).load_configuration("x", ["a=4"], RunMode.RUN)
        again = loader.load_configuration("x", [], RunMode.RUN)
    assert [(c.a, c.b) for c in (before, after, again)] == [(3, 2), (4, 2), (1, 2)]


def test_a_carried_config_is_read_back_as_it_was_and_holds_no_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2-0a1b")
    texts = ["${x}", "\\${x}", "a\\\\${b", "'", "1e5", "null", "é\u2028", "~", "on", "${oc.env:SECRET}", "\\"]
    escaped = [text.replace("\\", "\\\\").replace("${", "\\${") if "${" in text else text for text in texts]
    given = OmegaConf.create({"a": {"texts": escaped}, "b": [1e-9, 1e5, 3, None, True], "c": "x ${oc.env:SECRET}"})
    assert list(given.a.texts) == texts
    config.write_composed(tmp_path, given)
    assert "hunter2" not in (tmp_path / "composed.yaml").read_text()
    assert OmegaConf.to_container(config.read_composed(tmp_path), resolve=True) == {
        "a": {"texts": texts}, "b": [1e-9, 1e5, 3, None, True], "c": "x hunter2-0a1b"
    }  # fmt: skip


ODD = st.characters(exclude_categories=["Cs"]) | st.sampled_from("\x00\t\r\n\x85\xa0\u2028\u2029\ufeff\ufffe '\"#:-?")


@settings(max_examples=40)
@given(st.text(ODD, max_size=9), st.text(ODD, min_size=1, max_size=3))
@example("a\x85b", "\x85")
@example("\u2028 \u2029\x85", "k\u2028")
def test_any_text_in_a_config_is_read_back_as_it_was(text, key):
    assume("???" not in text and "${" not in text and "$" not in key)
    plain = {key: text, "texts": [text, f"x {text}"], "words": f"{text} word " * 20}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_bytes(folder / "config.yaml", config.as_yaml(plain).encode())
        config.write_composed(folder, OmegaConf.create(plain))
        assert config.read_config(folder / "config.yaml") == plain
        assert config.read_composed(folder) == plain
        by_hydra = OmegaConf.load(folder / "composed.yaml")
        assert {name: by_hydra[name] for name in plain} == plain


@pytest.mark.reliability
def test_what_a_row_reads_from_the_environment_stays_as_it_is_written(here, type_sweep, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2-0a1b")
    entries = (
        f"+logger.a._target_:lightning.pytorch.loggers.CSVLogger,+logger.a.save_dir:a,+logger.a.name:'{name}'"
        for name in ("${oc.env:SECRET}", "x y ${oc.env:SECRET}")
    )
    rows = f"[{','.join(f'{{{entry}}}' for entry in entries)}]"
    out, _ = type_sweep(f"hydra.sweeper.rows={rows}", "sweep.folder=mine")
    written = [*(OmegaConf.load(file) for file in sorted(here.glob("mine/*/composed.yaml")))]
    assert [each.logger.a.name for each in written] == ["hunter2-0a1b", "x y hunter2-0a1b"]
    files = [file for file in (here / "mine").rglob("*") if file.is_file() and file.name != "starts"]
    assert not [file for file in files if "hunter2" in str(file) or b"hunter2" in file.read_bytes()]
    assert "hunter2" not in out


def test_choices_that_read_the_environment_stay_as_they_are_written(monkeypatch):
    for name, value in (("A", "hunter2"), ("B", "hunter3"), ("CHOICES", "1,2")):
        monkeypatch.setenv(name, value)
    params = {"+logger.a": "${oc.env:A},x ${oc.env:B}", "seed": "${oc.env:CHOICES}", "model.d_ff": "1,2"}
    node = OmegaConf.create({"hydra": {"sweeper": {"params": params}}})
    made = sweeper.DiglotSweeper(params=OmegaConf.to_container(node.hydra.sweeper.params, resolve=True))
    made.config = node
    assert made.typed_params() == ["+logger.a=${oc.env:A},x ${oc.env:B}", "seed=1,2", "model.d_ff=1,2"]


@pytest.mark.reliability
@pytest.mark.parametrize("number", [*STOP_SIGNALS, signal.SIGKILL])
def test_no_job_outlives_its_launcher(here, number):
    code = -9 if number == signal.SIGKILL else 128 + number
    command = [sys.executable, "-m", "diglot", "sweep", *WORDS, "model.n_heads=1,2"]
    mode = {**os.environ, "MODE": "slow", "OMP_NUM_THREADS": "1"}
    launcher = subprocess.Popen(
        command, env=mode, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    first = wait_for(lambda: next(here.glob("runs/*/*/slow"), None)).parent
    ((_, _, process, _),) = starts(first)
    launcher.send_signal(number)
    out, err = launcher.communicate(timeout=300)
    assert launcher.returncode == code, out + err
    wait_for(lambda: not alive(process))
    assert not (the_sweep(here) / "02_n_heads-2" / "starts").exists()
    if number != signal.SIGKILL:
        assert "the same command resumes the sweep" in out
        assert [row["status"] for row in table_of(the_sweep(here))] == ["interrupted", "not started"]
        assert "Traceback" not in err
        heard = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM  # not killed: it can still save its state
        assert json.loads((first / "job.json").read_text())["exit_status"] == -heard


@pytest.mark.reliability
def test_a_job_of_another_launcher_has_the_time_to_keep_what_it_has(here):
    script = """if True:
        from diglot.commands.frame import command
        from diglot.commands.schema import TrainKeys
        from diglot.sweeps.sweep import run_in_subprocess
        from diglot.system import interruption
        interruption.raise_on_signal()
        command("train", TrainKeys)(lambda c: run_in_subprocess(c, "stub_job"))()
    """
    command = [sys.executable, "-c", script, "-m", *WORDS[:2], "hydra/launcher=basic", "model.n_heads=1,2"]
    mode = {**os.environ, "MODE": "slow", "OMP_NUM_THREADS": "1"}
    launcher = subprocess.Popen(command, env=mode, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    first = wait_for(lambda: next(here.glob("runs/*/*/slow"), None)).parent
    launcher.send_signal(signal.SIGUSR1)
    said, _ = launcher.communicate(timeout=300)
    assert launcher.returncode == 128 + signal.SIGUSR1, said
    assert json.loads((first / "job.json").read_text())["exit_status"] == -signal.SIGTERM
    assert [row["status"] for row in table_of(the_sweep(here))] == ["interrupted", "not started"]


@pytest.mark.reliability
def test_a_job_that_ignores_signals_is_killed(here, monkeypatch):
    monkeypatch.setenv("MODE", "slow_deaf")
    monkeypatch.setattr(one, "GRACE", 0.3)
    folder = here / "job"
    folder.mkdir()
    job = one.Job(folder, 1, (), (), "")
    signals = one.Signals()

    def ask_when_it_is_deaf() -> None:
        wait_for((folder / "slow").exists)
        signals.received.append(signal.SIGTERM)

    asking = threading.Thread(target=ask_when_it_is_deaf)
    asking.start()
    one.run(job, [sys.executable, "-m", "stub_job", f"resume={folder}"], signals)
    asking.join()
    assert (job.status, job.exit_status) == ("interrupted", -signal.SIGKILL)


def alive(process: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable, seconds: float = 300):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return found


# ------------------------------------------------------------------------------------------------ the parts


@given(st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1))
def test_a_quoted_value_is_read_back(text):
    (override,) = OverridesParser.create().parse_overrides([f"a={quoted(text)}"])
    assert not override.is_sweep_override()
    value = override.value()
    assert isinstance(value, str)
    assert OmegaConf.create({"a": value}).a == text


def test_a_table_shows_overrides_letter_by_letter(tmp_path):
    jobs = []
    for i, word in enumerate(["note='a|b'", "note='`x`'", "note=[bold]"], 1):
        (tmp_path / str(i)).mkdir()
        jobs.append(one.Job(tmp_path / str(i), i, ("seed=1", word), (word,), str(i), str(i)))
    lines = tables.as_markdown(Comparison(jobs)).splitlines()
    assert lines[2].startswith(r"| 1 | `note='a\|b'` | not started |")
    assert lines[3].startswith("| 2 | `` note='`x`' `` |")
    assert "note=[bold]" in tables.as_text(Comparison(jobs))
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 5
    assert len({line.replace(r"\|", "").count("|") for line in table}) == 1


def test_a_folders_name_has_nothing_that_a_shell_or_hydra_reads():
    words = ["+model/position@x=a,b", "scheduler.lr=0.00123456789", "note='a b/${c}'", "x.y=[1, 2]"]
    (name,) = one.slug(words)
    assert name == "x-a-b_lr-0.001235_note-a-b-c_y-1-2"
    assert len(one.slug([f"a{i}=1" for i in range(50)])[0]) <= 60
    assert one.slug([]) == []


def test_a_damaged_record_is_named(tmp_path):
    (tmp_path / "01").mkdir()
    (tmp_path / "01" / "job.json").write_text("{")
    with pytest.raises(UserError, match=r"01/job.json: damaged"):
        _ = sweep.Sweep(tmp_path, sweep.Objective("dev/bleu")).jobs


def test_while_a_sweep_runs_its_table_knows_that_a_lower_error_rate_is_better(tmp_path, compose_train):
    for number, (rate, minutes) in enumerate([(30.0, 2.0), (20.0, 2.0)], 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        one.Job(folder, number, (f"a={number}",), (), str(number), str(number)).write()
        results = {"finished": True, "best": {"cer": rate}, "minutes": minutes, "checkpoint": "best.ckpt"}
        (folder / "results.json").write_text(json.dumps(results))
    objective = sweep.Objective.of(compose_train("data=sample", "metric=[cer,bleu]"))
    sweep.Sweep(tmp_path, objective).write_tables()
    rows = [line for line in (tmp_path / "table.md").read_text().splitlines() if "a=" in line]
    assert ["2.0*" in row or "2.0\\*" in row for row in rows] == [False, True], rows


def test_the_comparison_says_how_often_test_sets_were_opened(tmp_path):
    jobs = [tmp_path / str(i) for i in (1, 2, 3)]
    for i, folder in enumerate(jobs, 1):
        folder.mkdir()
        one.Job(folder, i, (), (), str(i)).write()
        (folder / "results.json").write_text(json.dumps({"finished": True, "best": {"bleu": 1.0}}))
    found = sweep.Sweep(tmp_path, sweep.Objective("dev/bleu"))
    assert openings(found.jobs) == "Test opened by no run of this sweep"
    line = json.dumps({"command": "diglot-evaluate", "text": "a" * 64}) + "\n"
    for folder, n in ((jobs[1], 2), (jobs[2], 1)):
        (folder / "test_openings.jsonl").write_text(line * n)
    assert openings(found.jobs) == "Test opened 3 times by 2 runs of this sweep"
    found.write_tables()
    assert [row["test opened"] for row in table_of(tmp_path)] == ["0", "2", "1"]
    for name in ("table.md", "table.tex"):
        assert "Test opened 3 times by 2 runs of this sweep" in (tmp_path / name).read_text()
    results = jobs[0] / "evaluation" / "test" / "results.json"  # of an earlier version
    results.parent.mkdir(parents=True)
    results.write_text("{}")
    told = "1 time by 1 run of this sweep (text unknown); 3 times by 2 runs of this sweep (text aaaaaaaaaaaa)"
    assert openings(found.jobs) == f"Test opened {told}"


def test_the_best_job_follows_the_objective(tmp_path):
    for i, (bleu, loss) in enumerate([(3.0, 2.0), (5.0, 4.0)], 1):
        (tmp_path / str(i)).mkdir()
        one.Job(tmp_path / str(i), i, (), (), str(i)).write()
        results = {"finished": True, "best": {"bleu": bleu, "loss": loss}}
        (tmp_path / str(i) / "results.json").write_text(json.dumps(results))
    for objective, best in (("dev/bleu", 2), ("dev/loss", 1)):
        found = sweep.Sweep(tmp_path, sweep.Objective(objective, objective == "dev/bleu"))
        assert found.best(found.jobs).number == best


def test_of_a_metric_where_lower_is_better_the_lowest_job_is_best_and_the_table_names_it(tmp_path):
    for i, (per, accuracy) in enumerate([(30.0, 10.0), (20.0, 5.0), (25.0, 20.0)], 1):
        (tmp_path / str(i)).mkdir()
        one.Job(tmp_path / str(i), i, (), (), str(i)).write()
        best = {"per": per, "accuracy": accuracy, "loss": 1.0, "perplexity": 2.7, "cut": 0.0, "update": 3}
        (tmp_path / str(i) / "results.json").write_text(json.dumps({"finished": True, "best": best}))
    found = sweep.Sweep(tmp_path, sweep.Objective("dev/per", higher_is_better=False))
    assert found.best(found.jobs).number == 2
    assert tables.jobs_as_csv(Comparison(found.jobs)).startswith(
        "job,overrides,status,dev PER,accuracy,perplexity,parameters,"
    )
    assert outcome(found.jobs[1]).startswith("dev PER 20.00, ")


def test_of_jobs_with_the_same_score_the_better_chrf_and_then_the_smaller_loss_is_best(tmp_path):
    for i, (chrf, loss) in enumerate([(6.0, 5.0), (36.0, 4.0), (36.0, 3.0), (30.0, 1.0)], 1):
        (tmp_path / str(i)).mkdir()
        one.Job(tmp_path / str(i), i, (), (), str(i)).write()
        results = {"finished": True, "best": {"bleu": 0.0, "chrf": chrf, "loss": loss}}
        (tmp_path / str(i) / "results.json").write_text(json.dumps(results))
    found = sweep.Sweep(tmp_path, sweep.Objective("dev/bleu"))
    assert found.best(found.jobs).number == 3


# ------------------------------------------------------------------------------------------ typed commands


def test_runs_started_in_the_same_second_have_folders_of_their_own(here):
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda _: Budget(updates=1).new_folder("x"), range(12)))
    assert len(set(made)) == len(list((here / "runs").iterdir())) == 12


@pytest.mark.reliability
@pytest.mark.end_to_end
def test_a_sweep_of_runs_with_two_processes_each(here, type_sweep):
    type_sweep("seed=1,2", "trainer.devices=2", "data.batches_per_update=2", "run.updates=1", always=SMALL)
    assert sorted(path.name for path in here.iterdir()) == ["cache", "runs"]
    folder = the_sweep(here)
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["01_seed-1", "02_seed-2"]
    assert [row["status"] for row in table_of(folder)] == ["finished"] * 2
    for job in ("01_seed-1", "02_seed-2"):
        assert (folder / job / "best.ckpt").exists()


@pytest.mark.reliability
@pytest.mark.end_to_end
def test_a_job_that_is_killed_while_it_trains_goes_on(here, type_sweep):
    words = ["seed=1,2,3", "run.updates=60", "run.validate_every=20"]

    def kill_when_it_trains() -> None:
        output = wait_for(lambda: next(here.glob("runs/*/02_*/output.txt"), None))
        wait_for(lambda: b"update 20 of 60" in output.read_bytes())
        os.kill(json.loads((output.parent / "job.json").read_text())["process"], signal.SIGKILL)

    watcher = threading.Thread(target=kill_when_it_trains)
    watcher.start()
    out, err = type_sweep(*words, code=2, always=SMALL)
    watcher.join()
    folder = the_sweep(here)
    job = folder / "02_seed-2"
    assert f"job 2 of 3: was killed by SIGKILL\n  its overrides: seed=2\n  its log: {job.relative_to(here)}" in out
    assert "1 of 3 jobs failed: seed=2 was killed by SIGKILL" in err
    assert [row["status"] for row in table_of(folder)] == ["finished", "failed", "finished"]

    others = [path for name in ("01_seed-1", "03_seed-3") for path in (folder / name).glob("*.ckpt")]
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in others}
    assert len(before) == 6
    out, _ = type_sweep(*words, always=SMALL)
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in others} == before
    assert [row["status"] for row in table_of(folder)] == ["finished"] * 3
    assert "not compared" not in out, "the dev outputs of a job are not those of its best checkpoint"
    assert (folder / "table.csv").read_text().splitlines()[1].startswith("1-3,(nothing changed),finished,3,")
    assert "update 20 of 60" not in out, "it began anew"
    assert json.loads((job / "results.json").read_text())["updates"] == 60


@pytest.mark.reliability
def test_jobs_that_end_in_different_exports_are_different_jobs(here, type_sweep, monkeypatch):
    monkeypatch.setattr(sys.modules["diglot.config.build"], "check_format", lambda *_: None)  # the extra is optional
    type_sweep("export=null,safetensors,ctranslate2", "sweep.folder=mine")
    assert [row["overrides"] for row in table_of(Path("mine"))] == [
        "export=null", "export=safetensors", "export=ctranslate2"
    ]  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "word",
    [
        "objective=dev/bleu,dev/chrf",
        "trust=[],[mine]",
        "data.cache_dir=a,b",
        "sweep.folder=a,b",
        "sweep.stop_at_first_failure=true,false",
        "hydra.sweeper.rows=[{objective:dev/bleu},{objective:dev/chrf}]",
    ],
)
def test_a_key_that_does_not_distinguish_jobs_is_not_swept(here, type_sweep, word):
    _, err = type_sweep(word, code=2)
    assert len(err.splitlines()) == 1
    assert "changes nothing of what a job trains: give it one value for all jobs" in err
    assert not list(here.iterdir())


@pytest.mark.reliability
@pytest.mark.parametrize("launcher", ["diglot", "basic"])
def test_an_override_of_one_value_is_no_part_of_a_job_s_name(here, type_sweep, monkeypatch, launcher):
    monkeypatch.setattr(entry, "main", command("train", TrainKeys)(lambda c: sweep.run_in_subprocess(c, "stub_job")))
    for name, value in (("NAME", "hunter2-0a1b"), ("SEED", "3")):
        monkeypatch.setenv(name, value)
    stub = WORDS if launcher == "diglot" else WORDS[:2]
    constant = ["seed='${oc.decode:${oc.env:SEED}}'", "+logger.a.x=${oc.env:NAME}/y"]
    constant += ["+logger.a.b='a\\${b}'", '+logger.a.c="it\'s, so"', "+logger.a.d=[1, 2]", "+logger.a.e=1e-3"]
    words = ["-m", *stub, f"hydra/launcher={launcher}", "model.n_heads=2", "model.n_heads=1,2", *constant]
    type_sweep(*words, always=())
    folder = the_sweep(here)
    records = [json.loads(file.read_text()) for file in sorted(folder.glob("*/job.json"))]
    assert [record["varies"] for record in records] == [["model.n_heads=1"], ["model.n_heads=2"]]
    assert [row["overrides"] for row in table_of(folder)] == ["model.n_heads=1", "model.n_heads=2"]
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != "starts"]
    assert not [file for file in files if b"hunter2" in file.read_bytes()]
    monkeypatch.setenv("NAME", "hunter3")
    out, _ = type_sweep(*words, always=())  # a password may change
    assert out.count("finished before") == (2 if launcher == "diglot" else 0)
    assert the_sweep(here) == folder


@pytest.mark.reliability
def test_another_value_of_the_environment_is_another_job(here, type_sweep, monkeypatch):
    words = ["model.n_heads=1,2", "seed='${oc.decode:${oc.env:SEED}}'", "sweep.folder=mine"]
    for seed in ("3", "4", "3"):
        monkeypatch.setenv("SEED", seed)
        type_sweep(*words)
    assert [OmegaConf.load(file).seed for file in sorted(here.glob("mine/*/composed.yaml"))] == [3, 3, 4, 4]
