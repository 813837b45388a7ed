"""`make doctor`, as typed: its report, its files, and when it fails."""

import json
from pathlib import Path

import pytest
from PIL import Image

from diglot.data.text import read_lines, write_lines
from support.commands import ROOT, type_command

pytestmark = pytest.mark.end_to_end
SAMPLE = ROOT / "data" / "sample"


def files(folder: Path, src: list[str], tgt: list[str]) -> list[str]:
    """Write training text into a folder, and return the overrides for it and for the sample's dev and test."""
    write_lines(folder / "train.avi", src)
    write_lines(folder / "train.bol", tgt)
    held_out = [f"data.{split}.{side}={SAMPLE / split}.{lang}" for split in ("dev", "test") for side, lang in SIDES]
    return ["data=files", "data.train.src=train.avi", "data.train.tgt=train.bol", *held_out, "data.vocab_size=900"]


SIDES = (("src", "avi"), ("tgt", "bol"))


def test_a_healthy_corpus_is_reported_with_what_a_run_would_take(tmp_path):
    words = ("data=sample", "trainer=cpu", "model.d_model=48", "model.d_ff=96", "doctor.probe=2")
    done = type_command("diglot-doctor", *words, cwd=tmp_path)
    said = done.stdout.decode()
    assert "no held-out pair in train" in said
    assert "s an update" in said
    assert said.endswith("Made in cache/doctor/: doctor.json, doctor.png\n")
    report = json.loads((tmp_path / "cache/doctor/doctor.json").read_bytes())
    assert report["pairs"] == len(read_lines(SAMPLE / "train.avi"))
    assert 0 < report["plan"]["padding"] < 0.1
    assert report["plan"]["seconds_per_update"] > 0
    with Image.open(tmp_path / "cache/doctor/doctor.png") as picture:
        assert picture.width > 500


def test_what_was_dropped_and_split_off_is_reported(tmp_path):
    src, tgt = (read_lines(SAMPLE / f"train.{lang}")[:300] for lang in ("avi", "bol"))
    files(tmp_path, src, [*tgt[:200], *[""] * 100])
    words = ["data=files", "data.train.src=train.avi", "data.train.tgt=train.bol", "data.vocab_size=400"]
    words += ["doctor.probe=0", "data/noise=light", "data.noise.upper=0.5"]
    said = type_command("diglot-doctor", *words, cwd=tmp_path).stdout.decode()
    assert "dev (20 pairs) and test (20 pairs) split off from train" in said
    assert "dropped 100 pairs with a blank side" in said
    report = json.loads((tmp_path / "cache/doctor/doctor.json").read_bytes())
    assert report["notes"]
    n_upper = report["noise"]["upper"]["pairs"]
    assert 0.4 < n_upper / (4 * report["pairs"]) < 0.6
    assert f"noise (data.noise): {n_upper} upper, " in said
    before, after, _ = report["noise"]["upper"]["examples"][0]
    assert before in src
    assert after != before
    assert after.lower() == before.lower()
    assert before in said
    assert after in said


@pytest.mark.reliability
def test_a_leak_and_a_shift_make_it_fail_and_near_sentences_where_told_to(tmp_path):
    src, tgt = (read_lines(SAMPLE / f"train.{lang}") for lang in ("avi", "bol"))
    dev = [read_lines(SAMPLE / f"dev.{lang}")[7] for lang in ("avi", "bol")]
    words = files(tmp_path, [*src, dev[0].upper()], [*tgt, dev[1]])
    said = type_command("diglot-doctor", *words, "doctor.probe=0", cwd=tmp_path, code=1).stdout.decode()
    assert f"dev: 1 of {len(read_lines(SAMPLE / 'dev.avi')):,} pairs are also in train" in said
    words = files(tmp_path, src[:800] + src[801:], tgt[:-1])
    said = type_command("diglot-doctor", *words, "doctor.probe=0", cwd=tmp_path, code=1).stdout.decode()
    assert "source and target match better when shifted by +1: are lines missing?" in said
    long = " ".join(dev[0].split() * 8)
    words = files(tmp_path, [*src, long], [*tgt, "x"])
    write_lines(tmp_path / "near.tsv", [f"{long} more\ty"])
    words = [word for word in words if "data.dev" not in word] + ["data.dev.tsv=near.tsv", "doctor.probe=0"]
    type_command("diglot-doctor", *words, cwd=tmp_path)
    said = type_command("diglot-doctor", *words, "doctor.max_near=0.5", cwd=tmp_path, code=1).stdout.decode()
    assert "dev: 100.0% of the sources with at least 8 words share 8 consecutive words with train, more than" in said


def test_a_wrong_word_is_answered_by_one_line(tmp_path):
    for word, wanted in (
        ("doctor.max_near=2", "doctor.max_near=2: must be from 0 to 1, or null"),
        ("+doctor.nearest=2", "there is no key doctor.nearest"),
    ):
        said = type_command("diglot-doctor", "data=sample", word, cwd=tmp_path, code=2).stderr.decode()
        assert wanted in said
        assert len(said.splitlines()) == 1
