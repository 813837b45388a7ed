"""Making a certificate: which runs belong together, their mean, and what is left out of their command."""

import json
from pathlib import Path
from typing import Any

import pytest

from diglot.certificates.making import (
    command_of,
    finished_run,
    means,
    note,
    refuse_other_configurations,
    without_folders_in,
)
from diglot.config import as_yaml
from diglot.errors import UserError
from support.certificates import run


def write_run(folder: Path, seed: int = 1, contents: dict[str, str] | None = None, **config: Any) -> Path:
    """Write the files of a finished run that are read before its checkpoint."""
    folder.mkdir()
    (folder / "config.yaml").write_text(
        as_yaml({"seed": seed, "label_smoothing": 0.1, "run": {"folder": folder.name}, **config})
    )
    (folder / "environment.json").write_text(json.dumps({"contents": contents or {"train": "1"}}))
    (folder / "results.json").write_text('{"finished": true}')
    return folder


def test_the_mean_and_the_deviation_are_those_of_the_seeds() -> None:
    (mean,) = means([run(seed, bleu)["dev"] for seed, bleu in ((1, 30.0), (2, 31.0), (3, 35.0))])
    assert mean["name"] == "BLEU"
    assert mean["mean"] == pytest.approx(32.0)
    assert mean["deviation"] == pytest.approx(7**0.5)  # with n - 1
    assert means([run()["dev"]])[0]["deviation"] is None


def test_a_metric_that_a_run_lacks_has_no_mean() -> None:
    one, other = run(1)["dev"], run(2)["dev"]
    assert means([[*one, {"name": "TER", "value": 1.0, "signature": ""}], other]) == means([one, other])


def test_fewer_than_three_seeds_are_remarked_on() -> None:
    assert note(1) == "1 seed: at least 3 are needed for a meaningful standard deviation"
    assert str(note(2)).startswith("2 seeds: ")
    assert note(3) is None


def test_runs_may_differ_by_their_seed_alone(tmp_path: Path) -> None:
    first = write_run(tmp_path / "first")
    refuse_other_configurations([first, write_run(tmp_path / "second", seed=2)])
    others = {
        "smooth": (write_run(tmp_path / "smooth", seed=3, label_smoothing=0.2), "label_smoothing was 0.1 and is 0.2"),
        "same": (write_run(tmp_path / "same"), "has the same seed as .*first, 1"),
        "text": (write_run(tmp_path / "text", seed=4, contents={"train": "2"}), "its train text is not that of"),
    }
    for other, message in others.values():
        with pytest.raises(UserError, match=message):
            refuse_other_configurations([first, other])


def test_only_a_finished_run_has_a_certificate(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    assert finished_run(str(folder)) == folder
    (folder / "results.json").unlink()
    with pytest.raises(UserError, match="the run is not finished; to finish it, repeat its command with resume="):
        finished_run(str(folder))
    (tmp_path / "mean.ckpt").touch()
    (tmp_path / "empty").mkdir()
    for path, message in (
        ("mean.ckpt", "is a file, but a certificate is one of a whole run: give the run's folder"),
        ("missing", "no such folder"),
        ("empty", r"there is no run in it \(no config.yaml\)"),
    ):
        with pytest.raises(UserError, match=message):
            finished_run(str(tmp_path / path))
    (folder / "results.json").symlink_to("/etc/hostname")
    with pytest.raises(UserError, match="is a link"):
        finished_run(str(folder))


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("data.train.src=/home/alice/text/train.de", "data.train.src=train.de"),
        ("data.train.src=[/home/alice/x.de,/data/y.de]", "data.train.src=[x.de,y.de]"),
        ("data.train.src='/home/alice/my text/x.de'", "data.train.src='x.de'"),
        ("data.train.src=~/x.de", "data.train.src=x.de"),
        ("data.train.src=~alice/x.de", "data.train.src=x.de"),
        (r"data.train.src=C:\Users\alice\x.de", "data.train.src=x.de"),
        ("/home/alice/x.de: no such file", "x.de: no such file"),
        ("data.train.src=text/train.de", "data.train.src=text/train.de"),
        ("model/position=rotary", "model/position=rotary"),
        (r"tokenizer.placeholder='\{[^{}\s]+\}'", r"tokenizer.placeholder='\{[^{}\s]+\}'"),
    ],
)
def test_the_folders_of_a_user_are_left_out(word: str, expected: str) -> None:
    assert without_folders_in(word) == expected


def test_the_command_is_typed_with_make(tmp_path: Path) -> None:
    words = ["data=files", "data.train.src=/home/alice/train.de", "model/position=rotary"]
    expected = "make train data=files data.train.src=train.de model/position=rotary"
    assert command_of(tmp_path, {"command": words}) == expected
    (tmp_path / "job.json").write_text(json.dumps({"overrides": ["seed=2"]}))
    assert command_of(tmp_path, {"command": ["--config-path", "/home/alice/runs"]}) == "make train seed=2"
