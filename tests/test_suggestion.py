"""A command that a user is told to type is read back as it is meant, whatever the names in it are."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from diglot.masking import masked, note
from diglot.suggestion import command_line, override, printable, quoted, reading, resuming

ROOT = Path(__file__).parents[1]
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

# Says what a command is given when the real Makefile is typed at.
PYTHON = f"""\
#!{sys.executable} -IS
import json, os, sys
sys.path.insert(0, {str(ROOT / "src")!r})
from diglot import make
print(json.dumps(make.arguments(os.environ)))
"""


def typed(line: str, folder: Path) -> list[str]:
    """What the command is given when this line is typed into sh in a checkout."""
    if not (folder / "Makefile").exists():
        shutil.copy(ROOT / "Makefile", folder)
        for name in ("pyproject.toml", "constraints.txt"):
            (folder / name).touch()
        (folder / ".venv/bin").mkdir(parents=True)
        (folder / ".venv/bin/python").write_text(PYTHON)
        (folder / ".venv/bin/python").chmod(0o755)
        (folder / ".venv/.ready").touch()
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "ARGS"))}
    done = subprocess.run(["sh", "-c", line], cwd=folder, env=bare, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def value(word: str) -> str:
    (parsed,) = OverridesParser.create().parse_overrides([word])
    assert not parsed.is_sweep_override()
    return str(parsed.value()).replace(r"\${", "${")


@pytest.mark.parametrize("name", NAMES)
def test_a_line_to_type_comes_back_through_shell_make_and_hydra(name: str, tmp_path: Path) -> None:
    line = command_line("evaluate", checkpoint=name)
    assert line.isprintable()
    (word,) = typed(line, tmp_path)
    assert value(word) == name
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("name", NAMES)
def test_an_override_to_type_comes_back_through_the_shell(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f"printf %s {override('a', name)}"], cwd=tmp_path, capture_output=True, timeout=60
    )
    assert os.fsdecode(done.stdout) == f"a={quoted(name)}"
    assert not (tmp_path / "canary").exists()


def test_what_was_typed_stands_in_the_line_that_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ["data=sample", "model/position=rotary", "~callbacks.ema", "--config-dir", "my conf", "note='a b'"]
    monkeypatch.setattr(sys, "argv", ["diglot-train", *words, "run.folder=run", "seed=1", "resume=auto", "seed=2"])
    line = resuming("run (2), b")
    got = typed(line, tmp_path)
    assert sorted(got) == sorted([*words, "seed=1", "seed=2", "resume='run (2), b'"])
    assert got[:4] == ["~callbacks.ema", "--config-dir", "my conf", "seed=1"]  # in order, and what make cannot carry
    assert got[-1] == "resume='run (2), b'"


def test_a_plain_line_is_as_a_user_types_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command_line("evaluate", checkpoint=Path("runs/x/best.ckpt")) == "make evaluate checkpoint=runs/x/best.ckpt"
    monkeypatch.setattr(sys, "argv", ["diglot-train", "data=sample", "run.folder=run"])
    assert resuming("run") == "make train data=sample resume=run"


def test_control_characters_are_shown_as_escapes() -> None:
    assert printable("Größe 訳\n\x1b[31m\ud800") == r"Größe 訳\n\x1b[31m\ud800"
    assert shlex.split(override("a", "b")) == ["a=b"]


def test_a_command_that_reads_a_checkpoint_vouches_for_its_modules():
    assert reading("evaluate", "x.ckpt") == "make evaluate checkpoint=x.ckpt"
    assert reading("evaluate", "x.ckpt", ["mine"]) == "make evaluate trust=mine checkpoint=x.ckpt"
    assert "'trust=[mine,a.b]'" in reading("translate", "x.ckpt", ["mine", "a.b"])


@pytest.mark.parametrize("value_", ["/scratch/me", "/scratch/it's (1)", "a b\\", "${HOME}", "Größe\t訳"])
def test_a_folder_from_the_environment_stands_in_a_line_as_what_reads_it(
    value_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diglot.masking._written", {})
    monkeypatch.setattr("sys.excepthook", sys.excepthook)
    note(value_, "${oc.env:FOLDER}")
    for folder in ("x", "x y", "it's"):
        line = command_line("evaluate", ["--config-dir", f"{value_}/conf"], checkpoint=f"{value_}/{folder}")
        assert masked(line) == line
        *_, conf, word = typed(line, tmp_path)
        assert conf == "${oc.env:FOLDER}/conf"
        assert value(word) == f"${{oc.env:FOLDER}}/{folder}"
