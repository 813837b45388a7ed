"""Tests that invalid files are refused in one line and leave nothing behind, and that unusual valid files are read."""

import bz2
import gzip
import lzma
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from diglot.data import preparation
from diglot.data.corpus import Corpus, Files, Sample
from diglot.data.mixed import Mixed
from diglot.data.module import TranslationData
from diglot.data.options import DataOptions
from diglot.data.preparation import Cleaning, prepare
from diglot.data.readers.opening import zstd
from diglot.data.shards import open_shards
from diglot.data.text import ParallelText, read_lines, write_lines
from diglot.data.tokenizer import Tokenizer, TokenizerTrainer
from diglot.errors import UserError
from support.commands import ROOT, type_command

N = 60
TRAIN = Sample().load(Path())["train"]
# Without placeholders, because ids alone cannot restore them.
TEXT = TRAIN.select([i for i in range(200) if "{" not in TRAIN.src[i]][:N])
SAMPLE = ROOT / "data" / "sample"
Paths = dict[str, str | list[str] | None]


def joined(lines: list[str], end: str = "\n") -> bytes:
    return "".join(f"{line}{end}" for line in lines).encode()


def two_files(folder: Path, name: str, src: bytes, tgt: bytes, suffix: str = "") -> Paths:
    paths = folder / f"{name}.avi{suffix}", folder / f"{name}.bol{suffix}"
    for path, content in zip(paths, (src, tgt)):
        path.write_bytes(content)
    return {"src": str(paths[0]), "tgt": str(paths[1])}


def one_file(folder: Path, name: str, content: bytes, form: str = "tsv") -> Paths:
    (folder / f"{name}.{form}").write_bytes(content)
    return {form.split(".")[0]: str(folder / f"{name}.{form}")}


def good(folder: Path, name: str) -> Paths:
    return two_files(folder, name, joined(TEXT.src), joined(TEXT.tgt))


def data(made: Corpus, tokenizer: Tokenizer | TokenizerTrainer, folder: Path, **options: object) -> TranslationData:
    options = {"cache_dir": str(folder / "cache"), "max_len": 100} | options
    return TranslationData(corpus=made, tokenizer=tokenizer, seed=1, options=DataOptions(**options))  # type: ignore[arg-type]


def begin(made: TranslationData) -> None:
    made.prepare_data()
    made.setup()


def kept(made: TranslationData) -> list[tuple[str, str]]:
    """Return the training pairs, decoded from their ids."""
    made.prepare_data()
    tokenizer = made.tokenizer
    return [(tokenizer.decode(src.tolist()), tokenizer.decode(tgt.tolist())) for src, tgt in zip(*made.shards[:2])]


def left_in(cache: Path) -> list[str]:
    """Return all files of the cache except lock files, which must stay because another process may wait for one."""
    return [path.name for path in cache.rglob("*") if (path.is_file() and path.suffix != ".lock") or path.is_symlink()]


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstd.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}

# ------------------------------------------------------------------------------------------------------ invalid files


def missing(folder: Path) -> Paths:
    paths = good(folder, "bad")
    (folder / "bad.bol").unlink()
    return paths


def a_folder(folder: Path) -> Paths:
    paths = missing(folder)
    (folder / "bad.bol").mkdir()
    return paths


def unequal(folder: Path) -> Paths:
    return two_files(folder, "bad", joined(TEXT.src[:5]), joined(TEXT.tgt[:4]))


def unequal_and_packed(folder: Path) -> Paths:
    return two_files(folder, "bad", zstd.compress(joined(TEXT.src)), zstd.compress(joined(TEXT.tgt[1:])), ".zst")


def with_target(content: bytes, suffix: str = "") -> Callable[[Path], Paths]:
    """Return a function that writes a pair of files, the target with this content."""
    pack = PACKERS[suffix]
    return lambda folder: two_files(folder, "bad", pack(joined(TEXT.src)), content, suffix)


def with_rows(content: bytes, form: str = "tsv") -> Callable[[Path], Paths]:
    return lambda folder: one_file(folder, "bad", content, form)


ROWS = joined([f"{src}\t{tgt}" for src, tgt in zip(TEXT.src, TEXT.tgt)])
PACKED = gzip.compress(joined(TEXT.tgt))
WRONG = {
    "missing": (missing, r"bad\.bol: no such file"),
    "a folder": (a_folder, r"bad\.bol is a folder, not a text file"),
    "5 lines and 4": (
        unequal,
        r"{split}: \S+bad\.avi has 5 lines, \S+bad\.bol has 4; both must have one line per pair",
    ),
    "60 packed and 59": (unequal_and_packed, r"{split}: \S+bad\.avi\.zst has 60 lines, \S+bad\.bol\.zst has 59; "),
    "one empty": (with_target(b""), r"bad\.bol: the file is empty"),
    "one line feed": (with_target(b"\n"), r"{split}: \S+bad\.avi has 60 lines, \S+bad\.bol has 1; "),
    "a mark alone": (with_target(b"\xef\xbb\xbf"), r"bad\.bol: the file is empty"),
    "latin-1": (with_target(joined(TEXT.tgt[:40]) + b"f\xfcr\n" * 20), r"bad\.bol, line 41: not UTF-8 .*byte 0xfc"),
    "cut in a letter": (with_target(joined(TEXT.tgt[:59]) + b"f\xc3"), r"bad\.bol, line 60: not UTF-8 "),
    "utf-16 cut": (
        with_target("\n".join(TEXT.tgt).encode("utf-16")[:-1]),
        r"bad\.bol, about line 60: not UTF-16 \(truncated data",
    ),
    "surrogates": (with_target(joined(TEXT.tgt[:59]) + b"\xed\xa0\x80\n"), r"bad\.bol, line 60: not UTF-8 "),
    "gzip cut short": (with_target(PACKED[:-9], ".gz"), r"bad\.bol\.gz: the compressed file is cut short"),
    "no gzip": (with_target(joined(TEXT.tgt), ".gz"), r"bad\.bol\.gz: damaged, or its extension is wrong"),
    "gzip and more": (with_target(PACKED + b"more", ".gz"), r"bad\.bol\.gz: damaged, or its extension is wrong"),
    "gzip of nothing": (with_target(gzip.compress(b""), ".gz"), r"bad\.bol\.gz: the file is empty"),
    "no zstandard": (with_target(joined(TEXT.tgt), ".zst"), r"bad\.bol\.zst: damaged, or its extension is wrong"),
    "utf-16 without a mark": (with_target("\n".join(TEXT.tgt).encode("utf-16-le")), r"bad\.bol: the text is UTF-16"),
    "zip": (with_target(b"PK\x03\x04\x14\0\xff\xfe\n"), r"bad\.bol: a ZIP archive that cannot be read"),
    "parquet": (with_target(b"PAR1\x15\x04\xff\n"), r"bad\.bol: a Parquet file, .* data\.train\.file="),
    "xml": (
        with_target(b'<?xml version="1.0"?>\n' + b"<tu><seg>\na</seg></tu>\n" * 30),
        r"bad\.bol: an XML file, not ",
    ),
    "tmx": (
        with_target(b"<tmx>\n" + b"<tu><seg>a</seg></tu>\n" * 59),
        r"bad\.bol: an XML file \(TMX\), not .*: type data\.train\.file=FILE",
    ),
    "gettext": (
        with_target(b'#: x\nmsgid "a"\nmsgstr "b"\n' * 20),
        r"bad\.bol: a gettext catalogue, not .*: type data\.train\.file=FILE",
    ),
    "json lines": (with_target(b'{"de": "a"}\n' * 60), r"bad\.bol: JSON, .* type data\.train\.file=FILE"),
    "xml rows": (with_rows(b"<tmx>\n" + b"<tu>\ta</tu>\n" * 9), r"bad\.tsv: an XML file \(TMX\)"),
    "blank lines at the end": (
        with_target(joined([*TEXT.tgt, "", " "])),
        r"bad\.bol has 62; .* \(the last 2 of \S+bad\.bol are blank: remove them\)",
    ),
    "xz cut short": (
        with_target(lzma.compress(joined(TEXT.tgt))[:-30], ".xz"),
        r"bad\.bol\.xz: the compressed file is cut",
    ),
    "no xz": (with_target(joined(TEXT.tgt), ".xz"), r"bad\.bol\.xz: damaged, or its extension is wrong"),
    "no bzip2": (with_target(joined(TEXT.tgt), ".bz2"), r"bad\.bol\.bz2: damaged, or its extension is wrong"),
    "short row": (with_rows(ROWS + b"ka\n"), r"bad\.tsv, line 61: 1 tab-separated column\(s\), 2 needed"),
    "empty rows": (with_rows(b""), r"bad\.tsv: the file is empty"),
    "rows cut": (with_rows(gzip.compress(ROWS)[:-9], "tsv.gz"), r"bad\.tsv\.gz: the compressed file is cut short"),
    "short comma row": (with_rows(b"ka,sog\nka\n", "csv"), r"bad\.csv, line 2: 1 comma-separated column"),
    "open quote": (with_rows(b'ka,sog\n"ka,sog\nka,sog\n', "csv"), r"bad\.csv, line 3: not valid CSV"),
    "text behind quotes": (with_rows(b'ka,sog\n"ka"x,sog\n', "csv"), r"bad\.csv, line 2: not valid CSV"),
}


@pytest.mark.parametrize("place", ["train", "train, and a tokenizer to train", "train, and no dev", "dev", "test"])
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_files_are_refused_in_a_line_that_names_them_and_leave_nothing(
    tmp_path: Path, tokenizer: Tokenizer, wrong: str, place: str
) -> None:
    lay, message = WRONG[wrong]
    split = place.split(",")[0]
    splits = {name: good(tmp_path, name) for name in ("train", "dev", "test")} | {split: lay(tmp_path)}
    if place == "train, and no dev":
        splits = {"train": splits["train"]}
    use = TokenizerTrainer(model_type="bpe", vocab_size=300) if "to train" in place else tokenizer
    with pytest.raises(UserError) as refused:
        data(Files(**splits), use, tmp_path).prepare_data()
    said = str(refused.value)
    assert re.search(message.format(split=split), said)
    assert len(said.splitlines()) == 1
    if split == "train":
        assert left_in(tmp_path / "cache") == []
    assert not list((tmp_path / "cache").rglob(".*.partial"))


def test_a_wrong_dev_or_test_file_is_found_before_train_is_tokenised(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check them first: tokenising a large train text may take hours."""
    begun: list[bytes] = []
    monkeypatch.setattr(preparation, "encode", lambda block: begun.append(block) or pytest.fail("train is tokenised"))
    for split in ("dev", "test"):
        splits = {name: good(tmp_path, name) for name in ("train", "dev", "test")}
        with pytest.raises(UserError, match=rf"{split}: .*has 5 lines, .* has 4; "):
            data(Files(**splits | {split: unequal(tmp_path)}), tokenizer, tmp_path).prepare_data()
    assert not begun


@pytest.mark.parametrize("form", ["tsv", "csv"])
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_a_file_of_column_names_and_no_row_is_refused(
    tmp_path: Path, tokenizer: Tokenizer, split: str, form: str
) -> None:
    comma = {"tsv": "\t", "csv": ","}[form]
    rows = joined([f"de{comma}en", *(f"ka{comma}sog {i}" for i in range(9))])
    splits = {name: one_file(tmp_path, name, rows, form) for name in ("train", "dev", "test")}
    splits[split] = one_file(tmp_path, "bad", f"de{comma}en\n".encode(), form)
    with pytest.raises(UserError, match=rf"bad\.{form}") as refused:
        data(Files(**splits, columns=["de", "en"]), tokenizer, tmp_path, clean=Cleaning(scripts=True)).prepare_data()
    assert len(str(refused.value).splitlines()) == 1
    assert not list((tmp_path / "cache").rglob(".*.partial"))


def test_an_error_names_the_invalid_file_of_several(tmp_path: Path, tokenizer: Tokenizer) -> None:
    dev = good(tmp_path, "dev")
    first, second = good(tmp_path, "first"), unequal(tmp_path)
    both: Paths = {side: [str(first[side]), str(second[side])] for side in ("src", "tgt")}
    with pytest.raises(UserError, match=r"train: \S+bad\.avi has 5 lines, \S+bad\.bol has 4"):
        data(Files(train=both, dev=dev, test=dev), tokenizer, tmp_path).prepare_data()
    with pytest.raises(UserError, match=r"web: \S+bad\.avi has 5 lines, \S+bad\.bol has 4"):
        data(Mixed(corpora={"news": first, "web": second}, dev=dev), tokenizer, tmp_path).prepare_data()
    assert left_in(tmp_path / "cache") == []


def test_the_key_says_how_a_file_of_rows_is_read_whatever_its_name_is(tmp_path: Path) -> None:
    (tmp_path / "commas.txt").write_bytes(b'"ka, gun",sog\n')
    (tmp_path / "tabs.csv").write_bytes(b"ka, gun\tsog, sa\n")
    commas, tabs = {"csv": str(tmp_path / "commas.txt")}, {"tsv": str(tmp_path / "tabs.csv")}
    found = Files(train=commas, dev=tabs, test=tabs).load(tmp_path)
    assert found["train"] == ParallelText(["ka, gun"], ["sog"])
    assert found["dev"] == ParallelText(["ka, gun"], ["sog, sa"])


# ------------------------------------------------------------------------------------------------ unusual valid files

ODD = [
    ("a\rb", "c\rd"),  # a lone CR
    ("a\u2028b", "c\u2029d"),
    ("a\u0085b", "c\x0bd\x0ce"),
    ("a\0b", "\0"),
    ('"open', "zitat"),
    ("NA", "keine"),
    ("null", "nichts"),
    ("nan", "None"),
    ("1", "2.0"),
    (" a  b ", "\ufeffc"),
    ("#", "'"),
    ("b", "b2"),
]


@pytest.mark.parametrize(
    "form", ["lf", "crlf", "mark", "no end", "gz", "zst", "xz", "bz2", "no ending", "utf-16", "tsv", "tsv crlf", "csv"]
)
def test_unusual_text_is_trained_on_unchanged(tmp_path: Path, tokenizer: Tokenizer, form: str) -> None:
    src, tgt = (list(side) for side in zip(*ODD))
    end = "\r\n" if "crlf" in form else "\n"
    sides = [joined(side, end) for side in (src, tgt)]
    if form == "mark":
        sides = [b"\xef\xbb\xbf" + side for side in sides]
    elif form == "no end":
        sides = [side.removesuffix(b"\n") for side in sides]
    elif form == "no ending":
        sides = [gzip.compress(sides[0]), bz2.compress(sides[1])]
    elif form == "utf-16":
        sides = [side.decode().encode("utf-16") for side in sides]
    elif f".{form}" in PACKERS:
        sides = [PACKERS[f".{form}"](side) for side in sides]
    if form.startswith("tsv"):
        train = one_file(tmp_path, "odd", joined(["\t".join(pair) for pair in ODD], end))
    elif form == "csv":
        quoted = [",".join('"' + side.replace('"', '""') + '"' for side in pair) for pair in ODD]
        train = one_file(tmp_path, "odd", joined(quoted), "csv")
    else:
        train = two_files(tmp_path, "odd", *sides, f".{form}" if f".{form}" in PACKERS else "")
    dev = good(tmp_path, "dev")
    assert kept(data(Files(train=train, dev=dev, test=train), tokenizer, tmp_path)) == ODD


def test_a_blank_line_removes_only_its_own_pair(tmp_path: Path, tokenizer: Tokenizer) -> None:
    src, tgt = list(TEXT.src), list(TEXT.tgt)
    for i, blank in ((0, ""), (7, "  "), (8, "\t"), (30, "\u00a0\u3000")):
        src[i] = blank
    for i in (8, 9, N - 1):
        tgt[i] = ""
    dev = good(tmp_path, "dev")
    made = data(Files(train=two_files(tmp_path, "a", joined(src), joined(tgt)), dev=dev, test=dev), tokenizer, tmp_path)
    others = [pair for i, pair in enumerate(zip(src, tgt)) if i not in (0, 7, 8, 9, 30, N - 1)]
    assert kept(made) == others
    assert f"train: {N - 6} of {N} pairs kept, left out: 6 with a blank side" in made.notes


@pytest.mark.parametrize("form", ["tsv", "csv"])
@pytest.mark.parametrize("blank", ["", " ", "\u3000"])
def test_a_blank_row_is_a_pair_with_blank_sides(tmp_path: Path, tokenizer: Tokenizer, form: str, blank: str) -> None:
    rows = ["a\tb", blank, "c\td", blank]
    if form == "csv":
        rows = [row.replace("\t", ",") for row in rows]
    paths = one_file(tmp_path, "rows", joined(rows), form)
    made = data(Files(train=paths, dev=paths, test=good(tmp_path, "test")), tokenizer, tmp_path)
    assert kept(made) == [("a", "b"), ("c", "d")]
    assert any(note == "train: 2 of 4 pairs kept, left out: 2 with a blank side" for note in made.notes)
    assert [bool(line.strip()) for line in made.held_out["dev"].src] == [True, False, True, False]
    assert "dev: 2 of 4 references are blank; they are kept, which affects the scores" in made.notes


def test_test_pairs_in_dev_are_counted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    train, dev = good(tmp_path, "train"), good(tmp_path, "dev")
    made = data(Files(train=train, dev=dev, test=dev), tokenizer, tmp_path)
    begin(made)
    told = "test: 60 of 60 pairs are also in dev, which selects the best checkpoint"
    assert told in made.notes
    other = two_files(tmp_path, "other", b"a\n", b"b\n")
    made = data(Files(train=train, dev=dev, test=other), tokenizer, tmp_path)
    begin(made)
    assert not [note for note in made.notes if note.startswith("test:")]


@pytest.mark.parametrize("missing", [1, 30])
def test_unequal_files_are_refused_with_the_line_from_which_they_differ(
    tmp_path: Path, tokenizer: Tokenizer, missing: int
) -> None:
    src, tgt = TRAIN.src[:3000], TRAIN.tgt[:1300] + TRAIN.tgt[1300 + missing : 3000]
    train = two_files(tmp_path, "bad", joined(src), joined(tgt))
    told = r"bad\.avi has 3000 lines, .*; both must .* \(from about line ([\d,]+) on, they no longer match"
    with pytest.raises(UserError, match=told) as refused:
        data(Files(train=train, dev=good(tmp_path, "dev")), tokenizer, tmp_path).prepare_data()
    match = re.search(told, str(refused.value))
    assert match is not None
    assert abs(int(match[1].replace(",", "")) - 1300) <= 400


def test_sentences_that_look_like_other_formats_are_read(tmp_path: Path) -> None:
    lines = [
        "<?xml is how it begins",
        "a sentence",
        "another",
        'msgid "a" is a message',
        "{name} is here",
        "PK\x03\x04",
    ]
    paths = two_files(tmp_path, "a", joined(lines), joined(["x"] * len(lines)))
    assert Files(train=paths, dev=paths, test=paths).load(tmp_path)["train"].src == lines


def test_blank_pairs_are_counted_when_dev_and_test_are_split_off_from_train(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    src, tgt = list(TEXT.src), list(TEXT.tgt)
    src[3] = tgt[5] = tgt[6] = " "
    made = data(Files(train=two_files(tmp_path, "a", joined(src), joined(tgt))), tokenizer, tmp_path)
    pairs = kept(made)
    assert set(pairs) < set(zip(src, tgt))
    assert not [pair for pair in pairs if not all(side.strip() for side in pair)]
    assert re.search(r"\b3\b.* blank side", " ".join(made.notes))


def test_held_out_text_is_never_filtered(tmp_path: Path, tokenizer: Tokenizer) -> None:
    long = " ".join(TEXT.src)
    pairs = [("", "x"), ("y", " "), (long, "z"), ("same", "same"), ("same", "same"), ("a\x07", "мир"), ("", "")]
    odd = two_files(tmp_path, "odd", *(joined(list(side)) for side in zip(*pairs)))
    clean = Cleaning(control=True, identical=True, duplicates=True, scripts=True, max_ratio=1.5)
    made = data(Files(train=good(tmp_path, "train"), dev=odd, test=odd), tokenizer, tmp_path, max_len=40, clean=clean)
    begin(made)
    for split in ("dev", "test"):
        assert list(zip(made.held_out[split].src, made.held_out[split].tgt)) == pairs
    assert sorted(pair for batch in made.val_dataloader() for pair in batch.pairs.tolist()) == list(range(len(pairs)))


# ------------------------------------------------------------------------------------------------------ no pair left

BLANK = ["", " ", "\u0085\u2028", "\t"]


@pytest.mark.parametrize("use", ["a tokenizer", "a tokenizer to train"])
@pytest.mark.parametrize(
    ("src", "tgt", "clean", "message"),
    [
        (BLANK, BLANK, Cleaning(), r"left out: 4 with a blank side|none of 8 lines is usable: all are blank"),
        (TEXT.src, BLANK * 15, Cleaning(), r"no train pair left: train: 0 of 60 pairs kept, left out: 60 with a blank"),
        (TEXT.src, TEXT.src, Cleaning(identical=True), r"no train pair left: .*, left out: 60 identical"),
        (TEXT.src, ["a\x07"] * 60, Cleaning(control=True), r"no train pair left: .*, left out: 60 control"),
    ],
)
def test_a_train_text_of_which_no_pair_is_left_is_refused_with_the_reason(
    tmp_path: Path, tokenizer: Tokenizer, use: str, src: list[str], tgt: list[str], clean: Cleaning, message: str
) -> None:
    dev = good(tmp_path, "dev")
    train = two_files(tmp_path, "a", joined(src), joined(tgt))
    trainer = TokenizerTrainer(model_type="unigram", vocab_size=310)
    corpus = Files(train=train, dev=dev, test=dev, src_lang="bol", tgt_lang="bol")  # else equal sides are refused
    made = data(corpus, trainer if "to train" in use else tokenizer, tmp_path, clean=clean)
    with pytest.raises(UserError, match=message) as refused:
        made.prepare_data()
    assert len(str(refused.value).splitlines()) == 1
    assert not list((tmp_path / "cache").rglob(".*"))  # what was prepared is complete, with no pair


def test_a_corpus_of_a_mixture_of_which_no_pair_is_left_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    dev = good(tmp_path, "dev")
    corpora = {"news": good(tmp_path, "news"), "web": two_files(tmp_path, "web", joined(BLANK), joined(BLANK[::-1]))}
    with pytest.raises(UserError, match=r"no train pair left: web: 0 of 4 pairs kept, left out: 4 with a blank side"):
        data(Mixed(corpora=corpora, dev=dev), tokenizer, tmp_path).prepare_data()


def test_weights_that_leave_no_pair_of_a_pass_are_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    one = two_files(tmp_path, "one", joined(TEXT.src[:1]), joined(TEXT.tgt[:1]))
    made = data(Mixed(corpora={"news": {**one, "weight": 0.3}}, dev=good(tmp_path, "dev")), tokenizer, tmp_path)
    with pytest.raises(UserError, match="weight"):
        begin(made)


# ----------------------------------------------------------------------------------------------------- prepared files


def test_a_file_with_restored_content_is_not_tokenised_again(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = good(tmp_path, "dev")

    def read() -> list[tuple[str, str]]:
        return kept(data(Files(train=good(tmp_path, "train"), dev=dev, test=dev), tokenizer, tmp_path))

    first = read()
    (tmp_path / "train.avi").write_bytes(joined(TEXT.src) + b"\xff\n")
    (tmp_path / "train.bol").write_bytes(joined(TEXT.tgt) + b"x\n")
    train: Paths = {"src": str(tmp_path / "train.avi"), "tgt": str(tmp_path / "train.bol")}
    with pytest.raises(UserError, match=r"train\.avi, line 61: not UTF-8"):
        data(Files(train=train, dev=dev, test=dev), tokenizer, tmp_path).prepare_data()
    monkeypatch.setattr(preparation, "encode", lambda block: pytest.fail("tokenised again"))
    assert read() == first == list(zip(TEXT.src, TEXT.tgt))


@pytest.mark.parametrize(
    ("name", "cut"), [("src.ids", 1), ("src.offsets", 3), ("tgt.ids", None), ("tgt.offsets", None), ("about.json", 9)]
)
def test_prepared_files_that_are_damaged_are_refused_in_a_line(
    tmp_path: Path, tokenizer: Tokenizer, name: str, cut: int | None
) -> None:
    prepare(TEXT, tokenizer, tmp_path, max_len=100)
    (folder,) = (tmp_path / "prepared").iterdir()
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    if cut:
        (folder / name).write_bytes(content[:-cut])
    with pytest.raises(UserError, match=rf"{folder.name}.*: remove the folder") as refused:
        prepare(TEXT, tokenizer, tmp_path, max_len=100)
    assert len(str(refused.value).splitlines()) == 1


# ---------------------------------------------------------------------------------------------------------- commands


def held_out(*splits: str) -> list[str]:
    sides = (("src", "avi"), ("tgt", "bol"))
    return [f"data.{split}.{side}={SAMPLE / split}.{lang}" for split in splits for side, lang in sides]


def complaint(done: subprocess.CompletedProcess) -> str:
    """Return the only line on stderr that does not report progress."""
    lines = [line for line in done.stderr.decode().splitlines() if not re.match(r"[a-z ]+( \.\.\.|: \d+\.\d s)$", line)]
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.end_to_end
def test_unequal_files_end_a_command_with_status_2_and_one_line(tmp_path: Path) -> None:
    unequal(tmp_path)
    words = ["data=files", "data.train.src=bad.avi", "data.train.tgt=bad.bol", *held_out("dev", "test")]
    done = type_command("diglot-prepare", *words, cwd=tmp_path, code=2)
    wanted = "diglot-prepare: train: bad.avi has 5 lines, bad.bol has 4; both must have one line per pair"
    assert complaint(done) == wanted
    assert done.stdout == b""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.avi", "bad.bol"]


@pytest.mark.end_to_end
def test_a_broken_dev_file_ends_a_training_with_status_2_and_no_run(tmp_path: Path) -> None:
    one_file(tmp_path, "dev", gzip.compress(b"ka\tsog\n" * 2 + b"k\xe4\tsog\n"), "tsv.gz")
    train = [f"data.train.src={SAMPLE}/train.avi", f"data.train.tgt={SAMPLE}/train.bol", "data.vocab_size=900"]
    words = ["data=files", *train, "data.dev.tsv=dev.tsv.gz", *held_out("test"), "trainer=cpu", "run.updates=1"]
    done = type_command("diglot-train", *words, cwd=tmp_path, code=2)
    assert complaint(done).startswith("diglot-train: dev.tsv.gz, line 3: not UTF-8 (")
    assert not (tmp_path / "runs").exists()
    assert not list((tmp_path / "cache").rglob(".*"))


@pytest.mark.reliability
@pytest.mark.end_to_end
def test_a_run_cannot_resume_with_another_training_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse it: its tokenizer would differ but have the same size, so the weights would load without an error."""
    train = {side: read_lines(SAMPLE / f"train.{lang}") for side, lang in (("src", "avi"), ("tgt", "bol"))}
    for side, lines in train.items():
        write_lines(tmp_path / f"train.{side}", lines)
    words = ["data=files", "data.train.src=train.src", "data.train.tgt=train.tgt", *held_out("dev", "test")]
    words += ["data.vocab_size=900", "trainer=cpu", "model=tiny", "model.d_model=24", "model.n_heads=2"]
    words += ["search=greedy", "search.max_len_a=0", "search.max_len_b=2", "run.updates=9", "run.validate_every=1"]
    words += ["+callbacks.spy._target_=support.spy.Spy"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("SPY_FOLDER", str(tmp_path))
    monkeypatch.setenv("SPY_KILL_AT", "0:3")
    type_command("diglot-train", *words, "run.folder=run", cwd=tmp_path, code=-signal.SIGKILL)
    for side, lines in train.items():
        write_lines(tmp_path / f"train.{side}", lines[2000:])
    before = (tmp_path / "run" / "last.ckpt").read_bytes()
    done = type_command("diglot-train", *words, "resume=run", cwd=tmp_path, code=2)
    assert "resume=run: " in complaint(done)
    assert (tmp_path / "run" / "last.ckpt").read_bytes() == before


@pytest.mark.reliability
@pytest.mark.end_to_end
def test_two_simultaneous_commands_prepare_the_text_once(tmp_path: Path) -> None:
    """Run two commands at once; each trains the tokenizer and tokenises the text, or finds the other's result."""
    rows = ["NA\tkeine", "null\tnichts", '"open\tzitat', "b\tb2"]
    one_file(tmp_path, "train", joined(rows))
    # Capitals are kept, because the sources are decoded below.
    words = ["data=files", "data.train.tsv=train.tsv", *held_out("dev", "test")]
    words += ["data.vocab_size=290", "tokenizer.capitals=keep"]
    command = [sys.executable, "-m", "diglot", "prepare", *words]
    both = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    for process in both:
        out, error = process.communicate(timeout=300)
        assert process.returncode == 0, error.decode()
        assert "train: 4 of 4 pairs kept" in out.decode()
    cache = tmp_path / "cache"
    assert not list(cache.rglob(".*"))  # neither locks nor temporary files
    (folder,) = (cache / "prepared").iterdir()
    (model,) = (cache / "tokenizers").glob("*.model")
    assert len(list((cache / "doctor").iterdir())) == 1
    spelt = [list(map(Tokenizer(model.read_bytes(), None).decode, map(list, side))) for side in open_shards(folder)[:2]]
    assert list(zip(*spelt)) == [tuple(row.split("\t")) for row in rows]
