"""Which pairs make a batch, and in which order: a pure function of (data, seed, pass, pool, batch in pool).

Nothing here has a state that could be lost: a stream is entered at any update by its number alone.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class MicroBatch(NamedTuple):
    """What one process computes at once, and where it stands in the endless stream."""

    pairs: np.ndarray  # numbers of the pairs, int64 (B,)
    pass_number: int  # 0 for the first pass over the data
    progress: float  # share of the pass that is done after it
    position: int  # number in the whole stream, from 0
    update_target_tokens: int  # in all micro-batches of its update together, on all processes
    is_spare: bool = False  # computed to keep step with the other processes, and counted nowhere


def split_by_budget(lengths: np.ndarray, budget: int) -> list[tuple[int, int]]:
    """Cut a series of lengths, ascending, into the fewest runs (start, stop) with rows x longest <= budget.

    A single row longer than the budget makes a run of its own.
    """
    runs, start = [], 0
    while start < len(lengths):
        most = min(len(lengths), start + max(1, budget // max(1, int(lengths[start]))))
        area = lengths[start:most] * np.arange(1, most - start + 1)
        stop = start + max(1, int(np.searchsorted(area, budget, side="right")))
        runs.append((start, stop))
        start = stop
    return runs


def share_rows(pairs: np.ndarray, rank: int, world_size: int) -> tuple[np.ndarray, bool]:
    """One process's rows of a batch. Where there are fewer rows than processes, some get a row of another one, to keep
    step with them; the second value says so."""
    mine = pairs[rank::world_size]
    return (mine, False) if len(mine) else (pairs[:1], True)


class Batching:
    """Batches of pairs of like lengths, shuffled anew in every pass.

    A pass is a permutation of all pairs, cut into pools; a pool is sorted by length, cut into batches of at most
    `tokens_per_batch`, rows x longest side, and its batches are shuffled.

    Args:
        src_lengths: tokens of each source, </s> counted (N,).
        tgt_lengths: tokens of each target, </s> counted (N,).
        tokens_per_batch: the budget; no pair may be longer.
        seed: of all orders.
        data_hash: what the data are; other data get another order.
        pool_size: pairs sorted at a time.
    """

    def __init__(
        self,
        src_lengths: np.ndarray,
        tgt_lengths: np.ndarray,
        tokens_per_batch: int,
        seed: int,
        data_hash: int = 0,
        pool_size: int = 200_000,
    ) -> None:
        self.src_lengths, self.tgt_lengths = src_lengths, tgt_lengths
        self.tokens_per_batch, self.seed, self.data_hash, self.pool_size = tokens_per_batch, seed, data_hash, pool_size

    def __len__(self) -> int:
        return len(self.src_lengths)

    def pools(self, pass_number: int) -> Iterator[np.ndarray]:
        """The pairs of a pass, a pool at a time."""
        order = np.random.default_rng([self.seed, self.data_hash, pass_number]).permutation(len(self))
        for start in range(0, len(order), self.pool_size):
            yield order[start : start + self.pool_size]

    def batches(self, pass_number: int) -> Iterator[np.ndarray]:
        """The batches of a pass, each as numbers of pairs, every pair once."""
        for pool_number, pool in enumerate(self.pools(pass_number)):
            src, tgt = self.src_lengths[pool], self.tgt_lengths[pool]
            longest = np.maximum(src, tgt)
            order = np.lexsort((np.minimum(src, tgt), longest))  # stable: among equals the pass's order holds
            runs = split_by_budget(longest[order], self.tokens_per_batch)
            random = np.random.default_rng([self.seed, self.data_hash, pass_number, pool_number])
            for run in random.permutation(len(runs)):
                yield pool[order[slice(*runs[run])]]

    def count(self, pass_number: int) -> int:
        """How many batches a pass has."""
        return sum(1 for _ in self.batches(pass_number))

    def stream(self) -> Iterator[tuple[np.ndarray, int, float]]:
        """All batches, pass after pass without end, with their pass and how much of it is done after them."""
        pass_number = 0
        while True:
            done = 0
            for pairs in self.batches(pass_number):
                done += len(pairs)
                yield pairs, pass_number, done / len(self)
            pass_number += 1


class Updates:
    """The micro-batches of one process's share of a whole run: what its training loader yields.

    An update is the next `batches_per_update` batches of the stream, across a pass's end too. Of these each of
    `world_size` processes takes an equal part; where an update is one batch, each takes every so many-th of its rows.
    So 1, 2 and 4 processes make the same updates, and each process has the same number of micro-batches.

    Args:
        batching: the stream.
        n_updates: length of the run.
        batches_per_update: global number G of batches in an update; None: one, whose rows the processes share.
        rank: number of this process.
        world_size: how many processes there are; must divide G.
        start: updates already done.
    """

    def __init__(
        self,
        batching: Batching,
        n_updates: int,
        batches_per_update: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
    ) -> None:
        if batches_per_update is not None and batches_per_update % world_size:
            raise ValueError(f"{world_size} processes do not divide {batches_per_update} batches per update")
        self.batching, self.n_updates, self.start = batching, n_updates, start
        self.batches_per_update = batches_per_update or 1
        self.rank, self.world_size = rank, world_size
        self.shares_rows = batches_per_update is None

    @property
    def accumulation(self) -> int:
        """Micro-batches of one update on one process."""
        return 1 if self.shares_rows else self.batches_per_update // self.world_size

    def __len__(self) -> int:
        return self.n_updates * self.accumulation

    def __iter__(self) -> Iterator[MicroBatch]:
        stream = self.batching.stream()
        for update in range(self.n_updates):
            group = [next(stream) for _ in range(self.batches_per_update)]
            if update < self.start:
                continue
            target_tokens = sum(int(self.batching.tgt_lengths[pairs].sum()) for pairs, _, _ in group)
            if self.shares_rows:
                (pairs, pass_number, progress) = group[0]
                mine, is_spare = share_rows(pairs, self.rank, self.world_size)
                position = update * self.world_size + self.rank
                yield MicroBatch(mine, pass_number, progress, position, target_tokens, is_spare)
                continue
            for i in range(self.rank, self.batches_per_update, self.world_size):
                pairs, pass_number, progress = group[i]
                position = update * self.batches_per_update + i
                yield MicroBatch(pairs, pass_number, progress, position, target_tokens)


def updates_in(batching: Batching, passes: int, batches_per_update: int | None = None) -> int:
    """How many updates it takes to see all data `passes` times."""
    batches = sum(batching.count(pass_number) for pass_number in range(passes))
    return -(-batches // (batches_per_update or 1))
