"""Diagnosis of likely faults in a corpus, from its text and from the token ids that training reads."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from diglot.data.alignment import Alignment, Shift
from diglot.data.flat import FlatIds
from diglot.data.forms import comparable, count_forms, mixed_forms
from diglot.data.preparation import main_scripts, script_of
from diglot.data.shards import SIDES, Shards
from diglot.data.split import normalise
from diglot.data.text import Parallel, ParallelText, corpora_of, hash_pair, write_json
from diglot.data.tokenizer import UNK, Side, Tokenizer
from diglot.system.progress import step

_FORMAT = 7  # increment when the report on the same data changes
N_GRAM = 8  # number of consecutive words that make a held-out source similar to a train source
_MIN_LOG_ODDS = 8.0  # log-odds from which the sides of a pair count as swapped
_N_EXAMPLES = 5
_MAX_HASHED_PAIRS = 20_000_000  # with at least twice as many pairs, the number of duplicates is estimated
_MAX_MEASURED_PAIRS = 1_000_000  # with at least twice as many pairs, slow checks examine a sample


@dataclass
class Overlap:
    """Overlap of a held-out split with train, after normalisation (see `normalise`).

    Attributes:
        size: number of held-out pairs.
        pairs: number of held-out pairs that occur in train, with any of their references.
        sources: number of held-out pairs whose source occurs in train.
        near: number of held-out pairs whose source shares eight consecutive words with a source of train.
        long: number of held-out pairs whose source has at least eight words.
        examples: held-out and train source of the first few pairs counted in `pairs`.
        near_examples: held-out and train source of the first few pairs counted in `near`.
    """

    size: int = 0
    pairs: int = 0
    sources: int = 0
    near: int = 0
    long: int = 0
    examples: list[tuple[str, str]] = field(default_factory=list)
    near_examples: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Diagnosis:
    """Report on a corpus. Faults in train's text are counted over all pairs read, including those that are left out.

    Attributes:
        pairs: number of train pairs that are kept.
        read: number of train pairs that were read.
        corpora: for each corpus of train: pairs read, pairs kept, pairs left out by each rule, mean tokens per side.
        left_out: number of train pairs left out by each rule.
        duplicates: number of pairs that equal an earlier pair; from 40 million pairs on, an estimate from a sample.
        identical: number of pairs whose sides are equal.
        scripts: number of pairs with a side that is not in the main script of this side of the corpus; from 2 million
            pairs on, an estimate.
        swapped: number of pairs whose sides seem to be swapped.
        swapped_examples: the first few of these pairs.
        changed_by_tokenizer: share of sampled lines that change when they are encoded and decoded.
        unknown: share of tokens that are unknown.
        bytes: share of tokens that spell a byte.
        lengths: number of tokens of each side, including </s>: mean, median, 99th percentile, longest.
        ratio: target tokens per source token: median, 1st and 99th percentile.
        overlap: overlap of each held-out split with train.
        shifts: stretches where the lines of the two sides seem not to correspond.
        unrelated: corpora of train whose sides do not correspond at all. Either their lines are in different orders, or
            the task does not require a correspondence.
        forms: for each side of a split ("train target"), the numbers of composed and of decomposed lines (see
            `count_forms` in diglot.data.forms).
    """

    pairs: int
    read: int
    corpora: dict[str, dict[str, Any]]
    left_out: dict[str, int]
    duplicates: int
    identical: int
    scripts: int
    swapped: int
    swapped_examples: list[tuple[str, str]]
    changed_by_tokenizer: float
    unknown: float
    bytes: float
    lengths: dict[str, dict[str, float]]
    ratio: dict[str, float]
    overlap: dict[str, Overlap]
    shifts: list[Shift]
    unrelated: list[str]
    forms: dict[str, dict[str, int]]

    @property
    def faults(self) -> list[str]:
        """Faults that make training or evaluation unreliable (shifts, and held-out pairs in train), one line each."""
        faults = [str(shift) for shift in self.shifts[:_N_EXAMPLES]]
        if len(self.shifts) > _N_EXAMPLES:
            faults.append(f"{len(self.shifts):,} such places in total")
        return faults + [
            f"{split}: {overlap.pairs:,} of {overlap.size:,} pairs are also in train"
            for split, overlap in self.overlap.items()
            if overlap.pairs
        ]

    def summary(self) -> str:
        """Return the report in one line."""
        near = ", ".join(
            f"{split} {overlap.near / overlap.long:.0%}" for split, overlap in self.overlap.items() if overlap.long
        )
        parts = [
            f"{self.pairs:,} pairs",
            f"{self.duplicates:,} repeated",
            f"{self.swapped:,} with possibly swapped sides",
        ]
        if forms := mixed_forms(self.forms):
            parts.append(f"{forms} (tokenizer.normalisation=nfc composes the source and target text)")
        parts += [
            f"{split}: source and target do not match at all; do their lines correspond?" for split in self.unrelated
        ]
        parts.append("no held-out pair in train" if not any(overlap.pairs for overlap in self.overlap.values()) else "")
        parts.append(f"sharing {N_GRAM} consecutive words with train: {near}" if near else "")
        healthy = ", ".join(part for part in parts if part)
        return "; ".join([*self.faults, healthy])


def diagnose(
    train: Parallel,
    held_out: dict[str, ParallelText],
    shards: Shards,
    tokenizer: Tokenizer,
    cache_dir: Path,
    may_take_long: bool = True,
) -> Diagnosis:
    """Return a report on a corpus, from the cache if it has a report on the same data.

    Args:
        train: training text.
        held_out: dev, and test if there is one.
        shards: the prepared training text.
        tokenizer: tokenizer of both sides.
        cache_dir: folder for reports.
        may_take_long: whether to make a report if the cache has none.

    Raises:
        LookupError: the cache has no report, and `may_take_long` is False.
    """
    cache_key = [_FORMAT, shards.key, *(f"{split} {text.digest()}" for split, text in held_out.items())]
    file = cache_dir / "doctor" / f"{hashlib.sha256(json.dumps(cache_key).encode()).hexdigest()[:20]}.json"
    try:
        diagnosis = _from_json(json.loads(file.read_bytes()))
        diagnosis.summary()
        return diagnosis
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):  # missing or damaged
        if not may_take_long:
            raise LookupError("the cache has no report on these data") from None
    with step("looking for faults in the data", total=shards.count("read")) as advance:
        diagnosis = _diagnose(train, held_out, shards, tokenizer, advance)
    write_json(file, asdict(diagnosis))
    return diagnosis


def _from_json(plain: dict[str, Any]) -> Diagnosis:
    overlap = {split: Overlap(**values) for split, values in plain.pop("overlap").items()}
    shifts = [Shift(*shift) for shift in plain.pop("shifts")]
    return Diagnosis(**plain, overlap=overlap, shifts=shifts)


def _diagnose(
    train: Parallel, held_out: dict[str, ParallelText], shards: Shards, tokenizer: Tokenizer, advance: Any
) -> Diagnosis:
    indexes = {split: _OverlapIndex(text) for split, text in held_out.items()}
    hashes: list[np.ndarray] = []
    identical = scripts = changed = sampled = 0
    hash_step = max(1, shards.count("read") // _MAX_HASHED_PAIRS)  # duplicates are counted in hashes divisible by this
    check_step = max(1, shards.count("read") // _MAX_MEASURED_PAIRS)  # slow checks examine one pair in this many
    random = np.random.default_rng(1)
    shifts: list[Shift] = []
    unrelated: list[str] = []
    forms: dict[str, Counter[str]] = {}
    for name, corpus in corpora_of(train).items():
        alignment = Alignment(name, shards.metadata["corpora"][name]["read"])
        scripts_of_sides: tuple[str | None, str | None] | None = None
        for block in corpus.blocks():
            scripts_of_sides = scripts_of_sides or main_scripts(block)
            normal_src, normal_tgt = ([normalise(line) for line in side] for side in (block.src, block.tgt))
            for index in indexes.values():
                index.add(block, normal_src, normal_tgt)
            block_hashes = np.frombuffer(b"".join(map(hash_pair, block.src, block.tgt)), np.uint64)
            hashes.append(block_hashes[block_hashes % np.uint64(hash_step) == 0])
            identical += sum(
                comparable(src).strip() == comparable(tgt).strip() != "" for src, tgt in zip(block.src, block.tgt)
            )
            _count_forms(forms, "train", block)
            scripts += check_step * sum(
                any(script_of(line) not in (main_script, None) for line, main_script in zip(pair, scripts_of_sides))
                for pair in zip(block.src[::check_step], block.tgt[::check_step])
            )
            indices = random.permutation(len(block))[: max(1, len(block) // 20 // check_step)].tolist()
            sample = block.select(indices)
            sampled += 2 * len(sample)
            changed += _count_changed(sample, tokenizer)
            alignment.add(block)
            advance(len(block))
        shifts += alignment.shifts()
        unrelated += [name] if alignment.is_unrelated() else []
    for name, text in held_out.items():
        _count_forms(forms, name, text)
        for number, lines in enumerate(text.references, start=1):
            alignment = Alignment(name if number == 1 else f"{name}, reference {number}", len(text))
            alignment.add(ParallelText(text.src, [line or "" for line in lines]))
            shifts += alignment.shifts()
    all_hashes = np.concatenate(hashes) if hashes else np.empty(0, np.uint64)
    duplicates = round((len(all_hashes) - len(np.unique(all_hashes))) * hash_step)
    lengths = sample_lengths(shards)
    n_swapped, swapped_examples = _find_swapped(shards, tokenizer)
    n_unknown = n_byte_tokens = n_tokens = 0
    for side, rows, size in _sides_with_sizes(shards, tokenizer):
        counts = _count_ids(rows.ids, size)
        is_byte = [len(piece) == 6 and piece.startswith("<0x") for piece in tokenizer.pieces(range(size), side)]
        n_unknown += counts[UNK]
        n_byte_tokens += counts[is_byte].sum()
        n_tokens += counts.sum()
    return Diagnosis(
        pairs=shards.count("kept"),
        read=shards.count("read"),
        corpora=_corpus_statistics(shards),
        left_out=dict(sum((Counter(counts["dropped"]) for counts in shards.metadata["corpora"].values()), Counter())),
        duplicates=duplicates,
        identical=identical,
        scripts=scripts,
        swapped=n_swapped,
        swapped_examples=swapped_examples,
        changed_by_tokenizer=changed / max(1, sampled),
        unknown=float(n_unknown / max(1, n_tokens)),
        bytes=float(n_byte_tokens / max(1, n_tokens)),
        lengths={
            name: {**_length_statistics(values), "longest": float(side.lengths.max())}
            for name, values, side in zip(SIDES, lengths, (shards.src, shards.tgt))
        },
        ratio=_quantiles(lengths[1] / lengths[0], {"1%": 0.01, "median": 0.5, "99%": 0.99}),
        overlap={split: index.overlap for split, index in indexes.items()},
        shifts=shifts,
        unrelated=unrelated,
        forms={side: dict(counts) for side, counts in forms.items()},
    )


def _count_forms(forms: dict[str, Counter[str]], split: str, block: ParallelText) -> None:
    for side, lines in (("source", block.src), ("target", block.reference_lines)):
        forms.setdefault(f"{split} {side}", Counter()).update(count_forms(lines))


def sample_lengths(shards: Shards) -> list[np.ndarray]:
    """Return the numbers of tokens of each side, including </s>, for all pairs or for a million, spread evenly."""
    n_pairs = len(shards.src)
    indices = np.linspace(0, n_pairs - 1, min(n_pairs, _MAX_MEASURED_PAIRS)).astype(np.int64)
    return [side.lengths[indices] for side in (shards.src, shards.tgt)]


def _corpus_statistics(shards: Shards) -> dict[str, dict[str, Any]]:
    """Return the numbers of pairs and the mean numbers of tokens of each corpus."""
    statistics, first = {}, 0
    for corpus, counts in shards.metadata["corpora"].items():
        last = first + counts["kept"]
        tokens = [int(side.offsets[last] - side.offsets[first]) for side in (shards.src, shards.tgt)]
        means = [n_tokens / counts["kept"] + 1 if counts["kept"] else 0.0 for n_tokens in tokens]
        statistics[corpus] = {**counts, "mean_tokens": dict(zip(SIDES, means))}
        first = last
    return statistics


def _sides_with_sizes(shards: Shards, tokenizer: Tokenizer) -> list[tuple[Side, FlatIds, int]]:
    """Return each side with its sequences and its vocabulary size."""
    return [("src", shards.src, tokenizer.src_vocab_size), ("tgt", shards.tgt, tokenizer.tgt_vocab_size)]


def _count_ids(ids: np.ndarray, size: int) -> np.ndarray:
    """Return the number of occurrences of each id, in constant memory."""
    total = np.zeros(size, np.int64)
    for start in range(0, len(ids), 2**22):
        total += np.bincount(ids[start : start + 2**22], minlength=size)
    return total


def _length_statistics(values: np.ndarray) -> dict[str, float]:
    quantiles = _quantiles(values, {"median": 0.5, "99%": 0.99})
    return {"mean": float(values.mean()) if len(values) else 0.0, **quantiles}


def _quantiles(values: np.ndarray, shares: dict[str, float]) -> dict[str, float]:
    return {name: float(np.quantile(values, share)) if len(values) else 0.0 for name, share in shares.items()}


def _count_changed(pairs: ParallelText, tokenizer: Tokenizer) -> int:
    """Return the number of lines that change when encoded and decoded."""
    sources = tokenizer.encode(pairs.src)
    targets = tokenizer.encode_targets(pairs.tgt, sources)
    decoded = [tokenizer.decode(source.ids, source.placeholders, "src") for source in sources]
    decoded += [tokenizer.decode(target, source.placeholders) for target, source in zip(targets, sources)]
    return sum(before != after for before, after in zip([*pairs.src, *pairs.tgt], decoded))


# ------------------------------------------------------------------------------------------------------------ overlap


class _OverlapIndex:
    """Index of a held-out split, with which its overlap with train is found."""

    def __init__(self, text: ParallelText) -> None:
        self.text = text
        self.sources: dict[str, list[int]] = {}
        self.grams: dict[tuple[str, ...], list[int]] = {}
        references = zip(*text.references, strict=True)
        self.targets = [{normalise(line) for line in lines if line is not None} for lines in references]
        long = 0
        for i, line in enumerate(text.src):
            source = normalise(line)
            if source:
                self.sources.setdefault(source, []).append(i)
            grams = list(_grams(source))
            long += bool(grams)
            for gram in grams:
                self.grams.setdefault(gram, []).append(i)
        self.seen: dict[str, set[int]] = {"pairs": set(), "sources": set(), "near": set()}
        self._overlap = Overlap(size=len(text), long=long)

    def add(self, block: ParallelText, sources: Sequence[str], targets: Sequence[str]) -> None:
        for row, (source, target) in enumerate(zip(sources, targets)):
            for i in self.sources.get(source, ()):
                self.seen["sources"].add(i)
                if target in self.targets[i] and i not in self.seen["pairs"]:
                    self.seen["pairs"].add(i)
                    if len(self._overlap.examples) < _N_EXAMPLES:
                        self._overlap.examples.append((self.text.src[i], block.src[row]))
            for gram in _grams(source):
                for i in self.grams.get(gram, ()):
                    if i not in self.seen["near"]:
                        self.seen["near"].add(i)
                        if len(self._overlap.near_examples) < _N_EXAMPLES and normalise(self.text.src[i]) != source:
                            self._overlap.near_examples.append((self.text.src[i], block.src[row]))

    @property
    def overlap(self) -> Overlap:
        overlap = self._overlap
        overlap.pairs, overlap.sources, overlap.near = (len(self.seen[name]) for name in ("pairs", "sources", "near"))
        return overlap


def _grams(line: str) -> Iterator[tuple[str, ...]]:
    words = line.split()
    return zip(*(words[i:] for i in range(N_GRAM))) if len(words) >= N_GRAM else iter(())


# ------------------------------------------------------------------------------------------------------------ swapped


def _find_swapped(shards: Shards, tokenizer: Tokenizer) -> tuple[int, list[tuple[str, str]]]:
    """Return the number of pairs whose sides seem to be swapped, and examples.

    The sides of a pair seem to be swapped if the pieces of both are far more frequent on the other side of the corpus.
    """
    sides = _sides_with_sizes(shards, tokenizer)
    pieces = [tokenizer.pieces(range(size), side) for side, _, size in sides]
    # The two sides may have different vocabularies, so number the pieces of both together.
    numbers = {piece: i for i, piece in enumerate(dict.fromkeys(pieces[0] + pieces[1]))}
    numbers_by_id = [np.array([numbers[piece] for piece in side_pieces]) for side_pieces in pieces]
    counts = np.full((2, len(numbers)), 0.5)
    for side_counts, (_, rows, size), piece_numbers in zip(counts, sides, numbers_by_id):
        side_counts[piece_numbers] += _count_ids(rows.ids, size)
    # Log-odds that a piece belongs to the source.
    odds = np.log(counts[0] / counts[0].sum()) - np.log(counts[1] / counts[1].sum())
    swapped: list[int] = []
    chunk_size = 2**18
    n_pairs = shards.count("kept")
    for start in range(0, n_pairs, chunk_size):
        stop = min(start + chunk_size, n_pairs)
        sums = []
        for (_, rows, _), piece_numbers in zip(sides, numbers_by_id):
            offsets = rows.offsets[start : stop + 1]
            token_odds = odds[piece_numbers[rows.ids[offsets[0] : offsets[-1]]]]
            cumulative = np.concatenate(([0.0], np.cumsum(token_odds)))
            sums.append(cumulative[offsets[1:] - offsets[0]] - cumulative[offsets[:-1] - offsets[0]])
        is_swapped = (sums[0] < 0) & (sums[1] > 0) & (sums[0] - sums[1] < -_MIN_LOG_ODDS)
        swapped += (start + np.flatnonzero(is_swapped)).tolist()
    examples = swapped[:_N_EXAMPLES]
    texts = [[tokenizer.decode(rows[i].tolist(), (), side) for i in examples] for side, rows, _ in sides]
    return len(swapped), list(zip(*texts))
