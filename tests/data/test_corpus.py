"""Tests of corpora from files, and of the atomic writing of prepared text."""

import gzip
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diglot.data.corpus import Corpus, Files, Sample, atomic_folder, prepared_folder, read_splits, write_splits
from diglot.data.home_assistant import HomeAssistant
from diglot.data.mixed import Mixed
from diglot.data.readers.opening import zstd
from diglot.data.text import MixedText, ParallelText, write_lines
from diglot.errors import UserError


def write_pair(folder: Path, split: str, n: int, blank: int = 0) -> dict[str, str | None]:
    words = ["".join(chr(ord("a") + int(digit)) for digit in str(i)) for i in range(n)]
    write_lines(folder / f"{split}.de", [f"{split} {word}" for word in words] + [""] * blank)
    write_lines(folder / f"{split}.en", [f"{split.upper()} {word}" for word in words] + ["x"] * blank)
    return {"src": str(folder / f"{split}.de"), "tgt": str(folder / f"{split}.en"), "tsv": None}


def test_files_are_read_unchanged(tmp_path: Path) -> None:
    train, dev, test = (write_pair(tmp_path, split, 20, blank=3) for split in ("train", "dev", "test"))
    corpus = Files(train=train, dev=dev, test=test)
    splits = corpus.load(tmp_path)
    assert {split: len(pairs) for split, pairs in splits.items()} == dict.fromkeys(splits, 23)
    assert splits["dev"].src[-1] == ""
    assert corpus.notes == []
    assert (corpus.src_lang, corpus.tgt_lang) == ("de", "en")


def test_missing_dev_and_test_are_split_off_from_train_and_reported(tmp_path: Path) -> None:
    corpus = Files(train=write_pair(tmp_path, "train", 100), dev_size=4, test_size=6)
    splits = corpus.load(tmp_path)
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 90, "dev": 4, "test": 6}
    assert len(corpus.notes) == 1
    told = "no dev or test files given: dev (4 pairs) and test (6 pairs) split off from train, seed 1; dropped"
    assert told in corpus.notes[0]
    assert corpus.load(tmp_path) == splits
    assert len(corpus.notes) == 1


def test_a_given_test_is_used_when_only_dev_is_split_off(tmp_path: Path) -> None:
    corpus = Files(train=write_pair(tmp_path, "train", 100), test=write_pair(tmp_path, "test", 5), dev_size=4)
    splits = corpus.load(tmp_path)
    assert splits["test"].src[0] == "test a"
    assert (len(splits["train"]), len(splits["dev"]), len(splits["test"])) == (96, 4, 5)


def test_tsv_files_are_a_corpus(tmp_path: Path) -> None:
    write_lines(tmp_path / "t.tsv", ["eins\tone", "zwei\ttwo"])
    paths = {"tsv": str(tmp_path / "t.tsv")}
    corpus = Files(train=paths, dev=paths, test=paths)
    assert corpus.load(tmp_path)["train"] == ParallelText(["eins", "zwei"], ["one", "two"])
    assert (corpus.src_lang, corpus.tgt_lang) == ("src", "tgt")


@pytest.mark.parametrize(
    ("train", "dev", "message"),
    [
        ({}, None, r"data\.train\.src is missing"),
        ({"src": None, "tgt": None, "tsv": None}, None, r"data\.train\.src is missing"),
        ({"src": "a"}, None, r"data\.train\.tgt is missing"),
        ({"tgt": "a"}, None, r"data\.train\.src is missing"),
        ({"src": "a", "tgt": "b"}, {"src": "c", "tgt": None}, r"data\.dev\.tgt is missing"),
        ({"src": "a", "tsv": "b"}, None, r"data\.train\.tsv cannot be combined with"),
        ({"source": "a"}, None, r"data\.train\.source is not known; the keys are src, tgt, .*csv.*file"),
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
        ("en.txt", "zh.txt", ("en", "zh")),
        ("t.en.txt.gz", "t.zho_Hans", ("en", "zho_Hans")),
    ],
)
def test_languages_are_guessed_from_extensions(src: str, tgt: str, languages: tuple[str, str]) -> None:
    corpus = Files(train={"src": src, "tgt": tgt})
    assert (corpus.src_lang, corpus.tgt_lang) == languages
    named = Files(train={"src": src, "tgt": tgt}, src_lang="xx", tgt_lang="yy")
    assert (named.src_lang, named.tgt_lang) == ("xx", "yy")


@pytest.mark.parametrize(
    ("columns", "languages"),
    [
        (["en", "zh"], ("en", "zh")),
        (["zho_Hans", "source"], ("zho_Hans", "tgt")),
        (["source", "target"], ("src", "tgt")),
        ([0, 1], ("src", "tgt")),
    ],
)
def test_languages_are_guessed_from_the_names_of_columns(columns: list, languages: tuple[str, str]) -> None:
    corpus = Files(train={"csv": "rows.csv"}, columns=columns)
    assert (corpus.src_lang, corpus.tgt_lang) == languages
    assert Files(train={"csv": "rows.csv"}, columns=columns, tgt_lang="yy").tgt_lang == "yy"


@pytest.mark.parametrize("key", ["dev_size", "test_size"])
def test_a_split_of_no_pairs_is_refused(key: str) -> None:
    for make in (partial(Files, train={"tsv": "a"}), HomeAssistant):
        with pytest.raises(UserError, match=rf"data\.{key}=0: must be at least 1"):
            make(**{key: 0})


def test_a_train_file_of_blanks_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "a", [" ", ""])
    path = str(tmp_path / "a")
    with pytest.raises(UserError, match=r"every pair of .* has a blank side"):
        Files(train={"src": path, "tgt": path}, src_lang="en", tgt_lang="en").load(tmp_path)


def test_two_files_of_the_same_content_are_refused_unless_the_languages_are_equal(tmp_path: Path) -> None:
    good = write_pair(tmp_path, "good", 20)
    write_lines(tmp_path / "copy.en", [f"good {i}" for i in range(20)])
    write_lines(tmp_path / "copy.de", [f"good {i}" for i in range(20)])
    copied = {side: str(tmp_path / f"copy.{language}") for side, language in (("src", "de"), ("tgt", "en"))}
    same = dict.fromkeys(("src", "tgt"), str(tmp_path / "copy.de"))
    for wrong in (copied, same):
        for split in ("train", "dev", "test"):
            splits = {"train": good, "dev": good, "test": good, split: wrong}
            told = rf"data\.{split}\.src=\S+ and data\.{split}\.tgt=\S+ have the same content; .* data\.src_lang=CODE"
            with pytest.raises(UserError, match=told):
                Files(**splits, src_lang="de", tgt_lang="en").read(tmp_path)
        Files(train=wrong, dev=good, test=good, src_lang="de", tgt_lang="de").load(tmp_path)
    corpora = {"news": good, "web": copied}
    with pytest.raises(UserError, match=r"data\.corpora\.web\.src=\S+ and data\.corpora\.web\.tgt=\S+ have the same"):
        Mixed(corpora=corpora, dev=good).read(tmp_path)


def test_the_sample_corpus_is_there_without_preparation(tmp_path: Path) -> None:
    corpus = Sample()
    splits = corpus.load(tmp_path)
    assert set(splits) == {"train", "dev", "test"}
    assert len(splits["train"]) > len(splits["dev"]) > 0
    assert (corpus.src_lang, corpus.tgt_lang) == ("avi", "bol")
    assert list(tmp_path.iterdir()) == []


def test_a_killed_preparation_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    def prepare() -> None:
        with atomic_folder(tmp_path / "kind" / "corpus") as temporary:
            write_lines(temporary / "train.de", ["a"])
            assert not (tmp_path / "kind" / "corpus").exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare()
    assert list((tmp_path / "kind").iterdir()) == []


def test_of_two_preparations_the_first_to_finish_wins(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    with atomic_folder(folder) as slow:
        write_lines(slow / "who", ["slow"])
        with atomic_folder(folder) as fast:
            write_lines(fast / "who", ["fast"])
    assert (folder / "who").read_text() == "fast\n"
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_that_cannot_be_created_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be created"), atomic_folder(tmp_path / "file" / "corpus"):
        pass


def test_splits_are_written_by_language_and_read_back(tmp_path: Path) -> None:
    splits = {"train": ParallelText(["a"], ["b"]), "test": ParallelText(["c"], ["d"])}
    write_splits(tmp_path, splits, "en", "zh-Hans")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test.en", "test.zh-Hans", "train.en", "train.zh-Hans"]
    assert {split: text.load() for split, text in read_splits(tmp_path, "en", "zh-Hans").items()} == splits


def test_splits_of_languages_with_colliding_names_are_read_back(tmp_path: Path) -> None:
    for number, languages in enumerate([("en", "en"), ("EN", "en"), ("json", "en"), ("gz", "en")]):
        splits = {"train": ParallelText(["a"], ["b"]), "test": ParallelText(["c"], ["d"])}
        write_splits(tmp_path / str(number), splits, *languages)
        assert len({path.name.casefold() for path in (tmp_path / str(number)).iterdir()}) == 4
        found = read_splits(tmp_path / str(number), *languages)
        assert {split: text.load() for split, text in found.items()} == splits


def test_the_folder_depends_on_the_options_and_has_a_safe_label(tmp_path: Path) -> None:
    one, same, other = (prepared_folder(tmp_path, "hub", "../a b/c", options) for options in ([1], [1], [2]))
    assert one == same != other
    assert one.parent == tmp_path / "hub"
    assert one.name.startswith("a-b-c-")


# ------------------------------------------------------------------------------------------------- forms of files


def test_files_may_be_compressed_and_divided_into_shards(tmp_path: Path) -> None:
    for i, pack in enumerate((gzip.compress, zstd.compress, bytes)):
        suffix = (".gz", ".zst", "")[i]
        for side in ("de", "en"):
            lines = "".join(f"{side} {i} {n}\n" for n in range(3))
            (tmp_path / f"part{i}.{side}{suffix}").write_bytes(pack(lines.encode()))
    write_lines(tmp_path / "dev.tsv", ["a\tb"])
    dev = {"tsv": str(tmp_path / "dev.tsv")}
    train = {side: str(tmp_path / f"part?.{lang}*") for side, lang in (("src", "de"), ("tgt", "en"))}
    corpus = Files(train=train, dev=dev, test=dev)
    expected = [[f"{side} {i} {n}" for i in range(3) for n in range(3)] for side in ("de", "en")]
    assert corpus.load(tmp_path)["train"] == ParallelText(*expected)
    listed = {
        side: [str(tmp_path / f"part{i}.{lang}{s}") for i, s in ((2, ""), (0, ".gz"))]
        for side, lang in (("src", "de"), ("tgt", "en"))
    }
    named = Files(train=listed, dev=dev, test=dev)
    assert named.load(tmp_path)["train"].src == expected[0][6:] + expected[0][:3]
    packed = Files(train={"src": str(tmp_path / "part0.de.gz"), "tgt": str(tmp_path / "part0.en.gz")}, dev=dev)
    assert (packed.src_lang, packed.tgt_lang) == ("de", "en")


def test_wildcards_that_match_nothing_or_unequal_numbers_are_refused(tmp_path: Path) -> None:
    for name in ("a.de", "b.de", "a.en"):
        write_lines(tmp_path / name, ["x"])

    def read(src: str, tgt: str) -> None:
        dev = {"src": str(tmp_path / "a.de"), "tgt": str(tmp_path / "a.en")}
        Files(train={"src": str(tmp_path / src), "tgt": str(tmp_path / tgt)}, dev=dev, test=dev).load(tmp_path)

    with pytest.raises(UserError, match=r"data\.train\.src=.*c\*\.de: no such file"):
        read("c*.de", "a.en")
    with pytest.raises(UserError, match=r"data\.train\.src matches 2 files, data\.train\.tgt matches 1"):
        read("*.de", "a.en")


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ((0, 1), [("de", "en"), ('sagt "ja"', "says, yes"), ("zwei Zeilen", "NA")]),
        ((1, 0), [("en", "de"), ("says, yes", 'sagt "ja"'), ("NA", "zwei Zeilen")]),
        (("en", "de"), [("says, yes", 'sagt "ja"'), ("NA", "zwei Zeilen")]),
    ],
)
def test_csv_follows_the_standard(tmp_path: Path, columns: tuple, rows: list[tuple[str, str]]) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'\xef\xbb\xbfde,en,id\r\n"sagt ""ja""","says, yes",1\r\n"zwei\nZeilen",NA,2\r\n')
    paths = {"csv": str(path)}
    corpus = Files(train=paths, dev=paths, test=paths, columns=columns)
    assert list(zip(*(getattr(corpus.load(tmp_path)["train"], side) for side in ("src", "tgt")))) == rows


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        (b"a,b\nc\n", (0, 1), r"t\.csv, line 2: 1 comma-separated column\(s\), 2 needed"),
        (b'a,b\n"c,d\n', (0, 1), r"t\.csv, line 2: not valid CSV"),
        (b"a,b\nc,d\n", ("a", "de"), r"t\.csv: no column 'de' in its first row, which has a, b"),
    ],
)
def test_invalid_rows_are_refused(tmp_path: Path, content: bytes, columns: tuple, message: str) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    paths = {"csv": str(tmp_path / "t.csv")}
    with pytest.raises(UserError, match=message):
        Files(train=paths, dev=paths, test=paths, columns=columns).load(tmp_path)


@pytest.mark.parametrize("columns", [(0,), (0, 0), (0, "en"), (-1, 0), ("de", "en", "fr")])
def test_invalid_pairs_of_columns_are_refused(columns: tuple) -> None:
    with pytest.raises(UserError, match=r"data\.columns=\["):
        Files(train={"tsv": "a"}, columns=columns)


# ------------------------------------------------------------------------------------------------------- mixtures


def test_corpora_are_mixed_by_name_and_weight(tmp_path: Path) -> None:
    news, dev = write_pair(tmp_path, "news", 5), write_pair(tmp_path, "dev", 3)
    write_lines(tmp_path / "web.tsv", ["w\tW"])
    corpora = {"news": {**news, "weight": 2}, "web": {"tsv": str(tmp_path / "web.tsv")}}
    mixed = Mixed(corpora=corpora, dev=dev, src_lang="de", tgt_lang="en")
    splits = mixed.read(tmp_path)
    assert list(splits) == ["train", "dev"]
    train = splits["train"]
    assert isinstance(train, MixedText)
    assert (train.weights, list(train.parts)) == ({"news": 2.0, "web": 1.0}, ["news", "web"])
    assert train.load().src == [*train.parts["news"].load().src, "w"]
    assert mixed.describe() == "mixed: de-en from news (weight 2), web (weight 1)"


@pytest.mark.parametrize(
    ("corpora", "dev", "message"),
    [
        ({}, {"tsv": "d"}, r"data\.corpora is empty"),
        ({"news": {"src": "a.de"}}, {"tsv": "d"}, r"data\.corpora\.news\.tgt is missing"),
        ({"news": {"tsv": "a", "weight": 0}}, {"tsv": "d"}, r"data\.corpora\.news\.weight=0: must be a positive"),
        ({"news": {"tsv": "a", "weight": "x"}}, {"tsv": "d"}, r"weight=x"),
        ({"news": {"tsv": "a"}}, {"tsv": None}, r"data\.dev\.src is missing"),
        (
            {"one": {"src": "a.de", "tgt": "a.en"}, "two": {"src": "a.fr", "tgt": "a.en"}},
            {"tsv": "d"},
            r"data\.src_lang is missing: the corpora have several languages",
        ),
        (
            {"one": {"src": "a.de", "tgt": "a.en"}, "two": {"src": "a.de", "tgt": "a.fr"}},
            {"src": "d.de", "tgt": "d.it"},
            r"data\.tgt_lang: the target language of dev is it, but those of the corpora are en, fr",
        ),
        ({"one": {"tsv": "a", "tgt_lang": False}}, {"tsv": "d"}, r"data\.corpora\.one\.tgt_lang=False: must be a"),
    ],
)
def test_wrong_mixtures_are_refused_naming_the_key(corpora: dict, dev: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Mixed(corpora=corpora, dev=dev)


def test_corpora_of_several_languages_get_tags(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"eins\tun\n")
    one, two = ({"src": "a.de", "tgt": "a.en"}, {"tsv": f"{tmp_path}/b", "src_lang": "de", "tgt_lang": "fr"})
    dev = {"src": "d.de", "tgt": "d.fr"}
    mixed = Mixed(corpora={"one": one, "two": two}, dev=dev)
    assert (mixed.src_lang, mixed.tgt_lang) == ("de", "fr")
    train = mixed.read(tmp_path)["train"]
    assert isinstance(train, MixedText)
    assert train.tgt_langs == {"one": "en", "two": "fr"}
    assert mixed.describe() == "mixed: de-fr from one (de-en, weight 1), two (de-fr, weight 1)"
    into_one = Mixed(corpora={"one": one, "two": {**two, "src_lang": "fr", "tgt_lang": "en"}}, dev=one)
    assert into_one.tgt_langs == {}  # one target language needs no tag


def test_a_corpus_whose_file_names_contradict_its_languages_is_refused() -> None:
    corpora = {"there": {"src": "a.de", "tgt": "a.en"}, "back": {"src": "a.en", "tgt": "a.de"}}
    with pytest.raises(UserError, match=r"^data\.corpora\.back: its file names say src_lang=en, but data\.src"):
        Mixed(corpora=corpora, dev={"tsv": "d"}, src_lang="de", tgt_lang="en")
    corpora["back"] |= {"src_lang": "en", "tgt_lang": "de"}
    assert Mixed(corpora=corpora, dev={"tsv": "d"}, src_lang="de", tgt_lang="en").tgt_langs == {
        "there": "en",
        "back": "de",
    }


def test_a_file_named_after_two_languages_is_refused_for_a_third() -> None:
    one, dev = {"src": "a.en", "tgt": "a.de"}, {"src": "d.en", "tgt": "d.de"}
    swedish = Mixed(corpora={"a": one, "b": {"src": "b.en", "tgt": "b.sv-se"}}, dev=dev)
    assert swedish.tgt_langs == {"a": "de", "b": "sv-se"}
    two = {"src": "b.en", "tgt": "b.fr-ca"}
    told = r"the name of b\.fr-ca may mean fr and ca, or fr-ca, but its tgt_lang would be de"
    for languages in ({}, {"src_lang": "en", "tgt_lang": "de"}):
        with pytest.raises(UserError, match=rf"^data\.corpora\.b: {told}; type data\.corpora\.b\.tgt_lang=CODE"):
            Mixed(corpora={"a": one, "b": two}, dev=dev, **languages)
    with pytest.raises(UserError, match=rf"^data: {told}; type data\.tgt_lang=CODE"):
        Mixed(corpora={"a": one}, dev={"src": "d.en", "tgt": "b.fr-ca"})
    assert Mixed(corpora={"a": one, "b": {**two, "tgt_lang": "fr"}}, dev=dev).tgt_langs == {"a": "de", "b": "fr"}
    both = {"src": "b.en-de.src", "tgt": "b.en-de.tgt"}  # each side is one of the two, in any spelling
    assert Mixed(corpora={"b": both}, dev=both, src_lang="eng", tgt_lang="de_DE").tgt_lang == "de_DE"


@pytest.mark.parametrize("dev", [{"tsv": "d"}, {"src": "d.de", "tgt": "d.en"}])
def test_a_corpus_without_a_language_gets_that_of_the_others(dev: dict) -> None:
    mixed = Mixed(corpora={"news": {"src": "a.de", "tgt": "a.en"}, "web": {"tsv": "b"}}, dev=dev)
    assert (mixed.src_lang, mixed.tgt_lang, mixed.tgt_langs) == ("de", "en", {})
    with pytest.raises(
        UserError, match=r"^data\.corpora\.web\.tgt_lang is missing: .*, and the other corpora have en, fr$"
    ):
        Mixed(
            corpora={
                "one": {"src": "a.de", "tgt": "a.en"},
                "two": {"src": "a.de", "tgt": "a.fr"},
                "web": {"tsv": "b"},
            },
            dev=dev,
        )


@pytest.mark.parametrize(
    ("corpora", "message"),
    [
        ({"a": 5}, r"^data\.corpora\.a=5: must be a mapping"),
        (
            {"a": {"tsv": "x", "wieght": 2}},
            r"^data\.corpora\.a\.wieght is not known; the keys are weight, src_lang, tgt_l",
        ),
    ],
)
def test_an_invalid_corpus_of_a_mixture_is_named(corpora: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Mixed(corpora=corpora, dev={"tsv": "d"})


# ------------------------------------------------------------------------------------------------ the user's own class


class Own(Corpus):
    """A corpus that returns what it is given."""

    name, src_lang, tgt_lang = "own", "src", "tgt"

    def __init__(self, found: object) -> None:
        super().__init__()
        self.found = found

    def read(self, cache_dir: Path) -> Any:
        return self.found

    def describe(self) -> str:
        return "own"


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "returned None; it must return a mapping, such as {'train': ParallelText}"),
        ([["a"], ["b"]], "returned a list; it must return a mapping"),
        ({"train": (["a"], ["b"])}, "returned a tuple as train; it must be a ParallelText"),
        ({"train": [("a", "b")]}, "returned a list as train; it must be a ParallelText"),
        ({"validation": ParallelText(["a"], ["b"])}, "returned a split 'validation'; the names are train, dev, test"),
        ({"dev": ParallelText([], [])}, "dev has no pairs"),
        ({"dev": ParallelText("a", "b")}, r"dev\.src is a str; it must be a list of lines"),
        ({"dev": ParallelText(["a", 3], ["b", "c"])}, r"dev\.src, line 2: a int; it must be text"),
        ({"dev": ParallelText(["a"], [None])}, r"dev\.tgt, line 1: None; it must be text"),
        ({"dev": ParallelText(["a"], ["b\nc"])}, r"dev\.tgt, line 1: a line break inside a line"),
    ],
)
def test_what_a_users_own_corpus_returns_is_checked(tmp_path: Path, found: object, message: str) -> None:
    with pytest.raises(UserError, match=rf"data\._target_: Own\.read\(\)(:| )\s?{message}"):
        Own(found).read_checked(tmp_path)
    good = {"train": ParallelText(["a"], ["b"])}
    assert Own(good).read_checked(tmp_path) == good


def test_an_error_in_a_users_own_corpus_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Own(None)
    monkeypatch.setattr(own, "read", lambda _: {"train": ParallelText(["a", "b"], ["c"])})
    with pytest.raises(UserError, match=r"^data\._target_: Own\.read\(\) fails: 2 source sentences but 1 target"):
        own.read_checked(tmp_path)
    monkeypatch.setattr(Own, "__module__", "diglot.data.own")
    with pytest.raises(ValueError, match="2 source sentences"):  # a bug in diglot keeps its traceback
        own.read_checked(tmp_path)
