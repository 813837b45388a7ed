"""Text that is not trained on: dev, further dev sets, test, and the tokenised form in which validations read it."""

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diglot.data.batch import Pairs
from diglot.data.batching import Lengths, MicroBatch, share_rows, split_by_budget
from diglot.data.corpus import SPLITS, Corpus, Files
from diglot.data.flat import FlatIds
from diglot.data.text import ParallelText
from diglot.data.tokenizer import UNK, Tokenizer, is_blank
from diglot.errors import UserError

PREFIX = "dev_"  # before the name of a further dev set in the names of scores and files
_OPTIONS = ("src_lang", "tgt_lang", "columns")


class DevSet(NamedTuple):
    """A text that validations score.

    Attributes:
        name: dev, or the name of a further dev set (see `split_of`).
        src_lang: code of the source language.
        tgt_lang: code of the target language.
    """

    name: str
    src_lang: str
    tgt_lang: str


def split_of(name: str) -> str:
    """Return the name of a split in scores and files: dev_news for the further dev set news, or for dev_news."""
    return name if name in SPLITS or name.startswith(PREFIX) else f"{PREFIX}{name}"


def score_of(monitor: str) -> str:
    """Return the name under which a monitored score is logged: dev/bleu for bleu, or else dev_old/bleu."""
    return monitor if "/" in monitor else f"dev/{monitor}"


def metric_of(score: str) -> str:
    """Return the name of a score's metric, such as bleu for bleu, dev/bleu or dev_old/bleu."""
    return score.rpartition("/")[2]


class FurtherDev:
    """A further dev set, in files of any format that dev may have, or in a dataset of the Hugging Face Hub.

    Args:
        name: its name in the config.
        node: paths and references, as for dev, and optionally src_lang, tgt_lang and columns. Without these, the
            languages are those of the corpus. With the key hub: see `HubDev`.
        corpus: the corpus.

    Attributes:
        dev_set: its name and languages.

    Raises:
        UserError: a name or a key is invalid, or a path is missing. The message names the key.
    """

    def __init__(self, name: str, node: Any, corpus: Corpus) -> None:
        self._key = f"data.further_dev.{name}"
        if not name.isidentifier() or name.startswith(PREFIX) or name in SPLITS:
            raise UserError(f"{self._key}: the name must consist of letters, digits and _, such as news or old")
        self._corpus = self._dataset(node, corpus) if _is_of_hub(node) else self._files(node, corpus)
        for key, language in {**_languages_of(corpus), **_given_languages(self._key, node)}.items():
            setattr(self._corpus, key, language)
        self.dev_set = DevSet(split_of(name), self._corpus.src_lang, self._corpus.tgt_lang)

    def _dataset(self, node: Mapping[str, Any], corpus: Corpus) -> Corpus:
        from diglot.data.hub_dev import HubDev

        return HubDev(self._key, node, _languages_of(corpus))

    def _files(self, node: Any, corpus: Corpus) -> Corpus:
        paths = {key: value for key, value in node.items() if key not in _OPTIONS} if isinstance(node, Mapping) else {}
        if not any(paths.values()):
            example = "{src: old.de, tgt: old.en}, or with a dataset, {hub: wmt/wmt14, config: de-en}"
            raise UserError(f"{self._key}={node}: must be a mapping with paths, such as {example}")
        # In a file with several languages, those of the corpus select the sides.
        selected = {} if paths.get("src") or paths.get("tgt") else _languages_of(corpus)
        options = {**selected, **{key: node[key] for key in _OPTIONS if node.get(key) is not None}}
        with _renamed(self._key):
            return Files(train={}, dev=paths, name=self._key.rpartition(".")[2], **options)

    def prepare(self, cache_dir: Path) -> None:
        """Fetch and convert the text, if it is not in files; see `Corpus.prepare`."""
        self._corpus.prepare(cache_dir)

    def read(self, cache_dir: Path) -> ParallelText:
        """Return the text.

        Raises:
            UserError: it cannot be read, or has no pairs.
        """
        with _renamed(self._key):
            text = self._corpus.read_checked(cache_dir)["dev"].load()
        if not len(text):
            raise UserError(f"{self._key} has no pairs")
        return text

    @property
    def notes(self) -> list[str]:
        """Remarks for the user about the text, which `read` sets."""
        return [f"{self.dev_set.name}: {note.removeprefix('dev: ')}" for note in self._corpus.notes]


def _is_of_hub(node: Any) -> bool:
    return isinstance(node, Mapping) and node.get("hub") is not None


@contextmanager
def _renamed(key: str) -> Iterator[None]:
    """Replace the key data.dev in the message of a UserError."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error).replace("data.dev", key)) from None


def _languages_of(corpus: Corpus) -> dict[str, str]:
    """Return the languages of a corpus that are known."""
    languages = {"src_lang": corpus.src_lang, "tgt_lang": corpus.tgt_lang}
    return {key: code for key, code in languages.items() if code != key.removesuffix("_lang")}


def _given_languages(key: str, node: Mapping[str, Any]) -> dict[str, str]:
    """Return the languages that a further dev set names."""
    given = {name: node[name] for name in ("src_lang", "tgt_lang") if node.get(name) is not None}
    if wrong := next((name for name, code in given.items() if not isinstance(code, str)), None):
        raise UserError(f"{key}.{wrong}={given[wrong]}: must be a language code, in quotes")
    return given


class Validation:
    """The tokenised dev sets that a validation reads, whose pairs are numbered consecutively.

    Args:
        sets: the dev sets, of which the first is dev.
        texts: their text, by name.
        tokenizer: the tokenizer.

    Attributes:
        sets: the dev sets.
        sources: the encoded sources.
        pairs: the tokenised pairs.
        notes: remarks for the user, one line each.
    """

    def __init__(self, sets: Sequence[DevSet], texts: Mapping[str, ParallelText], tokenizer: Tokenizer) -> None:
        self.sets, self.notes = list(sets), list[str]()
        self.sources, targets, counts = [], list[list[int]](), list[bool]()
        for dev_set in sets:
            text = texts[dev_set.name]
            sources = tokenizer.encode(text.src, dev_set.tgt_lang, dev_set.src_lang)
            encoded = tokenizer.encode_targets(text.tgt, sources)
            sides = {"source": [source.ids for source in sources], "target": encoded}
            self.notes += unknown_tokens(sides, dev_set.name)
            self.sources += sources
            targets += encoded
            # As in `score_pairs`, a blank target of a blank source does not count.
            tgt_blanks = map(is_blank, text.tgt, encoded, [len(source.tgt_prefix) for source in sources])
            blanks = zip(sources, tgt_blanks, strict=True)
            counts += [not (source.is_blank and tgt_is_blank) for source, tgt_is_blank in blanks]
        self._ends = list(accumulate(len(texts[dev_set.name]) for dev_set in sets))
        self.pairs = Pairs(
            FlatIds.from_sequences([source.ids for source in self.sources], tokenizer.src_vocab_size),
            FlatIds.from_sequences(targets, tokenizer.tgt_vocab_size),
            counts=np.array(counts, bool),
            bos=tokenizer.bos_id,
        )

    def set_of(self, pair: int) -> DevSet:
        """Return the dev set of a pair, by the pair's number."""
        return self.sets[bisect(self._ends, pair)]

    def numbers(self, dev_set: DevSet) -> range:
        """Return the numbers of a dev set's pairs."""
        i = self.sets.index(dev_set)
        return range(self._ends[i - 1] if i else 0, self._ends[i])

    def long_notes(self, max_len: int) -> list[str]:
        """Return a line for each dev set with pairs over a number of tokens."""
        longest = np.maximum(self.pairs.src.lengths, self.pairs.tgt.lengths)
        counts = {each.name: int((longest[np.array(self.numbers(each))] > max_len).sum()) for each in self.sets}
        return [
            f"{name}: {n:,} pairs over data.max_len={max_len} tokens are kept but slow down validation"
            for name, n in counts.items()
            if n
        ]

    def batches(self, tokens_per_batch: int, rank: int = 0, world_size: int = 1) -> list[MicroBatch]:
        """Return the batches of one process, set by set: no batch has pairs of two sets; see `eval_batches`."""
        found: list[MicroBatch] = []
        for dev_set in self.sets:
            numbers = np.array(self.numbers(dev_set))
            lengths = self.pairs.src.lengths[numbers], self.pairs.tgt.lengths[numbers]
            for batch in eval_batches(*lengths, tokens_per_batch, rank, world_size):
                found.append(batch._replace(pairs=numbers[batch.pairs], position=len(found)))
        return found


def eval_batches(
    src_lengths: Lengths, tgt_lengths: Lengths, tokens_per_batch: int, rank: int = 0, world_size: int = 1
) -> Sequence[MicroBatch]:
    """Return the batches of one process for all pairs, the longest pairs first.

    The processes share the rows of each batch, so that all have the same number of batches.

    Args:
        src_lengths: number of tokens of each source, including </s> (N,).
        tgt_lengths: number of tokens of each target, including </s> (N,).
        tokens_per_batch: budget of a batch over all processes, in tokens.
        rank: rank of the process.
        world_size: number of processes.
    """
    longest = np.maximum(np.asarray(src_lengths), np.asarray(tgt_lengths))
    order = np.argsort(longest, kind="stable")
    ranges = split_by_budget(longest[order], tokens_per_batch)
    batches = []
    for i, bounds in enumerate(reversed(ranges)):
        rows, is_dummy = share_rows(order[slice(*bounds)], rank, world_size)
        batches.append(MicroBatch(rows, 0, 0.0, position=i, update_target_tokens=0, is_dummy=is_dummy))
    return batches


def references_in(held_out: Mapping[str, ParallelText]) -> list[str]:
    """Return a line for each held-out text that has several references."""
    lines = []
    for split, pairs in held_out.items():
        if pairs.more:
            n_fewer = sum(None in further for further in zip(*pairs.more))
            fewer = f"; {n_fewer:,} of {len(pairs):,} sources have fewer" if n_fewer else ""
            lines.append(f"{split}: {'up to ' if n_fewer else ''}{len(pairs.references)} references per source{fewer}")
    return lines


def find_faults(held_out: Mapping[str, ParallelText]) -> list[str]:
    """Return a line for each likely fault of held-out text (blank sides, and pairs of test that are also in dev)."""
    lines = []
    for split, pairs in held_out.items():
        for side, texts in (("sources", pairs.src), ("references", pairs.tgt)):
            if n_blank := sum(not text.strip() for text in texts):
                consequence = "they are kept, which affects the scores"
                lines.append(f"{split}: {n_blank:,} of {len(pairs):,} {side} are blank; {consequence}")
    if {"dev", "test"} <= held_out.keys():
        dev, pairs = held_out["dev"], held_out["test"]
        known = {pair for lines in dev.references for pair in zip(dev.src, lines) if pair[1] is not None}
        if n_shared := sum(
            not known.isdisjoint((src, line) for line in lines) for src, *lines in zip(pairs.src, *pairs.references)
        ):
            consequence = "which selects the best checkpoint"
            lines.append(f"test: {n_shared:,} of {len(pairs):,} pairs are also in dev, {consequence}")
    return lines


def unknown_tokens(sides: Mapping[str, Sequence[Sequence[int]]], split: str = "dev") -> list[str]:
    """Return a line for each side of a split that has unknown tokens.

    Args:
        sides: token ids of each side, by the name of the side.
        split: name of the split.
    """
    lines = []
    for side, sequences in sides.items():
        if n_unknown := sum(ids.count(UNK) for ids in sequences):
            share = n_unknown / sum(map(len, sequences))
            are = f"{side} token ({share:.2%}) is" if n_unknown == 1 else f"{side} tokens ({share:.2%}) are"
            lines.append(f"{split}: {n_unknown:,} {are} unknown to the tokenizer")
    return lines
