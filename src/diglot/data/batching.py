"""Batching of pairs, in an order that is a pure function of (data, seed, pass, pool, batch in pool).

There is no mutable state to save, because three integers determine a position in the stream of batches. The memory that
is needed does not grow with the data: it is that of a pool of pairs.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np

from diglot.errors import UserError, is_out_of_memory

POOL_SIZE = 200_000  # number of pairs that are sorted by length at a time
WIDTH_STEP = 4  # the shorter side of a training batch is padded to a multiple of this


class Lengths(Protocol):
    """Interface of the numbers of tokens of sequences, including </s>: an array, or an object indexed like one."""

    def __len__(self) -> int: ...

    def __getitem__(self, numbers: np.ndarray, /) -> np.ndarray: ...

    def max(self) -> int: ...


class StreamPosition(NamedTuple):
    """Position in a stream of batches, given by its next batch.

    Attributes:
        pass_number: number of the pass over the data, from 0.
        pool: number of the pool in the pass, from 0.
        batch: number of the batch in the pool, from 0.
    """

    pass_number: int = 0
    pool: int = 0
    batch: int = 0


class Shape(NamedTuple):
    """Shape of the tensors of both sides."""

    rows: int
    length: int


def widths(src: int, tgt: int, step: int = WIDTH_STEP) -> tuple[int, int]:
    """Return the widths of a training batch's tensors, given the longest sequence of each side.

    The width of the shorter side is rounded up to a multiple of `step`, but not above that of the longer side. With
    fewer different sizes, the allocator reuses memory blocks more often. Without rounding, training on a CPU took twice
    the memory and lost a tenth of its speed.
    """
    longest = max(src, tgt)
    return min(longest, -(-src // step) * step), min(longest, -(-tgt // step) * step)


class MicroBatch(NamedTuple):
    """Pairs that one process computes at once, with their position in the endless stream.

    Attributes:
        pairs: indices of the pairs, int64 (B,).
        pass_number: number of the pass, from 0.
        progress: share of the pass that is complete after this micro-batch.
        position: number of the micro-batch in the stream, from 0.
        update_target_tokens: number of target tokens of the complete update, over all processes.
        is_dummy: whether it is computed only because the other processes have a micro-batch; it is left out of all
            sums.
        shape: shape to pad to; None: that of the longest pair.
        place: position of the stream after the update.
        ends_update: whether this is the last micro-batch of its update on this process.
    """

    pairs: np.ndarray
    pass_number: int
    progress: float
    position: int
    update_target_tokens: int
    is_dummy: bool = False
    shape: Shape | None = None
    place: StreamPosition = StreamPosition()
    ends_update: bool = True


class Shuffle:
    """Random permutation of the numbers below n, whose elements are computed when they are looked up.

    A Feistel network permutes the numbers below the next power of four. It is applied repeatedly to each number until
    the result is below n (cycle walking: Black and Rogaway, 2002).

    Args:
        n: size of the permutation.
        seed: non-negative integers that determine the permutation.
    """

    ROUNDS = 6

    def __init__(self, n: int, seed: Sequence[int]) -> None:
        half = max(1, ((n - 1).bit_length() + 1) // 2)
        self.n, self.half, self.low = np.uint64(n), np.uint64(half), np.uint64((1 << half) - 1)
        self.keys = np.random.default_rng(seed).integers(0, 2**64, self.ROUNDS, dtype=np.uint64)

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        numbers = self._permute(indices.astype(np.uint64))
        while len(too_large := np.flatnonzero(numbers >= self.n)):
            numbers[too_large] = self._permute(numbers[too_large])
        return numbers.astype(np.int64)

    def _permute(self, numbers: np.ndarray) -> np.ndarray:
        left, right = numbers >> self.half, numbers & self.low
        for key in self.keys:
            # The finaliser of splitmix64 (Steele et al., 2014): each output bit depends on all input bits.
            mixed = (right ^ key) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            left, right = right, left ^ ((mixed >> np.uint64(31)) & self.low)
        return (left << self.half) | right


class Mixture:
    """Multiset of the pairs of a pass, which contains the pairs of each corpus as often as its weight says.

    For example, with a weight of 2.5, a pass contains each pair of the corpus twice, and half of the pairs a third
    time. This half is drawn anew for each pass.

    Args:
        sizes: number of pairs of each corpus. The pairs of all corpora are numbered consecutively.
        weights: weight of each corpus; None: 1 for all.
        n_versions: number of versions of the pairs, stored one after the other. Pass e (from 0) reads version e mod
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

    def pairs(self, positions: np.ndarray, pass_number: int, seed: Sequence[int]) -> np.ndarray:
        """Return the indices of pairs of a pass.

        Args:
            positions: positions in the multiset, in which the pairs of each corpus are consecutive.
            pass_number: number of the pass, from 0.
            seed: seed of the draws.
        """
        pairs = np.empty(len(positions), np.int64)
        corpora = np.searchsorted(self.starts, positions, side="right") - 1
        for corpus, size in enumerate(self.sizes):
            selected = np.flatnonzero(corpora == corpus)
            if not len(selected):
                continue
            copies, offsets = np.divmod(positions[selected] - self.starts[corpus], size)
            # A fractional weight makes the last copy of the corpus incomplete: draw its pairs.
            incomplete = np.flatnonzero(copies == self.counts[corpus] // size)
            offsets[incomplete] = Shuffle(size, [*seed, pass_number, corpus])[offsets[incomplete]]
            pairs[selected] = offsets + self.firsts[corpus]
        return pairs + pass_number % self.n_versions * self.firsts[-1]


def split_by_budget(lengths: np.ndarray, budget: int) -> list[tuple[int, int]]:
    """Cut ascending lengths into the fewest runs (start, stop) with number of rows x greatest length <= budget.

    A row that is longer than the budget is a run of its own.
    """
    runs, start = [], 0
    while start < len(lengths):
        longest_stop = min(len(lengths), start + max(1, budget // max(1, int(lengths[start]))))
        areas = lengths[start:longest_stop] * np.arange(1, longest_stop - start + 1)
        stop = start + max(1, int(np.searchsorted(areas, budget, side="right")))
        runs.append((start, stop))
        start = stop
    return runs


def in_batches(
    costs: np.ndarray, budget: int, process: Callable[[np.ndarray], None], error_message: Callable[[int], str]
) -> None:
    """Process items in batches of similar cost; split in half each batch that does not fit into memory.

    Args:
        costs: cost of each item.
        budget: limit on a batch's number of items times their greatest cost. An item that costs more is a batch of its
            own.
        process: function that processes the items with the given indices. It may run out of memory.
        error_message: function that returns the message for an item that does not fit into memory alone, given its
            index.

    Raises:
        UserError: an item does not fit into memory even alone.
    """
    order = np.argsort(costs, kind="stable")
    batches = [order[start:stop] for start, stop in split_by_budget(costs[order], budget)]
    while batches:
        indices = batches.pop()
        try:
            process(indices)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if len(indices) == 1:
                raise UserError(error_message(int(indices[0]))) from None
            batches += np.array_split(indices, 2)


Shapes = Literal["free", "buckets", "fine_buckets"]
_LENGTHS_PER_DOUBLING = {"buckets": 2, "fine_buckets": 8}


def bucket_shapes(budget: int, longest: int, shapes: Shapes = "buckets") -> list[Shape]:
    """Return the shapes of batches with `data.shapes=buckets` or `fine_buckets`.

    The lengths are 8, 12, 16, 24, 32, 48, ... (two per doubling) or 8, 9, 10, ..., 16, 18, 20, ..., 32, 36, ...
    (eight per doubling), up to the first one that is at least `longest`. Each shape has as many rows as the budget
    allows, rounded down to a multiple of 8 if there are more than 8. With few shapes, a compiled model has few graphs.
    """
    lengths, step = [8], 8 // _LENGTHS_PER_DOUBLING[shapes]
    while lengths[-1] < longest:
        doublings = lengths[-1].bit_length() - 4  # number of times that 8 was doubled
        lengths.append(lengths[-1] + (step << doublings))
    lengths = [min(length, budget) for length in lengths]  # a pair as long as the budget is a batch of its own
    rows = [budget // length for length in lengths]
    return [Shape(n // 8 * 8 if n > 8 else n, length) for n, length in zip(rows, lengths, strict=True)]


def split_by_shape(lengths: np.ndarray, shapes: Sequence[Shape]) -> list[tuple[int, int, Shape]]:
    """Cut ascending lengths into runs (start, stop, shape), each of which fits into its shape.

    Rows that do not fill a shape are put into the next one, so that only the last batch is not full.
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
    """Return the rows of a batch for one process, and whether they are a dummy.

    If there are fewer rows than processes, a process without a row gets a copy of the first row as a dummy, so that all
    processes have a batch.
    """
    rows = pairs[rank::world_size]
    return (rows, False) if len(rows) else (pairs[:1], True)


class StreamBatch(NamedTuple):
    """A batch of the stream before it is divided among processes.

    Attributes:
        pairs: indices of the pairs, int64 (B,).
        shape: shape to pad to; None: that of the longest pair.
        pass_number: number of the pass, from 0.
        progress: share of the pass that is complete after the batch.
        next: position of the stream after the batch.
    """

    pairs: np.ndarray
    shape: Shape | None
    pass_number: int
    progress: float
    next: StreamPosition


class Batching:
    """Batches of pairs of similar length, shuffled anew in every pass.

    A pass is a permutation of all its pairs, cut into pools. Each pool is sorted by length and cut into batches of at
    most `tokens_per_batch` tokens (number of rows times longest side). Then the batches of the pool are shuffled.

    Args:
        src_lengths: number of tokens of each source, including </s> (N,).
        tgt_lengths: number of tokens of each target, including </s> (N,).
        tokens_per_batch: budget of a batch in tokens. No pair may be longer.
        seed: seed of all random orders.
        data_hash: hash of the data, so that other data have another order.
        pool_size: number of pairs that are sorted at a time.
        max_rows: greatest number of rows in a batch, even if the budget allows more; None: no limit.
        shapes: free: a batch is as long as its longest pair; buckets, fine_buckets: see `bucket_shapes`.
        longest: greatest length in the data; required for shapes other than free.
        mixture: multiset of the pairs of a pass; None: each pair once.
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
        self.mixture = Mixture([len(src_lengths)]) if mixture is None else mixture  # an empty mixture is false
        self.shapes = None
        if shapes != "free":
            bucket_list = bucket_shapes(tokens_per_batch, longest, shapes)
            self.shapes = [Shape(min(rows, max_rows or rows), length) for rows, length in bucket_list]

    def __len__(self) -> int:
        """Return the number of pairs in a pass."""
        return len(self.mixture)

    @property
    def n_pools(self) -> int:
        return -(-len(self) // self.pool_size)

    def pool(self, pass_number: int, number: int) -> list[tuple[np.ndarray, Shape | None]]:
        """Return the batches of a pool, each as the indices of its pairs and the shape to pad to."""
        seed = [self.seed, self.data_hash, pass_number]
        positions = np.arange(number * self.pool_size, min(len(self), (number + 1) * self.pool_size))
        pairs = self.mixture.pairs(Shuffle(len(self), seed)[positions], pass_number, seed[:2])
        src, tgt = self.src_lengths[pairs], self.tgt_lengths[pairs]
        longest = np.maximum(src, tgt).astype(np.int64)
        # Sort by the longer side, then by the difference of the sides. The sort direction of the difference alternates
        # from length to length, so that neighbours are similar on both sides. The sort is stable, so that pairs of
        # equal lengths stay in the random order of the pass.
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

    def stream(self, position: StreamPosition = StreamPosition()) -> Iterator[StreamBatch]:  # noqa: B008 - immutable
        """Yield all batches from a position on, pass after pass, without end."""
        pass_number, pool_number, n_skipped = position
        while True:
            pool = self.pool(pass_number, pool_number)
            n_done = pool_number * self.pool_size
            for i, (pairs, shape) in enumerate(pool, start=1):
                n_done += len(pairs)
                if i <= n_skipped:
                    continue
                if i < len(pool):
                    following = StreamPosition(pass_number, pool_number, i)
                elif pool_number + 1 < self.n_pools:
                    following = StreamPosition(pass_number, pool_number + 1)
                else:
                    following = StreamPosition(pass_number + 1)
                yield StreamBatch(pairs, shape, pass_number, n_done / len(self), following)
            pass_number, pool_number, n_skipped = following


class Updates:
    """Micro-batches of one process for a run. It is the sampler of the process's training loader.

    An update consists of the next `batches_per_update` batches of the stream, which may span two passes. Each of the
    `world_size` processes gets an equal number of them. If the processes share the rows of a single batch, each process
    gets every `world_size`-th row. So the updates do not depend on the number of processes, and all processes have the
    same number of micro-batches.

    Args:
        batching: stream of batches.
        n_updates: number of updates in the run.
        batches_per_update: number of batches per update over all processes; None: one batch, whose rows the processes
            share.
        rank: rank of this process.
        world_size: number of processes, which must divide `batches_per_update`.
        start: number of updates that are already complete.
        place: position of the stream after these updates; None: found by iterating over the stream from its start.

    Raises:
        ValueError: `world_size` does not divide `batches_per_update`.
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
        following = group[-1].next
        if self.shares_rows:
            pairs, shape, pass_number, progress, _ = group[0]
            rows, is_dummy = share_rows(pairs, self.rank, self.world_size)
            position = update * self.world_size + self.rank
            shape = self._share_of(shape) if shape else None
            yield MicroBatch(rows, pass_number, progress, position, target_tokens, is_dummy, shape, following)
            return
        for i in range(self.rank, self.batches_per_update, self.world_size):
            pairs, shape, pass_number, progress, _ = group[i]
            position = update * self.batches_per_update + i
            is_last = i + self.world_size >= self.batches_per_update
            yield MicroBatch(pairs, pass_number, progress, position, target_tokens, False, shape, following, is_last)


def updates_in(batching: Batching, passes: int, batches_per_update: int | None = None) -> int:
    """Return the number of updates needed for `passes` passes over the data."""
    n_batches = sum(batching.count(pass_number) for pass_number in range(passes))
    return -(-n_batches // (batches_per_update or 1))
