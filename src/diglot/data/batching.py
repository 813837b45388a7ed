"""Which pairs make a batch, and in which order: a pure function of (data, seed, pass, pool, batch in pool).

Nothing here has a state that could be lost: a stream is entered at any place by three integers alone. Nor does anything
grow with the data: a pass over 300 million pairs takes the memory of a pool.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np

from diglot.errors import UserError, is_out_of_memory

POOL_SIZE = 200_000
WIDTH_STEP = 4


class Lengths(Protocol):
    """Tokens of each sequence, </s> counted: an array, or what is looked up like one."""

    def __len__(self) -> int: ...

    def __getitem__(self, numbers: np.ndarray, /) -> np.ndarray: ...

    def max(self) -> int: ...


class StreamPosition(NamedTuple):
    """Where a stream stands: its next batch."""

    pass_number: int = 0  # 0 for the first pass over the data
    pool: int = 0
    batch: int = 0  # in the pool


class Shape(NamedTuple):
    """Of both sides' tensors."""

    rows: int
    length: int


def widths(src: int, tgt: int, step: int = WIDTH_STEP) -> tuple[int, int]:
    """How wide the tensors of a training batch are, from the longest sequence of each side: the shorter side's is
    rounded up to a multiple of `step`. The fewer sizes of blocks there are, the more often memory can be used again;
    the sizes that come without this took twice the memory and a tenth of the speed on a CPU."""
    longest = max(src, tgt)
    return min(longest, -(-src // step) * step), min(longest, -(-tgt // step) * step)


class MicroBatch(NamedTuple):
    """What one process computes at once, and where it stands in the endless stream."""

    pairs: np.ndarray  # numbers of the pairs, int64 (B,)
    pass_number: int
    progress: float  # share of the pass that is done after it
    position: int  # number in the whole stream, from 0
    update_target_tokens: int  # in all micro-batches of its update together, on all processes
    is_dummy: bool = False  # computed to keep step with the other processes, and counted nowhere
    shape: Shape | None = None  # what to fill up to; None: what the longest pair needs
    place: StreamPosition = StreamPosition()  # where the stream stands after its update
    ends_update: bool = True  # whether it is the last one of its update on this process


class Shuffle:
    """A random order of the numbers below n, looked up at any place without the rest.

    A Feistel network permutes the next power of four, and is applied again to what lands at n or above until all lie
    below (cycle walking: Black and Rogaway, 2002).

    Args:
        n: how many numbers.
        seed: non-negative integers; others give another order.
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
            # The finaliser of splitmix64 (Steele et al., 2014): each bit that comes out hangs on all that go in.
            mixed = (right ^ key) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            left, right = right, left ^ ((mixed >> np.uint64(31)) & self.low)
        return (left << self.half) | right


class Mixture:
    """Which pairs a pass holds: those of each corpus as often as its weight says, 2.5 times say: twice, and a half of
    them, drawn anew in each pass, once more.

    Args:
        sizes: pairs of each corpus; they are numbered on through all corpora.
        weights: of each; None: all once.
        n_versions: how often all these pairs stand there, one time after the other; pass e has version e mod
            n_versions.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float] | None = None, n_versions: int = 1) -> None:
        self.n_versions = n_versions
        weights = weights or [1.0] * len(sizes)
        self.sizes, self.firsts = list(sizes), np.concatenate(([0], np.cumsum(sizes)))
        self.counts = [round(size * weight) for size, weight in zip(sizes, weights, strict=True)]
        self.starts = np.concatenate(([0], np.cumsum(self.counts)))

    def __len__(self) -> int:
        """Pairs of a pass."""
        return int(self.starts[-1])

    def pairs(self, places: np.ndarray, pass_number: int, seed: Sequence[int]) -> np.ndarray:
        """The numbers of the pairs at places of a pass's multiset."""
        numbers = np.empty(len(places), np.int64)
        owners = np.searchsorted(self.starts, places, side="right") - 1
        for corpus, size in enumerate(self.sizes):
            mine = np.flatnonzero(owners == corpus)
            if not len(mine):
                continue
            copies, inside = np.divmod(places[mine] - self.starts[corpus], size)
            rest = np.flatnonzero(copies == self.counts[corpus] // size)  # the copy that is not whole
            inside[rest] = Shuffle(size, [*seed, pass_number, corpus])[inside[rest]]
            numbers[mine] = inside + self.firsts[corpus]
        return numbers + pass_number % self.n_versions * self.firsts[-1]


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


def in_batches(
    costs: np.ndarray, budget: int, work: Callable[[np.ndarray], None], too_large: Callable[[int], str]
) -> None:
    """Work through items of like costs together, in halves where memory does not hold them.

    Args:
        costs: of each item.
        budget: items worked on at once times the greatest of their costs are at most this; an item of more is alone.
        work: does what is to be done with the items of these numbers, or runs out of memory.
        too_large: what to say where memory does not hold even the item of this number alone.

    Raises:
        UserError: saying that.
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


def bucket_shapes(budget: int, longest: int) -> list[Shape]:
    """The shapes there are with `data.shapes=buckets`: lengths 8, 12, 16, 24, 32, 48, ... up to the one that holds
    `longest`, each with as many rows as the budget takes, above 8 a multiple of 8.

    Of these a compiled graph is built once for each, and then never again.
    """
    lengths = [8]
    while lengths[-1] < longest:
        lengths.append(lengths[-1] * 3 // 2 if lengths[-1] & (lengths[-1] - 1) == 0 else lengths[-1] * 4 // 3)
    lengths = [min(length, budget) for length in lengths]  # a pair as long as the budget is a batch of its own
    rows = [budget // length for length in lengths]
    return [Shape(n // 8 * 8 if n > 8 else n, length) for n, length in zip(rows, lengths, strict=True)]


def split_by_shape(lengths: np.ndarray, shapes: Sequence[Shape]) -> list[tuple[int, int, Shape]]:
    """Cut a series of lengths, ascending, into runs (start, stop, shape), each within its shape.

    What is left of a length goes with the next longer one, so that only the last batch of all is not full.
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
    """One process's rows of a batch. Where there are fewer rows than processes, some get a row of another one, to keep
    step with them; the second value says so."""
    mine = pairs[rank::world_size]
    return (mine, False) if len(mine) else (pairs[:1], True)


class StreamBatch(NamedTuple):
    """A batch of the stream, of all processes together."""

    pairs: np.ndarray
    shape: Shape | None
    pass_number: int
    progress: float  # share of the pass that is done after it
    next: StreamPosition


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
        max_rows: of a batch, whatever the budget takes; None: no limit.
        shapes: free: batches have the shapes of what is in them; buckets: see `bucket_shapes`.
        longest: the greatest length there is; needed for buckets.
        mixture: what a pass is made of; None: each pair once.
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
        shapes: Literal["free", "buckets"] = "free",
        longest: int = 0,
        mixture: Mixture | None = None,
    ) -> None:
        self.src_lengths, self.tgt_lengths = src_lengths, tgt_lengths
        self.tokens_per_batch, self.seed, self.data_hash, self.pool_size = tokens_per_batch, seed, data_hash, pool_size
        self.max_rows = max_rows
        self.mixture = Mixture([len(src_lengths)]) if mixture is None else mixture  # one of no pair is false
        self.shapes = None
        if shapes == "buckets":
            fitting = bucket_shapes(tokens_per_batch, longest)
            self.shapes = [Shape(min(rows, max_rows or rows), length) for rows, length in fitting]

    def __len__(self) -> int:
        """Pairs of a pass."""
        return len(self.mixture)

    @property
    def n_pools(self) -> int:
        return -(-len(self) // self.pool_size)

    def pool(self, pass_number: int, number: int) -> list[tuple[np.ndarray, Shape | None]]:
        """The batches of a pool, each as numbers of pairs."""
        seed = [self.seed, self.data_hash, pass_number]
        places = np.arange(number * self.pool_size, min(len(self), (number + 1) * self.pool_size))
        pairs = self.mixture.pairs(Shuffle(len(self), seed)[places], pass_number, seed[:2])
        src, tgt = self.src_lengths[pairs], self.tgt_lengths[pairs]
        longest = np.maximum(src, tgt).astype(np.int64)
        # By the longer side and then by which one that is and by how much, to and fro, so that neighbours are alike on
        # both sides. Stable: among equals the pass's order holds.
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
        """The batches of a pass, each as numbers of pairs, every pair once."""
        for number in range(self.n_pools):
            for pairs, _ in self.pool(pass_number, number):
                yield pairs

    def count(self, pass_number: int) -> int:
        """How many batches a pass has."""
        return sum(len(self.pool(pass_number, number)) for number in range(self.n_pools))

    def stream(self, place: StreamPosition = StreamPosition()) -> Iterator[StreamBatch]:  # noqa: B008 - immutable
        """All batches from a place on, pass after pass without end."""
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
        place: where the stream stands after these; None: it is walked through.
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
        """Micro-batches of one update on one process."""
        return 1 if self.shares_rows else self.batches_per_update // self.world_size

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
            if shape:
                shape = Shape(-(-shape.rows // self.world_size), shape.length)
            yield MicroBatch(mine, pass_number, progress, position, target_tokens, is_dummy, shape, after)
            return
        for i in range(self.rank, self.batches_per_update, self.world_size):
            pairs, shape, pass_number, progress, _ = group[i]
            position = update * self.batches_per_update + i
            is_last = i + self.world_size >= self.batches_per_update
            yield MicroBatch(pairs, pass_number, progress, position, target_tokens, False, shape, after, is_last)


def updates_in(batching: Batching, passes: int, batches_per_update: int | None = None) -> int:
    """How many updates it takes to see all data `passes` times."""
    batches = sum(batching.count(pass_number) for pass_number in range(passes))
    return -(-batches // (batches_per_update or 1))
