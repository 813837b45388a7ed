"""Certificates of real runs: diglot-certify, diglot-verify, and what a change of a single byte does to them."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diglot.certificates import checks, making
from diglot.certificates.checks import RunChecks
from diglot.certificates.content import as_bytes, read_certificate
from diglot.config import as_yaml, read_config
from diglot.data.text import file_hash, read_lines, write_lines
from diglot.runs import first_updates
from support.commands import ROOT, SMALL, type_command

pytestmark = pytest.mark.end_to_end
TEXT = [
    f"data.{split}.{side}=text/{split}.{language}"
    for split in ("train", "dev", "test")
    for side, language in (("src", "avi"), ("tgt", "bol"))
]
WORDS = (*SMALL, "data=files", *TEXT, "data.vocab_size=400", "data.tokens_per_batch=600", "model.dropout=0.1")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two runs that differ by their seeds, and a certificate of the first one."""
    folder = tmp_path_factory.mktemp("work")
    for split, n in (("train", 600), ("dev", 60), ("test", 40)):
        for language in ("avi", "bol"):
            write_lines(folder / f"text/{split}.{language}", read_lines(ROOT / f"data/sample/{split}.{language}")[:n])
    common = ["run.updates=22", "run.validate_every=11", "trainer.log_every_n_steps=1", "logger=csv"]
    for seed in (1, 2):
        words = [f"seed={seed}", f"run.folder=runs/{seed}", f"run.test={str(seed == 1).lower()}"]
        type_command("diglot-train", *WORDS, *common, *words, cwd=folder)
    type_command("diglot-certify", "checkpoint=runs/1", cwd=folder)
    return folder


def test_a_certificate_holds_what_the_run_has_logged_and_reported(work: Path) -> None:
    content = read_certificate(work / "runs/1")
    (run,) = content["runs"]
    with (work / "runs/1/metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    logged = [float(row["train/loss"]) for row in rows if row["train/loss"]]
    assert len(logged) == 22
    assert run["first_updates"]["losses"] == logged[:20]  # bit for bit
    dev_losses = [(int(row["step"]), float(row["dev/loss"])) for row in rows if row["dev/loss"]]
    assert [(each["update"], each["loss"]) for each in run["validations"]] == dev_losses
    results = json.loads((work / "runs/1/results.json").read_text())
    values = {score["name"]: score["value"] for score in run["dev"]}
    assert values["chrF++"] == pytest.approx(results["best"]["chrf"], abs=1e-6)
    assert run["test"] == {"scores": results["test"]["scores"], "openings": {"diglot-train": 1}}
    assert run["text"] == {split: results["contents"][split] for split in ("train", "dev", "test")}
    assert {"config.yaml", "best.ckpt", "tokenizer.model", "text/dev.best.bol"} <= run["files"].keys()
    assert run["command"].startswith("make train ")
    assert run["command"].endswith(" logger=csv seed=1 run.folder=runs/1 run.test=true")
    assert content["note"] == "1 seed: at least 3 are needed for a meaningful standard deviation"
    assert str(work) not in (work / "runs/1/certificate.json").read_text()


def test_a_certificate_is_the_same_each_time(work: Path) -> None:
    before = [(work / "runs/1" / name).read_bytes() for name in ("certificate.json", "certificate.html")]
    type_command("diglot-certify", "checkpoint=runs/1", "output=again", cwd=work)
    assert before == [(work / "again" / name).read_bytes() for name in ("certificate.json", "certificate.html")]


def test_a_moved_run_is_verified_with_its_text(work: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere, (1)"
    shutil.copytree(work / "runs/1", moved)
    done = type_command("diglot-verify", f"certificate='{moved}/certificate.json'", cwd=tmp_path).stdout.decode()
    assert "DIFFERENT" not in done
    for split in ("train", "dev", "test"):
        assert f"\nnot checked  {split} text of the corpus (" in done
    assert "type data=... as for the training" in done
    assert "\nnot checked  losses of the first 20 updates (the text of the corpus is not that of" in done
    assert "\nok           translations of dev lines (50 of 50 equal" in done
    assert "\nNot checked: 4: train text of the corpus, dev text" in done
    assert done.endswith("\nNever repeated: the training after its first updates, and its validations\n")

    shutil.copytree(work / "text", tmp_path / "text")
    done = type_command("diglot-verify", f"certificate='{moved}'", "data=files", *TEXT, cwd=tmp_path).stdout.decode()
    assert "not checked" not in done
    assert "\nok           losses of the first 20 updates (20 equal bit for bit)\nNothing differs: " in done
    write_lines(tmp_path / "text/train.avi", ["x", *read_lines(tmp_path / "text/train.avi")[1:]])
    done = type_command("diglot-verify", f"certificate='{moved}'", "data=files", *TEXT, cwd=tmp_path, code=1)
    assert "\nDIFFERENT    train text of the corpus\n" in done.stdout.decode()
    assert "\nDIFFERENT: 1 of " in done.stdout.decode()


def test_a_changed_loss_is_found_by_training_again(work: Path, tmp_path: Path) -> None:
    content = json.loads((work / "runs/1/certificate.json").read_text())
    losses = content["runs"][0]["first_updates"]["losses"]
    losses[17] = losses[17] + 1e-6
    (tmp_path / "certificate.json").write_text(json.dumps(content))
    words = [f"certificate={tmp_path}", "checkpoint=runs/1"]
    done = type_command("diglot-verify", *words, cwd=work, code=1).stdout.decode()
    (line,) = [line for line in done.splitlines() if line.startswith("DIFFERENT  ")]
    assert line.startswith("DIFFERENT    losses of the first 20 updates (update 18: ")
    assert "\nDIFFERENT: 1 of 25 that were checked: losses of the first 20 updates\n" in done


def flip(name: str) -> Callable[[Path, Any], None]:
    """Return a function that changes a byte in the middle of a file of a run's folder."""

    def change(folder: Path, run: Any) -> None:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)

    return change


def set_value(*path: Any, value: Any) -> Callable[[Path, Any], None]:
    """Return a function that changes a value of a certificate's run."""

    def change(folder: Path, run: Any) -> None:
        for key in path[:-1]:
            run = run[key]
        run[path[-1]] = value

    return change


def opened(folder: Path, run: Any) -> None:
    """Record another opening of the test text."""
    ledger = folder / "test_openings.jsonl"
    ledger.write_text(ledger.read_text() * 2)


CHANGES: dict[str, Callable[[Path, Any], None]] = {
    "config.yaml": flip("config.yaml"),
    "tokenizer.model": flip("tokenizer.model"),
    "best.ckpt": flip("best.ckpt"),
    "text/dev.bol": flip("text/dev.bol"),
    "text/dev.avi": flip("text/dev.avi"),
    "text/dev.best.bol": flip("text/dev.best.bol"),
    "evaluation/test/hypotheses.bol": flip("evaluation/test/hypotheses.bol"),
    "text/test.json": lambda folder, run: (folder / "text/test.json").unlink(),
    "test openings": opened,
    "dev scores": set_value("dev", 1, "value", value=99.0),
    "test scores": set_value("test", "scores", 0, "signature", value="nrefs:9"),
    "dev losses of validations": set_value("validations", 1, "loss", value=1.0),
    "train text of the corpus": set_value("text", "train", value="0" * 64),
}


@pytest.fixture
def without_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the losses of first updates be known, because computing them takes seconds."""
    monkeypatch.setattr(first_updates, "_train", lambda plan, model: [1.0] * 20)


def differing(folder: Path, run: Any) -> list[str]:
    return [check.name for check in RunChecks(run, folder, True, None, ()) if check.status == checks.DIFFERENT]


@pytest.mark.usefixtures("without_training")
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_one_byte_is_named_and_nothing_else(
    name: str, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    shutil.copytree(work / "runs/1", tmp_path / "run")
    run: Any = read_certificate(work / "runs/1")["runs"][0]
    run["first_updates"]["losses"] = [1.0] * 20
    assert differing(tmp_path / "run", run) == []
    CHANGES[name](tmp_path / "run", run)
    assert differing(tmp_path / "run", run) == [name]


def test_a_certificate_says_which_weights_were_trained_and_from_which_start(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*SMALL, "data=files", *TEXT, "data.tokens_per_batch=600", "run.updates=2", "run.validate_every=2"]
    words += ["logger=csv", "run.test=false", "run.folder=runs/lora", "init_from=runs/1"]
    words += ["lora={rank:2,train:[norms]}", "learning_rates={encoder:0.5}"]
    type_command("diglot-train", *words, cwd=work)
    monkeypatch.chdir(work)
    content: Any = making.certify([Path("runs/lora")])
    run = content["runs"][0]
    results = json.loads((work / "runs/lora/results.json").read_text())
    assert run["training"] == {
        "trained_parameters": results["trained_parameters"],
        "freeze": [],
        "learning_rates": {"encoder": 0.5},
        "lora": {"rank": 2, "alpha": 16.0, "dropout": 0.0, "on": ["query", "value"], "train": ["norms"]},
        "init_from": file_hash(work / "runs/1/best.ckpt"),
    }
    found = {check.name: (check.status, check.note) for check in RunChecks(run, Path("runs/lora"), True, None, ())}
    assert found["trained weights"] == ("ok", f"{results['trained_parameters']:,} of {results['parameters']:,}")
    assert found["init_from"] == ("ok", "runs/1")
    assert found["losses of the first 20 updates"] == ("ok", "2 equal bit for bit")
    run["first_updates"]["losses"] = []
    for key, value, name in (
        ("trained_parameters", 1, "trained weights"),
        ("lora", None, "trained weights"),
        ("init_from", "0" * 64, "init_from"),
    ):
        before, run["training"][key] = run["training"][key], value
        assert differing(Path("runs/lora"), run) == [name]
        run["training"][key] = before
    shutil.copytree("runs/lora", tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    found = {check.name: (check.status, check.note) for check in RunChecks(run, Path("moved"), True, None, ())}
    assert found["init_from"] == ("not checked", "checkpoint runs/1: no such file or folder")


@pytest.mark.usefixtures("without_training")
def test_translations_of_other_weights_are_found(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certify the outputs of one checkpoint together with another checkpoint."""
    monkeypatch.chdir(work)
    shutil.copytree(work / "runs/1", tmp_path / "run")
    shutil.copy(work / "runs/2/best.ckpt", tmp_path / "run")
    run: Any = read_certificate(work / "runs/1")["runs"][0]
    run["first_updates"]["losses"] = [1.0] * 20
    run["files"]["best.ckpt"] = file_hash(tmp_path / "run/best.ckpt")
    assert differing(tmp_path / "run", run) == ["translations of dev lines"]


@pytest.mark.usefixtures("without_training")
def test_nothing_in_a_run_of_somebody_else_is_called_or_written_to(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name foreign classes and folders in the config; its hash is right, because its author makes the certificate."""
    monkeypatch.chdir(work)
    for i, (key, value, message) in enumerate(
        [
            ("optimizer", {"_target_": "os.system", "command": "touch called"}, "optimizer._target_ names 'os.system'"),
            ("data", {"_target_": "support.spy.Spy"}, "data._target_ names 'support.spy.Spy'"),
            ("seed", "${oc.env:HOME}", "seed contains the interpolation"),
            ("callbacks", {"x": {"_target_": "lightning.pytorch.callbacks.OnExceptionCheckpoint"}}, "callbacks.x"),
            ("model", None, "the config has no model"),
        ]
    ):
        folder = tmp_path / str(i)
        shutil.copytree(work / "runs/1", folder)
        config = read_config(folder / "config.yaml")
        config["data"]["cache_dir"] = str(tmp_path / "cache")
        (folder / "config.yaml").write_text(as_yaml({**config, key: value}))
        run: Any = read_certificate(work / "runs/1")["runs"][0]
        run["files"]["config.yaml"] = file_hash(folder / "config.yaml")
        found = {check.name: check for check in RunChecks(run, folder, True, None, ())}
        losses = found["losses of the first 20 updates"]
        assert (losses.status, message in losses.note) == ("not checked", True), losses
        assert found["dev scores"].status == "ok"
    assert not (tmp_path / "cache").exists()
    assert not Path("called").exists()


def test_several_seeds_have_one_certificate(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    monkeypatch.setattr(making, "first_losses", lambda *_: [1.0])
    content = making.certify([Path("runs/2"), Path("runs/1")])
    assert [run["seed"] for run in content["runs"]] == [1, 2]
    values = [run["dev"][1]["value"] for run in content["runs"]]
    assert content["dev"][1]["mean"] == pytest.approx(sum(values) / 2)
    assert content["dev"][1]["deviation"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert [run["test"] is None for run in content["runs"]] == [False, True]
    assert content["test"] == []
    assert str(content["note"]).startswith("2 seeds: ")
    (tmp_path / "certificate.json").write_bytes(as_bytes(content))
    words = [f"certificate={tmp_path}", "checkpoint=[runs/1]"]
    said = type_command("diglot-verify", *words, cwd=work, code=2).stderr.decode()
    assert said == "diglot-verify: checkpoint: the certificate has 2 runs (seeds 1, 2), but 1 are given\n"
    done = type_command("diglot-verify", f"certificate={tmp_path}", cwd=work).stdout.decode()
    assert "\nnot checked  seed 2: dev scores (there is no folder 2 here: name it with checkpoint=FOLDER)" in done


def test_what_cannot_be_certified_is_answered_by_one_line(work: Path, tmp_path: Path) -> None:
    shutil.copytree(work / "runs/1", tmp_path / "run")
    shutil.copy(work / "runs/2/text/dev.best.bol", tmp_path / "run/text")
    words_and_messages = [
        ([], "checkpoint must be given: checkpoint=runs/NAME"),
        (
            ["checkpoint=runs/1/best.ckpt"],
            "checkpoint=runs/1/best.ckpt: is a file, but a certificate is one of a whole",
        ),
        (["checkpoint=runs/1,runs/2"], "checkpoint=runs/1,runs/2: for a list, type 'checkpoint=[runs/1,runs/2]'"),
        ([f"checkpoint={tmp_path}/run", f"output={tmp_path}/new"], "the kept dev outputs have "),
        (
            ["checkpoint=runs/1", f"output={tmp_path}/a.json"],
            "a.json: must be a folder; certificate.json and certificate.html are written into it",
        ),
    ]
    for words, message in words_and_messages:
        said = type_command("diglot-certify", *words, cwd=work, code=2).stderr.decode()
        assert message in said
        assert said.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    said = type_command("diglot-verify", "certificate=runs/2", cwd=work, code=2).stderr.decode()
    assert said == "diglot-verify: certificate=runs/2: no such file; make certify checkpoint=FOLDER writes one\n"
