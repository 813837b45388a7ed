"""Tokenisation of training text into memory-mapped files, once and in several processes.

The folder of the prepared files is named by a hash of everything that they depend on: the text's bytes, the tokenizer
and all options. So they are never out of date. A killed preparation resumes where it was. If two processes prepare the
same text, the second one waits for the first.
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
from diglot.data.shards import ABOUT, Rows, Shards, ShardWriter, map_array, open_shards, write_metadata
from diglot.data.text import BLOCK, MixedText, Parallel, ParallelText, corpora_of, hash_pair, write_bytes
from diglot.data.tokenizer import Tokenizer
from diglot.errors import UserError
from diglot.system.atomic import lock_name, locked, remove_leftovers, sync
from diglot.system.children import end_with_parent, how_it_ended
from diglot.system.progress import step

_FORMAT = 2  # increment when the same options give other files
_PROGRESS_FILE, _HASH_FILE = "progress.json", "hashes"
_PROGRESS_INTERVAL = 2.0  # seconds between two records of the progress
_N_EXAMPLES = 3  # number of examples of each kind of noise
DROPPED = "dropped.tsv"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufffe\uffff]")
_MIN_BLOCKS = 4  # with fewer blocks, starting processes takes longer than it saves


@dataclass(frozen=True)
class Cleaning:
    """Rules that leave out training pairs. Pairs with a blank or too long side are always left out.

    A pair that several rules match is counted only for the first of them.

    Attributes:
        control: leave out pairs with a control character or a line break other than LF.
        identical: leave out pairs whose sides are equal (see `comparable` in diglot.data.forms).
        duplicates: leave out all but the first of pairs that are equal by the same comparison.
        scripts: leave out pairs with a side that is mostly in another script than this side of the corpus, such as
            Cyrillic in English text. The first block of the corpus determines the script of each side.
        max_ratio: leave out pairs with a side that has more than this many times the tokens of the other side,
            including </s>; None: no limit.
        keep_dropped: write the pairs that are left out to `dropped.tsv` beside the prepared files. Its columns are
            corpus, rule, number of the pair (from 1), source, target. The number is the line number unless the corpus
            has a header or several files, or dev is split off from it.

    Raises:
        ValueError: max_ratio is below 1.
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


class Settings(NamedTuple):
    """Settings that apply to all blocks; see `prepare`."""

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
    """A block of pairs with settings of its own.

    Attributes:
        number: number of the block in the text, from 0.
        version: version of the text, from 0; see `Sampling` and `Noise`.
        corpus: name of the corpus.
        src_lang: language of the sources; None: unknown.
        tgt_lang: language to translate the sources into; None: the tokenizer has no language tags.
        pairs: pairs of the block.
        repeated: for each pair, whether an equal pair precedes it in the text (n_pairs,); None: duplicates are kept.
        scripts: main scripts of the two sides of the corpus; None: any script.
    """

    number: int
    version: int
    corpus: str
    src_lang: str | None
    tgt_lang: str | None
    pairs: ParallelText
    repeated: np.ndarray | None
    scripts: tuple[str | None, str | None]


class EncodedBlock(NamedTuple):
    """Token ids of a block.

    Attributes:
        src: sources of the pairs that are kept.
        tgt: their targets.
        dropped: rule and index in the block of each pair that is left out.
        tokens: number of tokens of both sides, including </s>.
        noisy: pairs with noise.
    """

    src: Rows
    tgt: Rows
    dropped: list[tuple[str, int]]
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

    A text that is segmented at random or gets noise may have several versions. They contain the same pairs and are
    stored one after the other.

    Args:
        text: training text. The corpora of a mixture are counted separately.
        tokenizer: tokenizer of both sides.
        cache_dir: folder for prepared files.
        max_len: greatest number of tokens per side, including </s>. Longer pairs are left out.
        cleaning: further rules that leave out pairs; None: no rules.
        sampling: options of random segmentation; None: the text is not segmented at random.
        noise: noise in the pairs; None: no noise. A pair stays without noise if a rule would leave it out with noise.
        src_langs: language of the sources of each corpus, for the noise and the tags of the tokenizer.
        tgt_lang: language to translate into, for corpora for which a mixture has no target language.
        n_processes: number of processes that tokenise. It does not change the result.
        block_size: greatest number of pairs in a block.

    Raises:
        UserError: the text cannot be read, or the files cannot be written.
    """
    cleaning, sampling, noise = cleaning or Cleaning(), sampling or Sampling(), noise or Noise()
    src_langs = dict(src_langs or {}) if noise.is_on or tokenizer.reads_src_lang else {}
    digest = text.digest()
    tgt_lang = tgt_lang if tokenizer.languages else None  # without tags, the language has no effect
    cache_key = [_FORMAT, digest, tokenizer.digest(), max_len, sorted(asdict(cleaning).items()), block_size, tgt_lang]
    cache_key.append(sampling if sampling.samples else None)
    if cleaning.identical or cleaning.duplicates:  # earlier versions compared text as it is
        cache_key.append("comparable")
    if noise.is_on:
        cache_key += [sorted(asdict(noise).items()), sorted(src_langs.items())]
    elif src_langs:
        cache_key += ["src_langs", sorted(src_langs.items())]
    name = hashlib.sha256(json.dumps(cache_key).encode()).hexdigest()[:20]
    folder = cache_dir / "prepared" / name
    settings = Settings(tokenizer, sampling, noise, cleaning, max_len)
    if sampling.samples:
        tokenizer.samplers(sampling.alpha)  # raises errors before the slow work
    if not _is_complete(folder):
        with _locked_folder(folder):
            if not _is_complete(folder):
                _prepare_folder(folder, text, digest, (src_langs, tgt_lang), settings, n_processes, block_size)
    return open_shards(folder)


def _is_complete(folder: Path) -> bool:
    """Return whether a folder is complete and not outdated. Earlier versions kept pairs with a side without ids."""
    if not (folder / ABOUT).exists():
        return False
    shards = open_shards(folder)
    return not len(shards.src) or min(shards.src.lengths.min(), shards.tgt.lengths.min()) > 1  # including </s>


def left_out_notes(metadata: Mapping[str, Any], max_len: int) -> list[str]:
    """Return a line for each corpus with the number of pairs kept, and the number left out by each rule.

    Args:
        metadata: metadata of the prepared text.
        max_len: value of data.max_len, for the message.
    """
    descriptions = {"max_len": f"over data.max_len={max_len} tokens", "empty": "with a blank side"}
    lines = []
    for corpus, counts in metadata["corpora"].items():
        dropped = [f"{count:,} {descriptions.get(rule, rule)}" for rule, count in sorted(counts["dropped"].items())]
        note = f"{corpus}: {counts['kept']:,} of {counts['read']:,} pairs kept"
        lines.append(f"{note}, left out: {', '.join(dropped)}" if dropped else note)
    return lines


def noise_notes(metadata: Mapping[str, Any]) -> list[str]:
    """Return a line with the number of pairs that got each kind of noise; an empty list if noise is off.

    Args:
        metadata: metadata of the prepared text.
    """
    if "noise" not in metadata:
        return []
    n_pairs = metadata["versions"] * sum(counts["kept"] for counts in metadata["corpora"].values())
    kinds = [f"{metadata['noise'][kind]['pairs']:,} {kind}" for kind in KINDS if kind in metadata["noise"]]
    versions = f", in {metadata['versions']} versions" if metadata["versions"] > 1 else ""
    return [f"noise (data.noise): {', '.join(kinds) or 'no pair'}, of {n_pairs:,} train pairs{versions}"]


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder for one process at a time. The lock is also released if the process is killed."""
    try:
        with locked(lock_name(folder), lambda: step("waiting for another process that prepares the same text")):
            remove_leftovers(folder.parent)
            yield
    except OSError as error:
        raise UserError(f"{folder}: cannot be created: {error.strerror or error}") from None


def _prepare_folder(
    folder: Path,
    text: Parallel,
    digest: str,
    languages: tuple[Mapping[str, str], str | None],
    settings: Settings,
    n_processes: int,
    block_size: int,
) -> None:
    """Prepare a folder under a temporary name, and rename it when it is complete.

    Args:
        folder: final path of the folder.
        text: training text.
        digest: hash of the text before the preparation.
        languages: language of the sources of each corpus, and target language; see `prepare`.
        settings: settings of all blocks.
        n_processes: number of processes that tokenise.
        block_size: greatest number of pairs in a block.

    Raises:
        UserError: the text cannot be read or has changed, or the files cannot be written.
    """
    vocab_size = max(settings.tokenizer.src_vocab_size, settings.tokenizer.tgt_vocab_size)
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        partial.mkdir(exist_ok=True)
        remove_leftovers(partial)
        progress = _read_progress(partial)
        repeated = _find_repeated(text, partial, block_size) if settings.cleaning.duplicates else None
        blocks = _all_blocks(text, block_size, repeated, languages, settings)
        _tokenise(partial, blocks, vocab_size, settings, progress, n_processes)
        if text.digest() != digest:
            raise UserError("the training text changed while it was prepared: start again")
        corpora = {
            corpus: {"read": n_read, "kept": n_read - sum(dropped.values()), "dropped": dropped}
            for corpus, (n_read, dropped) in progress["corpora"].items()
        }
        metadata = {"corpora": corpora, "tokens": progress["tokens"], "versions": settings.n_versions}
        if settings.noise.is_on:
            metadata["noise"] = progress["noise"]
        write_metadata(partial, metadata, vocab_size)
        for name in (_PROGRESS_FILE, _HASH_FILE):
            (partial / name).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)  # it exists only if it lacks its about.json or is outdated
        partial.rename(folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from None
    except UserError as error:
        if not isinstance(error.__cause__, BrokenProcessPool):  # another attempt would fail, too: keep no progress
            shutil.rmtree(partial, ignore_errors=True)
        raise


def _read_progress(partial: Path) -> dict[str, Any]:
    """Return the recorded progress of a preparation; if the record or the files are damaged, that of a new one."""
    try:
        progress: dict[str, Any] = json.loads((partial / _PROGRESS_FILE).read_bytes())
        lengths = progress["position"] | {DROPPED: progress["dropped"]}
        if all((partial / name).stat().st_size >= length for name, length in lengths.items()):
            return progress
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return {"blocks": 0, "corpora": {}, "tokens": 0, "position": {}, "dropped": 0, "noise": {}}


def _tokenise(
    partial: Path,
    blocks: Iterator[Block],
    vocab_size: int,
    settings: Settings,
    progress: dict[str, Any],
    n_processes: int,
) -> None:
    """Append all blocks after the recorded progress, and record the progress every few seconds.

    Args:
        partial: folder of the files.
        blocks: all blocks of the text.
        vocab_size: size of the larger vocabulary.
        settings: settings of all blocks.
        progress: recorded progress, which is changed in place.
        n_processes: number of processes that tokenise.
    """
    writer = ShardWriter(partial, vocab_size, progress["position"])
    last_record = time.monotonic()
    with (partial / DROPPED).open("ab") as dropped, step("tokenising") as advance:
        dropped.truncate(progress["dropped"])
        dropped.seek(0, os.SEEK_END)
        remaining = itertools.islice(blocks, progress["blocks"], None)
        for block, encoded in _encode_in_order(remaining, settings, n_processes):
            writer.append(encoded.src, encoded.tgt)
            progress["blocks"] += 1
            advance(len(block.pairs))
            progress["tokens"] += encoded.tokens
            for pair in encoded.noisy:
                _count_noise(progress["noise"], pair, block)
            n_read, counts = progress["corpora"].get(block.corpus, (0, {}))
            if settings.cleaning.keep_dropped and not block.version:
                for rule, i in encoded.dropped:
                    texts = (side[i].replace("\t", " ") for side in (block.pairs.src, block.pairs.tgt))
                    dropped.write("\t".join((block.corpus, rule, str(n_read + i + 1), *texts)).encode() + b"\n")
            if not block.version:
                counts = Counter(counts) + Counter(rule for rule, _ in encoded.dropped)
                progress["corpora"][block.corpus] = (n_read + len(block.pairs), dict(counts))
            if time.monotonic() - last_record > _PROGRESS_INTERVAL:
                dropped.flush()
                sync(dropped.fileno())
                progress["position"], progress["dropped"] = writer.position(), dropped.tell()
                write_bytes(partial / _PROGRESS_FILE, json.dumps(progress).encode())
                last_record = time.monotonic()
    writer.position()
    writer.close()
    if not settings.cleaning.keep_dropped:
        (partial / DROPPED).unlink()


def _count_noise(counts: dict[str, Any], pair: NoisyPair, block: Block) -> None:
    """Count a pair with noise, and store the first pairs of each kind as examples, with their original sources."""
    count = counts.setdefault(pair.kind, {"pairs": 0, "examples": []})
    count["pairs"] += 1
    if len(count["examples"]) < _N_EXAMPLES:
        count["examples"].append([block.pairs.src[pair.number], pair.src, pair.tgt])


def _all_blocks(
    text: Parallel,
    block_size: int,
    repeated: np.ndarray | None,
    languages: tuple[Mapping[str, str], str | None],
    settings: Settings,
) -> Iterator[Block]:
    """Yield the blocks of all corpora, version after version.

    Args:
        text: training text.
        block_size: greatest number of pairs in a block.
        repeated: for each pair of the text, whether an equal pair precedes it (N,); None: duplicates are kept.
        languages: language of the sources of each corpus, and target language; see `prepare`.
        settings: settings of all blocks.
    """
    src_langs, tgt_lang = languages
    tgt_langs = text.tgt_langs if isinstance(text, MixedText) else {}
    for version in range(settings.n_versions):
        number = first_pair = 0
        for corpus, text_part in corpora_of(text).items():
            scripts: tuple[str | None, str | None] | None = None if settings.cleaning.scripts else (None, None)
            for pairs in text_part.blocks(block_size):
                scripts = scripts or main_scripts(pairs)
                part_repeated = None if repeated is None else repeated[first_pair : first_pair + len(pairs)]
                src_lang = src_langs.get(corpus)
                yield Block(
                    number, version, corpus, src_lang, tgt_langs.get(corpus, tgt_lang), pairs, part_repeated, scripts
                )
                number, first_pair = number + 1, first_pair + len(pairs)


def _encode_in_order(
    blocks: Iterator[Block], settings: Settings, n_processes: int
) -> Iterator[tuple[Block, EncodedBlock]]:
    """Yield blocks with their ids, in order. Several blocks are submitted in advance, so that no process waits.

    Raises:
        UserError: a process has ended unexpectedly.
    """
    first = list(itertools.islice(blocks, _MIN_BLOCKS if n_processes > 1 else 0))
    all_blocks = itertools.chain(first, blocks)
    if len(first) < _MIN_BLOCKS:
        set_up(settings)
        for block in all_blocks:
            yield block, encode(block)
        return
    # With "fork", a copy of a process with threads may wait forever for a lock that one of the threads held.
    context = multiprocessing.get_context("spawn")
    other_children = set(multiprocessing.active_children())
    workers: set[BaseProcess] = set()
    try:
        with ProcessPoolExecutor(n_processes, context, _set_up_process, (settings,)) as pool:
            running: deque[tuple[Block, Future[EncodedBlock]]] = deque()
            try:
                for block in all_blocks:
                    with _without_main_module():
                        running.append((block, pool.submit(encode, block)))
                    workers |= set(multiprocessing.active_children()) - other_children
                    if len(running) > 2 * n_processes:
                        oldest, future = running.popleft()
                        yield oldest, future.result()
                for oldest, future in running:
                    yield oldest, future.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
    except BrokenProcessPool as error:
        # The pool ends the other processes with SIGTERM, so that another status is that of the first one to end.
        for worker in workers:
            worker.join(5)
        statuses = sorted(
            (worker.exitcode or 0 for worker in workers), key=lambda status: status in (0, -signal.SIGTERM)
        )
        description = how_it_ended(statuses[0]) if statuses else "ended too early"
        raise UserError(f"a tokenisation process {description}; the same command will continue from here") from error


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Let processes that are spawned in the context ignore Ctrl-C, and not import the main module.

    The import may take seconds. Ctrl-C is handled by this process, with which the spawned ones end.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    signal_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the spawned process inherits the mask
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)


_settings: Settings
_samplers: tuple[Sampler, Sampler] | None


def set_up(settings: Settings) -> None:
    """Set up this process for `encode`, with settings of all blocks."""
    global _settings, _samplers
    _settings = settings
    _samplers = settings.tokenizer.samplers(settings.sampling.alpha) if settings.sampling.samples else None


def _set_up_process(settings: Settings) -> None:
    # There are many lists here but no reference cycles, and the search for cycles would take a fifth of the time.
    gc.disable()
    end_with_parent()
    set_up(settings)


def encode(block: Block) -> EncodedBlock:
    """Tokenise a block without the pairs that the rules of `Cleaning` leave out, and add noise."""
    (_, sampling, noise, cleaning, max_len), pairs = _settings, block.pairs
    rules = [_matching_rule(src, tgt, cleaning, block.scripts) for src, tgt in zip(pairs.src, pairs.tgt)]
    if block.repeated is not None:
        for i in np.flatnonzero(block.repeated).tolist():
            rules[i] = rules[i] or "duplicates"
    kept = [i for i, rule in enumerate(rules) if rule is None]
    sides, id_rules = _encode_pairs(pairs.select(kept), block)
    for i, rule in zip(kept, id_rules):
        rules[i] = rule
    if any(id_rules):
        sides = [[ids for ids, rule in zip(side, id_rules) if rule is None] for side in sides]
    noisy = _add_noise(block, [i for i, rule in enumerate(rules) if rule is None], sides) if noise.is_on else []
    if _samplers:
        random = Random(f"{sampling.seed} {block.version} {block.number}")
        sides = [_resample(side, sampler, random, max_len) for side, sampler in zip(sides, _samplers)]
    src, tgt = (_to_rows(side) for side in sides)
    dropped = [(rule, i) for i, rule in enumerate(rules) if rule is not None]
    tokens = sum(len(rows.ids) + len(rows.lengths) for rows in (src, tgt))
    return EncodedBlock(src, tgt, dropped, tokens, noisy)


def _encode_pairs(pairs: ParallelText, block: Block) -> tuple[list[list[list[int]]], list[str | None]]:
    """Return the ids of both sides of pairs in the languages of a block, and the rule that leaves out each pair.

    The rule is None for a pair that is kept.
    """
    tokenizer, max_len, max_ratio = _settings.tokenizer, _settings.max_len, _settings.cleaning.max_ratio
    sources = tokenizer.encode(pairs.src, block.tgt_lang, block.src_lang)
    sides = [[source.ids for source in sources], tokenizer.encode_targets(pairs.tgt, sources)]
    # A line is also blank if normalisation removes all its characters.
    is_blank = np.array(
        [source.is_blank or len(ids) <= len(source.tgt_prefix) for source, ids in zip(sources, sides[1])], bool
    )
    # Including </s>.
    lengths = np.array([np.fromiter(map(len, side), np.int64, len(pairs)) for side in sides]) + 1
    is_long = lengths.max(0) > max_len
    is_uneven = lengths.max(0) > (max_ratio or np.inf) * lengths.min(0)
    rules: list[str | None] = [None] * len(pairs)
    for i in np.flatnonzero(is_blank | is_long | is_uneven).tolist():
        rule = "max_len" if is_long[i] else "max_ratio"
        rules[i] = "empty" if is_blank[i] else rule
    return sides, rules


def _add_noise(block: Block, kept: list[int], sides: list[list[list[int]]]) -> list[NoisyPair]:
    """Replace the ids of the pairs that get noise, and return these pairs.

    Args:
        block: the block.
        kept: indices of the pairs that are kept.
        sides: ids of both sides of these pairs, which are changed in place.
    """
    noise, find_placeholders = _settings.noise, _settings.tokenizer.find_placeholders
    noisy = noise.apply(block.pairs, kept, f"{block.version} {block.number}", block.src_lang, find_placeholders)
    encoded, rules = _encode_pairs(ParallelText([pair.src for pair in noisy], [pair.tgt for pair in noisy]), block)
    positions = {index: place for place, index in enumerate(kept)}
    for pair, src, tgt, rule in zip(noisy, *encoded, rules):
        if rule is None:
            sides[0][positions[pair.number]], sides[1][positions[pair.number]] = src, tgt
    return [pair for pair, rule in zip(noisy, rules) if rule is None]


def _resample(side: list[list[int]], sampler: Sampler, random: Random, max_len: int) -> list[list[int]]:
    """Return a random segmentation of each sequence of a side, or the sequence itself if that is too long."""
    sampled = [sampler(ids, random) for ids in side]
    return [ids if len(random_ids) + 1 > max_len else random_ids for ids, random_ids in zip(side, sampled)]


def _matching_rule(src: str, tgt: str, cleaning: Cleaning, scripts: tuple[str | None, str | None]) -> str | None:
    """Return the rule by which the text of a pair leaves it out; None: it is kept."""
    if not src.strip() or not tgt.strip():
        return "empty"
    if cleaning.control and (_CONTROL.search(src) or _CONTROL.search(tgt)):
        return "control"
    if cleaning.identical and comparable(src).strip() == comparable(tgt).strip():
        return "identical"
    if cleaning.scripts and any(
        main_script is not None and script_of(side) not in (main_script, None)
        for side, main_script in zip((src, tgt), scripts)
    ):
        return "scripts"
    return None


def _to_rows(sequences: list[list[int]]) -> Rows:
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    flat = itertools.chain.from_iterable(sequences)
    return Rows(np.fromiter(flat, np.uint32, int(lengths.sum())), lengths)


def script_of(text: str) -> str | None:
    """Return the script of most letters of a text, by their Unicode names; None if it has no letters.

    Chinese characters, kana and Hangul count as one script, because Japanese and Korean mix them.
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
    """Return the script of most letters of each side of a block; None for a side without letters."""
    return script_of(" ".join(block.src)), script_of(" ".join(block.tgt))


def _find_repeated(text: Parallel, partial: Path, block_size: int) -> np.ndarray:
    """Return for each pair whether an equal pair precedes it (N,).

    This takes eight bytes per pair on disk and one in memory.
    """
    path = partial / _HASH_FILE
    with path.open("wb") as hash_file, step("looking for duplicates") as advance:
        for pairs in text.blocks(block_size):
            hash_file.write(b"".join(hash_pair(src, tgt) for src, tgt in zip(pairs.src, pairs.tgt)))
            advance(len(pairs))
    hashes = map_array(path, np.dtype(np.uint64))
    repeated = np.zeros(len(hashes), bool)
    n_parts = max(1, len(hashes) // 10_000_000)
    for part in range(n_parts):  # so that only one part of the hashes is in memory at a time
        part_indices = np.flatnonzero(hashes % np.uint64(n_parts) == part)
        _, first_indices = np.unique(hashes[part_indices], return_index=True)
        repeated[part_indices] = True
        repeated[part_indices[first_indices]] = False
    return repeated
