"""Tokenisation of training text into memory-mapped files, once and in several processes.

The prepared files are named by a hash of all that they depend on: the text's bytes, the tokenizer, and every option. So
they are never out of date. A killed preparation resumes where it was. If two processes prepare the same text, the
second waits for the first.
"""

import gc
import hashlib
import itertools
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from diglot.data.forms import comparable
from diglot.data.language import letter_script
from diglot.data.noise import KINDS, Noise, NoisyPair
from diglot.data.sampling import Sampler, Sampling
from diglot.data.shards import ABOUT, Rows, Shards, ShardWriter, finish, mapped, open_shards
from diglot.data.text import BLOCK, MixedText, Parallel, ParallelText, corpora_of, hash_pair, write_bytes
from diglot.data.tokenizer import Tokenizer
from diglot.errors import UserError
from diglot.system.atomic import lock_name, locked, remove_leftovers, sync
from diglot.system.children import end_with_parent, how_it_ended
from diglot.system.progress import step

_FORMAT = 2  # increment when the same options give other files
_PROGRESS, _HASHES = "progress.json", "hashes"
_SECONDS = 2.0  # between two records of the progress
_EXAMPLES = 3  # of each kind of noise
DROPPED = "dropped.tsv"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufffe\uffff]")
# With fewer blocks than this, starting processes is not worth the time.
_WORTH_PROCESSES = 4


@dataclass(frozen=True)
class Cleaning:
    """Rules that leave out training pairs. Pairs with a blank or too long side are always left out.

    Only the first rule that matches a pair is reported.

    Attributes:
        control: leave out pairs with a control character on a side, or with a line break other than LF.
        identical: leave out pairs whose sides are equal (see `comparable` in diglot.data.forms).
        duplicates: leave out all but the first of pairs that are equal by the same comparison.
        scripts: leave out pairs with a side that is mostly in another script than that side of the corpus, such as
            Cyrillic in English. The first block of the corpus decides.
        max_ratio: leave out pairs with a side of more than this many times the other's tokens, including </s>.
        keep_dropped: write the pairs that are left out to `dropped.tsv` beside the prepared files. Its columns are
            corpus, rule, number of the pair, source, target. The number equals the line number unless the corpus has a
            header or several files, or dev is split off from it.
    """

    control: bool = False
    identical: bool = False
    duplicates: bool = False
    scripts: bool = False
    max_ratio: float | None = None
    keep_dropped: bool = False

    def __post_init__(self) -> None:
        if self.max_ratio is not None and self.max_ratio < 1:
            raise ValueError(f"max_ratio ({self.max_ratio}) must be at least 1")


class Treatment(NamedTuple):
    """Settings that apply to every block."""

    tokenizer: Tokenizer
    sampling: Sampling
    noise: Noise
    cleaning: Cleaning
    max_len: int

    @property
    def n_versions(self) -> int:
        """Number of versions of the text."""
        return max(1, self.sampling.samples, self.noise.n_versions)


class Block(NamedTuple):
    """A block of pairs with its own settings.

    Attributes:
        number: number of the block in the text.
        version: version of the text; see Sampling and Noise.
        corpus: name of its corpus.
        src_lang: language of its sources; None: unknown.
        tgt_lang: language to translate its sources into.
        pairs: pairs of the block.
        repeated: whether an equal pair came before, for each pair; None unless duplicates are left out.
        scripts: scripts of the two sides of its corpus; None: any.
    """

    number: int
    version: int
    corpus: str
    src_lang: str | None
    tgt_lang: str | None
    pairs: ParallelText
    repeated: np.ndarray | None
    scripts: tuple[str | None, str | None]


class Done(NamedTuple):
    """Result of a block."""

    src: Rows
    tgt: Rows
    dropped: list[tuple[str, int]]  # pairs left out: the rule, and the pair's index in the block
    tokens: int
    noisy: list[NoisyPair]


def prepare(
    text: Parallel,
    tokenizer: Tokenizer,
    cache_dir: Path,
    *,
    max_len: int,
    cleaning: Cleaning | None = None,
    sampling: Sampling | None = None,
    noise: Noise | None = None,
    src_langs: Mapping[str, str] | None = None,
    tgt_lang: str | None = None,
    n_processes: int = 1,
    block_size: int = BLOCK,
) -> Shards:
    """Return tokenised training pairs, from the cache if it has them.

    A text that is segmented at random or gets noise may have several versions, one after the other, each with the same
    pairs.

    Args:
        text: training text; the corpora of a mixture are counted separately.
        tokenizer: tokenizer of both sides.
        cache_dir: folder that holds the prepared files.
        max_len: greatest number of tokens per side, including </s>; longer pairs are left out.
        cleaning: further rules that leave out pairs.
        sampling: how the text is segmented at random; None: not at random.
        noise: noise in the pairs; None: none. A pair with noise that a rule would leave out stays as it is.
        src_langs: language of the sources of each corpus, for the noise.
        tgt_lang: language to translate into, unless a mixture names another one for the corpus.
        n_processes: number of processes that tokenise. It does not change the result.
        block_size: number of pairs in a block.

    Raises:
        UserError: the text cannot be read, or the files cannot be written.
    """
    cleaning, sampling, noise = cleaning or Cleaning(), sampling or Sampling(), noise or Noise()
    src_langs = dict(src_langs or {}) if noise.is_on else {}
    digest = text.digest()
    tgt_lang = tgt_lang if tokenizer.languages else None  # without tags, it has no effect
    key = [_FORMAT, digest, tokenizer.digest(), max_len, sorted(asdict(cleaning).items()), block_size, tgt_lang]
    key.append(sampling if sampling.samples else None)
    if cleaning.identical or cleaning.duplicates:  # earlier versions compared text as it is
        key.append("comparable")
    if noise.is_on:
        key += [sorted(asdict(noise).items()), sorted(src_langs.items())]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:20]
    folder = cache_dir / "prepared" / name
    treatment = Treatment(tokenizer, sampling, noise, cleaning, max_len)
    if sampling.samples:
        tokenizer.samplers(sampling.alpha)  # report their errors before all the work
    if not _is_done(folder):
        with _alone(folder):
            if not _is_done(folder):
                _fill(folder, text, digest, (src_langs, tgt_lang), treatment, n_processes, block_size)
    return open_shards(folder)


def _is_done(folder: Path) -> bool:
    """Return whether a folder is complete and current: earlier versions kept pairs with a side without ids."""
    if not (folder / ABOUT).exists():
        return False
    shards = open_shards(folder)
    return not len(shards.src) or min(shards.src.lengths.min(), shards.tgt.lengths.min()) > 1  # including </s>


def left_out(about: Mapping[str, Any], max_len: int) -> list[str]:
    """Return a line for each corpus of a text: how many pairs were kept, and how many left out by which rule."""
    words = {"max_len": f"over data.max_len={max_len} tokens", "empty": "with a blank side"}
    lines = []
    for corpus, counts in about["corpora"].items():
        dropped = [f"{count:,} {words.get(rule, rule)}" for rule, count in sorted(counts["dropped"].items())]
        kept = f"{corpus}: {counts['kept']:,} of {counts['read']:,} pairs kept"
        lines.append(f"{kept}, left out: {', '.join(dropped)}" if dropped else kept)
    return lines


def noise_counts(about: Mapping[str, Any]) -> list[str]:
    """Return a line on how many pairs of a text got which noise; no line if noise is off."""
    if "noise" not in about:
        return []
    n_pairs = about["versions"] * sum(counts["kept"] for counts in about["corpora"].values())
    kinds = [f"{about['noise'][kind]['pairs']:,} {kind}" for kind in KINDS if kind in about["noise"]]
    in_versions = f", in {about['versions']} versions" if about["versions"] > 1 else ""
    return [f"noise (data.noise): {', '.join(kinds) or 'no pair'}, of {n_pairs:,} train pairs{in_versions}"]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock a folder for one process at a time; the lock is released when the process ends."""
    try:
        with locked(lock_name(folder), lambda: step("waiting for another process that prepares the same text")):
            remove_leftovers(folder.parent)
            yield
    except OSError as error:
        raise UserError(f"{folder}: cannot be created: {error.strerror or error}") from None


def _fill(
    folder: Path,
    text: Parallel,
    digest: str,
    languages: tuple[Mapping[str, str], str | None],
    treatment: Treatment,
    n_processes: int,
    block_size: int,
) -> None:
    vocab_size = max(treatment.tokenizer.src_vocab_size, treatment.tokenizer.tgt_vocab_size)
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        partial.mkdir(exist_ok=True)
        remove_leftovers(partial)
        state = _state(partial)
        repeated = _repeated(text, partial, block_size) if treatment.cleaning.duplicates else None
        blocks = _blocks(text, block_size, repeated, languages, treatment)
        _tokenise(partial, blocks, vocab_size, treatment, state, n_processes)
        if text.digest() != digest:
            raise UserError("the training text changed while it was prepared: start again")
        corpora = {
            corpus: {"read": read, "kept": read - sum(dropped.values()), "dropped": dropped}
            for corpus, (read, dropped) in state["corpora"].items()
        }
        about = {"corpora": corpora, "tokens": state["tokens"], "versions": treatment.n_versions}
        if treatment.noise.is_on:
            about["noise"] = state["noise"]
        finish(partial, about, vocab_size)
        for name in (_PROGRESS, _HASHES):
            (partial / name).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)  # it exists only if its about.json was lost or it is outdated
        partial.rename(folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from None
    except UserError as error:
        if not isinstance(error.__cause__, BrokenProcessPool):  # nothing to resume: this text cannot be prepared
            shutil.rmtree(partial, ignore_errors=True)
        raise


def _state(partial: Path) -> dict[str, Any]:
    """Return the recorded progress of a preparation; no progress if the record or the files are damaged."""
    try:
        state: dict[str, Any] = json.loads((partial / _PROGRESS).read_bytes())
        lengths = state["position"] | {DROPPED: state["dropped"]}
        if all((partial / name).stat().st_size >= length for name, length in lengths.items()):
            return state
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return {"blocks": 0, "corpora": {}, "tokens": 0, "position": {}, "dropped": 0, "noise": {}}


def _tokenise(
    partial: Path,
    blocks: Iterator[Block],
    vocab_size: int,
    treatment: Treatment,
    state: dict[str, Any],
    n_processes: int,
) -> None:
    """Append all blocks that are not complete yet, and record the progress every few seconds."""
    writer = ShardWriter(partial, vocab_size, state["position"])
    said = time.monotonic()
    with (partial / DROPPED).open("ab") as dropped, step("tokenising") as advance:
        dropped.truncate(state["dropped"])
        dropped.seek(0, os.SEEK_END)
        for block, done in _in_order(itertools.islice(blocks, state["blocks"], None), treatment, n_processes):
            writer.append(done.src, done.tgt)
            state["blocks"] += 1
            advance(len(block.pairs))
            state["tokens"] += done.tokens
            for pair in done.noisy:
                _count_noise(state["noise"], pair, block)
            read, counts = state["corpora"].get(block.corpus, (0, {}))
            if treatment.cleaning.keep_dropped and not block.version:
                for rule, i in done.dropped:
                    texts = (side[i].replace("\t", " ") for side in (block.pairs.src, block.pairs.tgt))
                    dropped.write("\t".join((block.corpus, rule, str(read + i + 1), *texts)).encode() + b"\n")
            if not block.version:
                counts = Counter(counts) + Counter(rule for rule, _ in done.dropped)
                state["corpora"][block.corpus] = (read + len(block.pairs), dict(counts))
            if time.monotonic() - said > _SECONDS:
                dropped.flush()
                sync(dropped.fileno())
                state["position"], state["dropped"] = writer.position(), dropped.tell()
                write_bytes(partial / _PROGRESS, json.dumps(state).encode())
                said = time.monotonic()
    writer.position()
    writer.close()
    if not treatment.cleaning.keep_dropped:
        (partial / DROPPED).unlink()


def _count_noise(counts: dict[str, Any], pair: NoisyPair, block: Block) -> None:
    """Count a pair with noise; keep the first few of a kind as examples, with the source as it was."""
    count = counts.setdefault(pair.kind, {"pairs": 0, "examples": []})
    count["pairs"] += 1
    if len(count["examples"]) < _EXAMPLES:
        count["examples"].append([block.pairs.src[pair.number], pair.src, pair.tgt])


def _blocks(
    text: Parallel,
    block_size: int,
    repeated: np.ndarray | None,
    languages: tuple[Mapping[str, str], str | None],
    treatment: Treatment,
) -> Iterator[Block]:
    """Yield all blocks of all corpora, for each version."""
    src_langs, tgt_lang = languages
    tgt_langs = text.tgt_langs if isinstance(text, MixedText) else {}
    for version in range(treatment.n_versions):
        number = start = 0
        for corpus, part in corpora_of(text).items():
            scripts: tuple[str | None, str | None] | None = None if treatment.cleaning.scripts else (None, None)
            for pairs in part.blocks(block_size):
                scripts = scripts or main_scripts(pairs)
                mine = None if repeated is None else repeated[start : start + len(pairs)]
                both = src_langs.get(corpus), tgt_langs.get(corpus, tgt_lang)
                yield Block(number, version, corpus, *both, pairs, mine, scripts)
                number, start = number + 1, start + len(pairs)


def _in_order(blocks: Iterator[Block], treatment: Treatment, n_processes: int) -> Iterator[tuple[Block, Done]]:
    """Yield blocks with their results, in order. Several blocks are submitted ahead, so that no process waits."""
    first = list(itertools.islice(blocks, _WORTH_PROCESSES if n_processes > 1 else 0))
    every = itertools.chain(first, blocks)
    if len(first) < _WORTH_PROCESSES:
        begin(treatment)
        for block in every:
            yield block, encode(block)
        return
    # Not "fork": a copy of a process with threads may wait forever for a lock that one of the threads held.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    workers: set[BaseProcess] = set()
    try:
        with ProcessPoolExecutor(n_processes, context, _begin_process, (treatment,)) as pool:
            running: deque[tuple[Block, Future[Done]]] = deque()
            try:
                for block in every:
                    with _bare_main():
                        running.append((block, pool.submit(encode, block)))
                    workers |= set(multiprocessing.active_children()) - others
                    if len(running) > 2 * n_processes:
                        oldest, future = running.popleft()
                        yield oldest, future.result()
                for oldest, future in running:
                    yield oldest, future.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
    except BrokenProcessPool as error:
        for each in workers:
            each.join(5)
        statuses = sorted((each.exitcode or 0 for each in workers), key=lambda status: status in (0, -signal.SIGTERM))
        how = (
            how_it_ended(statuses[0]) if statuses else "ended too early"
        )  # the pool ends the other processes with SIGTERM
        raise UserError(f"a tokenisation process {how}; the same command will continue from here") from error


@contextmanager
def _bare_main() -> Iterator[None]:
    """Let a process that is spawned in the block skip the import of the main module, and ignore Ctrl-C.

    The import may take seconds. This process handles Ctrl-C, and the spawned one ends with it.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the spawned process inherits the mask
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_treatment: Treatment
_samplers: tuple[Sampler, Sampler] | None


def begin(treatment: Treatment) -> None:
    """Set up this process for `encode`."""
    global _treatment, _samplers
    _treatment = treatment
    _samplers = treatment.tokenizer.samplers(treatment.sampling.alpha) if treatment.sampling.samples else None


def _begin_process(treatment: Treatment) -> None:
    # There are many lists but no cycles here; looking for cycles would take a fifth of the time.
    gc.disable()
    end_with_parent()
    begin(treatment)


def encode(block: Block) -> Done:
    """Tokenise a block, leaving out pairs by the rules of `Cleaning`."""
    (_, sampling, noise, cleaning, max_len), pairs = _treatment, block.pairs
    rules = [_rule(src, tgt, cleaning, block.scripts) for src, tgt in zip(pairs.src, pairs.tgt)]
    if block.repeated is not None:
        for i in np.flatnonzero(block.repeated).tolist():
            rules[i] = rules[i] or "duplicates"
    numbers = [i for i, rule in enumerate(rules) if rule is None]
    sides, rules_of_ids = _encoded(pairs.select(numbers), block.tgt_lang)
    for i, rule in zip(numbers, rules_of_ids):
        rules[i] = rule
    if any(rules_of_ids):
        sides = [[ids for ids, rule in zip(side, rules_of_ids) if rule is None] for side in sides]
    noisy = _put_noise(block, [i for i, rule in enumerate(rules) if rule is None], sides) if noise.is_on else []
    if _samplers:
        random = Random(f"{sampling.seed} {block.version} {block.number}")
        sides = [_sampled(side, sampler, random, max_len) for side, sampler in zip(sides, _samplers)]
    src, tgt = (_rows(side) for side in sides)
    dropped = [(rule, i) for i, rule in enumerate(rules) if rule is not None]
    tokens = sum(len(rows.ids) + len(rows.lengths) for rows in (src, tgt))
    return Done(src, tgt, dropped, tokens, noisy)


def _encoded(pairs: ParallelText, tgt_lang: str | None) -> tuple[list[list[list[int]]], list[str | None]]:
    """Return the ids of both sides, and the rule by which each pair's ids are left out; None if they are kept."""
    tokenizer, max_len, max_ratio = _treatment.tokenizer, _treatment.max_len, _treatment.cleaning.max_ratio
    sources = tokenizer.encode(pairs.src, tgt_lang)
    sides = [[source.ids for source in sources], tokenizer.encode_targets(pairs.tgt, sources)]
    # A line is also blank if normalisation removes all of it.
    has_no_text = np.array([source.is_blank or not ids for source, ids in zip(sources, sides[1])], bool)
    # Including </s>.
    lengths = np.array([np.fromiter(map(len, side), np.int64, len(pairs)) for side in sides]) + 1
    is_long = lengths.max(0) > max_len
    is_uneven = lengths.max(0) > (max_ratio or np.inf) * lengths.min(0)
    rules: list[str | None] = [None] * len(pairs)
    for place in np.flatnonzero(has_no_text | is_long | is_uneven).tolist():
        rule = "max_len" if is_long[place] else "max_ratio"
        rules[place] = "empty" if has_no_text[place] else rule
    return sides, rules


def _put_noise(block: Block, kept: list[int], sides: list[list[list[int]]]) -> list[NoisyPair]:
    """Replace the ids of the pairs that noise changes, and return these pairs.

    Args:
        block: the block.
        kept: indices of the pairs that are kept.
        sides: their ids, which are changed in place.
    """
    noise, find_placeholders = _treatment.noise, _treatment.tokenizer.find_placeholders
    noisy = noise.apply(block.pairs, kept, f"{block.version} {block.number}", block.src_lang, find_placeholders)
    encoded, rules = _encoded(ParallelText([pair.src for pair in noisy], [pair.tgt for pair in noisy]), block.tgt_lang)
    places = {index: place for place, index in enumerate(kept)}
    for pair, src, tgt, rule in zip(noisy, *encoded, rules):
        if rule is None:
            sides[0][places[pair.number]], sides[1][places[pair.number]] = src, tgt
    return [pair for pair, rule in zip(noisy, rules) if rule is None]


def _sampled(side: list[list[int]], sampler: Sampler, random: Random, max_len: int) -> list[list[int]]:
    """Return random segmentations of a side's sequences; keep a sequence's plain one if the random one is too long."""
    drawn = [sampler(ids, random) for ids in side]
    return [ids if len(other) + 1 > max_len else other for ids, other in zip(side, drawn)]


def _rule(src: str, tgt: str, cleaning: Cleaning, scripts: tuple[str | None, str | None]) -> str | None:
    """Return the rule by which a pair's text is left out; None if it is kept."""
    if not src.strip() or not tgt.strip():
        return "empty"
    if cleaning.control and (_CONTROL.search(src) or _CONTROL.search(tgt)):
        return "control"
    if cleaning.identical and comparable(src).strip() == comparable(tgt).strip():
        return "identical"
    if cleaning.scripts and any(
        main is not None and script_of(side) not in (main, None) for side, main in zip((src, tgt), scripts)
    ):
        return "scripts"
    return None


def _rows(sequences: list[list[int]]) -> Rows:
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    flat = itertools.chain.from_iterable(sequences)
    return Rows(np.fromiter(flat, np.uint32, int(lengths.sum())), lengths)


def script_of(text: str) -> str | None:
    """Return the script of most letters of a text, by their Unicode names; None if it has no letters.

    Chinese characters, kana and Hangul count as one script: Japanese and Korean mix them.
    """
    if text.isascii():
        return "LATIN" if _ASCII_LETTER.search(text) else None
    counts: Counter[str] = Counter()
    for letter, n in Counter(text).items():
        if letter.isalpha():
            script = letter_script(letter)
            counts["CJK" if script in ("HIRAGANA", "KATAKANA", "HANGUL") else script] += n
    return counts.most_common(1)[0][0] if counts else None


_ASCII_LETTER = re.compile("[A-Za-z]")


def main_scripts(block: ParallelText) -> tuple[str | None, str | None]:
    """Return the script of most letters of each side."""
    return script_of(" ".join(block.src)), script_of(" ".join(block.tgt))


def _repeated(text: Parallel, partial: Path, block_size: int) -> np.ndarray:
    """Return for each pair whether an equal one came before; this takes eight bytes per pair on disk, one in memory."""
    file = partial / _HASHES
    with file.open("wb") as out, step("looking for duplicates") as advance:
        for pairs in text.blocks(block_size):
            out.write(b"".join(hash_pair(src, tgt) for src, tgt in zip(pairs.src, pairs.tgt)))
            advance(len(pairs))
    hashes = mapped(file, np.dtype(np.uint64))
    repeated = np.zeros(len(hashes), bool)
    n_parts = max(1, len(hashes) // 10_000_000)
    for part in range(n_parts):  # only one part of the hashes is in memory
        mine = np.flatnonzero(hashes % np.uint64(n_parts) == part)
        _, first = np.unique(hashes[mine], return_index=True)
        repeated[mine] = True
        repeated[mine[first]] = False
    return repeated
