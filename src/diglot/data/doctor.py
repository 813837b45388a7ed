"""What is likely wrong with a corpus: looked for in the text and the ids as training reads them."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from diglot.data.flat import FlatIds
from diglot.data.preparation import main_scripts, script_of
from diglot.data.progress import step
from diglot.data.shards import SIDES, Shards
from diglot.data.split import normalise
from diglot.data.text import Parallel, ParallelText, corpora_of, hash_pair, write_bytes
from diglot.data.tokenizer import UNK, Side, Tokenizer

_FORMAT = 5  # raise it when the same data get another report
N_GRAM = 8  # words in a row that a train and a held-out source share
WINDOW, REACH = 400, 3  # pairs that are looked at together for a shift, and the farthest shift that is looked for
N_WINDOWS = 2_500  # at most, spread evenly: a shift does not end by itself
_LEAST, _DEVIATIONS = 0.03, 7.0  # by how much, and how many standard deviations, moved sides must fit better
_SURE = 8.0  # log-odds from which on a pair's sides are taken for swapped
_EXAMPLES = 5
_HASHED, _MEASURED = 20_000_000, 2_000_000  # pairs


@dataclass
class Overlap:
    """What a held-out split and train share, after normalising (case, numbers, placeholders, blanks, punctuation).

    Attributes:
        pairs: held-out pairs whose two sides stand together in train.
        sources: held-out pairs whose source does.
        near: held-out pairs whose source shares eight words in a row with a source of train.
        long: held-out pairs whose source has as many.
        examples: lines of the held-out text, and of train.
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
    """A report of numbers; shares are of train pairs.

    Attributes:
        corpora: of each corpus of train, pairs read and kept, pairs left out by rule, and mean tokens of a side.
        duplicates: pairs that an equal one came before; of more than 20 million pairs an estimate from a part of them.
        scripts: pairs with a side in another script than the rest; of more than two million likewise.
        unrelated: splits whose two sides do not fit at all: lines in another order, or a task where they need not.
        shifts: where the lines of a split's two sides seem not to correspond: (split, first line, by how many lines).
    """

    pairs: int
    corpora: dict[str, dict[str, Any]]
    left_out: dict[str, int]
    duplicates: int
    identical: int
    scripts: int
    swapped: int
    swapped_examples: list[tuple[str, str]]
    changed_by_tokenizer: float  # share of sampled lines that do not come back as they went in
    unknown: float  # share of tokens
    bytes: float  # share of tokens that spell a byte
    lengths: dict[str, dict[str, float]]  # tokens of each side: mean, median, 99th percentile, longest
    ratio: dict[str, float]  # target tokens for each source token: median, 1st and 99th percentile
    overlap: dict[str, Overlap]
    shifts: list[tuple[str, int, int]]
    unrelated: list[str]

    @property
    def faults(self) -> list[str]:
        """What nobody wants to train on, one line each."""
        found = [
            f"{split}: from about line {line:,} on, the two sides fit better when moved by {by:+d}: are lines missing?"
            for split, line, by in self.shifts[:_EXAMPLES]
        ]
        if len(self.shifts) > _EXAMPLES:
            found.append(f"and so on, {len(self.shifts):,} times")
        return found + [
            f"{split}: {overlap.pairs:,} of {overlap.size:,} pairs stand in train, too"
            for split, overlap in self.overlap.items()
            if overlap.pairs
        ]

    def summary(self) -> str:
        """One line."""
        near = ", ".join(f"{split} {o.near / o.long:.0%}" for split, o in self.overlap.items() if o.long)
        parts = [f"{self.pairs:,} pairs", f"{self.duplicates:,} repeated", f"{self.swapped:,} perhaps swapped"]
        parts += [f"{split}: the two sides do not fit at all, do their lines correspond?" for split in self.unrelated]
        parts.append("no held-out pair in train" if not any(o.pairs for o in self.overlap.values()) else "")
        parts.append(f"sharing {N_GRAM} words with train: {near}" if near else "")
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
    """The report on a corpus, from the cache where there is one on the same data.

    Raises:
        LookupError: there is none, and it must not take long.
    """
    key = [_FORMAT, shards.key, *(f"{split} {text.digest()}" for split, text in held_out.items())]
    file = cache_dir / "doctor" / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:20]}.json"
    try:
        return _from_plain(json.loads(file.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        if not may_take_long:
            raise LookupError("not looked at yet") from None
    with step("looking for faults in the data", total=shards.count("read")) as advance:
        found = _diagnose(train, held_out, shards, tokenizer, advance)
    write_bytes(file, json.dumps(asdict(found), ensure_ascii=False, indent=1).encode())
    return found


def _from_plain(plain: dict[str, Any]) -> Diagnosis:
    overlap = {split: Overlap(**values) for split, values in plain.pop("overlap").items()}
    return Diagnosis(**plain, overlap=overlap)


def _diagnose(
    train: Parallel, held_out: dict[str, ParallelText], shards: Shards, tokenizer: Tokenizer, advance: Any
) -> Diagnosis:
    known = {split: _Known(text) for split, text in held_out.items()}
    hashes: list[np.ndarray] = []
    identical = scripts = changed = sampled = 0
    every = max(1, shards.count("read") // _HASHED)  # of the hashes that may be, one in so many is kept
    each = max(1, shards.count("read") // _MEASURED)  # what takes long is looked at in one pair in so many
    random = np.random.default_rng(1)
    shifts: list[tuple[str, int, int]] = []
    unrelated: list[str] = []
    for name, corpus in corpora_of(train).items():
        windows = _Windows(name, shards.about["corpora"][name]["read"])
        main: tuple[str | None, str | None] | None = None
        for block in corpus.blocks():
            main = main or main_scripts(block)
            normal_src, normal_tgt = ([normalise(line) for line in side] for side in (block.src, block.tgt))
            for split in known.values():
                split.look(block, normal_src, normal_tgt)
            mine = np.frombuffer(b"".join(map(hash_pair, block.src, block.tgt)), np.uint64)
            hashes.append(mine[mine % np.uint64(every) == 0])
            identical += sum(src.strip() == tgt.strip() != "" for src, tgt in zip(block.src, block.tgt))
            scripts += each * sum(
                any(script_of(line) not in (wanted, None) for line, wanted in zip(pair, main))
                for pair in zip(block.src[::each], block.tgt[::each])
            )
            chosen = random.permutation(len(block))[: max(1, len(block) // 20 // each)].tolist()
            some = block.select(chosen)
            sampled += 2 * len(some)
            changed += _changed(some, tokenizer)
            windows.look(block)
            advance(len(block))
        shifts += windows.shifts()
        unrelated += [name] if windows.are_unrelated() else []
    for name, text in held_out.items():
        own = _Windows(name, len(text))
        own.look(text)
        shifts += own.shifts()
    all_hashes = np.concatenate(hashes) if hashes else np.empty(0, np.uint64)
    duplicates = round((len(all_hashes) - len(np.unique(all_hashes))) * every)
    lengths = some_lengths(shards)
    swapped, examples = _swapped(shards, tokenizer)
    counts = dict.fromkeys(("<unk>", "<0x..>"), 0)
    total = 1e-9
    for side, ids, size in _sides(shards, tokenizer):
        n = _counts(ids.ids, size)
        pieces = tokenizer.pieces(range(size), side)
        counts["<unk>"] += int(n[UNK])
        counts["<0x..>"] += int(n[[len(piece) == 6 and piece.startswith("<0x") for piece in pieces]].sum())
        total += float(n.sum())
    return Diagnosis(
        pairs=shards.count("kept"),
        corpora=_corpora(shards),
        left_out=dict(sum((Counter(counts["dropped"]) for counts in shards.about["corpora"].values()), Counter())),
        duplicates=duplicates,
        identical=identical,
        scripts=scripts,
        swapped=swapped,
        swapped_examples=examples,
        changed_by_tokenizer=changed / max(1, sampled),
        unknown=counts["<unk>"] / total,
        bytes=counts["<0x..>"] / total,
        lengths={
            name: {**_lengths(values), "longest": float(side.lengths.max())}
            for name, values, side in zip(SIDES, lengths, (shards.src, shards.tgt))
        },
        ratio=_quantiles(lengths[1] / lengths[0], {"1%": 0.01, "median": 0.5, "99%": 0.99}),
        overlap={split: each.found for split, each in known.items()},
        shifts=shifts,
        unrelated=unrelated,
    )


def some_lengths(shards: Shards) -> list[np.ndarray]:
    """Tokens of each side, </s> counted: of all pairs, or of two million that are evenly spread."""
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
    """Each side, its sequences, and the size of its vocabulary."""
    return [("src", shards.src, tokenizer.src_vocab_size), ("tgt", shards.tgt, tokenizer.tgt_vocab_size)]


def _counts(ids: np.ndarray, size: int) -> np.ndarray:
    """How often each id stands, in constant memory."""
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
    """Lines that do not come back from the tokenizer as they went in."""
    sources = tokenizer.encode(pairs.src)
    targets = tokenizer.encode_targets(pairs.tgt, sources)
    back = [tokenizer.decode(source.ids, source.placeholders, "src") for source in sources]
    back += [tokenizer.decode(target, source.placeholders) for target, source in zip(targets, sources)]
    return sum(line != given for line, given in zip(back, [*pairs.src, *pairs.tgt]))


# ------------------------------------------------------------------------------------------------------------ overlap


class _Known:
    """A held-out split, and what of it is found in train."""

    def __init__(self, text: ParallelText) -> None:
        self.text = text
        self.sources: dict[str, list[int]] = {}
        self.grams: dict[tuple[str, ...], list[int]] = {}
        self.targets = [normalise(line) for line in text.tgt]
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
                if target == self.targets[i] and i not in self.seen["pairs"]:
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


# ------------------------------------------------------------------------------------------------------------- shifts


class _Windows:
    """Looks, in windows of neighbouring pairs, whether the two sides fit better when one is moved by some lines.

    Sides fit where long lines stand beside long ones, and where what both languages write alike (numbers, marks, names)
    stands in both.
    """

    def __init__(self, split: str, n_pairs: int) -> None:
        self.split = split
        self.every = max(1, -(-n_pairs // WINDOW // N_WINDOWS))  # of the windows, one in so many is looked at
        self.number = 0
        self.size = WINDOW
        self.rest = ParallelText([], [])
        self.scores: list[tuple[int, np.ndarray]] = []  # the first line, and the fit at each shift

    def look(self, block: ParallelText) -> None:
        pairs = ParallelText(self.rest.src + block.src, self.rest.tgt + block.tgt)
        start = 0
        while len(pairs) - start >= WINDOW:
            if self.number % self.every == 0:
                window = pairs.select(range(start, start + WINDOW))
                self.scores.append((self.number * WINDOW + 1, _fits(window)))
            start += WINDOW
            self.number += 1
        self.rest = pairs.select(range(start, len(pairs)))

    def shifts(self) -> list[tuple[str, int, int]]:
        """The beginning of each stretch of windows that fit better when moved."""
        self._end()
        if not self.scores:
            return []
        better = self._better()
        deviation = 1.5 / self.size**0.5  # what chance makes of such a difference in a window
        found: list[tuple[str, int, int]] = []
        rest = [(0, len(better))]
        while rest:
            start, stop = rest.pop()
            best, where = _DEVIATIONS, (0, 0, 0)
            for k in range(2 * REACH + 1):
                first, last = _heaviest(better[start:stop, k] - _LEAST)
                total = better[start + first : start + last, k].sum()
                sure = total / (deviation * max(1, last - first) ** 0.5)
                if sure > best:
                    best, where = sure, (start + first, start + last, k)
            first, last, k = where
            if last:
                found.append((self.split, self.scores[first][0], k - REACH))
                rest += [(start, first), (last, stop)]
        return sorted(found)

    def are_unrelated(self) -> bool:
        """Whether the sides fit as they stand no better than any other lines would; a few windows say little."""
        self._end()
        fits = np.array([fits[REACH] for _, fits in self.scores])
        if len(fits) < 5 or self.shifts():
            return False
        return bool(fits.mean() < max(_LEAST, 3 * fits.std() / len(fits) ** 0.5))

    def _end(self) -> None:
        if not self.scores and len(self.rest) >= WINDOW // 8:  # too small for a window: all of it is one
            self.scores.append((1, _fits(self.rest)))
            self.size = len(self.rest)

    def _better(self) -> np.ndarray:
        """How much better each window fits at each shift than as it stands."""
        fits = np.stack([fits for _, fits in self.scores])
        return fits - fits[:, [REACH]]


def _heaviest(values: np.ndarray) -> tuple[int, int]:
    """Where the stretch with the greatest sum begins and ends; nowhere, if all are negative (Kadane's algorithm)."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    gains = sums - np.minimum.accumulate(sums)
    last = int(np.argmax(gains))
    return int(np.argmin(sums[: last + 1])), last


def _fits(window: ParallelText) -> np.ndarray:
    """How well the sides fit when the target is moved by -REACH to REACH lines: correlation of lengths plus the share
    of common marks, less what any lines have (2 REACH + 1,)."""
    lengths = [_ranks([len(line) for line in side]) for side in (window.src, window.tgt)]
    marks = [[_marks(line) for line in side] for side in (window.src, window.tgt)]
    n = len(window)
    found = []
    for by in range(-REACH, REACH + 1):
        src = slice(max(0, -by), n - max(0, by))
        tgt = slice(max(0, by), n - max(0, -by))
        a, b = lengths[0][src], lengths[1][tgt]
        spread = a.std() * b.std()
        correlation = float(((a - a.mean()) * (b - b.mean())).mean() / spread) if spread > 1e-9 else 0.0
        shares = [2 * (x & y).total() / (x.total() + y.total()) for x, y in zip(marks[0][src], marks[1][tgt]) if x or y]
        found.append(correlation + sum(shares) / (len(shares) + 40))  # marks of a few lines say little
    return np.array(found) - np.median(found)


def _ranks(values: Sequence[int]) -> np.ndarray:
    """Where each value stands among all, so that a few that are odd say no more than others."""
    in_order = np.sort(values)
    return (np.searchsorted(in_order, values, "left") + np.searchsorted(in_order, values, "right")) / 2


def _marks(line: str) -> Counter[str]:
    """What two languages write alike: numbers, marks, and words with a capital letter inside the line."""
    words = line.split()
    found = Counter(
        character for character in line if not (character.isalpha() or character.isspace() or character in ".,")
    )
    found.update(word.strip(".,;:!?()\"'") for word in words[1:] if word[:1].isupper())
    return found


# ------------------------------------------------------------------------------------------------------------ swapped


def _swapped(shards: Shards, tokenizer: Tokenizer) -> tuple[int, list[tuple[str, str]]]:
    """How many pairs seem to have their sides swapped: by the pieces that either side is made of, counted over all."""
    sides = _sides(shards, tokenizer)
    pieces = [tokenizer.pieces(range(size), side) for side, _, size in sides]
    numbers = {piece: i for i, piece in enumerate(dict.fromkeys(pieces[0] + pieces[1]))}
    joint = [np.array([numbers[piece] for piece in own]) for own in pieces]  # the vocabularies may be two
    counts = np.full((2, len(numbers)), 0.5)
    for count, (_, rows, size), places in zip(counts, sides, joint):
        count[places] += _counts(rows.ids, size)
    odds = np.log(counts[0] / counts[0].sum()) - np.log(counts[1] / counts[1].sum())  # of a piece being the source's
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
