"""Tests that the doctor finds the faults of a corpus, and none in a healthy one."""

import json
from pathlib import Path

import numpy as np
import pytest

from diglot.data import alignment, doctor
from diglot.data.corpus import Sample
from diglot.data.doctor import Diagnosis, diagnose
from diglot.data.preparation import prepare
from diglot.data.text import MixedText, Parallel, ParallelText
from diglot.data.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def corpus() -> dict[str, ParallelText]:
    return Sample().load(Path())


def diagnosed(train: Parallel, tokenizer: Tokenizer, folder: Path, **held_out: ParallelText) -> Diagnosis:
    shards = prepare(train, tokenizer, folder, max_len=100)
    return diagnose(train, held_out, shards, tokenizer, folder)


def test_a_healthy_corpus_has_no_faults(corpus: dict[str, ParallelText], tokenizer: Tokenizer, tmp_path: Path) -> None:
    train, dev, test = (corpus[split] for split in ("train", "dev", "test"))
    found = diagnosed(train, tokenizer, tmp_path, dev=dev, test=test)
    assert found.faults == []
    assert found.pairs == len(train)
    assert (found.swapped, found.identical, found.scripts, found.unknown) == (0, 0, 0, 0.0)
    assert found.changed_by_tokenizer == 0
    assert found.overlap["dev"].size == len(dev)
    assert "no held-out pair in train" in found.summary()
    assert "\n" not in found.summary()


@pytest.mark.parametrize("by", [1, -2, 10])
def test_the_place_of_missing_lines_is_found(
    corpus: dict[str, ParallelText], tokenizer: Tokenizer, tmp_path: Path, by: int
) -> None:
    """Remove lines inside one side, and as many at the end of the other."""
    train = corpus["train"]
    at = 1300
    src, tgt = (train.src, train.tgt) if by < 0 else (train.tgt, train.src)
    shorter = src[:at] + src[at + abs(by) :]
    longer = tgt[: len(shorter)]
    shifted = ParallelText(shorter, longer) if by < 0 else ParallelText(longer, shorter)
    (fault,) = diagnosed(shifted, tokenizer, tmp_path, dev=corpus["dev"]).shifts
    split, line, moved = fault
    assert split == "train"
    assert at - alignment.WINDOW <= line <= at + alignment.WINDOW
    assert moved == -by


def test_a_fault_names_its_corpus_and_line(
    corpus: dict[str, ParallelText], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    train = corpus["train"]
    whole = train.select(range(1000))
    shifted = ParallelText(train.src[1000:1600] + train.src[1601:2600], train.tgt[1000:2599])
    mixture = MixedText({"whole": whole, "shifted": shifted}, {})
    found = diagnosed(mixture, tokenizer, tmp_path, dev=corpus["dev"])
    ((name, line, by),) = found.shifts
    assert (name, by) == ("shifted", 1)
    assert 600 - alignment.WINDOW <= line <= 600 + alignment.WINDOW
    assert {name: counts["kept"] for name, counts in found.corpora.items()} == {"whole": 1000, "shifted": 1599}
    lengths = [len(source.ids) + 1 for source in tokenizer.encode(whole.src)]
    assert found.corpora["whole"]["mean_tokens"]["src"] == pytest.approx(sum(lengths) / 1000)


def test_a_shift_in_dev_is_found(corpus: dict[str, ParallelText], tokenizer: Tokenizer, tmp_path: Path) -> None:
    dev = ParallelText(corpus["dev"].src[1:], corpus["dev"].tgt[:-1])
    found = diagnosed(corpus["train"], tokenizer, tmp_path, dev=dev)
    assert [(split, by) for split, _, by in found.shifts] == [("dev", 1)]
    told = "dev: from about line 1 on, source and target match better when shifted by +1: are lines missing?"
    assert found.faults == [told]


def test_further_references_are_looked_at_too(
    corpus: dict[str, ParallelText], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    train, dev = corpus["train"], corpus["dev"]
    second: list[str | None] = [f"x {i}" for i in range(len(dev))]
    second[3], second[5] = "another translation", None
    leaked = ParallelText([*train.src, dev.src[3], dev.src[5]], [*train.tgt, "Another translation!", ""])
    found = diagnosed(leaked, tokenizer, tmp_path, dev=ParallelText(dev.src, dev.tgt, (second,)))
    assert f"dev: 1 of {len(dev):,} pairs are also in train" in found.faults
    shifted = ParallelText(dev.src, dev.tgt, ([*dev.tgt[1:], None],))
    (fault,) = diagnosed(train, tokenizer, tmp_path, dev=shifted).faults
    assert fault.startswith("dev, reference 2: from about line 1 on, source and target match better when shifted by -1")


def test_held_out_pairs_in_train_are_found_in_any_spelling(
    corpus: dict[str, ParallelText], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    train, dev = corpus["train"], corpus["dev"]
    leaked = ParallelText(
        [*train.src, dev.src[3].upper() + "!", dev.src[5]], [*train.tgt, f" {dev.tgt[3]}", "another translation"]
    )
    found = diagnosed(leaked, tokenizer, tmp_path, dev=dev)
    assert found.faults == [f"dev: 1 of {len(dev):,} pairs are also in train"]
    assert found.overlap["dev"].sources == 2
    assert found.overlap["dev"].examples == [(dev.src[3], leaked.src[-2])]


def test_sources_that_share_eight_consecutive_words_are_near(
    corpus: dict[str, ParallelText], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    words = "one two three four five six seven eight nine"
    dev = ParallelText([f"{words} ten", "a b c", words.replace("two", "2")], ["x"] * 3)
    train = corpus["train"]
    found = diagnosed(
        ParallelText([*train.src, f"zero {words}"], [*train.tgt, "y"]), tokenizer, tmp_path, dev=dev
    ).overlap["dev"]
    assert (found.near, found.long, found.sources) == (1, 2, 0)
    assert found.near_examples == [(f"{words} ten", f"zero {words}")]


def test_pairs_whose_sides_are_swapped_are_counted(
    corpus: dict[str, ParallelText], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    train = corpus["train"]
    src, tgt = list(train.src), list(train.tgt)
    for i in range(0, 500, 10):
        src[i], tgt[i] = tgt[i], src[i]
    found = diagnosed(ParallelText(src, tgt), tokenizer, tmp_path, dev=corpus["dev"])
    assert 40 <= found.swapped <= 55
    assert len(found.swapped_examples) == 5


def test_a_report_is_made_once_for_the_same_data(
    corpus: dict[str, ParallelText], tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = diagnosed(corpus["train"], tokenizer, tmp_path, dev=corpus["dev"])
    (file,) = (tmp_path / "doctor").iterdir()
    assert json.loads(file.read_bytes())["pairs"] == len(corpus["train"])
    monkeypatch.setattr(doctor, "_diagnose", lambda *arguments: pytest.fail("looked again"))
    assert diagnosed(corpus["train"], tokenizer, tmp_path, dev=corpus["dev"]).summary() == first.summary()
    monkeypatch.undo()
    assert diagnosed(corpus["train"], tokenizer, tmp_path, dev=corpus["test"]).summary()
    assert len(list((tmp_path / "doctor").iterdir())) == 2


def test_unrelated_sides_are_reported_but_not_as_a_fault(
    corpus: dict[str, ParallelText], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    train = corpus["train"]
    order = np.random.default_rng(1).permutation(len(train)).tolist()
    found = diagnosed(ParallelText(train.src, [train.tgt[i] for i in order]), tokenizer, tmp_path, dev=corpus["dev"])
    assert (found.unrelated, found.faults) == (["train"], [])
    assert "train: source and target do not match at all; do their lines correspond?" in found.summary()
    assert diagnosed(train, tokenizer, tmp_path, dev=corpus["dev"]).unrelated == []


def test_many_shifts_of_a_text_are_reported_briefly(
    corpus: dict[str, ParallelText], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    train = corpus["train"]
    tgt = list(train.tgt)
    for start in range(0, 4000, 2000):  # 1000 lines moved by one, then 1000 unmoved
        tgt[start : start + 1000] = [*tgt[start + 1 : start + 1000], tgt[start]]
    many = ParallelText(train.src * 4, tgt * 4)
    found = diagnosed(many, tokenizer, tmp_path, dev=corpus["dev"])
    assert len(found.shifts) == 8
    assert {by for _, _, by in found.shifts} == {-1}
    assert len(found.faults) == 6
    assert found.faults[-1] == "8 such places in total"


@pytest.mark.parametrize("by", [30, 200])
def test_a_shift_beyond_the_greatest_offset_is_found(
    corpus: dict[str, ParallelText], tokenizer: Tokenizer, tmp_path: Path, by: int
) -> None:
    train = corpus["train"]
    shifted = ParallelText(train.src[:1300] + train.src[1300 + by :], train.tgt[:-by])
    found = diagnosed(shifted, tokenizer, tmp_path, dev=corpus["dev"])
    ((split, line, moved),) = found.shifts
    assert (split, moved) == ("train", 0)
    assert 1300 - alignment.WINDOW <= line <= 1300 + alignment.WINDOW
    assert found.faults == [f"train: from about line {line:,} on, source and target no longer match"]


def test_the_last_lines_are_examined(corpus: dict[str, ParallelText], tokenizer: Tokenizer, tmp_path: Path) -> None:
    train = corpus["train"].select(range(2350))
    shifted = ParallelText(train.src[:2050] + train.src[2051:], train.tgt[:-1])
    ((_, line, by),) = diagnosed(shifted, tokenizer, tmp_path, dev=corpus["dev"]).shifts
    assert (by, line) == (1, 2349 - alignment.WINDOW + 1)


def test_sorted_text_is_no_fault(corpus: dict[str, ParallelText], tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Sort the text: neighbours are then alike, and a line fits its neighbour's translation nearly as well."""
    train = corpus["train"]
    in_order = train.select(sorted(range(len(train)), key=lambda i: (len(train.src[i]), train.src[i])))
    found = diagnosed(in_order, tokenizer, tmp_path, dev=corpus["dev"])
    assert (found.shifts, found.unrelated) == ([], [])


@pytest.mark.parametrize("damage", ["null", '"x"', '{"overlap": 3}', "[1]", ""])
def test_a_damaged_report_is_made_anew(
    corpus: dict[str, ParallelText], tokenizer: Tokenizer, tmp_path: Path, damage: str
) -> None:
    first = diagnosed(corpus["dev"], tokenizer, tmp_path, dev=corpus["test"])
    (file,) = (tmp_path / "doctor").iterdir()
    file.write_text(damage)
    assert diagnosed(corpus["dev"], tokenizer, tmp_path, dev=corpus["test"]) == first
