"""Tests that preparation gives the same ids however often it is killed, and with any number of processes."""

import json
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diglot.data import preparation
from diglot.data.corpus import Sample
from diglot.data.preparation import DROPPED, Cleaning, prepare, script_of
from diglot.data.shards import Shards, open_shards
from diglot.data.text import MixedText, PairFiles, Parallel, ParallelText, write_lines
from diglot.data.tokenizer import Tokenizer
from diglot.errors import UserError


@pytest.fixture(scope="module")
def text() -> ParallelText:
    return Sample().load(Path())["train"].select(range(300))


def rows(shards: Shards) -> list[tuple[list[int], list[int]]]:
    return [(src.tolist(), tgt.tolist()) for src, tgt in zip(shards.src, shards.tgt, strict=True)]


def prepared(text: Parallel, tokenizer: Tokenizer, folder: Path, **options: object) -> Shards:
    return prepare(text, tokenizer, folder, **{"max_len": 100, "block_size": 40} | options)  # type: ignore[arg-type]


def expected(text: ParallelText, tokenizer: Tokenizer) -> list[tuple[list[int], list[int]]]:
    sources = tokenizer.encode(text.src)
    return [(source.ids, tgt) for source, tgt in zip(sources, tokenizer.encode_targets(text.tgt, sources))]


@pytest.mark.reliability
def test_prepared_pairs_are_the_texts_ids_for_any_number_of_processes(
    text: ParallelText, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    alone = prepared(text, tokenizer, tmp_path / "1")
    assert rows(alone) == expected(text, tokenizer)
    assert alone.metadata["corpora"] == {"train": {"read": 300, "kept": 300, "dropped": {}}}
    assert alone.metadata["tokens"] == sum(len(src) + len(tgt) + 2 for src, tgt in rows(alone))
    together = prepared(text, tokenizer, tmp_path / "2", n_processes=2)
    assert rows(together) == rows(alone)
    assert together.metadata == alone.metadata
    assert together.key == alone.key


class Killed(ParallelText):
    """A text whose reader is killed after a number of blocks."""

    after = 0

    def blocks(self, size: int = 0) -> Iterator[ParallelText]:
        for number, block in enumerate(super().blocks(size)):
            if number == self.after:
                raise KeyboardInterrupt
            yield block


@pytest.mark.parametrize("noted", [0.0, 1e9])  # seconds between two records of the progress: after each block, or never
def test_a_killed_preparation_continues_to_the_same_files(
    text: ParallelText, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: float
) -> None:
    monkeypatch.setattr(preparation, "_PROGRESS_INTERVAL", noted)
    cleaning = Cleaning(duplicates=False, max_ratio=1.5, keep_dropped=True)
    whole = prepared(text, tokenizer, tmp_path / "whole", cleaning=cleaning)
    encoded: list[int] = []
    encode = preparation.encode
    monkeypatch.setattr(preparation, "encode", lambda block: encoded.append(len(block.pairs)) or encode(block))
    for after in (1, 3, 4, 7):
        monkeypatch.setattr(Killed, "after", after)
        with pytest.raises(KeyboardInterrupt):
            prepared(Killed(text.src, text.tgt), tokenizer, tmp_path / "killed", cleaning=cleaning)
        assert not [path for path in (tmp_path / "killed" / "prepared").iterdir() if path.name[0] != "."]
    went_on = prepared(text, tokenizer, tmp_path / "killed", cleaning=cleaning)
    assert len(encoded) == (8 if noted == 0 else 1 + 3 + 4 + 7 + 8)  # recorded blocks are not encoded again
    assert rows(went_on) == rows(whole)
    assert went_on.metadata == whole.metadata
    files = [sorted((tmp_path / kind / "prepared").glob("*/*")) for kind in ("whole", "killed")]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]


def test_progress_recorded_but_not_on_disk_is_redone(
    text: ParallelText, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut a file short, as a power failure may, or damage the record of the progress."""
    monkeypatch.setattr(preparation, "_PROGRESS_INTERVAL", 0.0)
    monkeypatch.setattr(Killed, "after", 4)
    for damage in ("src.ids", "progress.json"):
        with pytest.raises(KeyboardInterrupt):
            prepared(Killed(text.src, text.tgt), tokenizer, tmp_path / damage)
        (file,) = (tmp_path / damage / "prepared").glob(f".*.partial/{damage}")
        file.write_bytes(file.read_bytes()[:-10])
        assert rows(prepared(text, tokenizer, tmp_path / damage)) == expected(text, tokenizer)


def prepare_and_count(folder: Path, lines: list[str], model: bytes, encoded: "multiprocessing.Queue[int]") -> None:
    encode = preparation.encode

    def slow(block: preparation.Block) -> preparation.EncodedBlock:
        encoded.put(len(block.pairs))
        time.sleep(0.2)
        return encode(block)

    preparation.encode = slow
    text = ParallelText(lines, lines)
    assert len(prepare(text, Tokenizer(model, None), folder, max_len=100, block_size=40).src) == len(lines)


@pytest.mark.reliability
def test_a_second_process_waits_for_the_first(text: ParallelText, tokenizer: Tokenizer, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    encoded: multiprocessing.Queue[int] = context.Queue()
    arguments = (tmp_path, text.src[:120], tokenizer.model, encoded)
    both = [context.Process(target=prepare_and_count, args=arguments) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(300)
    assert [process.exitcode for process in both] == [0, 0]
    assert [encoded.get(timeout=5) for _ in range(3)] == [40] * 3
    assert encoded.empty()
    assert len(list((tmp_path / "prepared").iterdir())) == 1  # neither a lock nor a partial folder is left


def test_the_folder_depends_on_everything_that_changes_the_result(
    text: ParallelText, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    files = [tmp_path / f"{side}.txt" for side in "st"]
    for path, lines in zip(files, (text.src, text.tgt)):
        write_lines(path, lines)
    source = PairFiles("train", [(str(files[0]), str(files[1]))])
    first = prepare(source, tokenizer, tmp_path, max_len=100)
    assert prepare(source, tokenizer, tmp_path, max_len=100, n_processes=2).key == first.key
    others = [
        prepare(source, tokenizer, tmp_path, max_len=99),
        prepare(source, tokenizer, tmp_path, max_len=100, cleaning=Cleaning(identical=True)),
        prepare(source, Tokenizer(tokenizer.model, None), tmp_path, max_len=100),
    ]
    before = files[0].stat()
    files[0].write_text(files[0].read_text().replace("a", "e", 1))  # same length; the same time is set below
    import os

    os.utime(files[0], ns=(before.st_atime_ns, before.st_mtime_ns))
    others.append(prepare(source, tokenizer, tmp_path, max_len=100))
    assert len({shards.key for shards in (first, *others)}) == 5


def test_text_that_changes_during_the_preparation_is_refused(
    text: ParallelText, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    class Changing(ParallelText):
        def digest(self) -> str:
            return str(time.monotonic_ns())

    with pytest.raises(UserError, match="the training text changed while it was prepared"):
        prepared(Changing(text.src, text.tgt), tokenizer, tmp_path)
    assert not list((tmp_path / "prepared").glob("*/*"))


def test_each_rule_leaves_out_and_counts_its_pairs(tokenizer: Tokenizer, tmp_path: Path) -> None:
    pairs = [
        ("ka gun ne", "sog sa por"),
        ("", "sog"),
        ("ka gun\u0085", "sog sa"),
        ("same", " same"),
        ("ka gun ne", "sog sa por"),
        ("ka gun", "ка гун"),
        ("ka", "sog sa por sog sa por sog sa por sog"),
        ("ka gun ne foz", "sog sa por pep"),
        ("ka gun ne " * 30, "sog sa por " * 30),
        ("123", "456"),
    ]
    text = ParallelText(*map(list, zip(*pairs)))
    everything = Cleaning(control=True, identical=True, duplicates=True, scripts=True, max_ratio=3, keep_dropped=True)
    found = prepared(text, tokenizer, tmp_path, cleaning=everything, max_len=40)
    rules = ["control", "duplicates", "empty", "identical", "max_len", "max_ratio", "scripts"]
    assert found.metadata["corpora"]["train"]["dropped"] == dict.fromkeys(rules, 1)
    assert rows(found) == expected(text.select([0, 7, 9]), tokenizer)
    (dropped,) = (tmp_path / "prepared").glob(f"*/{DROPPED}")
    lines = [line.split("\t") for line in dropped.read_text(encoding="utf-8").removesuffix("\n").split("\n")]
    assert [(rule, int(line)) for _, rule, line, *_ in lines] == [
        *(("empty", 2), ("control", 3), ("identical", 4), ("duplicates", 5), ("scripts", 6)),
        *(("max_ratio", 7), ("max_len", 9)),
    ]
    assert lines[4][3:] == ["ka gun", "ка гун"]
    assert preparation.left_out_notes(found.metadata, 40) == [
        "train: 3 of 10 pairs kept, left out: 1 control, 1 duplicates, 1 with a blank side, 1 identical, "
        "1 over data.max_len=40 tokens, 1 max_ratio, 1 scripts"
    ]


def test_each_corpus_has_its_own_scripts(tokenizer: Tokenizer, tmp_path: Path) -> None:
    there = ParallelText(["ka gun", "lo so", "ка гун"], ["он она", "они", "он она"])
    mixture = MixedText({"there": there, "back": ParallelText(there.tgt, there.src)}, {})
    found = prepared(mixture, tokenizer, tmp_path, cleaning=Cleaning(scripts=True))  # type: ignore[arg-type]
    wanted = {"read": 3, "kept": 2, "dropped": {"scripts": 1}}
    assert found.metadata["corpora"] == {"there": wanted, "back": wanted}


def test_only_the_first_of_equal_pairs_stays_however_far_apart(tokenizer: Tokenizer, tmp_path: Path) -> None:
    src = [f"ka {i % 70}" for i in range(200)]
    tgt = [f"sog {i % 70 if i < 190 else 0}" for i in range(200)]
    found = prepared(ParallelText(src, tgt), tokenizer, tmp_path, cleaning=Cleaning(duplicates=True), n_processes=1)
    first = sorted({pair: i for i, pair in reversed(list(enumerate(zip(src, tgt))))}.values())
    assert rows(found) == expected(ParallelText(src, tgt).select(first), tokenizer)


@pytest.mark.parametrize(
    ("line", "script"),
    [
        ("Hello, мир!", "LATIN"),
        ("привет x", "CYRILLIC"),
        ("漢字かなカナ", "CJK"),
        ("한국어", "CJK"),
        ("12!", None),
        ("é", "LATIN"),
    ],
)
def test_the_script_of_a_text_is_that_of_most_letters(line: str, script: str | None) -> None:
    assert script_of(line) == script


@pytest.mark.parametrize("file", ["src.ids", "tgt.offsets"])
def test_truncated_files_are_refused(text: ParallelText, tokenizer: Tokenizer, tmp_path: Path, file: str) -> None:
    prepared(text, tokenizer, tmp_path)
    (path,) = (tmp_path / "prepared").glob(f"*/{file}")
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UserError, match="remove the folder"):
        open_shards(path.parent)


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(
    text: ParallelText, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "prepared").write_text("")
    with pytest.raises(UserError, match="cannot be created"):
        prepared(text, tokenizer, tmp_path)


def test_a_prepared_folder_describes_its_content(text: ParallelText, tokenizer: Tokenizer, tmp_path: Path) -> None:
    prepared(text, tokenizer, tmp_path)
    (about,) = (tmp_path / "prepared").glob("*/about.json")
    found = json.loads(about.read_bytes())
    corpora = {"train": {"read": 300, "kept": 300, "dropped": {}}}
    assert found == {"corpora": corpora, "tokens": found["tokens"], "versions": 1, "vocab_size": 400}


def test_corpora_of_a_mixture_are_counted_one_by_one(text: ParallelText, tokenizer: Tokenizer, tmp_path: Path) -> None:
    parts = {"news": text.select(range(90)), "web": ParallelText(["ka", "", "gun"], ["sog", "sa", "por"])}
    mixed = MixedText(parts, {"web": 2.5})
    found = prepared(mixed, tokenizer, tmp_path, cleaning=Cleaning(keep_dropped=True))
    assert found.metadata["corpora"] == {
        "news": {"read": 90, "kept": 90, "dropped": {}},
        "web": {"read": 3, "kept": 2, "dropped": {"empty": 1}},
    }
    assert rows(found) == expected(parts["news"], tokenizer) + expected(parts["web"].select([0, 2]), tokenizer)
    (dropped,) = (tmp_path / "prepared").glob(f"*/{DROPPED}")
    assert dropped.read_text() == "web\tempty\t2\t\tsa\n"
    assert preparation.left_out_notes(found.metadata, 100) == [
        "news: 90 of 90 pairs kept",
        "web: 2 of 3 pairs kept, left out: 1 with a blank side",
    ]


def test_text_that_cannot_be_read_leaves_no_files(tokenizer: Tokenizer, tmp_path: Path) -> None:
    src, tgt = tmp_path / "a", tmp_path / "b"
    src.write_bytes(b"ka\n" * 100 + b"\xff\n")
    tgt.write_bytes(b"sog\n" * 101)
    with pytest.raises(UserError, match=r"a, line 101: not UTF-8"):
        prepare(PairFiles("train", [(str(src), str(tgt))]), tokenizer, tmp_path, max_len=100, block_size=10)
    assert not list((tmp_path / "prepared").glob(".*partial"))


def test_a_folder_without_its_metadata_is_prepared_again(
    text: ParallelText, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    first = prepared(text, tokenizer, tmp_path)
    (first.folder / "about.json").unlink()
    again = prepared(text, tokenizer, tmp_path)
    assert again.folder == first.folder
    assert rows(again) == expected(text, tokenizer)
