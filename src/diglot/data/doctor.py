"""Diagnosis of likely faults in a corpus, from the text and the ids that training reads."""

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
N_GRAM = 8  # number of consecutive words that a train and a held-out source share
_SURE = 8.0  # log-odds above which a pair's sides count as swapped
_EXAMPLES = 5
_HASHED, _MEASURED = 20_000_000, 1_000_000  # pairs


@dataclass
class Overlap:
    """Overlap of a held-out split with train, after normalisation (see `normalise`).

    Attributes:
        size: number of held-out pairs.
        pairs: number of them that occur in train, with any of their references.
        sources: number of them whose source occurs in train.
        near: number of them whose source shares eight consecutive words with a source of train.
        long: number of them whose source has at least eight words.
        examples: held-out and train sources of some `pairs`.
        near_examples: held-out and train sources of some `near`.
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
        corpora: for each corpus of train: pairs read, pairs kept, pairs left out by each rule, mean tokens per side.
        duplicates: pairs equal to an earlier one; from 40 million pairs on, an estimate from a sample.
        identical: pairs whose two sides are equal.
        scripts: pairs with a side that is not in the main script of its side; from 2 million pairs on, an estimate.
        swapped: pairs whose sides seem to be swapped.
        unrelated: corpora of train whose sides do not correspond at all: either their lines are in different orders, or
            the task does not require a correspondence.
        shifts: stretches where the lines of the two sides seem not to correspond.
        forms: for each side of a split ("train target"), numbers of composed and decomposed lines, of those that can be
            written in either form (see diglot.data.forms).
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
    changed_by_tokenizer: float  # share of sampled lines that change when encoded and decoded
    unknown: float  # share of tokens
    bytes: float  # share of tokens that spell a byte
    lengths: dict[str, dict[str, float]]  # tokens of each side: mean, median, 99th percentile, longest
    ratio: dict[str, float]  # target tokens for each source token: median, 1st and 99th percentile
    overlap: dict[str, Overlap]
    shifts: list[Shift]
    unrelated: list[str]
    forms: dict[str, dict[str, int]]

    @property
    def faults(self) -> list[str]:
        """Faults that make training or evaluation unreliable, one line each: shifts, and held-out pairs in train."""
        found = [str(shift) for shift in self.shifts[:_EXAMPLES]]
        if len(self.shifts) > _EXAMPLES:
            found.append(f"and so on: {len(self.shifts):,} such places in total")
        return found + [
            f"{split}: {overlap.pairs:,} of {overlap.size:,} pairs are also in train"
            for split, overlap in self.overlap.items()
            if overlap.pairs
        ]

    def summary(self) -> str:
        """Return the report in one line."""
        near = ", ".join(f"{split} {o.near / o.long:.0%}" for split, o in self.overlap.items() if o.long)
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
        parts.append("no held-out pair in train" if not any(o.pairs for o in self.overlap.values()) else "")
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
    """Return the report on a corpus, from the cache if it has a report on the same data.

    Raises:
        LookupError: the cache has no report, and `may_take_long` is False.
    """
    key = [_FORMAT, shards.key, *(f"{split} {text.digest()}" for split, text in held_out.items())]
    file = cache_dir / "doctor" / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:20]}.json"
    try:
        found = _from_plain(json.loads(file.read_bytes()))
        found.summary()
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):  # missing or damaged
        if not may_take_long:
            raise LookupError("not looked at yet") from None
    with step("looking for faults in the data", total=shards.count("read")) as advance:
        found = _diagnose(train, held_out, shards, tokenizer, advance)
    write_json(file, asdict(found))
    return found


def _from_plain(plain: dict[str, Any]) -> Diagnosis:
    overlap = {split: Overlap(**values) for split, values in plain.pop("overlap").items()}
    shifts = [Shift(*shift) for shift in plain.pop("shifts")]
    return Diagnosis(**plain, overlap=overlap, shifts=shifts)


def _diagnose(
    train: Parallel, held_out: dict[str, ParallelText], shards: Shards, tokenizer: Tokenizer, advance: Any
) -> Diagnosis:
    known = {split: _OverlapIndex(text) for split, text in held_out.items()}
    hashes: list[np.ndarray] = []
    identical = scripts = changed = sampled = 0
    every = max(1, shards.count("read") // _HASHED)  # keep one in this many of all possible hashes
    each = max(1, shards.count("read") // _MEASURED)  # slow checks examine one pair in this many
    random = np.random.default_rng(1)
    shifts: list[Shift] = []
    unrelated: list[str] = []
    forms: dict[str, Counter[str]] = {}
    for name, corpus in corpora_of(train).items():
        alignment = Alignment(name, shards.about["corpora"][name]["read"])
        main: tuple[str | None, str | None] | None = None
        for block in corpus.blocks():
            main = main or main_scripts(block)
            normal_src, normal_tgt = ([normalise(line) for line in side] for side in (block.src, block.tgt))
            for split in known.values():
                split.look(block, normal_src, normal_tgt)
            mine = np.frombuffer(b"".join(map(hash_pair, block.src, block.tgt)), np.uint64)
            hashes.append(mine[mine % np.uint64(every) == 0])
            identical += sum(
                comparable(src).strip() == comparable(tgt).strip() != "" for src, tgt in zip(block.src, block.tgt)
            )
            _count_forms(forms, "train", block)
            scripts += each * sum(
                any(script_of(line) not in (wanted, None) for line, wanted in zip(pair, main))
                for pair in zip(block.src[::each], block.tgt[::each])
            )
            chosen = random.permutation(len(block))[: max(1, len(block) // 20 // each)].tolist()
            some = block.select(chosen)
            sampled += 2 * len(some)
            changed += _changed(some, tokenizer)
            alignment.look(block)
            advance(len(block))
        shifts += alignment.shifts()
        unrelated += [name] if alignment.is_unrelated() else []
    for name, text in held_out.items():
        _count_forms(forms, name, text)
        for number, lines in enumerate(text.references, start=1):
            own = Alignment(name if number == 1 else f"{name}, reference {number}", len(text))
            own.look(ParallelText(text.src, [line or "" for line in lines]))
            shifts += own.shifts()
    all_hashes = np.concatenate(hashes) if hashes else np.empty(0, np.uint64)
    duplicates = round((len(all_hashes) - len(np.unique(all_hashes))) * every)
    lengths = some_lengths(shards)
    swapped, examples = _swapped(shards, tokenizer)
    unknown = in_bytes = total = 0
    for side, rows, size in _sides(shards, tokenizer):
        counts = _counts(rows.ids, size)
        is_byte = [len(piece) == 6 and piece.startswith("<0x") for piece in tokenizer.pieces(range(size), side)]
        unknown, in_bytes, total = unknown + counts[UNK], in_bytes + counts[is_byte].sum(), total + counts.sum()
    return Diagnosis(
        pairs=shards.count("kept"),
        read=shards.count("read"),
        corpora=_corpora(shards),
        left_out=dict(sum((Counter(counts["dropped"]) for counts in shards.about["corpora"].values()), Counter())),
        duplicates=duplicates,
        identical=identical,
        scripts=scripts,
        swapped=swapped,
        swapped_examples=examples,
        changed_by_tokenizer=changed / max(1, sampled),
        unknown=float(unknown / max(1, total)),
        bytes=float(in_bytes / max(1, total)),
        lengths={
            name: {**_lengths(values), "longest": float(side.lengths.max())}
            for name, values, side in zip(SIDES, lengths, (shards.src, shards.tgt))
        },
        ratio=_quantiles(lengths[1] / lengths[0], {"1%": 0.01, "median": 0.5, "99%": 0.99}),
        overlap={split: each.found for split, each in known.items()},
        shifts=shifts,
        unrelated=unrelated,
        forms={side: dict(counts) for side, counts in forms.items()},
    )


def _count_forms(forms: dict[str, Counter[str]], split: str, block: ParallelText) -> None:
    for side, lines in (("source", block.src), ("target", block.reference_lines)):
        forms.setdefault(f"{split} {side}", Counter()).update(count_forms(lines))


def some_lengths(shards: Shards) -> list[np.ndarray]:
    """Return each side's numbers of tokens, including </s>, for all pairs or for a million that are evenly spread."""
    n = len(shards.src)
    numbers = np.linspace(0, n - 1, min(n, _MEASURED)).astype(np.int64)
    return [side.lengths[numbers] for side in (shards.src, shards.tgt)]


def _corpora(shards: Shards) -> dict[str, dict[str, Any]]:
    found, first = {}, 0
    for corpus, counts in shards.about["corpora"].items():
        last = first + counts["kept"]
        tokens = [int(side.offsets[last] - side.offsets[first]) for side in (shards.src, shards.tgt)]
        means = [n / counts["kept"] + 1 if counts["kept"] else 0.0 for n in tokens]
        found[corpus] = {**counts, "mean_tokens": dict(zip(SIDES, means))}
        first = last
    return found


def _sides(shards: Shards, tokenizer: Tokenizer) -> list[tuple[Side, FlatIds, int]]:
    """Return each side with its sequences and its vocabulary size."""
    return [("src", shards.src, tokenizer.src_vocab_size), ("tgt", shards.tgt, tokenizer.tgt_vocab_size)]


def _counts(ids: np.ndarray, size: int) -> np.ndarray:
    """Return the number of occurrences of each id, in constant memory."""
    total = np.zeros(size, np.int64)
    for start in range(0, len(ids), 2**22):
        total += np.bincount(ids[start : start + 2**22], minlength=size)
    return total


def _lengths(values: np.ndarray) -> dict[str, float]:
    found = _quantiles(values, {"median": 0.5, "99%": 0.99})
    return {"mean": float(values.mean()) if len(values) else 0.0, **found}


def _quantiles(values: np.ndarray, wanted: dict[str, float]) -> dict[str, float]:
    return {name: float(np.quantile(values, share)) if len(values) else 0.0 for name, share in wanted.items()}


def _changed(pairs: ParallelText, tokenizer: Tokenizer) -> int:
    """Return the number of lines that change when encoded and decoded."""
    sources = tokenizer.encode(pairs.src)
    targets = tokenizer.encode_targets(pairs.tgt, sources)
    back = [tokenizer.decode(source.ids, source.placeholders, "src") for source in sources]
    back += [tokenizer.decode(target, source.placeholders) for target, source in zip(targets, sources)]
    return sum(line != given for line, given in zip(back, [*pairs.src, *pairs.tgt]))


# ------------------------------------------------------------------------------------------------------------ overlap


class _OverlapIndex:
    """A held-out split, indexed to find its overlap with train."""

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
        self._found = Overlap(size=len(text), long=long)

    def look(self, block: ParallelText, sources: Sequence[str], targets: Sequence[str]) -> None:
        for k, (source, target) in enumerate(zip(sources, targets)):
            for i in self.sources.get(source, ()):
                self.seen["sources"].add(i)
                if target in self.targets[i] and i not in self.seen["pairs"]:
                    self.seen["pairs"].add(i)
                    if len(self._found.examples) < _EXAMPLES:
                        self._found.examples.append((self.text.src[i], block.src[k]))
            for gram in _grams(source):
                for i in self.grams.get(gram, ()):
                    if i not in self.seen["near"]:
                        self.seen["near"].add(i)
                        if len(self._found.near_examples) < _EXAMPLES and normalise(self.text.src[i]) != source:
                            self._found.near_examples.append((self.text.src[i], block.src[k]))

    @property
    def found(self) -> Overlap:
        found = self._found
        found.pairs, found.sources, found.near = (len(self.seen[name]) for name in ("pairs", "sources", "near"))
        return found


def _grams(line: str) -> Iterator[tuple[str, ...]]:
    words = line.split()
    return zip(*(words[i:] for i in range(N_GRAM))) if len(words) >= N_GRAM else iter(())


# ------------------------------------------------------------------------------------------------------------ swapped


def _swapped(shards: Shards, tokenizer: Tokenizer) -> tuple[int, list[tuple[str, str]]]:
    """Return the number of pairs whose sides seem to be swapped, and examples.

    A pair seems swapped if its pieces are far more frequent on the opposite sides, counted over all pairs.
    """
    sides = _sides(shards, tokenizer)
    pieces = [tokenizer.pieces(range(size), side) for side, _, size in sides]
    numbers = {piece: i for i, piece in enumerate(dict.fromkeys(pieces[0] + pieces[1]))}
    joint = [np.array([numbers[piece] for piece in own]) for own in pieces]  # there may be two vocabularies
    counts = np.full((2, len(numbers)), 0.5)
    for count, (_, rows, size), places in zip(counts, sides, joint):
        count[places] += _counts(rows.ids, size)
    # The log-odds that a piece belongs to the source.
    odds = np.log(counts[0] / counts[0].sum()) - np.log(counts[1] / counts[1].sum())
    found: list[int] = []
    step_size = 2**18
    n_pairs = shards.count("kept")
    for start in range(0, n_pairs, step_size):
        stop = min(start + step_size, n_pairs)
        sums = []
        for (_, rows, _), places in zip(sides, joint):
            offsets = rows.offsets[start : stop + 1]
            total = np.concatenate(([0.0], np.cumsum(odds[places[rows.ids[offsets[0] : offsets[-1]]]])))
            sums.append(total[offsets[1:] - offsets[0]] - total[offsets[:-1] - offsets[0]])
        found += (start + np.flatnonzero((sums[0] < 0) & (sums[1] > 0) & (sums[0] - sums[1] < -_SURE))).tolist()
    examples = found[:_EXAMPLES]
    texts = [[tokenizer.decode(rows[i].tolist(), (), side) for i in examples] for side, rows, _ in sides]
    return len(found), list(zip(*texts))
