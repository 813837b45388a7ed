"""Tests that the grouped split keeps similar pairs in the same split."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diglot.data.split import grouped_split, merge_alternatives, normalise, split_off
from diglot.data.text import ParallelText
from diglot.errors import UserError

WORDS = st.sampled_from(["set", "Set", "{a}", "{b}", "1", "22", "go", "stop", "now", "up", "down", "red", "blue", "!"])
SENTENCES = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)


def numbered(n: int) -> ParallelText:
    words = ["".join(chr(ord("a") + int(digit)) for digit in str(i)) for i in range(n)]
    return ParallelText([f"src {word}" for word in words], [f"tgt {word}" for word in words])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Set {name} to 10!", "set {other}  to 7"),
        ("  'Open'...", "open"),
        ("Costs 1,000.50", "costs 3"),
        ("¿Qué?", "qué"),
        ("a\u00a0b", "A b"),
        ("!?", "..."),
    ],
)
def test_texts_that_differ_in_case_numbers_placeholders_and_outer_marks_are_equal(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("one", "other"), [("Set {name}", "Set"), ("Set {x}", "Set x"), ("Set 1", "Set n"), ("a", "b")]
)
def test_texts_that_differ_otherwise_are_not_equal(one: str, other: str) -> None:
    assert normalise(one) != normalise(other)


def test_alternative_targets_become_references_in_dev_and_test() -> None:
    plain = numbered(100)
    doubled = ParallelText([*plain.src, *plain.src[:50]], [*plain.tgt, *(f"other {tgt}" for tgt in plain.tgt[:50])])
    repeated = ParallelText([*plain.src, *plain.src[:50]], [*plain.tgt, *plain.tgt[:50]])
    splits, note = split_off(doubled, {"dev": 14, "test": 14}, 1, "x")
    for split in ("dev", "test"):
        pairs = splits[split]
        assert len(set(pairs.src)) == len(pairs)
        assert not set(pairs.src) & set(splits["train"].src)
        (more,) = pairs.more
        doubles = set(plain.src[:50])
        assert [*more] == [f"other {tgt}" if src in doubles else None for src, tgt in zip(pairs.src, pairs.tgt)]
        n_merged = 14 - len(pairs)
        assert 0 < n_merged == sum(text is not None for text in more)
        assert f"; {split}: {n_merged} pairs are further references of another pair with the same source" in note
    for text in (plain, repeated):
        splits, note = split_off(text, {"dev": 14, "test": 14}, 1, "x")
        assert "further references" not in note
        assert not splits["dev"].more
        assert len(splits["dev"]) == min(14, len(text) // 10)


def test_merging_alternatives_keeps_order_and_complete_repetitions() -> None:
    pairs = ParallelText(["a", "b", "a", "c", "c", "a", "a "], ["1", "2", "3", "4", "4", "1", "5"])
    merged = merge_alternatives(pairs)
    assert merged == ParallelText(
        ["a", "b", "c", "c"], ["1", "2", "4", "4"], (["3", None, None, None], ["5", None, None, None])
    )


@given(pairs=st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=80), seed=st.integers(0, 5))
def test_no_normalised_text_is_in_two_splits(pairs: list[tuple[str, str]], seed: int) -> None:
    corpus = ParallelText([src for src, _ in pairs], [tgt for _, tgt in pairs])
    try:
        splits, n_dropped = grouped_split(corpus, 5, 5, seed)
    except UserError:
        assert len({normalise(src) for src in corpus.src}) < 20  # refused only if there are few sources
        return
    sources = {split: {normalise(src) for src in pairs.src} for split, pairs in splits.items()}
    assert not sources["dev"] & sources["test"]
    assert not sources["train"] & (sources["dev"] | sources["test"])
    held_out_targets = {normalise(tgt) for split in ("dev", "test") for tgt in splits[split].tgt}
    assert not {normalise(tgt) for tgt in splits["train"].tgt} & held_out_targets
    assert sum(len(pairs) for pairs in splits.values()) + n_dropped == len(corpus)


def test_splits_have_the_requested_sizes_and_keep_the_order() -> None:
    corpus = numbered(200)
    splits, n_dropped = grouped_split(corpus, 7, 13, seed=1)
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 180, "dev": 7, "test": 13}
    assert n_dropped == 0
    place = {src: i for i, src in enumerate(corpus.src)}
    for pairs in splits.values():
        places = [place[src] for src in pairs.src]
        assert places == sorted(places)
        assert pairs.tgt == [corpus.tgt[i] for i in places]


def test_sizes_are_at_most_a_tenth_and_at_least_one() -> None:
    splits, _ = grouped_split(numbered(50), 500, 1000, seed=1)
    assert (len(splits["dev"]), len(splits["test"])) == (5, 5)
    splits, _ = grouped_split(numbered(3), 500, 1000, seed=1)
    assert [len(splits[split]) for split in ("train", "dev", "test")] == [1, 1, 1]


def test_a_size_of_zero_splits_off_nothing() -> None:
    splits, _ = grouped_split(numbered(50), 0, 4, seed=1)
    assert (len(splits["train"]), len(splits["dev"]), len(splits["test"])) == (46, 0, 4)


def test_train_loses_pairs_whose_target_is_held_out() -> None:
    corpus = numbered(40)
    plain, _ = grouped_split(corpus, 2, 2, seed=1)
    doubled = ParallelText([*corpus.src, "another way to say it"], [*corpus.tgt, plain["test"].tgt[0].upper() + "!"])
    splits, n_dropped = grouped_split(doubled, 2, 2, seed=1)
    in_train = "another way to say it" in splits["train"].src
    assert (n_dropped, in_train) == (1, False)


def test_the_seed_decides_the_split() -> None:
    corpus = numbered(100)
    assert grouped_split(corpus, 5, 5, seed=1) == grouped_split(corpus, 5, 5, seed=1)
    assert grouped_split(corpus, 5, 5, seed=1)[0]["test"] != grouped_split(corpus, 5, 5, seed=2)[0]["test"]


@pytest.mark.reliability
def test_another_process_makes_the_same_split() -> None:
    program = (
        "from diglot.data.split import grouped_split as g; from diglot.data.text import ParallelText as P;"
        "t = [chr(97 + i // 26) + chr(97 + i % 26) for i in range(100)]; print(g(P(t, t), 5, 5, 1)[0]['test'].src)"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(said) == 1
    assert said.pop().count("'") == 10


def test_a_corpus_of_one_source_cannot_be_split() -> None:
    with pytest.raises(UserError, match="20 pairs with 1 different sources are too few to split off test"):
        grouped_split(ParallelText(["same"] * 20, [str(i) for i in range(20)]), 2, 2, seed=1)
