"""Where parallel text comes from: the interface of all corpora, files of the user's own, and the sample that ships."""

import hashlib
import json
import re
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diglot.data.split import grouped_split
from diglot.data.text import ParallelText, drop_blank_pairs, read_parallel, read_tsv, write_lines
from diglot.errors import UserError

SPLITS = ("train", "dev", "test")


class Corpus(ABC):
    """Parallel text in up to three splits.

    `prepare` does what takes long or needs a network, once; `read` is fast and may be called by every process.

    Attributes:
        name: what the corpus is called in messages and results.
        src_lang: code of the source language.
        tgt_lang: code of the target language; it decides sacreBLEU's tokenizer.
        notes: what the user should know about the text read, one line each; filled by `read`.
    """

    name: str
    src_lang: str
    tgt_lang: str

    def __init__(self) -> None:
        self.notes: list[str] = []

    def prepare(self, cache_dir: Path) -> None:  # noqa: B027 - most corpora have nothing to prepare
        """Fetches and converts what `read` needs; does nothing where that is there already.

        Raises:
            UserError: the text cannot be had; the message says what else to do.
        """

    @abstractmethod
    def read(self, cache_dir: Path) -> dict[str, ParallelText]:
        """Returns the splits there are, of "train", "dev" and "test"; fetches nothing.

        Raises:
            UserError: the corpus is not prepared, or its files are wrong.
        """

    @abstractmethod
    def describe(self) -> str:
        """One line for the user: what the text is, where it comes from, its licence where known."""


class Files(Corpus):
    """The user's own files: two whose lines correspond, or one with tab-separated columns.

    Train pairs with a blank side are dropped; dev and test are taken as they are. Where dev or test is missing, it is
    carved from train (see `grouped_split`).

    Args:
        train: {"src": path, "tgt": path} or {"tsv": path}; a None stands for what is not given. Only scoring
            does without.
        dev: the same, or None.
        test: the same, or None.
        src_lang: language code; None takes the file's extension (`train.de`), else "src".
        tgt_lang: language code; None takes the file's extension, else "tgt".
        name: what the corpus is called.
        dev_size: pairs to carve for dev, at most a tenth of train.
        test_size: pairs to carve for test, at most a tenth of train.
        split_seed: seed of that split.

    Raises:
        UserError: a path is missing; the message names the key to give.
    """

    def __init__(
        self,
        *,
        train: Mapping[str, str | None],
        dev: Mapping[str, str | None] | None = None,
        test: Mapping[str, str | None] | None = None,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        name: str = "files",
        dev_size: int = 500,
        test_size: int = 1000,
        split_seed: int = 1,
    ) -> None:
        super().__init__()
        self.name = name
        check_sizes(dev_size, test_size)
        self.dev_size, self.test_size, self.split_seed = dev_size, test_size, split_seed
        given = {"train": train, "dev": dev, "test": test}
        self.paths = {split: _given_paths(split, paths or {}) for split, paths in given.items()}
        if not any(self.paths.values()):
            raise UserError(
                "data.train.src is missing: give data.train.src=FILE data.train.tgt=FILE, or data.train.tsv=FILE"
            )
        self.src_lang, self.tgt_lang = self._languages(src_lang, tgt_lang)

    def _languages(self, src_lang: str | None, tgt_lang: str | None) -> tuple[str, str]:
        paths = next(paths for paths in self.paths.values() if paths)
        guesses = [_language_of(paths.get(side)) for side in ("src", "tgt")]
        if guesses[0] == guesses[1]:
            guesses = [None, None]
        return src_lang or guesses[0] or "src", tgt_lang or guesses[1] or "tgt"

    def read(self, cache_dir: Path) -> dict[str, ParallelText]:
        self.notes = []
        splits = {split: _read_files(split, paths) for split, paths in self.paths.items() if paths}
        if "train" not in splits:  # something to score on
            return splits
        splits["train"], n_blank = drop_blank_pairs(splits["train"])
        if n_blank:
            self.notes.append(f"train: {n_blank} pairs with a blank side were dropped")
        if not len(splits["train"]):
            raise UserError(f"train: every pair of {' and '.join(self.paths['train'].values())} has a blank side")
        missing = [split for split in ("dev", "test") if split not in splits]
        if missing:
            sizes = {"dev_size": self.dev_size if "dev" in missing else 0}
            sizes["test_size"] = self.test_size if "test" in missing else 0
            carved, n_dropped = grouped_split(splits["train"], seed=self.split_seed, **sizes)
            splits["train"] = carved["train"]
            splits |= {split: carved[split] for split in missing}
            sizes_told = " and ".join(f"{split} ({len(carved[split])} pairs)" for split in missing)
            self.notes.append(
                f"no {' or '.join(missing)} files given: {sizes_told} carved from train, seed {self.split_seed}; "
                f"{n_dropped} train pairs with a like target dropped, {len(splits['train'])} left"
            )
        return splits

    def describe(self) -> str:
        files = next(paths for paths in self.paths.values() if paths)
        return f"{self.name}: {self.src_lang}-{self.tgt_lang} from {' and '.join(files.values())}"


class Sample(Corpus):
    """The corpus that ships with diglot: two invented languages, Avi and Bol, made by a small grammar."""

    def __init__(self) -> None:
        super().__init__()
        self.name, self.src_lang, self.tgt_lang = "sample", "avi", "bol"

    def read(self, cache_dir: Path) -> dict[str, ParallelText]:
        return read_splits(_sample_folder(), self.src_lang, self.tgt_lang)

    def describe(self) -> str:
        return "sample: avi-bol, a small synthetic corpus of two invented languages that ships with diglot (Apache-2.0)"


def check_sizes(dev_size: int, test_size: int) -> None:
    """Raises UserError unless both splits are to have pairs."""
    for key, size in (("dev_size", dev_size), ("test_size", test_size)):
        if size < 1:
            raise UserError(f"data.{key}={size}: at least 1 pair")


def prepared_folder(cache_dir: Path, kind: str, label: str, options: object) -> Path:
    """Where a corpus keeps its prepared text: options that change the text are part of the name, as a hash."""
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:10]
    safe_label = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.")
    return Path(cache_dir) / kind / f"{safe_label}-{digest}"


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill that appears under its name only when the block ends well.

    Whoever is killed leaves nothing under that name; of two who fill the same folder at once, the first to finish wins
    and the other's work is discarded.

    Raises:
        UserError: the folder cannot be made.
    """
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made: {error.strerror}") from None
    try:
        yield temporary
        try:
            temporary.rename(folder)
        except OSError as error:
            if not folder.is_dir():
                raise UserError(f"{folder}: cannot be made: {error.strerror}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_splits(folder: Path, splits: Mapping[str, ParallelText], src_lang: str, tgt_lang: str) -> None:
    """Writes `train.<src_lang>`, `train.<tgt_lang>` and so on."""
    for split, pairs in splits.items():
        write_lines(folder / f"{split}.{src_lang}", pairs.src)
        write_lines(folder / f"{split}.{tgt_lang}", pairs.tgt)


def read_splits(folder: Path, src_lang: str, tgt_lang: str) -> dict[str, ParallelText]:
    """Reads what `write_splits` wrote; a split without files is left out."""
    return {
        split: read_parallel(folder / f"{split}.{src_lang}", folder / f"{split}.{tgt_lang}", split)
        for split in SPLITS
        if (folder / f"{split}.{src_lang}").exists()
    }


def read_prepared(folder: Path, corpus: Corpus) -> dict[str, ParallelText]:
    """Reads the splits that `corpus` has prepared in `folder`.

    Raises:
        UserError: it has not; the message tells to prepare.
    """
    if not folder.is_dir():
        raise UserError(
            f"{corpus.name} {corpus.src_lang}-{corpus.tgt_lang} is not prepared ({folder} is missing): "
            "run `make prepare` or `diglot-prepare` with the same data settings"
        )
    return read_splits(folder, corpus.src_lang, corpus.tgt_lang)


def _given_paths(split: str, paths: Mapping[str, Any]) -> dict[str, str]:
    """The paths that are not None, checked: src and tgt, or tsv, or none at all."""
    key = f"data.{split}"
    for name in paths:
        if name not in ("src", "tgt", "tsv"):
            raise UserError(f"{key}.{name} is not known; the keys are src, tgt and tsv")
    given = {name: str(Path(str(path)).expanduser()) for name, path in paths.items() if path is not None}
    if "tsv" in given and len(given) > 1:
        raise UserError(f"{key}.tsv excludes {key}.src and {key}.tgt: give one file of columns or two files")
    if "src" in given and "tgt" not in given:
        raise UserError(f"{key}.tgt is missing: {key}.src is {given['src']}, which file holds its translations?")
    if "tgt" in given and "src" not in given:
        raise UserError(f"{key}.src is missing: {key}.tgt is {given['tgt']}, which file does it translate?")
    return given


def _read_files(split: str, paths: Mapping[str, str]) -> ParallelText:
    return read_tsv(paths["tsv"]) if "tsv" in paths else read_parallel(paths["src"], paths["tgt"], split)


def _language_of(path: str | None) -> str | None:
    """The language code that a file's extension is, `de` of `train.de`; None if it does not look like one."""
    extension = Path(path).suffix[1:] if path else ""
    looks_like_one = re.fullmatch(r"[a-z]{2,3}([-_][A-Za-z0-9]{2,8})*", extension) and extension not in ("txt", "tok")
    return extension if looks_like_one else None


def _sample_folder() -> Path:
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "sample", package.parents[1] / "data" / "sample"):  # in a wheel, in a checkout
        if folder.is_dir():
            return folder
    raise UserError(f"the sample corpus is not where it ships, {package / 'sample'}: install diglot again")
