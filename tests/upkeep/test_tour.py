"""The tour of the Transformer, docs/tour.py, makes the pictures that docs/transformer.md names."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from diglot.errors import UserError

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "tour.py"
PAGE = (ROOT / "docs" / "transformer.md").read_text(encoding="utf-8")
PICTURES = set(re.findall(r"`(\w+\.png)`", PAGE))
COMMITTED = re.findall(r"!\[[^]]*\]\((\w+\.png)\)", PAGE)


@pytest.fixture(scope="module")
def tour() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tour", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_picture(path: Path) -> None:
    """Check that a picture is no wider than a card, and not blank."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    assert 300 < pixels.shape[1] <= 800, path
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20, path
    assert 0.02 < np.mean(pixels < 250) < 0.98, path


def test_committed_pictures_are_small_and_of_the_tour() -> None:
    assert len(COMMITTED) == 3
    assert set(COMMITTED) <= PICTURES
    for name in COMMITTED:
        check_picture(ROOT / "docs" / name)
        assert (ROOT / "docs" / name).stat().st_size < 80_000


def test_each_step_says_what_it_shows(tour: ModuleType) -> None:
    assert len(tour.STEPS) == 12
    assert all(re.fullmatch(r"[A-Z][^\n]+: [^\n]+\.", step.__doc__) for step in tour.STEPS)


def test_the_smoothed_target_is_that_of_the_paper(tour: ModuleType) -> None:
    assert tour.smoothed_target(5, 0.2).tolist() == pytest.approx([0.04, 0.04, 0.04, 0.84, 0.04])
    assert tour.smoothed_target(5, 0.0).tolist() == pytest.approx([0, 0, 0, 1, 0], abs=1e-6)


def test_the_longest_chain_is_found(tour: ModuleType) -> None:
    x = torch.ones(1, requires_grad=True)
    short = tour.chain_length(x.exp())
    assert tour.chain_length(x.exp().exp().exp() + x.sin()) == short + 3


@pytest.mark.parametrize(("words", "message"), [(["--updates", "0"], "updates"), (["a/b"], "a")])
def test_mistakes_are_one_line(
    tour: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").touch()
    threads = torch.get_num_threads()
    try:
        with pytest.raises((UserError, OSError), match=message) as raised:
            tour.main(words)
    finally:
        torch.set_num_threads(threads)
    assert "\n" not in str(raised.value)


@pytest.mark.reliability
def test_the_whole_tour_makes_every_picture(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    command = [sys.executable, str(SCRIPT), str(folder), "--updates", "20"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.iterdir()} == PICTURES
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    for path in folder.iterdir():
        check_picture(path)
    ending = done.stdout[done.stdout.rindex(f"{len(PICTURES)} pictures in ") :]
    assert str(folder) in ending
    assert set(re.findall(r"\w+\.png", ending)) == PICTURES
    assert "384 of 384 tokens are the same" in " ".join(done.stdout.split())
    assert "nan" not in done.stdout
