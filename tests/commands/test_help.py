"""--help of every command, in a new process. It is read from the files of conf/ alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from diglot.choices import choices, command, groups_of, rows
from diglot.commands.start import COMMANDS
from support.commands import ROOT, type_command


def typed(*words: str, status: int = 0, **variables: str) -> str:
    """Return the output of a command in a new interpreter: stdout if its status is 0, else stderr."""
    environment = {**os.environ, "COLUMNS": "100", **variables}
    line = [sys.executable, "-m", "diglot", *words]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=60)
    assert done.returncode == status, done.stdout + done.stderr
    said, other = (done.stderr, done.stdout) if status else (done.stdout, done.stderr)
    assert other == ""
    return said


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_shows_its_keys_and_the_choices_of_its_groups(name: str) -> None:
    page = typed(name, "--help")
    about = command(name)
    assert page.startswith(about.meaning[:40])
    assert f"Usage: make {name} [KEY=VALUE ...]" in page
    assert 2 <= len(about.examples) <= 4
    assert all(f"\n  {example}\n" in page for example in about.examples)
    for key in about.keys.values():
        default = "..." if key.default == "???" else key.default
        assert f"\n  {key.name}={default}" in page or (not key.default and f"\n  {key.name} " in page)
    for group, entry in groups_of(name).items():
        assert f"\n  {group}={entry.default}" in page
        assert all(f"\n    {choice} " in page for choice in ([] if "@" in group else choices(group)))


def test_help_of_a_group_shows_its_keys_wherever_the_word_stands() -> None:
    page = typed("evaluate", "split=test", "-h", "search")
    assert page.startswith("search=checkpoint: ")
    assert all(f"\n  {row.key} " in page for row in rows("search"))
    assert all(f"\n  {name} " in page for name in choices("search"))
    both = typed("train", "--help", "model", "optimizer", "seed=1")
    assert both.startswith("model=tiny: ")
    assert "\noptimizer=adamw: " in both


def test_words_that_are_no_group_are_answered_by_one_line() -> None:
    said = typed("train", "--help", "modle", status=2)
    assert said.startswith("diglot-train: --help modle: no such group; the groups are data, ")
    assert said.endswith("; did you mean model?\n")
    assert said.count("\n") == 1
    assert "this command has no groups" in typed("score", "--help", "data", status=2)


@pytest.mark.parametrize("name", ["train", "translate"])
def test_help_fits_narrow_terminals_and_plain_ascii(name: str) -> None:
    page = typed(name, "--help", COLUMNS="40", LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    page.encode("ascii")
    wide = [
        line for line in page.splitlines() if len(line) >= 40 and not line.startswith(("  make", "  echo", "Usage"))
    ]
    assert all(" " not in line.strip() for line in wide), "what is longer is one word"
    assert typed(name, "--help", COLUMNS="1")


@pytest.mark.parametrize("words", [("train", "--help"), ("--help",)])
def test_a_reader_that_leaves_changes_nothing(words: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    line = [sys.executable, "-m", "diglot", *words]
    done = subprocess.run(line, stdout=write, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_help_imports_nothing_that_takes_seconds() -> None:
    code = """
import sys
from diglot.commands import start
sys.argv = ["diglot-train", "--help", "data"]
try:
    start.train()
finally:
    print({"torch", "hydra", "omegaconf", "lightning", "numpy"} & set(sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "set()\n")


@pytest.mark.reliability
def test_make_hands_help_on(tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "export", "ARGS=--help"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    if "Setting up" in done.stderr:
        pytest.skip("there was no .venv")
    assert done.returncode == 0, done.stderr
    assert "Usage: make export" in done.stdout


@pytest.mark.end_to_end
def test_hydras_own_help_and_the_composed_config_are_hydras(tmp_path: Path) -> None:
    assert b"Hydra" in type_command("diglot-train", "--hydra-help", cwd=tmp_path).stdout
    shown = type_command("diglot-train", "--cfg", "job", "--package", "model", "model=base", cwd=tmp_path).stdout
    assert b"d_model: 512" in shown
    assert list(tmp_path.iterdir()) == []
