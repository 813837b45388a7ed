"""Training runs as typed by a user: repeated, interrupted, resumed and failed ones."""

import fcntl
import json
import os
import re
import shutil

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import diglot
from diglot.checkpoint import container
from diglot.checkpoint import file as checkpoint
from diglot.data.pieces import mark_composing
from diglot.data.text import read_lines, write_lines
from support.commands import ROOT, SMALL, scalars, type_command
from support.made import same, write_checkpoint, write_old_checkpoint

pytestmark = pytest.mark.end_to_end


def test_a_run_never_writes_into_an_existing_folder(tmp_path):
    (tmp_path / "mine").mkdir()
    done = type_command("diglot-train", *SMALL, "run.updates=1", "run.folder=mine", cwd=tmp_path, code=2)
    assert "run.folder=mine already exists" in done.stderr.decode()
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.reliability
def test_the_same_run_twice_ends_in_the_same_weights(tmp_path):
    words = [
        "run.updates=6",
        "run.validate_every=4",
        "data.batches_per_update=2",
        "model.dropout=0.2",
        "data.n_workers=1",
    ]
    for name in ("a", "b"):
        type_command("diglot-train", *SMALL, *words, f"run.folder={name}", cwd=tmp_path)
    a, b = (container.read(tmp_path / name / "last.ckpt")["state_dict"] for name in "ab")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert list(scalars(tmp_path / "a")["dev/bleu"]) == [4, 6]  # updates, not batches


@pytest.mark.reliability
def test_stopping_early_averaging_and_csv_work_together(tmp_path):
    words = ["callbacks=[early_stopping,ema]", "callbacks.early_stopping.patience=1", "logger=[csv,tensorboard]"]
    words += ["run.folder=run"]
    words += [
        "run.updates=40",
        "run.validate_every=2",
        "scheduler.lr=1e-9",
        "search.max_len_b=1",
        "search.max_len_a=0.0",
    ]
    done = type_command("diglot-train", *SMALL, *words, cwd=tmp_path)
    assert "Trained 4 updates" in done.stdout.decode()  # no score improved after the first validation
    content = container.read(tmp_path / "run" / "best.ckpt")
    assert "current_model_state" in content  # state_dict is the average
    diglot.load(tmp_path / "run")
    assert set(scalars(tmp_path / "run")["dev/bleu"]) == {2, 4}
    assert "dev/bleu" in (tmp_path / "run" / "metrics.csv").read_text().partition("\n")[0]


@pytest.mark.reliability
@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (["model=gru_attention", "model.d_hidden=96"], {"cross"}),
        (
            [
                *("model/residual=deep_norm", "model/residual@model.decoder_residual=sandwich_norm"),
                *("model/norm=rms_norm", "model/feed_forward=swiglu", "model.qk_norm=true", "model.tying=target"),
                *("model.n_heads={encoder:6,decoder:4,cross:2}", "model.n_kv_heads={encoder:3,decoder:1,cross:null}"),
                *("model/position@model.decoder_position=alibi", "model.d_head=16", "model.n_decoder_layers=1"),
            ],
            {"encoder", "decoder", "cross"},
        ),
    ],
    ids=["recurrent", "mixed"],
)
def test_any_model_is_trained_scored_and_drawn_by_the_same_commands(tmp_path, words, kinds):
    base = ["data=sample", "trainer=cpu", "search=beam", "search.max_len_a=1.0", "search.max_len_b=3", *words]
    type_command("diglot-train", *base, "run.updates=8", "run.validate_every=4", "run.folder=run", cwd=tmp_path)
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    assert {tag.split("/")[1].split("_")[0] for tag in events.Tags()["images"] if "attention" in tag} == kinds
    type_command("diglot-evaluate", "checkpoint=run/last.ckpt", cwd=tmp_path)
    evaluated = json.loads((tmp_path / "run" / "evaluation" / "dev" / "results.json").read_text())
    chrf = next(score["value"] for score in evaluated["scores"] if score["name"] == "chrF++")
    assert chrf == pytest.approx(scalars(tmp_path / "run")["dev/chrf"][8], abs=1e-3)
    lines = (ROOT / "data/sample/dev.avi").read_text().splitlines()[:3]
    written = (tmp_path / "run" / "evaluation" / "dev" / "hypotheses.bol").read_text().splitlines()
    assert diglot.load(tmp_path / "run" / "last.ckpt").translate(lines) == written[:3]


def test_fast_dev_run_goes_through_once_and_keeps_nothing(tmp_path):
    done = type_command("diglot-train", *SMALL, "trainer.fast_dev_run=true", "run.folder=run", cwd=tmp_path)
    assert "no checkpoint was saved" in done.stdout.decode()
    assert not list((tmp_path / "run").glob("*.ckpt"))


def test_own_files_are_split_and_prepared(tmp_path):
    for side in ("avi", "bol"):
        shutil.copy(ROOT / f"data/sample/train.{side}", tmp_path / f"text.{side}")
    words = ["data=files", "data.train.src=text.avi", "data.train.tgt=text.bol", "data.vocab_size=800"]
    done = type_command("diglot-prepare", *words, cwd=tmp_path)
    assert "split off from train" in done.stdout.decode()
    too_many = type_command("diglot-prepare", *words[:-1], "data.vocab_size=50000", cwd=tmp_path, code=2)
    found = re.search(r"vocab_size=50000 is too large for this text: at most (\d+)", too_many.stderr.decode())
    by_default = type_command("diglot-prepare", *words[:-1], cwd=tmp_path).stdout.decode()  # data.vocab_size is 8000
    assert "tokenizer.vocab_size=8000 is more than this text can fill: the largest possible size is used" in by_default
    assert f"; {int(found[1]):,} pieces" in by_default


@pytest.mark.reliability
def test_resume_auto_goes_on_with_the_newest_unfinished_run_of_the_same_command(tmp_path):
    words = [*SMALL, "run.updates=4", "run.validate_every=2", "search.max_len_a=0.0", "search.max_len_b=2"]
    for i in range(2):
        done = type_command("diglot-train", *words, "resume=auto", cwd=tmp_path).stdout.decode()
        assert "resume=auto: no unfinished run with this config; starting a new one" in done
        assert len(list((tmp_path / "runs").iterdir())) == i + 1
    first, second = sorted((tmp_path / "runs").iterdir())
    for folder in (first, second):
        (folder / "results.json").unlink()
    other = type_command("diglot-train", *words, "seed=2", "resume=auto", cwd=tmp_path).stdout.decode()
    assert "starting a new one" in other
    done = type_command("diglot-train", *words, "resume=auto", "logger=csv", cwd=tmp_path).stdout.decode()
    assert f"resume=auto: resuming runs/{second.name}/" in done
    assert (second / "results.json").exists()
    with (first / "x").open("w"):
        descriptor = os.open(first, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        refused = type_command("diglot-train", *words, "resume=auto", cwd=tmp_path, code=2).stderr.decode()
        os.close(descriptor)
    assert refused.endswith(f"\ndiglot-train: resume=auto: another process is training in runs/{first.name}/\n")
    assert len(list((tmp_path / "runs").iterdir())) == 3


@pytest.mark.reliability
def test_a_run_goes_on_from_the_newest_checkpoint_that_is_whole(tmp_path):
    words = [*SMALL, "run.updates=12", "run.validate_every=4", "search.max_len_a=0.0", "search.max_len_b=2"]
    type_command("diglot-train", *words, "run.folder=whole", cwd=tmp_path)
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    last = tmp_path / "run" / "last.ckpt"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    done = type_command("diglot-train", *words, "resume=run", cwd=tmp_path).stdout.decode()
    assert re.search(r"run/last\.ckpt: damaged, .*; the run resumes from run/previous\.ckpt \(update 12\)", done)
    a, b = (container.read(tmp_path / name / "last.ckpt")["state_dict"] for name in ("whole", "run"))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.reliability
def test_a_run_goes_on_from_a_checkpoint_of_format_1_and_writes_format_2(tmp_path):
    words = [*SMALL, "run.validate_every=4", "search.max_len_b=4", "search.max_len_a=0.0", "model.dropout=0.2"]
    type_command("diglot-train", *words, "run.updates=4", "run.folder=run", cwd=tmp_path)
    shutil.copytree(tmp_path / "run", tmp_path / "old")
    for file in (tmp_path / "old").glob("*.ckpt"):
        write_old_checkpoint(file, container.read(file))
    for name in ("run", "old"):
        done = type_command("diglot-train", *words, "run.updates=8", f"resume={name}", cwd=tmp_path)
        assert ("last.ckpt is in the old format 1" in (done.stdout + done.stderr).decode()) == (name == "old")
    assert not checkpoint.is_of_old_format(tmp_path / "old" / "last.ckpt")
    a, b = (container.read(tmp_path / name / "last.ckpt") for name in ("run", "old"))
    assert same([a["state_dict"], a["optimizer_states"]], [b["state_dict"], b["optimizer_states"]])


@pytest.mark.reliability
def test_runs_that_are_asked_to_end_go_on_as_if_they_had_not_been(tmp_path, monkeypatch):
    """Interrupt a run after updates and during a validation, each time with a different signal; one is SIGKILL."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    monkeypatch.setenv("SPY_FOLDER", str(tmp_path))
    words = [*SMALL, "model.dropout=0.2", "run.updates=60", "run.validate_every=20", "trainer.log_every_n_steps=5"]
    words += ["search.max_len_b=6", "search.max_len_a=0.0", "+callbacks.spy._target_=support.spy.Spy"]
    type_command("diglot-train", *words, "run.folder=whole", cwd=tmp_path)
    folder, where = tmp_path / "run", "run.folder=run"
    for name, at in (
        ("SIGTERM", "7"), ("SIGKILL", "12"), ("SIGINT", "20:validation"), ("SIGUSR1", "33"), ("SIGHUP", "51")
    ):  # fmt: skip
        monkeypatch.setenv("SPY_SIGNAL_AT", f"{name}:{at}")
        done = type_command("diglot-train", *words, where, cwd=tmp_path, code=-9 if name == "SIGKILL" else 75)
        said = (done.stdout + done.stderr).decode()
        assert "Traceback" not in said
        if name != "SIGKILL":
            update = at.partition(":")[0]
            assert f"Stopped by {name} at update {update}. The last checkpoint is run/last.ckpt." in said
            assert diglot.load(folder / "last.ckpt")
        where = "resume=run"
    monkeypatch.delenv("SPY_SIGNAL_AT")
    type_command("diglot-train", *words, where, cwd=tmp_path)
    a, b = (container.read(tmp_path / name / "last.ckpt") for name in ("whole", "run"))
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "global_step"):
        assert str(a[part]) == str(b[part])
    assert all(torch.equal(value, b["state_dict"][name]) for name, value in a["state_dict"].items())
    assert a["callbacks"]["Checkpoints"] == b["callbacks"]["Checkpoints"]
    whole, parts = scalars(tmp_path / "whole"), scalars(folder)
    assert whole.keys() == parts.keys()
    assert all(parts[tag] == values for tag, values in whole.items() if not tag.startswith("speed/"))


@pytest.mark.reliability
def test_a_gradient_that_is_not_finite_ends_the_run_before_the_update_and_leaves_a_record(tmp_path):
    words = ["run.updates=40", "run.validate_every=20", "scheduler.lr=1e30", "scheduler.warmup=0", "run.folder=run"]
    words += ["trainer.precision=32-true"]
    done = type_command("diglot-train", *SMALL, *words, cwd=tmp_path, code=76)
    (line,) = [line for line in done.stderr.decode().splitlines() if "diglot-train" in line]
    assert re.search(r"the gradient of update 2 is not finite in \d+ of \d+ parameters; run/non_finite_0.json", line)
    record = json.loads((tmp_path / "run" / "non_finite_0.json").read_text())
    assert (record["update"], len(record["gradient_norms"]) > 10) == (2, True)
    train = set(read_lines(ROOT / "data/sample/train.avi"))
    assert record["pairs"]
    # Texts of placeholders are not stored with the ids, so not every source can be restored exactly.
    assert {pair["src"] for pair in record["pairs"]} & train
    assert not (tmp_path / "run" / "last.ckpt").exists()
    words = [word for word in words if "folder" not in word] + ["run.skip_non_finite=3", "run.folder=again"]
    done = type_command("diglot-train", *SMALL, *words, cwd=tmp_path, code=76)
    said = (tmp_path / "again" / "log.txt").read_text()
    assert "update 4: the gradient is not finite; update skipped, 3 of at most 3" in said
    assert "the gradient of update 5 is not finite" in done.stderr.decode()
    assert not (tmp_path / "again" / "best.ckpt").exists()


@pytest.mark.reliability
def test_a_run_that_goes_on_keeps_its_scores_scale_and_its_tokenizer(tmp_path):
    words = [*SMALL, "data.vocab_size=600", "search.max_len_a=0.0", "search.max_len_b=4", "run.validate_every=2"]
    type_command("diglot-train", *words, "run.updates=2", "run.folder=run", cwd=tmp_path)
    last = tmp_path / "run" / "last.ckpt"
    content = checkpoint.read(last)
    content["diglot"]["bleu_tokenizer"] = "char"  # as if an earlier version had chosen it
    write_checkpoint(last, content)
    done = type_command("diglot-train", *words, "run.updates=4", "resume=run", cwd=tmp_path).stdout.decode()
    assert "tok:char" in done
    assert "tok:13a" not in done
    assert checkpoint.read(last)["diglot"]["bleu_tokenizer"] == "char"
    type_command("diglot-evaluate", "checkpoint=run", "split=test", "output=again", "bleu_tokenizer=char", cwd=tmp_path)
    newest = max((tmp_path / "run" / "evaluation").iterdir(), key=lambda folder: folder.stat().st_mtime_ns)
    results = [json.loads((folder / "results.json").read_text()) for folder in (newest, tmp_path / "again")]
    assert results[0]["scores"] == results[1]["scores"]

    content = checkpoint.read(last)
    other = mark_composing(content["diglot"]["tokenizer"].numpy().tobytes())
    content["diglot"]["tokenizer"] = torch.frombuffer(bytearray(other), dtype=torch.uint8)
    write_checkpoint(last, content)
    said = type_command("diglot-train", *words, "run.updates=6", "resume=run", cwd=tmp_path, code=2).stderr.decode()
    assert "resume=run: the tokenizer is no longer the one that the run began with" in said
    assert "init_from=run/last.ckpt begins a new run with its tokenizer" in said


def test_several_references_count_in_validations_at_the_end_and_in_evaluations(tmp_path):
    for split, n in (("train", 400), ("dev", 12), ("test", 12)):
        for side in ("avi", "bol"):
            lines = read_lines(ROOT / f"data/sample/{split}.{side}")[:n]
            write_lines(tmp_path / f"{split}.{side}", lines)
        write_lines(tmp_path / f"{split}.second.bol", [f"{line} sok" for line in lines])
    names = [
        (split, side, lang) for split in ("train", "dev", "test") for side, lang in (("src", "avi"), ("tgt", "bol"))
    ]
    words = [*SMALL, "data=files", "data.vocab_size=400", "run.validate_every=1", "data.dev.references=dev.*.bol"]
    words += [f"data.{split}.{side}={split}.{lang}" for split, side, lang in names]
    last = "data.test.references=test.second.bol"
    done = type_command("diglot-train", *words, last, "run.updates=1", "run.folder=run", cwd=tmp_path).stdout.decode()
    assert re.search(r"dev scores: BLEU nrefs:2\|", done)
    assert "dev: 2 references per source" in done
    results = json.loads((tmp_path / "run" / "results.json").read_text())["test"]
    assert results["references"] == 2
    assert all(score["signature"].startswith("nrefs:2|") for score in results["scores"])
    for split in ("dev", "test"):
        type_command("diglot-evaluate", "checkpoint=run", f"split={split}", f"output={split}", cwd=tmp_path)
        again = json.loads((tmp_path / split / "results.json").read_text())
        assert again["references"] == 2
        assert read_lines(tmp_path / split / "references.2.bol") == read_lines(tmp_path / f"{split}.second.bol")
    assert again["scores"] == results["scores"]

    for changed, message in (
        ([], "data.test.references was test.second.bol and is None"),
        ([last, "data.dev.references=null"], "data.dev.references was dev.*.bol and is None"),
    ):
        command = ("diglot-train", *words, *changed, "run.updates=2", "resume=run")
        assert message in type_command(*command, cwd=tmp_path, code=2).stderr.decode()
