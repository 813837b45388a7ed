"""Corpora from files, and how prepared text appears whole or not at all."""

from functools import partial
from pathlib import Path

import pytest

from diglot.data.corpus import Files, Sample, prepared_folder, read_splits, whole_folder, write_splits
from diglot.data.home_assistant import HomeAssistant
from diglot.data.text import ParallelText, write_lines
from diglot.errors import UserError


def write_pair(folder: Path, split: str, n: int, blank: int = 0) -> dict[str, str | None]:
    words = ["".join(chr(ord("a") + int(digit)) for digit in str(i)) for i in range(n)]
    write_lines(folder / f"{split}.de", [f"{split} {word}" for word in words] + [""] * blank)
    write_lines(folder / f"{split}.en", [f"{split.upper()} {word}" for word in words] + ["x"] * blank)
    return {"src": str(folder / f"{split}.de"), "tgt": str(folder / f"{split}.en"), "tsv": None}


def test_files_are_read_as_they_are_and_only_train_loses_blank_pairs(tmp_path: Path) -> None:
    train, dev, test = (write_pair(tmp_path, split, 20, blank=3) for split in ("train", "dev", "test"))
    corpus = Files(train=train, dev=dev, test=test)
    splits = corpus.read(tmp_path)
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 20, "dev": 23, "test": 23}
    assert splits["dev"].src[-1] == ""
    assert corpus.notes == ["train: 3 pairs with a blank side were dropped"]
    assert (corpus.src_lang, corpus.tgt_lang) == ("de", "en")


def test_missing_dev_and_test_are_carved_from_train_and_that_is_said(tmp_path: Path) -> None:
    corpus = Files(train=write_pair(tmp_path, "train", 100), dev_size=4, test_size=6)
    splits = corpus.read(tmp_path)
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 90, "dev": 4, "test": 6}
    assert len(corpus.notes) == 1
    assert "no dev or test files given: dev (4 pairs) and test (6 pairs) carved from train, seed 1" in corpus.notes[0]
    assert corpus.read(tmp_path) == splits
    assert len(corpus.notes) == 1


def test_a_given_test_is_kept_when_only_dev_is_carved(tmp_path: Path) -> None:
    corpus = Files(train=write_pair(tmp_path, "train", 100), test=write_pair(tmp_path, "test", 5), dev_size=4)
    splits = corpus.read(tmp_path)
    assert splits["test"].src[0] == "test a"
    assert (len(splits["train"]), len(splits["dev"]), len(splits["test"])) == (96, 4, 5)


def test_tsv_files_are_a_corpus_too(tmp_path: Path) -> None:
    write_lines(tmp_path / "t.tsv", ["eins\tone", "zwei\ttwo"])
    paths = {"tsv": str(tmp_path / "t.tsv")}
    corpus = Files(train=paths, dev=paths, test=paths)
    assert corpus.read(tmp_path)["train"] == ParallelText(["eins", "zwei"], ["one", "two"])
    assert (corpus.src_lang, corpus.tgt_lang) == ("src", "tgt")


@pytest.mark.parametrize(
    ("train", "dev", "message"),
    [
        ({}, None, r"data\.train\.src is missing"),
        ({"src": None, "tgt": None, "tsv": None}, None, r"data\.train\.src is missing"),
        ({"src": "a"}, None, r"data\.train\.tgt is missing"),
        ({"tgt": "a"}, None, r"data\.train\.src is missing"),
        ({"src": "a", "tgt": "b"}, {"src": "c", "tgt": None}, r"data\.dev\.tgt is missing"),
        ({"src": "a", "tsv": "b"}, None, r"data\.train\.tsv excludes"),
        ({"source": "a"}, None, r"data\.train\.source is not known; the keys are src, tgt and tsv"),
    ],
)
def test_wrong_paths_are_refused_naming_the_key(train: dict, dev: dict | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Files(train=train, dev=dev)


@pytest.mark.parametrize(
    ("src", "tgt", "languages"),
    [
        ("a.de", "a.zh-Hans", ("de", "zh-Hans")),
        ("a.txt", "b.txt", ("src", "tgt")),
        ("a.en", "b.en", ("src", "tgt")),
        ("train.src", "train.tgt", ("src", "tgt")),
        ("a.txt", "a.de", ("src", "de")),
    ],
)
def test_languages_are_guessed_from_extensions(src: str, tgt: str, languages: tuple[str, str]) -> None:
    corpus = Files(train={"src": src, "tgt": tgt})
    assert (corpus.src_lang, corpus.tgt_lang) == languages
    named = Files(train={"src": src, "tgt": tgt}, src_lang="xx", tgt_lang="yy")
    assert (named.src_lang, named.tgt_lang) == ("xx", "yy")


@pytest.mark.parametrize("key", ["dev_size", "test_size"])
def test_a_split_of_no_pairs_is_refused(key: str) -> None:
    for make in (partial(Files, train={"tsv": "a"}), HomeAssistant):
        with pytest.raises(UserError, match=rf"data\.{key}=0: at least 1"):
            make(**{key: 0})


def test_a_train_file_of_blanks_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "a", [" ", ""])
    path = str(tmp_path / "a")
    with pytest.raises(UserError, match=r"every pair of .* has a blank side"):
        Files(train={"src": path, "tgt": path}).read(tmp_path)


def test_the_sample_corpus_is_there_without_preparation(tmp_path: Path) -> None:
    corpus = Sample()
    splits = corpus.read(tmp_path)
    assert set(splits) == {"train", "dev", "test"}
    assert len(splits["train"]) > len(splits["dev"]) > 0
    assert (corpus.src_lang, corpus.tgt_lang) == ("avi", "bol")
    assert list(tmp_path.iterdir()) == []


def test_a_killed_preparation_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    def prepare() -> None:
        with whole_folder(tmp_path / "kind" / "corpus") as temporary:
            write_lines(temporary / "train.de", ["a"])
            assert not (tmp_path / "kind" / "corpus").exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare()
    assert list((tmp_path / "kind").iterdir()) == []


def test_of_two_preparations_the_first_to_finish_wins(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    with whole_folder(folder) as slow:
        write_lines(slow / "who", ["slow"])
        with whole_folder(folder) as fast:
            write_lines(fast / "who", ["fast"])
    assert (folder / "who").read_text() == "fast\n"
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be made"), whole_folder(tmp_path / "file" / "corpus"):
        pass


def test_splits_are_written_by_language_and_read_back(tmp_path: Path) -> None:
    splits = {"train": ParallelText(["a"], ["b"]), "test": ParallelText(["c"], ["d"])}
    write_splits(tmp_path, splits, "en", "zh-Hans")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test.en", "test.zh-Hans", "train.en", "train.zh-Hans"]
    assert read_splits(tmp_path, "en", "zh-Hans") == splits


def test_other_options_are_another_folder_and_labels_are_plain_names(tmp_path: Path) -> None:
    one, same, other = (prepared_folder(tmp_path, "hub", "../a b/c", options) for options in ([1], [1], [2]))
    assert one == same != other
    assert one.parent == tmp_path / "hub"
    assert one.name.startswith("a-b-c-")
