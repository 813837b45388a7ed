"""Properties of the path from text to batches: they hold for any text, any options, and any interruptions."""

import csv
import gzip
import hashlib
import importlib
import io
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from diglot.data import preparation
from diglot.data.batch import Batch
from diglot.data.batching import Batching, MicroBatch, Mixture, StreamPosition, Updates
from diglot.data.corpus import Corpus, Files, Sample
from diglot.data.module import TranslationData
from diglot.data.options import DataOptions
from diglot.data.preparation import DROPPED, Cleaning, prepare
from diglot.data.readers.opening import zstd
from diglot.data.shards import Shards, ShardWriter
from diglot.data.text import MixedText, Parallel, ParallelText, write_lines
from diglot.data.tokenizer import SLOTS, Tokenizer, TokenizerTrainer
from diglot.errors import UserError

some = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Any text, except for SentencePiece's mark of a space (U+2581) and the slots, which are reserved.
LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=["\n", "\u2581", *SLOTS]), max_size=20)
MARKED = LINE | LINE.map("\ufeff".__add__)
LINES = st.lists(st.tuples(MARKED, MARKED), min_size=1, max_size=12)


def rows(shards: Shards) -> list[tuple[list[int], list[int]]]:
    return [(src.tolist(), tgt.tolist()) for src, tgt in zip(shards.src, shards.tgt, strict=True)]


def pairs_of(text: ParallelText) -> list[tuple[str, str]]:
    return list(zip(text.src, text.tgt, strict=True))


def text_of(pairs: Sequence[tuple[str, str]]) -> ParallelText:
    return ParallelText([src for src, _ in pairs], [tgt for _, tgt in pairs])


# --------------------------------------------------------------------------------------------------------- round trips

PACKERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstd.compress}


def write_files(folder: Path, parts: list[list[tuple[str, str]]], form: str, packed: str) -> dict[str, list[str]]:
    """Write pairs as a user's own program would, and return the paths for the corpus."""
    given: dict[str, list[str]] = {}
    for number, pairs in enumerate(parts):
        if form == "lines":
            contents = {side: "".join(f"{pair[i]}\n" for pair in pairs) for i, side in enumerate(("src", "tgt"))}
        elif form == "tsv":
            contents = {"tsv": "".join(f"{src}\t{tgt}\tmore\n" for src, tgt in pairs)}
        else:
            file = io.StringIO()
            csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\r\n").writerows(pairs)
            contents = {"csv": file.getvalue()}
        for key, content in contents.items():
            path = folder / f"{number}.{key}{packed}"
            path.write_bytes(PACKERS[packed](content.encode()))
            given.setdefault(key, []).append(str(path))
    return given


@some
@given(LINES, st.sampled_from(["lines", "tsv", "csv"]), st.sampled_from(list(PACKERS)), st.integers(1, 12), st.data())
def test_written_pairs_are_read_back_from_any_format_and_number_of_shards(
    pairs: list[tuple[str, str]], form: str, packed: str, size: int, draw: st.DataObject
) -> None:
    if form == "tsv":  # tabs cannot be text there
        pairs = [(src.replace("\t", " "), tgt.replace("\t", " ")) for src, tgt in pairs]
    if form == "lines":  # a CR before an LF cannot be text
        pairs = [(src.rstrip("\r"), tgt.rstrip("\r")) for src, tgt in pairs]
    cut = draw.draw(st.integers(1, len(pairs)))
    parts = [part for part in (pairs[:cut], pairs[cut:]) if part]
    if form != "csv":  # a byte order mark at the start of a file cannot be text
        for part in parts:
            part[0] = (part[0][0].lstrip("\ufeff"), part[0][1].lstrip("\ufeff"))
    with tempfile.TemporaryDirectory() as folder:
        text = Files(train=write_files(Path(folder), parts, form, packed)).given()["train"]
        assert pairs_of(text.load()) == list(itertools.chain(*parts))
        blocks = list(text.blocks(size))
    assert [pair for block in blocks for pair in pairs_of(block)] == list(itertools.chain(*parts))
    assert all(1 <= len(block) <= size for block in blocks)


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def either(
    request: pytest.FixtureRequest, sample_lines: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    trainer = TokenizerTrainer(model_type=request.param, vocab_size=400, placeholder=r"\{[^{}\s]+\}")
    return trainer.train(ParallelText(sample_lines, sample_lines), tmp_path_factory.mktemp("either"), ["src"])[0]


ODD = st.sampled_from(
    ["  ", " ", "\t", "２０２４", "Ａ", "︰", "\u3000", "{name}", "{b}", "é", "e\u0301", "\x00", "</s>"]
)
ODD_LINE = st.lists(ODD | LINE, max_size=6).map("".join)


@some
@given(st.lists(st.tuples(ODD_LINE, ODD_LINE), min_size=1, max_size=8))
def test_prepared_ids_decode_to_the_text_on_both_sides(either: Tokenizer, pairs: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = rows(prepare(text_of(pairs), either, Path(folder), max_len=1000, block_size=3))
    wanted = [(src, tgt) for src, tgt in pairs if src.strip() and tgt.strip()]
    named = [source.placeholders for source in either.encode([src for src, _ in wanted])]
    assert [tuple(either.decode(side, names) for side in row) for row, names in zip(found, named)] == wanted
    assert len(found) == len(wanted)


# ------------------------------------------------------------------------------------------------- budget and order


@st.composite
def streams(draw: st.DrawFn) -> tuple[Batching, np.ndarray, dict[int, tuple[int, int]]]:
    """Draw a batching, the longer side of each pair, and how often (from, to) a pass may hold each pair."""
    n = draw(st.integers(1, 60))
    sides = draw(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=n, max_size=n))
    src, tgt = np.array(sides).T
    longest = np.maximum(src, tgt)
    cut = draw(st.integers(1, len(sides)))
    sizes = [cut, len(sides) - cut] if cut < len(sides) else [cut]
    weights = [draw(st.sampled_from([1.0, 2.0, 0.5, 1.5, 3.25])) for _ in sizes]
    if not sum(round(size * weight) for size, weight in zip(sizes, weights)):
        weights = [1.0 for _ in sizes]
    made = Batching(
        src,
        tgt,
        draw(st.integers(int(longest.max()), 300)),
        draw(st.integers(0, 2**32)),
        draw(st.integers(0, 2**64 - 1)),
        draw(st.integers(1, 80)),
        max_rows=draw(st.none() | st.integers(1, 9)),
        shapes=draw(st.sampled_from(["free", "buckets"])),
        longest=int(longest.max()),
        mixture=Mixture(sizes, weights),
    )
    counts = [round(size * weight) for size, weight in zip(sizes, weights)]
    assert len(made) == sum(counts)
    times = [(count // size, -(-count // size)) for size, count in zip(sizes, counts)]
    allowed = {i: times[0] if i < cut else times[-1] for i in range(len(sides))}
    return made, longest, allowed


def content(batches: Sequence[MicroBatch]) -> list[tuple]:
    """Return the content of micro-batches, without `ends_update`, which depends on the number of processes."""
    return [(*batch.pairs.tolist(), "|", *batch._replace(ends_update=True)[1:]) for batch in batches]


@some
@given(streams(), st.integers(0, 3))
def test_each_pair_occurs_according_to_its_weight_and_no_batch_exceeds_the_budget(
    stream: Any, pass_number: int
) -> None:
    made, longest, allowed = stream
    pools = [made.pool(pass_number, number) for number in range(made.n_pools)]
    counts = Counter(i for pool in pools for batch, _ in pool for i in batch.tolist())
    assert all(least <= counts[i] <= most for i, (least, most) in allowed.items())
    assert sum(counts.values()) == len(made)
    for pool in pools:
        for batch, shape in pool:
            n_rows, width = shape or (len(batch), int(longest[batch].max()))
            assert 1 <= len(batch) <= n_rows
            assert longest[batch].max() <= width
            assert n_rows * width <= made.tokens_per_batch
            assert len(batch) <= (made.max_rows or len(batch))
        assert sum(len(batch) for batch, _ in pool) <= made.pool_size


@some
@given(streams(), st.integers(0, 40))
def test_a_stream_continues_identically_from_any_position(stream: Any, skipped: int) -> None:
    made, _, _ = stream
    whole = list(itertools.islice(made.stream(), skipped + 6))
    entered = made.stream(whole[skipped - 1].next if skipped else StreamPosition())
    for expected, found in zip(whole[skipped:], entered):
        assert found.pairs.tolist() == expected.pairs.tolist()
        assert found[1:] == expected[1:]


@some
@given(streams(), st.sampled_from([None, 4, 8]), st.sampled_from([1, 2, 4]), st.integers(0, 5))
def test_any_number_of_processes_makes_the_same_updates_from_any_start(
    stream: Any, per_update: int | None, world_size: int, start: int
) -> None:
    made, _, _ = stream
    whole = list(Updates(made, 6, per_update))
    n = per_update or 1
    place = whole[start * n - 1].place if start else StreamPosition()
    shares = [list(Updates(made, 6, per_update, rank, world_size, start, place)) for rank in range(world_size)]
    assert len({len(share) for share in shares}) == 1
    each = len(shares[0]) // (6 - start)
    for update in range(start, 6):
        wanted = whole[update * n : (update + 1) * n]
        parts = [batch for share in shares for batch in share[(update - start) * each : (update - start + 1) * each]]
        assert {batch.update_target_tokens for batch in parts} == {wanted[0].update_target_tokens}
        assert {batch.place for batch in parts} == {wanted[0].place}
        if per_update:
            assert content(sorted(parts, key=lambda batch: batch.position)) == content(wanted)
            continue
        found = [pair for batch in parts if not batch.is_dummy for pair in batch.pairs.tolist()]
        assert sorted(found) == sorted(wanted[0].pairs.tolist())
        for batch in parts:
            assert len(batch.pairs) <= (batch.shape.rows if batch.shape else len(batch.pairs))
        if wanted[0].shape:  # all processes compute the same shape
            assert len({batch.shape for batch in parts}) == 1


class InMemory(Corpus):
    """A mixture that needs no files."""

    name, src_lang, tgt_lang = "memory", "avi", "bol"

    def read(self, cache_dir: Path) -> Mapping[str, Parallel]:
        train = Sample().load(cache_dir)["train"].select(range(200))
        parts = {"a": train.select(range(120)), "b": train.select(range(120, 200))}
        return {"train": MixedText(parts, {"a": 1.5}), "dev": train.select(range(5))}

    def describe(self) -> str:
        return self.name


def same(one: Batch, other: Batch) -> bool:
    """Return whether two batches are equal but for `ends_update`, which depends on the number of processes."""
    one = one._replace(ends_update=other.ends_update)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(one, other, strict=True))


def test_any_number_of_loader_workers_and_processes_gives_the_same_tensors(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    made = TranslationData(
        corpus=InMemory(),
        tokenizer=tokenizer,
        seed=1,
        options=DataOptions(cache_dir=str(tmp_path), tokens_per_batch=300, batches_per_update=4, max_len=100),
    )
    made.prepare_data()
    made.setup()
    made.set_length(12)
    alone = list(made.train_dataloader())
    assert len(alone) == 48
    assert alone[-1].passes > 1
    for n_workers in (1, 2):
        made.options = replace(made.options, n_workers=n_workers)
        assert all(map(same, alone, made.train_dataloader()))
    for world_size in (2, 4):
        loaders = [
            DataLoader(made.train_pairs, sampler=made.updates(rank, world_size), batch_size=None, num_workers=rank % 2)
            for rank in range(world_size)
        ]
        merged = sorted((batch for loader in loaders for batch in loader), key=lambda batch: batch.position)
        assert len(merged) == len(alone)
        assert all(map(same, alone, merged))


# ---------------------------------------------------------------------------------------------------------- preparation

WORD = st.sampled_from(
    ["ka", "gun", "sog", "мир", "да", "漢字", "かな", "{name}", "\x07", "\u2028", "\x85", "\t", "12", "", "\u00a0", "é"]
)
SIDE = st.lists(WORD, min_size=1, max_size=5).map(" ".join)
TEXTS = st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=10).flatmap(  # so few that some are repeated
    lambda few: st.lists(st.lists(st.sampled_from(few), min_size=1, max_size=15).map(text_of), min_size=1, max_size=3)
)
CLEANINGS = st.builds(
    Cleaning,
    control=st.booleans(),
    identical=st.booleans(),
    duplicates=st.booleans(),
    scripts=st.booleans(),
    max_ratio=st.none() | st.sampled_from([1, 1.5, 5.0]),
    keep_dropped=st.just(True),
)


def mixed(parts: Sequence[ParallelText]) -> Parallel:
    return parts[0] if len(parts) == 1 else MixedText({f"part {i}": part for i, part in enumerate(parts)}, {})


def script(text: str) -> str | None:
    names = [unicodedata.name(letter).split()[0].split("-")[0] for letter in text if letter.isalpha()]
    names = ["CJK" if name in ("HIRAGANA", "KATAKANA", "HANGUL") else name for name in names]
    return max(names, key=names.count) if names else None


def reasons(
    parts: Sequence[ParallelText], tokenizer: Tokenizer, cleaning: Cleaning, max_len: int, block_size: int
) -> list[list[tuple[set[str], list[int], list[int]]]]:
    """Return for each pair of each corpus all rules that leave it out, and its ids, by a slow reference method."""
    seen: set[tuple[str, str]] = set()
    found = []
    for part in parts:
        found.append([])
        scripts = [script(" ".join(side[:block_size])) for side in (part.src, part.tgt)]
        for pair in pairs_of(part):
            (source,) = tokenizer.encode([pair[0]])
            (target,) = tokenizer.encode_targets([pair[1]], [source])
            n_src, n_tgt = len(source.ids) + 1, len(target) + 1
            rules = {
                "empty": not all(side.strip() for side in pair),
                "control": cleaning.control
                and any(
                    (unicodedata.category(letter) == "Cc" and letter != "\t") or letter in "\u2028\u2029"
                    for letter in "".join(pair)
                ),
                "identical": cleaning.identical and pair[0].strip() == pair[1].strip(),
                "duplicates": cleaning.duplicates and pair in seen,
                "scripts": cleaning.scripts
                and any(main and script(side) not in (main, None) for side, main in zip(pair, scripts)),
                "max_len": max(n_src, n_tgt) > max_len,
                "max_ratio": cleaning.max_ratio is not None
                and max(n_src, n_tgt) > cleaning.max_ratio * min(n_src, n_tgt),
            }
            seen.add(pair)
            found[-1].append(({rule for rule, holds in rules.items() if holds}, source.ids, target))
    return found


@settings(some, max_examples=60)
@given(
    TEXTS,
    CLEANINGS,
    st.integers(0, 99),
    st.sampled_from([-1, 0, 1, 99]),
    st.sampled_from([-1, 0, 99]),
    st.integers(1, 20),
)
def test_the_rules_determine_which_pairs_are_kept(
    tokenizer: Tokenizer,
    parts: list[ParallelText],
    cleaning: Cleaning,
    pair: int,
    longer: int,
    wider: int,
    block_size: int,
) -> None:
    """Choose limits near the length and the ratio of one of the pairs."""
    sides = [parts[0].src[pair % len(parts[0])], parts[0].tgt[pair % len(parts[0])]]
    short, long = sorted(len(source.ids) + 1 for source in tokenizer.encode(sides))
    max_len = max(2, long + longer)
    if wider != 99:
        cleaning = replace(cleaning, max_ratio=max(1.0, (long + wider) / short))
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"max_len": max_len, "cleaning": cleaning, "block_size": block_size}
        found = prepare(mixed(parts), tokenizer, Path(folder), **options)
        (file,) = Path(folder).glob(f"prepared/*/{DROPPED}")
        noted = [line.split("\t")[:3] for line in file.read_bytes().decode().removesuffix("\n").split("\n") if line]
    corpora = reasons(parts, tokenizer, cleaning, max_len, block_size)
    kept = [(src, tgt) for pairs in corpora for rules, src, tgt in pairs if not rules]
    assert rows(found) == kept
    assert found.metadata["tokens"] == sum(len(src) + len(tgt) + 2 for src, tgt in kept)
    names = list(mixed(parts).parts) if len(parts) > 1 else ["train"]
    assert list(found.metadata["corpora"]) == names
    for name, pairs in zip(names, corpora, strict=True):
        counts = found.metadata["corpora"][name]
        lines = {int(line): rule for corpus, rule, line in noted if corpus == name}
        assert set(lines) == {i for i, (rules, _, _) in enumerate(pairs, start=1) if rules}
        assert all(rule in pairs[line - 1][0] for line, rule in lines.items())
        assert counts == {"read": len(pairs), "kept": len(pairs) - len(lines), "dropped": Counter(lines.values())}


def all_files(cache: Path) -> dict[str, str]:
    """Return the hashes of all files under a cache except locks, which a killed process leaves behind."""
    files = [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(cache)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


SAMPLE = Sample().load(Path())["train"]
STRICT = Cleaning(control=True, identical=True, duplicates=True, scripts=True, max_ratio=1.5, keep_dropped=True)


def a_mixture() -> MixedText:
    """Return a mixture of two corpora, the first with repeated and blank pairs."""
    first = SAMPLE.select([*range(150), *range(40), *range(150, 200)])
    first.src[17] = first.tgt[90] = " "
    return MixedText({"first": first, "second": SAMPLE.select(range(190, 400))}, {"second": 2.0})


@pytest.mark.reliability
def test_three_processes_write_the_files_that_one_does(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for n in (1, 3):
        options: dict[str, Any] = {"max_len": 40, "cleaning": STRICT, "block_size": 30, "n_processes": n}
        prepare(a_mixture(), tokenizer, tmp_path / str(n), **options)
    assert all_files(tmp_path / "1") == all_files(tmp_path / "3")
    assert len(all_files(tmp_path / "1")) == 6


# --------------------------------------------------------------------------------------------------------- interruption


class Cut(BaseException):
    """Simulated power failure: no code handles it, and no clean-up completes."""


STEPS: list[tuple[Any, str]] = [
    *((preparation, name) for name in ("encode", "write_bytes", "write_metadata")),
    *((ShardWriter, name) for name in ("append", "position", "close")),
    *((Path, name) for name in ("mkdir", "unlink", "rename", "replace")),
    (ParallelText, "__post_init__"),  # called when a block is read
]


def is_cut(work: Callable[[], object], step: int, after: bool) -> bool:
    """Cut work off before, or right after, the step with a given number; return whether it got that far."""
    left, off = step, False

    def counted(function: Callable) -> Callable:
        def wrapped(*args: Any, **options: Any) -> Any:
            nonlocal left, off
            left -= 1
            if off or (left < 0 and not after):
                off = True
                raise Cut
            found = function(*args, **options)
            if left < 0:
                off = True
                raise Cut
            return found

        return wrapped

    with ExitStack() as stack:
        for owner, name in STEPS:
            stack.enter_context(mock.patch.object(owner, name, counted(getattr(owner, name))))
        with suppress(Cut):
            work()
    return off


def prepare_mixture(tokenizer: Tokenizer, cache: Path, cleaning: Cleaning = STRICT, **options: Any) -> Shards:
    return prepare(a_mixture(), tokenizer, cache, **{"max_len": 40, "cleaning": cleaning, "block_size": 30} | options)


@pytest.fixture(scope="module")
def whole(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> dict[Cleaning, dict[str, str]]:
    """Return all files of uninterrupted preparations."""
    found = {}
    for cleaning in (Cleaning(), STRICT, replace(STRICT, keep_dropped=False)):
        cache = tmp_path_factory.mktemp("whole")
        prepare_mixture(tokenizer, cache, cleaning)
        found[cleaning] = all_files(cache)
    return found


@pytest.mark.reliability
@settings(some, max_examples=60)
@given(
    st.sampled_from([Cleaning(), STRICT, replace(STRICT, keep_dropped=False)]),
    st.lists(st.tuples(st.integers(0, 150), st.booleans()), min_size=1, max_size=4),
    st.sampled_from([0.0, 1e9]),  # seconds between two records of the progress
)
def test_an_interrupted_preparation_continues_to_the_same_files(
    tokenizer: Tokenizer,
    whole: dict[Cleaning, dict[str, str]],
    cleaning: Cleaning,
    cuts: list[tuple[int, bool]],
    seconds: float,
) -> None:
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(preparation, "_PROGRESS_INTERVAL", seconds):
        cache = Path(folder)
        for cut in cuts:
            is_cut(lambda: prepare_mixture(tokenizer, cache, cleaning), *cut)
            for made in cache.glob("prepared/[!.]*"):  # a folder with its final name is complete, if not tidied up
                assert {path.name for path in made.iterdir()} >= {Path(name).name for name in whole[cleaning]}
        prepare_mixture(tokenizer, cache, cleaning)
        assert all_files(cache) == whole[cleaning]


SCRIPT = """
import multiprocessing, os, signal, sys, time
from pathlib import Path
from diglot.data import preparation
from diglot.data.preparation import Cleaning
from diglot.data.text import MixedText, PairFiles
from diglot.data.tokenizer import Tokenizer

if __name__ == "__main__":
    folder, cache, at, deed, n = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
    append, done = preparation.ShardWriter.append, [0]

    def counted(self, src, tgt):
        append(self, src, tgt)
        done[0] += 1
        if done[0] == at:
            pids = [child.pid for child in multiprocessing.active_children()]
            (folder / "pids.part").write_text(" ".join(map(str, pids)))
            (folder / "pids.part").rename(folder / "pids")
            if deed == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

    preparation.ShardWriter.append = counted
    preparation._PROGRESS_INTERVAL = 0.0 if at % 2 else 1e9
    files = {name: (str(folder / f"{name}.s"), str(folder / f"{name}.t")) for name in ("first", "second")}
    parts = {name: PairFiles(name, [shard]) for name, shard in files.items()}
    preparation.prepare(
        MixedText(parts, {}), Tokenizer((folder / "model").read_bytes(), None), cache, max_len=40, block_size=30,
        n_processes=n, cleaning=Cleaning(duplicates=True, max_ratio=1.5, keep_dropped=True),
    )
    (folder / "done").write_text(str(done[0]))
"""


@pytest.fixture
def apart(tokenizer: Tokenizer, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen]]:
    """Yield a function that prepares the mixture in another process, which may die or hang after some blocks."""
    for name, part in a_mixture().parts.items():
        write_lines(tmp_path / f"{name}.s", part.load().src)
        write_lines(tmp_path / f"{name}.t", part.load().tgt)
    (tmp_path / "model").write_bytes(tokenizer.model)
    (tmp_path / "script.py").write_text(SCRIPT)
    begun: list[subprocess.Popen] = []

    def start(cache: str, at: int = 0, deed: str = "die", n: int = 1) -> subprocess.Popen:
        words = [sys.executable, "script.py", ".", cache, str(at), deed, str(n)]
        begun.append(subprocess.Popen(words, cwd=tmp_path))  # without pipes, which an orphan would keep open
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.wait()


def blocks_of(process: subprocess.Popen, folder: Path) -> int:
    """Wait for a process to succeed, and return the number of blocks that it tokenised."""
    assert process.wait(300) == 0
    return int((folder / "done").read_text())


def until(what: Callable[[], bool], seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while not (found := what()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


N_BLOCKS = 8 + 7  # of the mixture


@pytest.mark.reliability
def test_repeatedly_killed_processes_give_the_same_files(
    apart: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    """Kill it with SIGKILL, so that all buffered output is lost."""
    assert blocks_of(apart("whole"), tmp_path) == N_BLOCKS
    for at in (3, 1, 4, 1, 5):
        assert apart("cut", at).wait(300) == -signal.SIGKILL
    assert blocks_of(apart("cut"), tmp_path) < N_BLOCKS
    assert all_files(tmp_path / "cut") == all_files(tmp_path / "whole")


@pytest.mark.reliability
def test_a_waiting_process_continues_the_work_of_a_killed_one(
    apart: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    first = apart("cache", 5, "hang")
    assert until((tmp_path / "pids").exists)
    second = apart("cache")
    assert not until(lambda: second.poll() is not None, 1.2)  # it waits
    assert not list(tmp_path.glob("cache/prepared/[!.]*"))
    first.kill()
    assert blocks_of(second, tmp_path) == N_BLOCKS - 4  # the fifth block was not yet recorded
    assert blocks_of(apart("whole"), tmp_path) == N_BLOCKS
    assert all_files(tmp_path / "cache") == all_files(tmp_path / "whole")


@pytest.mark.reliability
def test_the_processes_of_a_killed_preparation_end_with_it(
    apart: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    assert apart("cache", 3, "die", 2).wait(300) == -signal.SIGKILL
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    try:
        assert until(lambda: not any(map(is_running, pids)), 10)
    finally:
        for pid in filter(is_running, pids):
            os.kill(pid, signal.SIGKILL)
    assert blocks_of(apart("cache", n=2), tmp_path) == N_BLOCKS - 2
    assert blocks_of(apart("whole"), tmp_path) == N_BLOCKS
    assert all_files(tmp_path / "cache") == all_files(tmp_path / "whole")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


DEADLY = """
import os
import signal

from diglot.data import preparation


def encode(block):
    if block.number == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return preparation.encode(block)
"""


@pytest.mark.reliability
def test_the_same_command_continues_after_a_tokenising_process_is_killed(
    tokenizer: Tokenizer, tmp_path: Path, whole: dict[Cleaning, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill a process in the middle of a block; after the death of an idle one, the other would do all the rest."""
    monkeypatch.setattr(preparation, "_PROGRESS_INTERVAL", 0.0)
    append, n_done = ShardWriter.append, 0

    def counted(self: ShardWriter, *sides: Any) -> None:
        nonlocal n_done
        append(self, *sides)
        n_done += 1

    monkeypatch.setattr(ShardWriter, "append", counted)
    (tmp_path / "deadly.py").write_text(DEADLY)
    with monkeypatch.context() as deadly:
        deadly.syspath_prepend(tmp_path)
        deadly.setattr(preparation, "encode", importlib.import_module("deadly").encode)
        with pytest.raises(
            UserError, match="a tokenisation process was killed by SIGKILL; the same command will continue"
        ):
            prepare_mixture(tokenizer, tmp_path / "cache", n_processes=2)
    assert 6 <= n_done <= 10  # at most five blocks are submitted at once
    before, n_done = n_done, 100
    prepare_mixture(tokenizer, tmp_path / "cache")
    assert n_done - 100 == N_BLOCKS - before
    assert all_files(tmp_path / "cache") == whole[STRICT]


# ---------------------------------------------------------------------------------------------------------- stale files


def test_each_option_has_separate_files(tokenizer: Tokenizer, either: Tokenizer, tmp_path: Path) -> None:
    text = SAMPLE.select(range(30))
    keys = [prepare(text, tokenizer, tmp_path, max_len=40).key]
    assert prepare(text.select(range(30)), tokenizer, tmp_path, max_len=40, n_processes=2).key == keys[0]
    for field in fields(Cleaning):
        values: list[Any] = [1.0, 1.5] if field.name == "max_ratio" else [True]
        for value in values:
            keys.append(prepare(text, tokenizer, tmp_path, max_len=40, cleaning=Cleaning(**{field.name: value})).key)
    keys += [prepare(text, tokenizer, tmp_path, max_len=max_len).key for max_len in (39, 41)]
    keys.append(prepare(text, tokenizer, tmp_path, max_len=40, block_size=7).key)
    keys.append(prepare(text, Tokenizer(tokenizer.model, None), tmp_path, max_len=40).key)
    keys.append(prepare(text, Tokenizer(tokenizer.model, "{x}"), tmp_path, max_len=40).key)
    if either.model != tokenizer.model:
        keys.append(prepare(text, either, tmp_path, max_len=40).key)
    for name in ("a", "b"):
        keys.append(prepare(MixedText({name: text}, {}), tokenizer, tmp_path, max_len=40).key)
    keys.append(prepare(ParallelText(text.tgt, text.src), tokenizer, tmp_path, max_len=40).key)
    assert len(set(keys)) == len(keys)
    # A weight does not change the files.
    assert prepare(MixedText({"a": text}, {"a": 3.0}), tokenizer, tmp_path, max_len=40).key in keys


@some
@given(LINES, LINES, st.data())
def test_other_text_has_another_hash(
    one: list[tuple[str, str]], other: list[tuple[str, str]], draw: st.DataObject
) -> None:
    """Compare other lines, a moved boundary between the sides, exchanged sides, and another order or number."""
    moved = [(src + tgt[:1], tgt[1:]) for src, tgt in one]
    for pairs in (other, moved, [(tgt, src) for src, tgt in one], one[::-1], one[:-1], [*one, ("", "")]):
        assert (text_of(pairs).digest() == text_of(one).digest()) == (pairs == one)
        named = [MixedText({"a": text_of(text), "b": text_of(one)}, {}).digest() for text in (one, pairs)]
        assert (named[0] == named[1]) == (pairs == one)


def test_the_same_bytes_read_with_other_options_have_another_hash(tmp_path: Path) -> None:
    for name in ("a.tsv", "a.csv", "b.tsv"):
        (tmp_path / name).write_bytes(b"x\ty,z\tw,v\n" * 2)

    def digest(columns: Sequence[Any] = (0, 1), **train: str) -> str:
        paths = {key: [str(tmp_path / name) for name in names.split()] for key, names in train.items()}
        return Files(train=paths, columns=columns).given()["train"].digest()

    ways = [
        digest(tsv="a.tsv"),
        digest(csv="a.csv"),
        digest((1, 0), tsv="a.tsv"),
        digest((0, 2), tsv="a.tsv"),
        digest(("x", "w,v"), tsv="a.tsv"),
        digest(tsv="a.tsv b.tsv"),
        digest(src="a.tsv", tgt="b.tsv"),
    ]
    assert len(set(ways)) == len(ways)
    assert digest(tsv="b.tsv") == ways[0]  # a name alone changes nothing
