"""Tests that batches obey their budget, and that their order is a function of a few small integers."""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diglot.data.batching import (
    Batching,
    MicroBatch,
    Mixture,
    Shuffle,
    StreamPosition,
    Updates,
    bucket_shapes,
    split_by_budget,
    split_by_shape,
    updates_in,
)

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60)


def batching(pairs: Sequence[tuple[int, int]], budget: int = 60, **options: Any) -> Batching:
    src, tgt = np.array(pairs).T
    return Batching(src, tgt, budget, options.pop("seed", 1), **options)


def some_pairs(n: int) -> list[tuple[int, int]]:
    random = np.random.default_rng(3)
    return [tuple(row) for row in random.integers(1, 20, (n, 2)).tolist()]


def content(stream: Sequence[MicroBatch]) -> list[tuple]:
    return [(*batch.pairs.tolist(), "|", *batch[1:]) for batch in stream]


# ------------------------------------------------------------------------------------------------------------ budget


def test_the_budget_includes_padding() -> None:
    """Check that lengths 100, 10, 10, 10, 100 make three batches under a budget of 150, none padded above it."""
    batches = list(batching([(n, 1) for n in (100, 10, 10, 10, 100)], budget=150).batches(0))
    assert sorted(sorted(batch.tolist()) for batch in batches) == [[0], [1, 2, 3], [4]]


@given(st.lists(st.integers(1, 40), min_size=1), st.integers(1, 200))
def test_runs_are_within_the_budget_and_as_few_as_possible(lengths: list[int], budget: int) -> None:
    lengths.sort()
    runs = split_by_budget(np.array(lengths), budget)
    assert [i for run in runs for i in range(*run)] == list(range(len(lengths)))
    for start, stop in runs:
        assert stop - start == 1 or (stop - start) * lengths[stop - 1] <= budget
        if stop < len(lengths):  # one more row would not fit
            assert (stop + 1 - start) * lengths[stop] > budget


@given(LENGTHS, st.integers(40, 200), st.integers(1, 70), st.integers(0, 3))
def test_a_pass_holds_every_pair_once_and_no_batch_is_over_budget(
    pairs: list[tuple[int, int]], budget: int, pool_size: int, pass_number: int
) -> None:
    made = batching(pairs, budget, pool_size=pool_size)
    batches = list(made.batches(pass_number))
    assert sorted(i for batch in batches for i in batch.tolist()) == list(range(len(pairs)))
    for batch in batches:
        assert len(batch) * max(max(pairs[i]) for i in batch.tolist()) <= budget
    assert made.count(pass_number) == len(batches)


def test_a_batch_contains_pairs_of_similar_lengths() -> None:
    pairs = some_pairs(300)
    padded = real = 0
    for batch in batching(pairs, budget=100).batches(0):
        longest_src, longest_tgt = (max(pairs[i][side] for i in batch.tolist()) for side in (0, 1))
        padded += len(batch) * (longest_src + longest_tgt)
        real += sum(sum(pairs[i]) for i in batch.tolist())
    assert 1 - real / padded < 0.3  # in random order, about half is padding


@given(LENGTHS, st.integers(1, 9))
def test_a_batch_has_at_most_max_rows(pairs: list[tuple[int, int]], max_rows: int) -> None:
    longest = max(map(max, pairs))
    for shapes in ("free", "buckets"):
        made = batching(pairs, 100, max_rows=max_rows, shapes=shapes, longest=longest)
        batches = list(made.batches(0))
        assert sorted(i for batch in batches for i in batch.tolist()) == list(range(len(pairs)))
        assert max(map(len, batches)) <= max_rows


@given(LENGTHS, st.integers(40, 400), st.integers(1, 70))
def test_batches_in_buckets_have_few_shapes_and_contain_every_pair_once(
    pairs: list[tuple[int, int]], budget: int, pool_size: int
) -> None:
    longest = max(map(max, pairs))
    made = batching(pairs, budget, pool_size=pool_size, shapes="buckets", longest=longest)
    shapes = bucket_shapes(budget, longest)
    assert len(shapes) <= 6  # for lengths up to 40
    found = [batch for number in range(made.n_pools) for batch in made.pool(1, number)]
    assert sorted(i for batch, _ in found for i in batch.tolist()) == list(range(len(pairs)))
    for batch, shape in found:
        assert shape in shapes
        assert shape.rows * shape.length <= budget
        assert len(batch) <= shape.rows
        assert max(max(pairs[i]) for i in batch.tolist()) <= shape.length
    # Only the last batch of a pool is not full.
    assert sum(len(batch) < shape.rows for batch, shape in found) <= made.n_pools


def test_fine_buckets_have_eight_lengths_per_doubling() -> None:
    lengths = [shape.length for shape in bucket_shapes(4096, 70, "fine_buckets")]
    assert lengths == [*range(8, 16), *range(16, 32, 2), *range(32, 64, 4), 64, 72]


def test_fine_buckets_pad_less_than_a_tenth() -> None:
    """Check the fill for sentences of 2 to 150 tokens whose sides differ as in WMT's training data."""
    draw = np.random.default_rng(0)
    src = np.clip(np.exp(draw.normal(3.15, 0.6, 200_000)), 2, 150)
    tgt = np.clip(src * np.exp(draw.normal(0.03, 0.12, 200_000)), 2, 150)
    pairs = [(int(a), int(b)) for a, b in zip(np.ceil(src), np.ceil(tgt), strict=True)]
    fill = {}
    for shapes in ("buckets", "fine_buckets"):
        made = batching(pairs, 32_768, shapes=shapes, longest=150)
        area = sum(2 * shape.rows * shape.length for _, shape in made.pool(0, 0))
        fill[shapes] = sum(map(sum, pairs)) / area
    assert fill["fine_buckets"] > 0.9 > fill["buckets"]


def test_bucket_lengths_grow_alternately_by_a_half_and_a_third() -> None:
    shapes = bucket_shapes(4096, 200)
    assert [shape.length for shape in shapes] == [8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]
    assert [shape.rows for shape in shapes] == [512, 336, 256, 168, 128, 80, 64, 40, 32, 16, 16]
    assert bucket_shapes(100, 100)[-1] == (1, 100)  # a single pair may fill the budget
    # Rows left over at one length join the next one.
    runs = [(0, 1, (1, 12)), (1, 2, (1, 12)), (2, 3, (1, 12)), (3, 4, (1, 16))]
    assert split_by_shape(np.array([3, 9, 9, 13]), bucket_shapes(16, 16)) == runs


# ------------------------------------------------------------------------------------------------------------- order


@given(st.integers(1, 3000), st.integers(0, 5))
def test_a_shuffle_is_a_permutation_with_random_access(n: int, seed: int) -> None:
    shuffle = Shuffle(n, [seed])
    whole = shuffle[np.arange(n)]
    assert sorted(whole.tolist()) == list(range(n))
    some = np.arange(n)[:: max(1, n // 7)]
    assert shuffle[some].tolist() == whole[some].tolist()


def test_a_shuffle_larger_than_memory_has_no_duplicates() -> None:
    shuffle = Shuffle(3_000_000_000, [1])
    found = shuffle[np.arange(2_999_000_000, 3_000_000_000)[:1_000_000]]
    assert len(np.unique(found)) == 1_000_000
    assert 0 <= found.min() < 10_000
    assert 2_999_990_000 < found.max() < 3_000_000_000


@pytest.mark.sampled(2)
@pytest.mark.parametrize("n", [5, 12, 64, 100])
def test_shuffles_are_uniform(n: int) -> None:
    """Check the same for differences between neighbours: over 2,000 seeds, chi-square is within six deviations."""
    orders = np.stack([Shuffle(n, [seed])[np.arange(n)] for seed in range(2000)])
    for numbers in (orders, (np.roll(orders, -1, 1) - orders) % n):
        counts = np.stack([np.bincount(numbers[:, place], minlength=n) for place in range(n)])
        if numbers is not orders:
            counts = counts[:, 1:]  # no number follows itself
        expected = counts.sum(1, keepdims=True) / counts.shape[1]
        chi_square = ((counts - expected) ** 2 / expected).sum()
        freedom = counts.shape[0] * (counts.shape[1] - 1)
        assert abs(chi_square - freedom) < 6 * (2 * freedom) ** 0.5


def test_a_fractional_weight_draws_other_pairs_in_each_pass() -> None:
    mixture = Mixture([10, 4, 100], [2.5, 1, 0.25])
    assert len(mixture) == 25 + 4 + 25
    passes = [mixture.pairs(np.arange(len(mixture)), number, [1, 2]).tolist() for number in range(3)]
    for pairs in passes:
        counts = Counter(pairs)
        assert Counter(counts[i] for i in range(10)) == {2: 5, 3: 5}
        assert [counts[i] for i in range(10, 14)] == [1] * 4
        assert Counter(counts[i] for i in range(14, 114)) == {0: 75, 1: 25}
    assert len({tuple(sorted(pairs)) for pairs in passes}) == 3
    assert mixture.pairs(np.arange(54), 1, [1, 2]).tolist() == passes[1]
    assert mixture.pairs(np.array([53, 3]), 1, [1, 2]).tolist() == [passes[1][53], passes[1][3]]


def test_a_pass_contains_each_corpus_according_to_its_weight() -> None:
    pairs = some_pairs(30)
    made = batching(pairs, mixture=Mixture([20, 10], [1, 3]), pool_size=16)
    for pass_number in range(2):
        counts = Counter(i for batch in made.batches(pass_number) for i in batch.tolist())
        assert counts == {**dict.fromkeys(range(20), 1), **dict.fromkeys(range(20, 30), 3)}
    assert len(made) == 50


def order(made: Batching, pass_number: int = 0) -> list[list[int]]:
    return [batch.tolist() for batch in made.batches(pass_number)]


def test_the_order_depends_only_on_pass_seed_and_data() -> None:
    pairs = some_pairs(80)
    first = order(batching(pairs))
    assert order(batching(pairs)) == first
    assert order(batching(pairs), 1) != first
    assert order(batching(pairs, seed=2)) != first
    assert order(batching(pairs, data_hash=2**64 - 1)) != first
    # The data's hash changes the pools too, not only the order of the batches.
    pools = [batching(pairs, data_hash=i, pool_size=40).pool(0, 0) for i in (0, 0, 1)]
    inside = [sorted(i for batch, _ in pool for i in batch.tolist()) for pool in pools]
    assert inside[0] == inside[1] != inside[2]


def test_batches_of_a_pass_are_not_sorted_by_length() -> None:
    longest = [max(some_pairs(300)[i]) for batch in order(batching(some_pairs(300))) for i in batch[:1]]
    assert longest not in (sorted(longest), sorted(longest, reverse=True))


def test_the_stream_reports_pass_and_progress() -> None:
    made = batching(some_pairs(30))
    n = made.count(0)
    stream = list(itertools.islice(made.stream(), n + 1))
    assert [batch.pass_number for batch in stream] == [0] * n + [1]
    shares = [batch.progress for batch in stream]
    assert shares[:n] == sorted(shares[:n])
    assert shares[n - 1] == 1.0
    assert shares[n] == len(stream[n].pairs) / 30


# ----------------------------------------------------------------------------------------------------------- updates


@settings(max_examples=60)
@given(LENGTHS, st.integers(1, 5), st.integers(0, 12), st.integers(1, 70), st.sampled_from(["free", "buckets"]))
def test_a_stream_from_a_position_continues_the_complete_one(
    pairs: list[tuple[int, int]], batches_per_update: int, start: int, pool_size: int, shapes: str
) -> None:
    """Enter it by iterating from its start, or at the position that the update before gives."""
    made = batching(pairs, pool_size=pool_size, shapes=shapes, longest=max(map(max, pairs)))
    whole = list(Updates(made, 12, batches_per_update))
    rest = content(whole[start * batches_per_update :])
    place = whole[start * batches_per_update - 1].place if start else StreamPosition()
    for entered in (None, place):
        assert content(list(Updates(made, 12, batches_per_update, start=start, place=entered))) == rest
    assert len(whole) == len(Updates(made, 12, batches_per_update)) == 12 * batches_per_update
    assert [batch.position for batch in whole] == list(range(len(whole)))


def position(batch: tuple) -> int:
    return batch[batch.index("|") + 3]


@pytest.mark.reliability
@settings(max_examples=30)
@given(LENGTHS, st.sampled_from([4, 8]))
def test_one_two_and_four_processes_make_the_same_updates(
    pairs: list[tuple[int, int]], batches_per_update: int
) -> None:
    made, n_updates = batching(pairs), 5
    alone = content(list(Updates(made, n_updates, batches_per_update)))
    for world_size in (2, 4):
        shares = [Updates(made, n_updates, batches_per_update, rank, world_size) for rank in range(world_size)]
        parts = [content(list(share)) for share in shares]
        each = batches_per_update // world_size
        ends = [*[False] * (each - 1), True] * n_updates
        assert all([batch.ends_update for batch in share] == ends for share in shares)
        assert {share.accumulation for share in shares} == {each}
        assert {len(part) for part in parts} == {len(share) for share in shares} == {n_updates * each}
        for update in range(n_updates):
            group = [batch for part in parts for batch in part[update * each : (update + 1) * each]]
            expected = alone[update * batches_per_update : (update + 1) * batches_per_update]
            assert [batch[:-1] for batch in sorted(group, key=position)] == [batch[:-1] for batch in expected]


@given(LENGTHS, st.integers(1, 5))
def test_processes_that_share_the_rows_of_a_batch_make_the_updates_of_one(
    pairs: list[tuple[int, int]], world_size: int
) -> None:
    made, n_updates = batching(pairs), 7
    alone = list(Updates(made, n_updates))
    assert [len(Updates(made, n_updates, None, rank, world_size)) for rank in range(world_size)] == [7] * world_size
    shares = [list(Updates(made, n_updates, None, rank, world_size)) for rank in range(world_size)]
    for whole, *parts in zip(alone, *shares, strict=True):
        rows = [pair for part in parts if not part.is_dummy for pair in part.pairs.tolist()]
        assert sorted(rows) == sorted(whole.pairs.tolist())  # disjoint and complete
        assert all(len(part.pairs) for part in parts)
        assert {part.update_target_tokens for part in parts} == {whole.update_target_tokens}
    positions = [part.position for share in shares for part in share]
    assert len(set(positions)) == len(positions)  # they seed dropout


def test_a_micro_batch_has_the_target_tokens_of_its_complete_update() -> None:
    pairs = some_pairs(50)
    for world_size in (1, 3):
        parts = [list(Updates(batching(pairs), 6, 3, rank, world_size)) for rank in range(world_size)]
        for update in range(6):
            each = 3 // world_size
            group = [batch for part in parts for batch in part[update * each : (update + 1) * each]]
            tokens = sum(pairs[i][1] for batch in group for i in batch.pairs.tolist())
            assert {batch.update_target_tokens for batch in group} == {tokens}


def test_an_update_may_span_two_passes() -> None:
    made = batching(some_pairs(40))
    batches_per_update = made.count(0) - 1  # the second update begins with the last batch of the first pass
    second = list(Updates(made, 2, batches_per_update))[batches_per_update:]
    assert [batch.pass_number for batch in second] == [0] + [1] * (batches_per_update - 1)


@given(LENGTHS, st.integers(1, 4), st.integers(1, 7))
def test_updates_in_is_the_least_number_that_covers_the_passes(
    pairs: list[tuple[int, int]], passes: int, batches_per_update: int
) -> None:
    made = batching(pairs)
    n = updates_in(made, passes, batches_per_update)
    stream = list(Updates(made, n, batches_per_update))

    def seen(batches: list[MicroBatch]) -> int:
        return sum(len(batch.pairs) for batch in batches)

    assert seen(stream) >= passes * len(pairs)
    assert seen(stream[: (n - 1) * batches_per_update]) < passes * len(pairs)


def test_processes_that_cannot_share_an_update_evenly_are_refused() -> None:
    with pytest.raises(ValueError, match="2 processes do not divide 3"):
        Updates(batching(some_pairs(9)), 1, batches_per_update=3, world_size=2)
