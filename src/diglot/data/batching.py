"""Batching of pairs, in an order that is a pure function of (data, seed, pass, pool, batch in pool).

There is no mutable state to save: three integers determine a position in the stream. Memory does not grow with the
data: a pass over 300 million pairs needs the memory of one pool.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np

from diglot.errors import UserError, is_out_of_memory

POOL_SIZE = 200_000
WIDTH_STEP = 4


class Lengths(Protocol):
    """Number of tokens of each sequence, including </s>: an array, or an object that is indexed like one."""

    def __len__(self) -> int: ...

    def __getitem__(self, numbers: np.ndarray, /) -> np.ndarray: ...

    def max(self) -> int: ...


class StreamPosition(NamedTuple):
    """Position in a stream: its next batch."""

    pass_number: int = 0  # 0 for the first pass over the data
    pool: int = 0
    batch: int = 0  # in the pool


class Shape(NamedTuple):
    """Shape of the tensors of both sides."""

    rows: int
    length: int


def widths(src: int, tgt: int, step: int = WIDTH_STEP) -> tuple[int, int]:
    """Return the widths of a training batch's tensors, given the longest sequence of each side.

    The shorter side's width is rounded up to a multiple of `step`. With fewer different sizes, the allocator can reuse
    memory blocks more often. Without rounding, training on a CPU took twice the memory and lost a tenth of its speed.
    """
    longest = max(src, tgt)
    return min(longest, -(-src // step) * step), min(longest, -(-tgt // step) * step)


class MicroBatch(NamedTuple):
    """The pairs that one process computes at once, with their position in the endless stream."""

    pairs: np.ndarray  # indices of the pairs, int64 (B,)
    pass_number: int
    progress: float  # share of the pass that is complete after it
    position: int  # number in the stream, from 0
    update_target_tokens: int  # of the complete update, over all processes
    is_dummy: bool = False  # computed only to keep step with the other processes; excluded from all sums
    shape: Shape | None = None  # to pad to; None: what the longest pair needs
    place: StreamPosition = StreamPosition()  # of the stream after the update
    ends_update: bool = True  # whether it is the last micro-batch of its update on this process


class Shuffle:
    """Random permutation of the numbers below n, evaluated at any index without computing the rest.

    A Feistel network permutes the numbers below the next power of four. It is applied again to every result that is not
    below n, until all are (cycle walking: Black and Rogaway, 2002).

    Args:
        n: size of the permutation.
        seed: non-negative integers; other integers give another permutation.
    """

    ROUNDS = 6

    def __init__(self, n: int, seed: Sequence[int]) -> None:
        half = max(1, ((n - 1).bit_length() + 1) // 2)
        self.n, self.half, self.low = np.uint64(n), np.uint64(half), np.uint64((1 << half) - 1)
        self.keys = np.random.default_rng(seed).integers(0, 2**64, self.ROUNDS, dtype=np.uint64)

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        numbers = self._permuted(places.astype(np.uint64))
        while len(outside := np.flatnonzero(numbers >= self.n)):
            numbers[outside] = self._permuted(numbers[outside])
        return numbers.astype(np.int64)

    def _permuted(self, x: np.ndarray) -> np.ndarray:
        left, right = x >> self.half, x & self.low
        for key in self.keys:
            # The finaliser of splitmix64 (Steele et al., 2014): each output bit depends on all input bits.
            mixed = (right ^ key) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            left, right = right, left ^ ((mixed >> np.uint64(31)) & self.low)
        return (left << self.half) | right


class Mixture:
    """The multiset of pairs in a pass, in which the pairs of each corpus are repeated according to its weight.

    With a weight of 2.5, a pass holds each pair of the corpus twice, and half of the pairs a third time. That half is
    drawn anew for each pass.

    Args:
        sizes: number of pairs of each corpus; the pairs are numbered consecutively through all corpora.
        weights: weight of each corpus; None: 1 for all.
        n_versions: number of versions of these pairs, stored one after the other; pass e reads version e mod
            n_versions.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float] | None = None, n_versions: int = 1) -> None:
        self.n_versions = n_versions
        weights = weights or [1.0] * len(sizes)
        self.sizes, self.firsts = list(sizes), np.concatenate(([0], np.cumsum(sizes)))
        self.counts = [round(size * weight) for size, weight in zip(sizes, weights, strict=True)]
        self.starts = np.concatenate(([0], np.cumsum(self.counts)))

    def __len__(self) -> int:
        """Return the number of pairs in a pass."""
        return int(self.starts[-1])

    def pairs(self, places: np.ndarray, pass_number: int, seed: Sequence[int]) -> np.ndarray:
        """Return the indices of the pairs at the given places of a pass's multiset."""
        numbers = np.empty(len(places), np.int64)
        owners = np.searchsorted(self.starts, places, side="right") - 1
        for corpus, size in enumerate(self.sizes):
            mine = np.flatnonzero(owners == corpus)
            if not len(mine):
                continue
            copies, inside = np.divmod(places[mine] - self.starts[corpus], size)
            rest = np.flatnonzero(copies == self.counts[corpus] // size)  # in the incomplete copy
            inside[rest] = Shuffle(size, [*seed, pass_number, corpus])[inside[rest]]
            numbers[mine] = inside + self.firsts[corpus]
        return numbers + pass_number % self.n_versions * self.firsts[-1]


def split_by_budget(lengths: np.ndarray, budget: int) -> list[tuple[int, int]]:
    """Cut ascending lengths into the fewest runs (start, stop) with rows x longest <= budget.

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


def in_batches(
    costs: np.ndarray, budget: int, work: Callable[[np.ndarray], None], too_large: Callable[[int], str]
) -> None:
    """Process items in batches of similar cost; split in half each batch that does not fit into memory.

    Args:
        costs: cost of each item.
        budget: limit on a batch's number of items times their greatest cost; a costlier item is a batch of its own.
        work: processes the items with the given indices; may run out of memory.
        too_large: returns the error message for an item that does not fit into memory even alone, given its index.

    Raises:
        UserError: an item does not fit into memory even alone.
    """
    order = np.argsort(costs, kind="stable")
    batches = [order[start:stop] for start, stop in split_by_budget(costs[order], budget)]
    while batches:
        numbers = batches.pop()
        try:
            work(numbers)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if len(numbers) == 1:
                raise UserError(too_large(int(numbers[0]))) from None
            batches += np.array_split(numbers, 2)


Shapes = Literal["free", "buckets", "fine_buckets"]
_LENGTHS_PER_DOUBLING = {"buckets": 2, "fine_buckets": 8}


def bucket_shapes(budget: int, longest: int, shapes: Shapes = "buckets") -> list[Shape]:
    """Return the shapes that batches have with `data.shapes=buckets` or `fine_buckets`.

    Their lengths are 8, 12, 16, 24, 32, 48, ... (two per doubling) or 8, 9, 10, ..., 16, 18, 20, ..., 32, 36, ...
    (eight per doubling), up to the first that holds `longest`. Each has as many rows as the budget allows, rounded down
    to a multiple of 8 if more than 8.

    A compiled graph is built once for each shape, and never again.
    """
    lengths, step = [8], 8 // _LENGTHS_PER_DOUBLING[shapes]
    while lengths[-1] < longest:
        doublings = lengths[-1].bit_length() - 4  # from 8 on
        lengths.append(lengths[-1] + (step << doublings))
    lengths = [min(length, budget) for length in lengths]  # a pair as long as the budget is a batch of its own
    rows = [budget // length for length in lengths]
    return [Shape(n // 8 * 8 if n > 8 else n, length) for n, length in zip(rows, lengths, strict=True)]


def split_by_shape(lengths: np.ndarray, shapes: Sequence[Shape]) -> list[tuple[int, int, Shape]]:
    """Cut ascending lengths into runs (start, stop, shape), each within its shape.

    Rows left over at one length join those of the next, so that only the last batch is not full.
    """
    runs, start = [], 0
    for shape in shapes:
        stop = int(np.searchsorted(lengths, shape.length, side="right"))
        is_last = stop == len(lengths)
        while start < stop and (is_last or stop - start >= shape.rows):
            runs.append((start, min(start + shape.rows, stop), shape))
            start = runs[-1][1]
    return runs


def share_rows(pairs: np.ndarray, rank: int, world_size: int) -> tuple[np.ndarray, bool]:
    """Return one process's rows of a batch, and whether they are a dummy.

    If there are fewer rows than processes, the others get a copy of the first row as a dummy, to keep step.
    """
    mine = pairs[rank::world_size]
    return (mine, False) if len(mine) else (pairs[:1], True)


class StreamBatch(NamedTuple):
    """A batch of the stream, before processes share it."""

    pairs: np.ndarray
    shape: Shape | None
    pass_number: int
    progress: float  # share of the pass that is complete after it
    next: StreamPosition


class Batching:
    """Batches of pairs of similar length, shuffled anew in every pass.

    A pass is a permutation of all its pairs, cut into pools. Each pool is sorted by length and cut into batches of at
    most `tokens_per_batch` (rows x longest side). Then the batches of the pool are shuffled.

    Args:
        src_lengths: tokens of each source, including </s> (N,).
        tgt_lengths: tokens of each target, including </s> (N,).
        tokens_per_batch: budget of a batch; no pair may be longer.
        seed: seed of all random orders.
        data_hash: hash of the data; other data get another order.
        pool_size: number of pairs sorted at a time.
        max_rows: greatest number of rows in a batch, even if the budget allows more; None: no limit.
        shapes: free: a batch is as long as its longest pair; others: see `bucket_shapes`.
        longest: greatest length in the data; required for shapes other than free.
        mixture: pairs of a pass; None: each pair once.
    """

    def __init__(
        self,
        src_lengths: Lengths,
        tgt_lengths: Lengths,
        tokens_per_batch: int,
        seed: int,
        data_hash: int = 0,
        pool_size: int = POOL_SIZE,
        *,
        max_rows: int | None = None,
        shapes: Shapes = "free",
        longest: int = 0,
        mixture: Mixture | None = None,
    ) -> None:
        self.src_lengths, self.tgt_lengths = src_lengths, tgt_lengths
        self.tokens_per_batch, self.seed, self.data_hash, self.pool_size = tokens_per_batch, seed, data_hash, pool_size
        self.max_rows = max_rows
        self.mixture = Mixture([len(src_lengths)]) if mixture is None else mixture  # not `or`: an empty one is false
        self.shapes = None
        if shapes != "free":
            fitting = bucket_shapes(tokens_per_batch, longest, shapes)
            self.shapes = [Shape(min(rows, max_rows or rows), length) for rows, length in fitting]

    def __len__(self) -> int:
        """Return the number of pairs in a pass."""
        return len(self.mixture)

    @property
    def n_pools(self) -> int:
        return -(-len(self) // self.pool_size)

    def pool(self, pass_number: int, number: int) -> list[tuple[np.ndarray, Shape | None]]:
        """Return the batches of a pool, each as the indices of its pairs and the shape to pad to."""
        seed = [self.seed, self.data_hash, pass_number]
        places = np.arange(number * self.pool_size, min(len(self), (number + 1) * self.pool_size))
        pairs = self.mixture.pairs(Shuffle(len(self), seed)[places], pass_number, seed[:2])
        src, tgt = self.src_lengths[pairs], self.tgt_lengths[pairs]
        longest = np.maximum(src, tgt).astype(np.int64)
        # Sort by the longer side, then by the difference of the sides. The direction of the difference alternates from
        # length to length, so that neighbours are alike on both sides. A stable sort keeps the pass's order among ties.
        difference = (src - tgt) * np.where(longest % 2, 1, -1)
        order = np.lexsort((difference, longest))
        runs: list[tuple[int, int, Shape | None]] = []
        if self.shapes:
            runs += split_by_shape(longest[order], self.shapes)
        else:
            for start, stop in split_by_budget(longest[order], self.tokens_per_batch):
                rows = self.max_rows or stop - start
                runs += [(i, min(i + rows, stop), None) for i in range(start, stop, rows)]
        random = np.random.default_rng([*seed, number])
        return [
            (pairs[order[start:stop]], shape) for start, stop, shape in (runs[i] for i in random.permutation(len(runs)))
        ]

    def batches(self, pass_number: int) -> Iterator[np.ndarray]:
        """Yield the batches of a pass, each as the indices of its pairs."""
        for number in range(self.n_pools):
            for pairs, _ in self.pool(pass_number, number):
                yield pairs

    def count(self, pass_number: int) -> int:
        """Return the number of batches in a pass."""
        return sum(len(self.pool(pass_number, number)) for number in range(self.n_pools))

    def stream(self, place: StreamPosition = StreamPosition()) -> Iterator[StreamBatch]:  # noqa: B008 - immutable
        """Yield all batches from a position on, pass after pass without end."""
        pass_number, number, skipped = place
        while True:
            pool = self.pool(pass_number, number)
            done = number * self.pool_size
            for i, (pairs, shape) in enumerate(pool, start=1):
                done += len(pairs)
                if i <= skipped:
                    continue
                following = StreamPosition(pass_number, number, i)
                if i == len(pool):
                    is_last = number + 1 == self.n_pools
                    following = StreamPosition(pass_number + 1) if is_last else StreamPosition(pass_number, number + 1)
                yield StreamBatch(pairs, shape, pass_number, done / len(self), following)
            pass_number, number, skipped = following


class Updates:
    """Micro-batches of one process for a run: the sampler of its training loader.

    An update consists of the next `batches_per_update` batches of the stream, which may span two passes. Each of the
    `world_size` processes gets an equal number of them. If the processes share the rows of a single batch, each gets
    every `world_size`-th row. So the updates do not depend on the number of processes, and all processes have the same
    number of micro-batches.

    Args:
        batching: the stream of batches.
        n_updates: number of updates in the run.
        batches_per_update: global number G of batches per update; None: one batch, whose rows the processes share.
        rank: rank of this process.
        world_size: number of processes; must divide G.
        start: number of updates already complete.
        place: position of the stream after these; None: found by iterating over the stream from its start.
    """

    def __init__(
        self,
        batching: Batching,
        n_updates: int,
        batches_per_update: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
        place: StreamPosition | None = None,
    ) -> None:
        if batches_per_update is not None and batches_per_update % world_size:
            raise ValueError(f"{world_size} processes do not divide {batches_per_update} batches per update")
        self.batching, self.n_updates, self.start, self.place = batching, n_updates, start, place
        self.batches_per_update = batches_per_update or 1
        self.rank, self.world_size = rank, world_size
        self.shares_rows = batches_per_update is None

    @property
    def accumulation(self) -> int:
        """Number of micro-batches per update on one process."""
        return 1 if self.shares_rows else self.batches_per_update // self.world_size

    @property
    def shapes(self) -> list[Shape]:
        """Shapes of one process's micro-batches, if these are fixed."""
        return [self._share_of(shape) for shape in self.batching.shapes or ()]

    def _share_of(self, shape: Shape) -> Shape:
        return Shape(-(-shape.rows // self.world_size), shape.length) if self.shares_rows else shape

    def __len__(self) -> int:
        return self.n_updates * self.accumulation

    def __iter__(self) -> Iterator[MicroBatch]:
        first = 0 if self.place is None else self.start
        stream = self.batching.stream(self.place or StreamPosition())
        for update in range(first, self.n_updates):
            group = [next(stream) for _ in range(self.batches_per_update)]
            if update >= self.start:
                yield from self._share(update, group)

    def _share(self, update: int, group: list[StreamBatch]) -> Iterator[MicroBatch]:
        target_tokens = sum(int(self.batching.tgt_lengths[batch.pairs].sum()) for batch in group)
        after = group[-1].next
        if self.shares_rows:
            pairs, shape, pass_number, progress, _ = group[0]
            mine, is_dummy = share_rows(pairs, self.rank, self.world_size)
            position = update * self.world_size + self.rank
            shape = self._share_of(shape) if shape else None
            yield MicroBatch(mine, pass_number, progress, position, target_tokens, is_dummy, shape, after)
            return
        for i in range(self.rank, self.batches_per_update, self.world_size):
            pairs, shape, pass_number, progress, _ = group[i]
            position = update * self.batches_per_update + i
            is_last = i + self.world_size >= self.batches_per_update
            yield MicroBatch(pairs, pass_number, progress, position, target_tokens, False, shape, after, is_last)


def updates_in(batching: Batching, passes: int, batches_per_update: int | None = None) -> int:
    """Return the number of updates needed for `passes` passes over the data."""
    batches = sum(batching.count(pass_number) for pass_number in range(passes))
    return -(-batches // (batches_per_update or 1))
