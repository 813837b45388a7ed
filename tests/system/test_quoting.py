"""A command for a user to type is read back as intended, whatever the names in it are."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from lightning.pytorch.plugins.environments import LightningEnvironment
from omegaconf import OmegaConf

from diglot.config import note_secrets
from diglot.system.masking import masked, note
from diglot.system.quoting import (
    TYPED,
    command_line,
    masked_arguments,
    override,
    printable,
    quoted,
    reading,
    resuming,
    spelled,
)
from support.checkout import typed

ROOT = Path(__file__).parents[2]
NAMES = [
    "runs/plain-1.0_x",
    "run (2), b",
    "it's",
    'say "a"',
    "$(touch canary)",
    "`touch canary`",
    "a; touch canary",
    "a\ntouch canary\n",
    "\x1b[31mred\x1b[0m",
    "-rf",
    "~",
    "*",
    "!x",
    "#x",
    "%d\\n",
    "back\\slash\\",
    "${oc.env:HOME}",
    "a=b",
    "null",
    "1,2",
    "Größe 訳",
    "right\u202eleft",
    b"latin-\xfc".decode("utf-8", "surrogateescape"),
]


def value(word: str) -> str:
    (parsed,) = OverridesParser.create().parse_overrides([word])
    assert not parsed.is_sweep_override()
    return str(parsed.value()).replace(r"\${", "${")


@pytest.mark.parametrize("name", NAMES)
def test_a_quoted_command_survives_shell_make_and_hydra(name: str, tmp_path: Path) -> None:
    line = command_line("evaluate", checkpoint=name)
    assert line.isprintable()
    (word,) = typed(line, tmp_path)
    assert value(word) == name
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_quoted_override_survives_the_shell(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f"printf %s {override('a', name)}"], cwd=tmp_path, capture_output=True, timeout=60
    )
    assert os.fsdecode(done.stdout) == f"a={quoted(name)}"
    assert not (tmp_path / "canary").exists()


def test_the_command_that_resumes_repeats_what_was_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ["data=sample", "model/position=rotary", "~callbacks.ema", "--config-dir", "my conf", "note='a b'"]
    monkeypatch.setattr(sys, "argv", ["diglot-train", *words, "run.folder=run", "seed=1", "resume=auto", "seed=2"])
    line = resuming("run (2), b")
    got = typed(line, tmp_path)
    assert sorted(got) == sorted([*words, "seed=1", "seed=2", "resume='run (2), b'"])
    assert got[:4] == ["~callbacks.ema", "--config-dir", "my conf", "seed=1"]  # in order, as words of ARGS
    assert got[-1] == "resume='run (2), b'"


def test_a_plain_line_is_as_a_user_types_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command_line("evaluate", checkpoint=Path("runs/x/best.ckpt")) == "make evaluate checkpoint=runs/x/best.ckpt"
    monkeypatch.setattr(sys, "argv", ["diglot-train", "data=sample", "run.folder=run"])
    assert resuming("run") == "make train data=sample resume=run"


def test_control_characters_are_shown_as_escapes() -> None:
    assert printable("Größe 訳\n\x1b[31m\ud800") == r"Größe 訳\n\x1b[31m\ud800"
    assert shlex.split(override("a", "b")) == ["a=b"]


def test_a_command_that_reads_a_checkpoint_repeats_the_trusted_modules():
    assert reading("evaluate", "x.ckpt") == "make evaluate checkpoint=x.ckpt"
    assert reading("evaluate", "x.ckpt", ["mine"]) == "make evaluate trust=mine checkpoint=x.ckpt"
    assert "'trust=[mine,a.b]'" in reading("translate", "x.ckpt", ["mine", "a.b"])


@pytest.mark.parametrize("value_", ["/scratch/me", "/scratch/it's (1)", "a b\\", "${HOME}", "Größe\t訳"])
def test_a_folder_from_the_environment_is_quoted_as_its_variable(
    value_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diglot.system.masking._expressions", {})
    monkeypatch.setattr("sys.excepthook", sys.excepthook)
    note(value_, "${oc.env:FOLDER}")
    for folder in ("x", "x y", "it's"):
        line = command_line("evaluate", ["--config-dir", f"{value_}/conf"], checkpoint=f"{value_}/{folder}")
        assert masked(line) == line
        *_, conf, word = typed(line, tmp_path, FOLDER=value_)
        assert conf == f"{value_}/conf"
        assert value(word) == f"${{oc.env:FOLDER}}/{folder}"


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what other tests have read from the environment, so that it is not masked."""
    monkeypatch.setattr("diglot.system.masking._expressions", {})
    monkeypatch.setattr("sys.excepthook", sys.excepthook)


@pytest.mark.usefixtures("forgetful")
def test_a_key_is_never_taken_for_a_value_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    note("data", "${oc.env:DATA}")
    words = [
        "data.train.src=data/train.en",
        "~data.corpora",
        "+data@data.x=data",
        "data=sample",
        "--config-name",
        "data",
    ]
    line = command_line("train", words)
    shown = ["data.train.src=${oc.env:DATA}/train.en", "~data.corpora", "+data@data.x=${oc.env:DATA}", "data=sample"]
    assert sorted(typed(line, tmp_path, DATA="data")) == sorted([*shown, "--config-name", "data"])
    assert masked_arguments(words) == [*shown, "--config-name", "${oc.env:DATA}"]
    assert shlex.split(override("data", "data")) == ["data=${oc.env:DATA}"]


@pytest.mark.usefixtures("forgetful")
def test_a_folder_of_configs_is_no_override_whatever_its_name(tmp_path: Path) -> None:
    words = ["--config-path", "runs/lr=0.1", "--config-name", "composed", "resume='runs/lr=0.1'"]
    assert typed(command_line("train", words), tmp_path) == words
    note("/home/me/work", "${oc.env:WORK}")
    for words in (["--config-dir=/home/me/work/conf"], ["-cd", "/home/me/work"], ["-cp", "a b/home/me/work"]):
        line = command_line("train", words)
        assert "/home/me" not in line
        assert typed(line, tmp_path, WORK="/home/me/work") == words


@pytest.mark.usefixtures("forgetful")
def test_a_quoted_override_names_only_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    monkeypatch.setenv("OUT", "/out/there")
    folders = {
        "a": "${data.cache_dir}/runs/a",
        "b": "${.a}/b",
        "out": "${oc.env:OUT,'my runs'}",
        "none": "${oc.env:UNSET,x}",
    }
    note_secrets(OmegaConf.create({"data": {"cache_dir": "${oc.env:SCRATCH}"}, **folders}))
    assert shlex.split(override("x", "/scratch/me/runs/a/b/c")) == ["x=${oc.env:SCRATCH}/runs/a/b/c"]
    assert shlex.split(override("x", "/out/there/it's")) == [r"x='${oc.env:OUT}/it\'s'"]


def test_a_started_process_reports_the_command_of_the_process_that_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--config-path", "run", "--config-name", "composed"])
    monkeypatch.setenv(TYPED, json.dumps(["data=sample", "run.folder=run", "trainer.devices=2"]))
    assert resuming("run") == "make train data=sample trainer.devices=2 resume=run"


def test_the_processes_that_a_run_starts_get_the_typed_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from diglot.training import processes

    started = []
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(sys, "argv", ["diglot-train", "data=sample", "note=Größe"])
    monkeypatch.setattr(processes.subprocess, "Popen", lambda command, env: started.append(env))
    launcher = processes.Launcher(LightningEnvironment(), num_processes=3, num_nodes=1)
    launcher.start_others()
    assert [json.loads(env[TYPED]) for env in started] == [["data=sample", "note=Größe"]] * 2
    assert TYPED not in os.environ


def test_values_are_spelled_as_in_a_config() -> None:
    values = {"a": None, "b": [True, "true", 1, 1.5], "c": {"d": False}}
    assert spelled(values) == "{a: null, b: [true, 'true', 1, 1.5], c: {d: false}}"
    assert OmegaConf.create(spelled(values)) == values
