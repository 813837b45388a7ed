"""The commands as a user types them: train on the sample corpus, evaluate, and translate."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import diglot
from diglot.checkpoint import container
from diglot.data.text import read_lines
from support.commands import LEARNING, ROOT, scalars, type_command
from support.made import write_checkpoint, write_old_checkpoint

pytestmark = pytest.mark.end_to_end


MODEL = ("model.d_model=64", "model.d_ff=128", "model.n_encoder_layers=1", "model.n_decoder_layers=1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder and the output of a run that has learned the sample corpus a little (BLEU 6)."""
    words = [
        *MODEL,
        "run.updates=150",
        "run.validate_every=60",
        "data.tokens_per_batch=600",
        "scheduler.lr=1e-2",
        "search.max_len_a=1",
        "watch=none",
    ]
    return train(tmp_path_factory.mktemp("work"), *words)


def train(cwd: Path, *words: str) -> tuple[Path, str]:
    common = ["scheduler.warmup=50", "trainer.precision=32-true"]
    done = type_command("diglot-train", *LEARNING, *common, *words, cwd=cwd)
    (folder,) = (cwd / "runs").iterdir()
    return folder, done.stdout.decode()


@pytest.mark.reliability
def test_a_small_task_is_learnt_to_a_threshold(tmp_path):
    words = ["run.updates=650", "run.validate_every=300", "scheduler.lr=3e-3", "data.tokens_per_batch=300"]
    folder, printed = train(tmp_path, *words)
    results = json.loads((folder / "evaluation" / "test" / "results.json").read_text())
    bleu = next(score["value"] for score in results["scores"] if score["name"] == "BLEU")
    assert bleu > 30, printed
    assert results["sentences"] == 200


def test_a_run_ends_with_what_it_made_and_what_to_type_next(trained):
    folder, printed = trained
    for made in ("best.ckpt", "last.ckpt", "config.yaml", "environment.json", "log.txt", "tokenizer.model"):
        assert (folder / made).stat().st_size > 0
    for language in ("avi", "bol"):
        for split in ("dev", "test"):
            assert read_lines(folder / "text" / f"{split}.{language}") == read_lines(
                ROOT / f"data/sample/{split}.{language}"
            )
    assert f"make evaluate checkpoint=runs/{folder.name}/best.ckpt" in printed
    run = f"runs/{folder.name}"
    files = f"input={run}/text/test.avi output={run}/test.txt html={run}/test.html"
    assert f"make translate checkpoint={run}/best.ckpt {files}\n" in printed
    assert folder.name.endswith("_trainer-cpu_d_model-64_d_ff-128_dropout-0.0_search-greedy")
    assert re.search(r"update 120 of 150, pass .*: dev BLEU .*, chrF\+\+ .*, perplexity ", printed)
    assert not list(folder.glob(".*")), "a temporary file was left"


def test_every_scalar_stands_at_the_number_of_updates_done(trained):
    found = scalars(trained[0])
    assert list(found["dev/bleu"]) == [60, 120, 150]  # there is a validation after the last update, too
    assert list(found["train/loss"]) == list(range(50, 151, 50))
    assert found["train/learning_rate"][50] == pytest.approx(1e-2)  # the last update of the warm-up
    assert found["train/learning_rate"][150] == pytest.approx(1e-2 / 101)
    assert "epoch" not in found
    assert found["dev/perplexity"][150] < found["dev/perplexity"][60]


def test_a_checkpoint_holds_plain_data_and_its_own_score(trained):
    content = container.read(trained[0] / "last.ckpt")
    assert content["diglot"]["update"] == content["global_step"] == 150
    assert content["diglot"]["dev_bleu"] == pytest.approx(scalars(trained[0])["dev/bleu"][150], abs=1e-4)
    assert content["diglot"]["config"]["run"]["updates"] == 150
    assert content["optimizer_states"]


def test_evaluation_gives_the_score_of_the_validation(trained):
    folder, _ = trained
    done = type_command("diglot-evaluate", f"checkpoint={folder}/last.ckpt", cwd=folder.parent)  # dev, by default
    results = json.loads((folder / "evaluation" / "dev" / "results.json").read_text())
    logged = scalars(folder)
    assert results["split"] == "dev"
    assert results["scores"][0]["value"] == pytest.approx(logged["dev/bleu"][150], abs=1e-3)
    assert results["scores"][1]["value"] == pytest.approx(logged["dev/chrf"][150], abs=1e-3)
    assert results["scores"][0]["signature"] in done.stdout.decode()


def test_evaluation_equals_the_sacrebleu_command(trained, tmp_path):
    folder, _ = trained
    type_command("diglot-evaluate", f"checkpoint={folder}", "split=test", f"output={tmp_path}/scored", cwd=tmp_path)
    ours = json.loads((tmp_path / "scored" / "results.json").read_text())["scores"]
    command = [sys.executable, "-m", "sacrebleu", "references.bol", "-i", "hypotheses.bol"]
    command += ["-m", "bleu", "chrf", "ter", "--chrf-word-order", "2", "-w", "6"]
    done = subprocess.run(command, cwd=tmp_path / "scored", capture_output=True, text=True, check=True)
    theirs = json.loads(done.stdout)
    assert [score["value"] for score in ours] == pytest.approx([score["score"] for score in theirs], abs=1e-6)
    assert [score["signature"] for score in ours] == [score["signature"] for score in theirs]


def test_evaluation_takes_other_text_and_never_overwrites(trained, tmp_path):
    folder, _ = trained
    for side in ("avi", "bol"):
        lines = read_lines(ROOT / f"data/sample/test.{side}")[:7]
        (tmp_path / f"few.{side}").write_text("".join(f"{line}\n" for line in lines))
    words = ["data=files", "data.test.src=few.avi", "data.test.tgt=few.bol", "split=test", "output=scored"]
    for expected in ("scored", "scored_2"):
        type_command("diglot-evaluate", f"checkpoint={folder}", *words, cwd=tmp_path)
        assert json.loads((tmp_path / expected / "results.json").read_text())["sentences"] == 7
    (tmp_path / "few.bol").write_text("one line\n")
    done = type_command("diglot-evaluate", f"checkpoint={folder}", *words, cwd=tmp_path, code=2)
    assert "few.avi has 7 lines" in done.stderr.decode()
    assert "few.bol has 1;" in done.stderr.decode()


def test_a_checkpoint_is_whole_wherever_it_is_moved(trained, tmp_path):
    folder, _ = trained
    moved = tmp_path / "a folder, elsewhere (1)"
    shutil.copytree(folder, moved)
    type_command("diglot-evaluate", f"checkpoint='{moved}'", cwd=tmp_path)
    alone = tmp_path / "alone.ckpt"
    shutil.copy(folder / "best.ckpt", alone)
    done = type_command("diglot-evaluate", f"checkpoint={alone}", cwd=tmp_path, code=2)
    assert "data=files data.dev.src=FILE data.dev.tgt=FILE" in done.stderr.decode()
    type_command("diglot-evaluate", f"checkpoint={alone}", "data=sample", cwd=tmp_path)


def test_as_many_lines_come_out_as_go_in(trained, tmp_path):
    folder, _ = trained
    sources = read_lines(ROOT / "data/sample/test.avi")[:5]
    lines = [sources[0], "", sources[1], "   ", sources[2], "{never_seen} </s> <pad> \u2028 x\ry", sources[3]]
    given = "\n".join(lines)  # no line feed at the end
    done = type_command("diglot-translate", f"checkpoint={folder}", cwd=tmp_path, stdin=given)
    out = done.stdout.decode().split("\n")
    assert len(out) == len(lines) + 1
    assert out[-1] == ""
    assert (out[1], out[3]) == ("", "")
    translator = diglot.load(folder, device="cpu")
    assert out[:-1] == translator.translate(lines)
    assert [out[i] for i in (0, 2, 4, 6)] == [translator.translate([lines[i]])[0] for i in (0, 2, 4, 6)]

    (tmp_path / "in.txt").write_text(given)
    type_command("diglot-translate", f"checkpoint={folder}", "input=in.txt", "output=out.txt", cwd=tmp_path)
    assert (tmp_path / "out.txt").read_text().split("\n") == out
    empty = type_command("diglot-translate", f"checkpoint={folder}", cwd=tmp_path, stdin="")
    assert empty.stdout == b""


def test_bytes_that_are_not_utf8_are_refused_by_line(trained, tmp_path):
    done = type_command("diglot-translate", f"checkpoint={trained[0]}", cwd=tmp_path, stdin=b"good\nb\xffd\n", code=2)
    assert "standard input, line 2: not UTF-8" in done.stderr.decode()
    assert done.stdout == b""


def test_the_search_of_a_checkpoint_can_be_changed_by_key_or_whole(trained, tmp_path):
    line = read_lines(ROOT / "data/sample/test.avi")[0]
    for words in (["search.beam_size=3"], ["search=beam"], ["search.max_len_a=0.0", "search.max_len_b=2"]):
        done = type_command("diglot-translate", f"checkpoint={trained[0]}", *words, cwd=tmp_path, stdin=line)
        assert done.stdout.count(b"\n") == 1
    assert b"1 of 1 outputs were cut by the length limit" in done.stderr
    wrong = type_command("diglot-translate", f"checkpoint={trained[0]}", "search.beam=3", cwd=tmp_path, code=2)
    assert "there is no key search.beam; type search.beam_size=3" in wrong.stderr.decode()


@pytest.mark.reliability
def test_a_new_run_starts_from_anothers_weights(trained, tmp_path):
    folder, _ = trained
    words = [f"init_from={folder}/best.ckpt", "run.updates=1", "scheduler.lr=1e-9", "run.folder=next"]
    done = type_command("diglot-train", "data=sample", "trainer=cpu", "search=greedy", *words, cwd=tmp_path)
    assert f"model: from {folder}/best.ckpt, " in done.stdout.decode()
    old, new = (container.read(f / "best.ckpt") for f in (folder, tmp_path / "next"))
    assert torch.equal(old["diglot"]["tokenizer"], new["diglot"]["tokenizer"])
    for name, weight in old["state_dict"].items():
        torch.testing.assert_close(weight, new["state_dict"][name], atol=1e-5, rtol=0)
    assert new["global_step"] == 1
    wrong = type_command(
        "diglot-train", "data=sample", *words[:-1], "run.folder=other", "model.d_ff=100", cwd=tmp_path, code=2
    )
    assert "best.ckpt: model.d_ff is 128 in the checkpoint, but 100 here" in wrong.stderr.decode()
    assert not (tmp_path / "other").exists()


@pytest.mark.reliability
def test_a_damaged_or_hostile_checkpoint_is_refused_by_one_line_and_runs_nothing(trained, tmp_path):
    good = (trained[0] / "best.ckpt").read_bytes()
    content = container.read(trained[0] / "best.ckpt")

    def changed(**parts: object) -> None:
        write_checkpoint(tmp_path / "bad.ckpt", {**content, "diglot": {**content["diglot"], **parts}})

    def refused(*wanted: str) -> None:
        done = type_command("diglot-translate", "checkpoint=bad.ckpt", cwd=tmp_path, stdin="a\n", code=2)
        said = done.stderr.decode()
        assert done.stdout == b""
        assert said.count("\n") == 1, said
        assert all(word in said for word in ("bad.ckpt", *wanted)), said

    weights = len(good) // 2  # a byte in the middle of the weights
    (tmp_path / "bad.ckpt").write_bytes(good[:weights] + bytes([good[weights] ^ 1]) + good[weights + 1 :])
    refused("damaged")
    for broken in (b"", b"no checkpoint", good[: len(good) // 2]):
        (tmp_path / "bad.ckpt").write_bytes(broken)
        refused("damaged")
    canary = tmp_path / "canary"
    writes = {"_target_": "diglot.data.text.write_lines", "path": str(canary), "lines": ["x"]}
    changed(search=writes)
    refused("diglot.data.text.write_lines")
    changed(model={**content["diglot"]["model"], "norm": writes})
    refused("diglot.data.text.write_lines")
    write_old_checkpoint(tmp_path / "bad.ckpt", {**content, "x": Gadget(str(canary))})
    refused("refused, it holds more than weights and plain data")
    changed(placeholder="(")
    refused("its placeholder (() is not a regular expression")
    changed(search={**content["diglot"]["model"]})
    refused()
    write_checkpoint(tmp_path / "bad.ckpt", {"state_dict": {}})
    refused("not written by diglot")
    torch.save({"state_dict": {}}, tmp_path / "bad.ckpt")
    refused("not written by diglot")
    assert not canary.exists()


def test_an_old_checkpoint_translates_as_before_and_says_how_to_rewrite_it(trained, tmp_path):
    write_old_checkpoint(tmp_path / "old.ckpt", container.read(trained[0] / "best.ckpt"))
    old, new = (
        type_command("diglot-translate", f"checkpoint={path}", cwd=tmp_path, stdin="a\n")
        for path in ("old.ckpt", trained[0] / "best.ckpt")
    )
    assert old.stdout == new.stdout
    said, shown = (re.sub(r"\d+\.\d s\n", "", each.stderr.decode()) for each in (old, new))  # without durations
    line = "is in the old format 1: make convert checkpoint="
    assert said.removesuffix(shown).count("\n") == said.count(line) == 1


class Gadget:
    """The content of a hostile pickle."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (open, (self.path, "w"))


def test_a_device_or_an_output_that_does_not_work_is_named(trained, tmp_path):
    words = ["diglot-translate", f"checkpoint={trained[0]}"]
    for device in ("foo", "meta"):
        wrong = type_command(*words, f"device={device}", cwd=tmp_path, stdin="a\n", code=2)
        assert f"device={device}: cannot be used" in wrong.stderr.decode()
    (tmp_path / "in.txt").write_text("a\n")
    wrong = type_command(*words, "input=in.txt", "output=no/such/../../in.txt/out", cwd=tmp_path, code=2)
    assert "cannot be written" in wrong.stderr.decode()
