"""Tests that the corpus in data/sample is its generator's output, and is fit for training and testing."""

import subprocess
import sys
from pathlib import Path

DATA = Path(__file__).parents[2] / "data"
SIZES = {"train": 4000, "dev": 200, "test": 200}


def read(split: str, language: str) -> list[str]:
    return (DATA / "sample" / f"{split}.{language}").read_text(encoding="utf-8").splitlines()


def test_the_generator_reproduces_the_files():
    done = subprocess.run([sys.executable, DATA / "make_sample.py", "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_both_sides_have_the_documented_number_of_lines():
    lengths = {(split, language): len(read(split, language)) for split in SIZES for language in ("avi", "bol")}
    assert lengths == {(split, language): size for split, size in SIZES.items() for language in ("avi", "bol")}


def test_no_sentence_occurs_twice():
    for language in ("avi", "bol"):
        lines = [line for split in SIZES for line in read(split, language)]
        assert len(set(lines)) == len(lines)


def test_train_covers_every_word_of_dev_and_test():
    for language in ("avi", "bol"):
        known = set(" ".join(read("train", language)).split())
        assert known.issuperset(" ".join(read("dev", language) + read("test", language)).split())


def test_sentences_have_3_to_25_words():
    for split in SIZES:
        for language in ("avi", "bol"):
            counts = {len(line.split()) for line in read(split, language)}
            assert min(counts) >= 3
            assert max(counts) <= 25


def test_placeholders_and_numbers_are_the_same_on_both_sides():
    for split in SIZES:
        for avi, bol in zip(read(split, "avi"), read(split, "bol"), strict=True):
            kept = [
                sorted(w.strip(".,?!") for w in side.split() if w[0] == "{" or w[0].isdigit()) for side in (avi, bol)
            ]
            assert kept[0] == kept[1]


def test_the_sample_is_small():
    assert sum(path.stat().st_size for path in (DATA / "sample").iterdir()) < 2**20 * 0.75
