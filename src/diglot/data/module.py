"""The LightningDataModule, which makes batches from a corpus."""

import re
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from diglot.data.alignment import add_shift
from diglot.data.batch import Batch, Pairs
from diglot.data.batching import (
    WIDTH_STEP,
    MicroBatch,
    Mixture,
    StreamPosition,
    Updates,
    updates_in,
)
from diglot.data.corpus import Corpus
from diglot.data.doctor import Diagnosis, diagnose
from diglot.data.held_out import DevSet, FurtherDev, Validation, find_faults, references_in
from diglot.data.noise import NoisyText
from diglot.data.options import DataOptions
from diglot.data.placeholders import Placeholders
from diglot.data.preparation import DROPPED, Cleaning, left_out_notes, noise_notes, prepare
from diglot.data.sampling import Sampling
from diglot.data.shards import Shards
from diglot.data.stream import batching_of, mixture_of
from diglot.data.text import MixedText, Parallel, ParallelText, UnequalLinesError, corpora_of
from diglot.data.tokenizer import Tokenizer, TokenizerSource, listed
from diglot.errors import UserError
from diglot.system.children import end_with_parent, how_it_ended, n_cores
from diglot.system.interruption import retry_if_ignored, send_again
from diglot.system.progress import step

MAX_DIAGNOSED_PAIRS = 5_000_000  # number of train pairs from which a run does not look for faults, to save minutes


class TranslationData(L.LightningDataModule):
    """Data module that tokenises a corpus and provides it in batches of pairs of similar length.

    Args:
        corpus: corpus of the pairs.
        tokenizer: a tokenizer, or a source of one.
        seed: seed of all random orders.
        sampling: options of the random segmentation of training text; None: it is not segmented at random.
        options: options that do not depend on the corpus; None: the defaults of `DataOptions`.

    Attributes:
        further_dev: the further dev sets.
        held_out: text of dev, of test if there is one, and of the further dev sets (see `DevSet`).
        digests: hash of the text of each split.
        train_text: text of train.
        shards: the prepared training text.
        notes: remarks for the user about the data, one line each.
        n_updates: number of updates in the run.
        batch_timeout: seconds that a worker may take for a batch; 0: no limit.
        start: number of updates that are already complete.
        position: position of the stream of batches after these updates; None: unknown.
    """

    def __init__(
        self,
        *,
        corpus: Corpus,
        tokenizer: TokenizerSource | Tokenizer,
        seed: int,
        sampling: Sampling | None = None,
        options: DataOptions | None = None,
    ) -> None:
        super().__init__()
        self.options = options or DataOptions()
        self.corpus, self.seed, self.cache_dir = corpus, seed, Path(self.options.cache_dir)
        self.cleaning = self.options.clean or Cleaning()
        self.further_dev = [FurtherDev(name, node, corpus) for name, node in (self.options.further_dev or {}).items()]
        self._tokenizer = tokenizer
        self._loader: TimedLoader | None = None
        self.sampling = sampling or Sampling()
        self.held_out: dict[str, ParallelText] = {}
        self.digests: dict[str, str] = {}
        self.train_text: Parallel
        self.shards: Shards
        self.notes: list[str] = []
        self.n_updates = 0
        self.batch_timeout = 0.0
        self.start = 0
        self.position: StreamPosition | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        assert isinstance(self._tokenizer, Tokenizer), "call setup first"
        return self._tokenizer

    @property
    def dev_sets(self) -> list[DevSet]:
        """The texts that validations score, of which the first is dev."""
        dev = DevSet("dev", self.corpus.src_lang, self.corpus.tgt_lang)
        return [dev, *(further.dev_set for further in self.further_dev)]

    @property
    def sizes(self) -> dict[str, int]:
        """Number of pairs in each split."""
        return {"train": self.shards.count("kept")} | {split: len(pairs) for split, pairs in self.held_out.items()}

    def prepare_data(self, max_diagnosed_pairs: float | None = None) -> None:
        """Fetch the corpus, train the tokenizer, tokenise and look for faults, once for all processes.

        Args:
            max_diagnosed_pairs: greatest number of train pairs to look for faults in; None: `MAX_DIAGNOSED_PAIRS`, for
                which this takes two minutes.
        """
        limit = MAX_DIAGNOSED_PAIRS if max_diagnosed_pairs is None else max_diagnosed_pairs
        self.corpus.prepare(self.cache_dir)
        for further in self.further_dev:
            further.prepare(self.cache_dir)
        self._read()
        try:
            may_take_long = self.shards.count("read") <= limit
            self.notes.append(f"doctor: {self.diagnose(may_take_long).summary()}")
        except LookupError:
            self.notes.append(f"doctor: not run on more than {limit:,} pairs; run `make prepare` or `make doctor`")

    def diagnose(self, may_take_long: bool = True) -> Diagnosis:
        """Return a report on likely faults in the data; see diglot.data.doctor.diagnose."""
        texts = self.train_text, self.held_out
        return diagnose(*texts, self.shards, self.tokenizer, self.cache_dir, may_take_long)

    def setup(self, stage: str | None = None) -> None:
        """Map the prepared data into memory, and tokenise dev. A second call has no effect."""
        if hasattr(self, "batching"):
            return
        self._read()
        sets = self.dev_sets
        self.validation = Validation(sets, self.held_out, self.tokenizer)
        dev = Validation(sets[:1], self.held_out, self.tokenizer) if len(sets) > 1 else self.validation
        self.dev_sources, self.dev_pairs = dev.sources, dev.pairs
        self.notes += [*self.validation.notes, *self.validation.long_notes(self.options.max_len)]
        self.train_pairs = Pairs(self.shards.src, self.shards.tgt, WIDTH_STEP, bos=self.tokenizer.bos_id)
        self.batching = batching_of(self.shards, self.options, self.seed, self.mixture)

    def _mixture(self) -> Mixture:
        counts = {corpus: counts["kept"] for corpus, counts in self.shards.metadata["corpora"].items()}
        weights = self.train_text.weights if isinstance(self.train_text, MixedText) else {}
        for corpus, weight in weights.items():
            n_in_pass = counts[corpus] * weight
            if round(n_in_pass) < 1 or n_in_pass > 2**40:
                amount = "no" if n_in_pass < 1 else "too many"
                raise UserError(
                    f"data.corpora.{corpus}.weight={weight:g}: {amount} pairs in a pass "
                    f"(the corpus has {counts[corpus]:,})"
                )
            if weight != 1:
                self.notes.append(f"{corpus}: {round(n_in_pass):,} pairs in a pass (weight {weight:g})")
        return mixture_of(self.shards, weights)

    def _read(self) -> None:
        try:
            if not self.held_out:
                self._read_text()
        except UnequalLinesError as error:
            raise UserError(add_shift(error)) from None

    def _read_text(self) -> None:
        text = self.corpus.read_checked(self.cache_dir)
        for split in ("train", "dev"):
            if split not in text:
                raise UserError(f"{self.corpus.name}: there are no {split} pairs (data.{split})")
        held_out = {split: text[split].load() for split in ("dev", "test") if split in text}
        further = {each.dev_set.name: each.read(self.cache_dir) for each in self.further_dev}
        held_out |= further
        self.notes += [*self.corpus.notes, *(note for each in self.further_dev for note in each.notes)]
        self.notes += [*references_in(held_out), *find_faults(held_out)]
        self.train_text = text["train"]
        src_langs = dict.fromkeys(corpora_of(self.train_text), self.corpus.src_lang)
        src_langs |= getattr(self.corpus, "src_langs", {})  # of a mixture
        languages = {*self.train_text.tgt_langs.values()} if isinstance(self.train_text, MixedText) else set()
        if isinstance(self._tokenizer, Tokenizer):
            self._check_languages(self._tokenizer, languages, src_langs.values())
        else:
            with step("training the tokenizer"):
                tokenizer_text = self._tokenizer_text(self._tokenizer, src_langs)
                if self._tokenizer.tags_sources:
                    languages |= {self.corpus.src_lang, *src_langs.values()}
                self._tokenizer, line = self._tokenizer.get(tokenizer_text, self.cache_dir, sorted(languages))
            self.notes.append(line)
        self.shards = prepare(
            self.train_text,
            self.tokenizer,
            self.cache_dir,
            max_len=self.options.max_len,
            cleaning=self.cleaning,
            sampling=self.sampling,
            noise=self.options.noise,
            src_langs=src_langs,
            tgt_lang=self.corpus.tgt_lang,
            n_processes=self.options.n_processes or min(8, n_cores()),
        )
        left_out_lines = left_out_notes(self.shards.metadata, self.options.max_len)
        if empty := [
            line for line, counts in zip(left_out_lines, self.shards.metadata["corpora"].values()) if not counts["kept"]
        ]:
            raise UserError(f"{self.corpus.name}: there is no train pair left: {empty[0]}")
        self.notes += left_out_lines + noise_notes(self.shards.metadata)
        self.mixture = self._mixture()
        if self.cleaning.keep_dropped:
            self.notes.append(f"pairs left out: {self.shards.folder / DROPPED}")
        self.held_out = held_out
        self.digests = {split: part.digest() for split, part in {**text, **further}.items()}

    def _check_languages(self, tokenizer: Tokenizer, tgt_langs: Iterable[str], src_langs: Iterable[str]) -> None:
        """Check that an existing tokenizer has a tag for each language that needs one.

        Raises:
            UserError: a tag is missing.
        """
        needed = dict.fromkeys(tgt_langs)
        if tokenizer.languages:
            needed |= dict.fromkeys([self.corpus.tgt_lang])
        if tokenizer.reads_src_lang:
            needed |= dict.fromkeys([self.corpus.src_lang, *src_langs])
        if missing := sorted(code for code in needed if tokenizer.find_language(code) is None):
            advice = "type tokenizer=extend"
            if tokenizer.languages:
                known = listed(tokenizer.languages)
                advice = f"it has {known}: type data.src_lang=CODE data.tgt_lang=CODE, or tokenizer=extend to add tags"
            raise UserError(f"{self.corpus.name}: the existing tokenizer has no tag for {', '.join(missing)}; {advice}")

    def _tokenizer_text(self, source: TokenizerSource, src_langs: Mapping[str, str]) -> Parallel:
        """Return the text to train the tokenizer on: the training text, with its noise."""
        noise = self.options.noise
        if noise is None or not noise.is_on:
            return self.train_text
        placeholders = Placeholders(source.placeholder) if source.placeholder is not None else None
        return NoisyText(self.train_text, noise, src_langs, placeholders.find if placeholders else lambda line: [])

    def decode_dev(self, pair: int, tokens: Sequence[int]) -> str:
        """Return the text of a translation of a source of the dev sets; an empty text if the source is blank.

        Args:
            pair: number of the pair in `validation`. Those of dev come first.
            tokens: the tokens of the translation.
        """
        source = self.validation.sources[pair]
        return "" if source.is_blank else self.tokenizer.decode(tokens, source.placeholders)

    def updates_in(self, passes: int) -> int:
        """Return the number of updates in a number of passes over the training pairs."""
        return updates_in(self.batching, passes, self.options.batches_per_update)

    def largest_batches(self, max_pools: int = 3) -> list[Batch]:
        """Return the batch with the most tokens, and the batch with the longest sentences if that is another one.

        Args:
            max_pools: number of pools of the first pass to search.
        """
        largest: dict[str, tuple[tuple[int, int], MicroBatch]] = {}
        for number in range(min(max_pools, self.batching.n_pools)):
            for pairs, shape in self.batching.pool(0, number):
                sides = [int(side[pairs].max()) for side in (self.batching.src_lengths, self.batching.tgt_lengths)]
                rows, longest = shape or (len(pairs), max(sides))
                sizes = {"tokens": (rows * longest, longest), "length": (longest, rows)}
                for name, size in sizes.items():
                    if name not in largest or size > largest[name][0]:
                        largest[name] = size, MicroBatch(pairs, 0, 0.0, 0, 1, shape=shape)
        chosen = {micro_batch.pairs.tobytes(): micro_batch for _, micro_batch in largest.values()}
        return [self.train_pairs[micro_batch] for micro_batch in chosen.values()]

    def check_processes(self, world_size: int) -> None:
        """Check that processes can share the batches of an update equally.

        Raises:
            UserError: they cannot. The message names the next number of batches that they can share.
        """
        per_update = self.options.batches_per_update
        if per_update is not None and per_update % world_size:
            next_multiple = -(-per_update // world_size) * world_size
            raise UserError(
                f"data.batches_per_update={per_update} is not divisible by {world_size} processes; "
                f"type data.batches_per_update={next_multiple}"
            )

    def set_length(self, n_updates: int, batch_timeout: float = 0.0) -> None:
        """Set the length of the run.

        Args:
            n_updates: number of updates.
            batch_timeout: seconds that a worker may take for a batch; 0: no limit.
        """
        self.n_updates, self.batch_timeout = n_updates, batch_timeout

    def start_from(self, update: int, position: StreamPosition | None) -> None:
        """Set the point from which the run resumes.

        Args:
            update: number of updates that are already complete.
            position: position of the stream of batches after these updates; None: found by iterating over the stream.
        """
        self.start, self.position = update, position

    def updates(self, rank: int = 0, world_size: int = 1) -> Updates:
        """Return the micro-batches of one process after the updates that are already complete."""
        self.check_processes(world_size)
        per_update = self.options.batches_per_update
        return Updates(self.batching, self.n_updates, per_update, rank, world_size, self.start, self.position)

    def train_dataloader(self) -> "TimedLoader":
        trainer = self.trainer
        rank, world_size = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        updates = self.updates(rank, world_size)
        self._loader = TimedLoader(
            self.train_pairs,
            sampler=updates,
            batch_size=None,  # the sampler's items are whole batches
            num_workers=self.options.n_workers,
            persistent_workers=self.options.n_workers > 0,
            worker_init_fn=end_with_parent,  # so that a killed run leaves no worker behind
            pin_memory=torch.cuda.is_available(),
            batch_timeout=self.batch_timeout,
        )
        return self._loader

    def on_exception(self, exception: BaseException) -> None:
        if self._loader is not None:
            self._loader.end_workers(exception)

    def worker_failure(self, error: BaseException) -> str | None:
        """Return what happened to a worker if its failure ended training, otherwise None; see `worker_failure`."""
        return worker_failure(error, self._loader.exit_statuses if self._loader else ())

    def val_dataloader(self) -> DataLoader:
        trainer = self.trainer
        rank, world_size = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        batches = self.validation.batches(self.options.eval_tokens_per_batch, rank, world_size)
        return DataLoader(self.validation.pairs, sampler=batches, batch_size=None)


class TimedLoader(DataLoader):
    """DataLoader that measures, and can limit, the time spent waiting for batches.

    Args:
        batch_timeout: seconds that the workers may take for a batch; 0: no limit. The argument `timeout` of DataLoader
            does not suffice, because it has no effect on a worker that stops while it sends a batch.
        arguments: positional arguments of DataLoader.
        options: keyword arguments of DataLoader.

    Attributes:
        waited: seconds spent waiting for batches.
        exit_statuses: exit statuses of the workers that had ended by themselves when training ended with an error.
    """

    def __init__(self, *arguments: Any, batch_timeout: float = 0.0, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.waited, self.batch_timeout = 0.0, batch_timeout
        self.exit_statuses: Sequence[int] = ()
        self._request_time: float | None = None  # when the awaited batch was requested
        self._has_timed_out = False

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        batches = super().__iter__()
        is_over = threading.Event()
        if self.num_workers:
            _repeat_ignored_worker_errors()
        if self.num_workers and self.batch_timeout:
            threading.Thread(target=self._watch, args=(is_over,), daemon=True).start()
        try:
            while True:
                start = self._request_time = time.perf_counter()
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                except Exception as error:
                    if self._has_timed_out:
                        raise RuntimeError("DataLoader timed out") from error
                    raise
                self._request_time = None
                self.waited += time.perf_counter() - start
                yield batch
        finally:
            is_over.set()

    def _watch(self, is_over: threading.Event) -> None:
        """Kill all workers if a batch takes too long, which ends the wait for it. This method runs in a thread."""
        while not is_over.wait(0.2):
            request_time = self._request_time
            if request_time is not None and time.perf_counter() - request_time > self.batch_timeout:
                self._has_timed_out = True
                for worker in self._workers:
                    worker.kill()
                return

    @property
    def _workers(self) -> Sequence[Any]:
        return getattr(self._iterator, "_workers", ())

    def end_workers(self, error: BaseException) -> None:
        """Record the exit statuses of workers that have ended, and kill the other workers.

        Otherwise, this process would wait for a worker that hangs or is stopped before it exits.

        Args:
            error: error that ended training.
        """
        if not self._workers:
            return
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises
        if not self._has_timed_out:
            if isinstance(error, (RuntimeError, OSError, EOFError)):
                # A dying process closes its files before it has an exit status; `error` may be about a closed file.
                ended = wait([worker.sentinel for worker in self._workers], timeout=0.5)
                for worker in self._workers:
                    if worker.sentinel in ended:
                        worker.join(0.5)
            self.exit_statuses = [worker.exitcode for worker in self._workers if worker.exitcode is not None]
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.join()
        # Mark the iterator as shut down: its shutdown would wait for a lock that a killed worker may have held.
        iterator: Any = self._iterator
        iterator._shutdown = True
        if iterator._worker_pids_set:
            iterator._worker_pids_set = False
            signal_handling._remove_worker_pids(id(iterator))


def _repeat_ignored_worker_errors() -> None:
    """Make torch's signal handler for dead workers raise its error again if Python has ignored it.

    The signal may arrive at any time, for example in a destructor, where Python ignores exceptions.
    """
    torch_handler = signal.getsignal(signal.SIGCHLD)
    if not callable(torch_handler) or hasattr(torch_handler, "repeats_errors"):
        return

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            torch_handler(number, frame)
        except RuntimeError as error:
            retry_if_ignored(error, lambda: send_again(number))
            raise

    handle.repeats_errors = True  # type: ignore[attr-defined]
    with suppress(ValueError):  # outside the main thread, where torch sets no handler either
        signal.signal(signal.SIGCHLD, handle)


def worker_failure(error: BaseException, exit_statuses: Sequence[int] = ()) -> str | None:
    """Return what happened to a worker if its failure ended training; otherwise None.

    Args:
        error: error that ended training. After the death of a worker, it is one of several errors of torch's loader,
            which a signal handler may raise anywhere, or the operating system's error about a closed connection.
        exit_statuses: exit statuses of the workers that had ended by themselves. A negative one is the negated number
            of a signal.
    """
    message = str(error)
    if "DataLoader timed out" in message:
        return "does not answer"
    if "in DataLoader worker process" in message:
        return f"failed with {message.strip().splitlines()[-1].strip()}"
    if failures := [status for status in exit_statuses if status]:
        return how_it_ended(failures[0])
    return "ended too early" if re.search(r"DataLoader worker \(pid", message) else None
