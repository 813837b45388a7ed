"""Splitting off dev and test from a corpus, without leaks between the splits if its texts repeat."""

import hashlib
import re
from collections.abc import Mapping
from itertools import zip_longest

from diglot.data.forms import comparable
from diglot.data.text import ParallelText, drop_blank_pairs
from diglot.errors import UserError

_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_LARGEST_SHARE = 10  # dev and test each take at most one pair in this many


def normalise(text: str) -> str:
    """Normalise a text in case, numbers, placeholders, whitespace, outer punctuation and Unicode form.

    For example, "Set {name} to 10!" and "set {other}  to 7" both become "set X to N". `comparable` normalises the form.
    """
    # The text is in lower case when the marks X and N are inserted, so that no word of the text equals a mark.
    text = _NUMBER.sub("N", _PLACEHOLDER.sub("X", comparable(text).lower()))
    start, end = 0, len(text)
    while start < end and not text[start].isalnum():
        start += 1
    while start < end and not text[end - 1].isalnum():
        end -= 1
    return " ".join(text[start:end].split())


def split_off(
    train: ParallelText, sizes: Mapping[str, int], seed: int, name: str
) -> tuple[dict[str, ParallelText], str]:
    """Split dev, test or both off from train with `grouped_split`.

    Args:
        train: the pairs. Those with a blank side are dropped.
        sizes: number of pairs of each split to split off, by its name, "dev" or "test".
        seed: seed of the split.
        name: name of the text in errors.

    Returns:
        The splits, including train, and a note with their numbers of pairs. In dev and test, pairs with the same source
        are one pair with several references.

    Raises:
        UserError: there are too few pairs.
    """
    train, n_blank = drop_blank_pairs(train)
    if not len(train):
        raise UserError(f"train: every pair of {name} has a blank side")
    splits, n_dropped = grouped_split(train, sizes.get("dev", 0), sizes.get("test", 0), seed)
    counts = " and ".join(f"{split} ({len(splits[split])} pairs)" for split in sizes)
    note = (
        f"{counts} split off from train, seed {seed}; dropped {n_blank} pairs with a blank side and {n_dropped} train "
        f"pairs whose target is in dev or test; {len(splits['train'])} left"
    )
    for split in sizes:
        n_pairs = len(splits[split])
        splits[split] = merge_alternatives(splits[split])
        if n_merged := n_pairs - len(splits[split]):
            note += f"; {split}: {n_merged} pairs are further references of another pair with the same source"
    return {split: splits[split] for split in ("train", *sizes)}, note


def merge_alternatives(pairs: ParallelText) -> ParallelText:
    """Merge pairs with the same source and different targets into one pair with several references.

    Sources and targets are the same if they are `comparable`. Pairs that repeat another one completely are kept, unless
    the source has another target, too.
    """
    targets: dict[str, dict[str, str]] = {}
    sources = [comparable(src).strip() for src in pairs.src]
    for src, tgt in zip(sources, pairs.tgt):
        targets.setdefault(src, {}).setdefault(comparable(tgt).strip(), tgt)
    if all(len(alternatives) == 1 for alternatives in targets.values()):
        return pairs
    kept: list[int] = []
    references: list[list[str]] = []
    seen: set[str] = set()
    for i, src in enumerate(sources):
        alternatives = [*targets[src].values()]
        if src in seen:
            continue
        if len(alternatives) > 1:
            seen.add(src)
        kept.append(i)
        references.append(alternatives if len(alternatives) > 1 else [pairs.tgt[i]])
    first, *more = zip_longest(*references)
    return ParallelText([pairs.src[i] for i in kept], [*first], tuple([*lines] for lines in more))


def grouped_split(
    pairs: ParallelText, dev_size: int, test_size: int, seed: int, *, may_share_targets: bool = False
) -> tuple[dict[str, ParallelText], int]:
    """Split pairs into train, dev and test so that no two splits have a source in common, after normalisation.

    Pairs with the same normalised source form a group, which is put into one split. A train pair is dropped if its
    normalised target occurs in dev or test. The choice of groups depends only on the seed and on the texts of each
    group, so that a few additional pairs change the split little. Pairs keep their order.

    Args:
        pairs: the corpus.
        dev_size: number of pairs for dev, limited to a tenth of the corpus but at least one pair; 0: no dev.
        test_size: number of pairs for test, limited in the same way; 0: no test.
        seed: seed of the choice of groups.
        may_share_targets: whether a train pair is kept even if its target occurs in dev or test.

    Returns:
        The splits "train", "dev" and "test", and the number of pairs dropped from train.

    Raises:
        UserError: there are too few different sources, or no pair is left for train.
    """
    groups: dict[str, list[int]] = {}
    for i, src in enumerate(pairs.src):
        groups.setdefault(normalise(src), []).append(i)

    def random_rank(key: str) -> bytes:
        return hashlib.blake2b(f"{seed} {key}".encode("utf-8", "surrogatepass"), digest_size=16).digest()

    order = sorted(groups, key=random_rank)
    indices: dict[str, list[int]] = {}
    chosen_keys: set[str] = set()
    for split, size in (("test", test_size), ("dev", dev_size)):
        n_wanted = min(size, max(1, len(pairs) // _LARGEST_SHARE))
        chosen: list[int] = []
        for key in order:
            if len(chosen) == n_wanted:
                break
            # A group that is larger than the number still wanted stays in train.
            if key not in chosen_keys and len(chosen) + len(groups[key]) <= n_wanted:
                chosen_keys.add(key)
                chosen += groups[key]
        if n_wanted and not chosen:
            raise UserError(f"{len(pairs)} pairs with {len(groups)} different sources are too few to split off {split}")
        indices[split] = sorted(chosen)

    held_out = set(indices["dev"]) | set(indices["test"])
    held_out_targets = set() if may_share_targets else {normalise(pairs.tgt[i]) for i in held_out}
    remaining = [i for i in range(len(pairs)) if i not in held_out]
    indices["train"] = [i for i in remaining if normalise(pairs.tgt[i]) not in held_out_targets]
    if not indices["train"]:
        raise UserError(f"splitting off dev and test from {len(pairs)} pairs leaves no training pairs")
    splits = {split: pairs.select(indices[split]) for split in ("train", "dev", "test")}
    return splits, len(remaining) - len(indices["train"])
