"""The LightningDataModule: from a corpus to the batches of a run."""

import hashlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import lightning as L
import numpy as np
import torch
from torch.utils.data import DataLoader

from diglot.data.batch import Batch, FlatIds, Pairs
from diglot.data.batching import Batching, MicroBatch, Updates, share_rows, split_by_budget, updates_in
from diglot.data.corpus import Corpus
from diglot.data.progress import step
from diglot.data.text import ParallelText
from diglot.data.tokenizer import Encoded, Tokenizer, TokenizerTrainer
from diglot.errors import UserError


class TranslationData(L.LightningDataModule):
    """Tokenises a corpus and serves it in batches of like lengths under a token budget.

    Args:
        corpus: where the pairs come from.
        tokenizer: how to train the tokenizer, or one that is trained already.
        seed: of all orders.
        cache_dir: folder for what is fetched or trained once.
        tokens_per_batch: a batch of n rows obeys n x longest side <= tokens_per_batch, padding and </s> counted.
        batches_per_update: batches whose gradients make one update, on all processes together; None: one batch, whose
            rows the processes share.
        eval_tokens_per_batch: the budget of dev batches.
        max_len: a training pair with a side of more tokens, </s> counted, is left out; dev and test never are.
        n_workers: processes that collate training batches; 0 collates in the training process.
        memory_baseline: whether to compare the results with a translation memory (see diglot.data.memory).
    """

    def __init__(
        self,
        *,
        corpus: Corpus,
        tokenizer: TokenizerTrainer | Tokenizer,
        seed: int,
        cache_dir: str = "cache",
        tokens_per_batch: int = 4096,
        batches_per_update: int | None = None,
        eval_tokens_per_batch: int = 4096,
        max_len: int = 256,
        n_workers: int = 0,
        memory_baseline: bool = False,
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("tokens_per_batch", tokens_per_batch, 2),
            ("batches_per_update", batches_per_update, 1),
            ("eval_tokens_per_batch", eval_tokens_per_batch, 1),
            ("max_len", max_len, 2),
            ("n_workers", n_workers, 0),
        ):
            if value is not None and value < least:
                raise ValueError(f"{name} ({value}) must be at least {least}")
        if max_len > tokens_per_batch:
            raise ValueError(f"max_len ({max_len}) must not be above tokens_per_batch ({tokens_per_batch})")
        self.corpus, self.seed, self.cache_dir = corpus, seed, Path(cache_dir)
        self.tokens_per_batch, self.batches_per_update = tokens_per_batch, batches_per_update
        self.eval_tokens_per_batch, self.max_len, self.n_workers = eval_tokens_per_batch, max_len, n_workers
        self.memory_baseline = memory_baseline
        self._tokenizer = tokenizer
        self.text: dict[str, ParallelText] = {}
        self.notes: list[str] = []  # what the user should know about the data, one line each
        self.n_updates = 0  # length of the run, set by whoever knows its budget
        self.start = 0  # updates of it that are done already

    @property
    def tokenizer(self) -> Tokenizer:
        assert isinstance(self._tokenizer, Tokenizer), "setup comes first"
        return self._tokenizer

    def prepare_data(self) -> None:
        """Fetch the corpus and train the tokenizer, once for all processes."""
        self.corpus.prepare(self.cache_dir)
        self._read()

    def setup(self, stage: str | None = None) -> None:
        """Read and tokenise; does nothing the second time."""
        if hasattr(self, "batching"):
            return
        self._read()
        with step(f"tokenising {sum(map(len, self.text.values())):,} pairs"):
            encoded = {split: self._encode(pairs) for split, pairs in self.text.items() if split != "test"}
        _, src, tgt = encoded["train"]
        fits = np.flatnonzero((src.lengths <= self.max_len) & (tgt.lengths <= self.max_len))
        if not len(fits):
            raise UserError(f"train: all {len(src):,} pairs have over data.max_len={self.max_len} tokens")
        dropped = len(src) - len(fits)
        self.notes.append(
            f"train: {len(fits):,} of {len(src):,} pairs kept, {dropped:,} over data.max_len={self.max_len} tokens"
        )
        long = int((np.maximum(encoded["dev"][1].lengths, encoded["dev"][2].lengths) > self.max_len).sum())
        if long:
            self.notes.append(f"dev: {long:,} pairs over data.max_len={self.max_len} tokens are kept; they take long")
        self.train_pairs = Pairs(src, tgt)
        self.dev_sources, *dev = encoded["dev"]
        self.dev_pairs = Pairs(*dev)
        self.kept = fits
        data_hash = hashlib.sha256(b"".join(x.ids.tobytes() + x.ends.tobytes() for x in (src, tgt))).digest()
        self.batching = Batching(
            src.lengths[fits],
            tgt.lengths[fits],
            self.tokens_per_batch,
            self.seed,
            int.from_bytes(data_hash[:8], "little"),
        )

    def _read(self) -> None:
        if self.text:
            return
        text = self.corpus.read(self.cache_dir)
        for split in ("train", "dev"):
            if not len(text.get(split, ())):
                raise UserError(f"{self.corpus.name}: there are no {split} pairs (data.{split})")
        self.notes += self.corpus.notes
        if isinstance(self._tokenizer, TokenizerTrainer):
            with step("training the tokenizer"):
                self._tokenizer, told = self._tokenizer.train(text["train"].src + text["train"].tgt, self.cache_dir)
            self.notes.append(f"{told}; {self._tokenizer.vocab_size:,} pieces")
        self.text = text

    def decode_dev(self, pair: int, tokens: Sequence[int]) -> str:
        """The text of a translation of a dev source. That of a blank line is blank."""
        source = self.dev_sources[pair]
        return self.tokenizer.decode(tokens, source.placeholders) if self.text["dev"].src[pair].strip() else ""

    def _encode(self, pairs: ParallelText) -> tuple[list[Encoded], FlatIds, FlatIds]:
        sources = self.tokenizer.encode(pairs.src)
        targets = self.tokenizer.encode_targets(pairs.tgt, sources)
        size = self.tokenizer.vocab_size
        return sources, FlatIds([s.ids for s in sources], size), FlatIds(targets, size)

    def updates_in(self, passes: int) -> int:
        """How many updates it takes to see the training pairs `passes` times."""
        return updates_in(self.batching, passes, self.batches_per_update)

    def check_processes(self, world_size: int) -> None:
        """Refuse a number of processes that cannot share an update's batches equally.

        Raises:
            UserError: naming the next number of batches that they can.
        """
        if self.batches_per_update is not None and self.batches_per_update % world_size:
            fitting = -(-self.batches_per_update // world_size) * world_size
            raise UserError(
                f"data.batches_per_update={self.batches_per_update} cannot be shared by {world_size} processes: "
                f"take data.batches_per_update={fitting}"
            )

    def updates(self, rank: int = 0, world_size: int = 1, start: int = 0) -> Updates:
        """The micro-batches of one process's share of the run, from update `start` on."""
        self.check_processes(world_size)
        return Updates(self.batching, self.n_updates, self.batches_per_update, rank, world_size, start)

    def train_dataloader(self) -> "TimedLoader":
        trainer = self.trainer
        rank, world_size = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        updates = self.updates(rank, world_size, self.start)
        return TimedLoader(
            KeptPairs(self.train_pairs, self.kept),
            sampler=updates,
            batch_size=None,  # the sampler's items are whole batches
            num_workers=self.n_workers,
            persistent_workers=self.n_workers > 0,
            pin_memory=torch.cuda.is_available(),
        )

    def val_dataloader(self) -> DataLoader:
        trainer = self.trainer
        rank, world_size = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        lengths = self.dev_pairs.src.lengths, self.dev_pairs.tgt.lengths
        batches = eval_batches(*lengths, self.eval_tokens_per_batch, rank, world_size)
        return DataLoader(self.dev_pairs, sampler=batches, batch_size=None)


class TimedLoader(DataLoader):
    """A loader that knows how long it was waited for.

    Attributes:
        waited: seconds.
    """

    waited = 0.0

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        batches = super().__iter__()
        while True:
            began = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.waited += time.perf_counter() - began
            yield batch


class KeptPairs(torch.utils.data.Dataset):
    """The training pairs that are short enough, numbered as the batching numbers them."""

    def __init__(self, pairs: Pairs, kept: np.ndarray) -> None:
        self.pairs, self.kept = pairs, kept

    def __getitem__(self, micro_batch: MicroBatch) -> Batch:
        return self.pairs[micro_batch._replace(pairs=self.kept[micro_batch.pairs])]


def eval_batches(
    src_lengths: np.ndarray, tgt_lengths: np.ndarray, tokens_per_batch: int, rank: int = 0, world_size: int = 1
) -> Sequence[MicroBatch]:
    """One process's share of all pairs, longest first, in batches of like lengths under the budget: the processes share
    the rows of each batch, so that they have equally many."""
    longest = np.maximum(src_lengths, tgt_lengths)
    order = np.argsort(longest, kind="stable")
    runs = split_by_budget(longest[order], tokens_per_batch)
    batches = []
    for i, run in enumerate(reversed(runs)):
        mine, is_spare = share_rows(order[slice(*run)], rank, world_size)
        batches.append(MicroBatch(mine, 0, 0.0, position=i, update_target_tokens=0, is_spare=is_spare))
    return batches
