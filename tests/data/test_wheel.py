"""Tests of fetching a wheel: with pip, once, and only the one with the known hash."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from diglot.data import wheel as wheels
from diglot.data.wheel import Wheel
from diglot.errors import UserError

CONTENT = b"the content of a wheel"
WHEEL = Wheel("thing==1.0", "thing-1.0-py3-none-any.whl", hashlib.sha256(CONTENT).hexdigest(), "1 MB")


def download(requirement: str, folder: Path) -> None:
    assert requirement == WHEEL.requirement
    (folder / WHEEL.file).write_bytes(CONTENT)


def test_a_download_is_kept_for_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        download(command[-3], Path(command[-1]))
        return subprocess.CompletedProcess(command, 0, "")

    monkeypatch.setattr(wheels.subprocess, "run", run)
    folder = tmp_path / "cache"
    for _ in range(2):
        assert WHEEL.get(None, folder).read_bytes() == CONTENT
    assert len(calls) == 1
    assert calls[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--ignore-requires-python", "--only-binary=:all:", WHEEL.requirement} <= set(calls[0])
    assert [path.name for path in folder.iterdir()] == [WHEEL.file]


def test_a_damaged_wheel_in_the_cache_is_fetched_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / WHEEL.file).write_bytes(b"half a wheel")
    monkeypatch.setattr(wheels, "_download", download)
    assert WHEEL.get(None, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("WARNING: Retrying (Retry(total=4)) after connection broken\nERROR: No matching", "index cannot be reached"),
        ("Collecting x\nERROR: No matching distribution found for x\n", "No matching distribution found for x; type"),
        ("/usr/bin/python: No module named pip\n", "No module named pip"),
        ("", "it printed nothing"),
    ],
)
def test_a_failed_download_is_one_line_that_names_the_other_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, reason: str
) -> None:
    monkeypatch.setattr(wheels.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, output))
    with pytest.raises(UserError) as caught:
        WHEEL.get(None, tmp_path / "cache")
    message = str(caught.value)
    assert reason in message
    assert "data=sample" in message
    assert "data.wheel=PATH" in message
    assert "\n" not in message
    assert list((tmp_path / "cache").iterdir()) == []


def test_another_file_than_the_wheel_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    other = tmp_path / "other.whl"
    other.write_bytes(b"something else")
    with pytest.raises(UserError, match=r"other\.whl is not thing-.*SHA-256"):
        WHEEL.get(str(other), tmp_path / "cache")
    with pytest.raises(UserError, match=r"absent\.whl: no such file"):
        WHEEL.get(str(tmp_path / "absent.whl"), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
