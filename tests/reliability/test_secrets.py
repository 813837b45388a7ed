"""Secrets in the environment of a run do not appear in any of its files."""

import base64
import json
import logging
import os
import re
import zipfile
from pathlib import Path

import pytest
from hostile import TINY, composed, run

from diglot.commands.train import train
from diglot.config import note_secrets
from diglot.system.masking import mask_record
from support.checkout import typed
from support.commands import type_command

pytestmark = pytest.mark.reliability

SECRET = "hunter2-0a1b2c3d4e5f"


def files_with(secret: str, folder: Path) -> list[str]:
    """Return the files under a folder that contain a secret as UTF-8, UTF-16 or base64, also inside zip files."""
    forms = [secret.encode(form) for form in ("utf-8", "utf-16-le")] + [base64.b64encode(secret.encode())[:-4]]
    found = []
    for file in folder.rglob("*"):
        if not file.is_file():
            continue
        contents = [str(file).encode(), file.read_bytes()]
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                contents += [archive.read(name) for name in archive.namelist()]
        if any(form in content for form in forms for content in contents):
            found.append(str(file.relative_to(folder)))
    return found


MODULE = """
from lightning.pytorch.loggers import CSVLogger, Logger

def logger(folder, resumed_at=None, *, token: str, deeper: dict | None = None) -> Logger:
    assert token.endswith("hunter2-0a1b2c3d4e5f")
    assert deeper == {"key": "hunter2-0a1b2c3d4e5f"}
    return CSVLogger(folder, name="", version="")
"""


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "stranger.py").write_text(MODULE)
    (tmp_path / "confs" / "logger").mkdir(parents=True)
    (tmp_path / "confs" / "logger" / "mine.yaml").write_text(
        "mine:\n  _target_: stranger.logger\n  _partial_: true\n"
        "  token: x ${oc.env:MY_TOKEN}\n  deeper: {key: '${oc.env:MY_TOKEN}'}\n"
    )
    monkeypatch.setenv("MY_TOKEN", SECRET)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "modules"), os.environ.get("PYTHONPATH", "")]))
    return tmp_path


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(f"x{SECRET}y")
    with zipfile.ZipFile(tmp_path / "b", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("c", SECRET)
    (tmp_path / "d").write_text("nothing")
    assert sorted(files_with(SECRET, tmp_path)) == ["a", "b"]


@pytest.mark.promise("A secret that a config reads from the environment is written to no file of a run or a sweep")
@pytest.mark.end_to_end
def test_no_file_of_a_sweep_holds_a_secret(secret: Path) -> None:
    cwd = secret / "work"
    cwd.mkdir()
    words = ["--config-dir", str(secret / "confs"), "logger=mine"]
    tiny = [word for word in TINY if word != "logger=csv"]
    type_command("diglot-sweep", *words, *tiny, "seed=1,2", cwd=cwd)
    (sweep,) = (cwd / "runs").glob("sweep*")
    made = {file.name for file in cwd.rglob("*") if file.is_file()}
    assert made >= {
        "config.yaml",
        "last.ckpt",
        "best.ckpt",
        "job.json",
        "results.json",
        "table.csv",
        "jobs.csv",
        "table.tex",
        "report.html",
        "output.txt",
        "hparams.yaml",
    }
    assert "${oc.env:MY_TOKEN}" in next(sweep.glob("*/config.yaml")).read_text()
    assert files_with(SECRET, cwd) == []


@pytest.mark.promise("A secret that a config reads from the environment is written to no file of a run or a sweep")
def test_no_file_of_a_run_holds_a_secret(secret: Path) -> None:
    made = run(
        secret / "work" / "run",
        "logger=tensorboard",
        "watch=default",
        "+logger.tensorboard.comment=${oc.env:MY_TOKEN}",
        "+logger.tensorboard.prefix=''",
    )
    assert any("tfevents" in file.name for file in made.iterdir())
    assert files_with(SECRET, secret / "work") == []


@pytest.mark.promise("A secret that a config reads from the environment is written to no file of a run or a sweep")
def test_a_folder_from_the_environment_is_in_no_result_and_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    scratch = tmp_path / "it's (2)"
    monkeypatch.setenv("SCRATCH", str(scratch))
    monkeypatch.setattr("diglot.system.masking._expressions", {})
    config = composed(*TINY, f"data.cache_dir={tmp_path / 'cache'}", "run.folder=${oc.env:SCRATCH}/run")
    note_secrets(config)
    logging.getLogger("diglot").addFilter(mask_record)
    try:
        made = train(config)
    finally:
        logging.getLogger("diglot").removeFilter(mask_record)
    assert made == scratch / "run"
    said = capsys.readouterr().out
    results = json.loads((made / "results.json").read_text())
    assert results["test"]["folder"] == "${oc.env:SCRATCH}/run/evaluation/test"
    assert not [file for file in made.rglob("*") if file.is_file() and b"it's (2)" in file.read_bytes()]
    assert "it's (2)" not in said
    (line,) = re.findall("Next:  (make evaluate .*)", said)
    (tmp_path / "checkout").mkdir()
    words = typed(line, tmp_path / "checkout")
    evaluated = composed(*words, command="evaluate")
    assert Path(evaluated.checkpoint) == made / "best.ckpt"
