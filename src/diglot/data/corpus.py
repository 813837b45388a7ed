"""Sources of parallel text: the interface of all corpora, the user's own files, and the sample corpus that ships."""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from diglot.data.language import has_same_language, language_of_column, language_of_file, writing_of_code
from diglot.data.readers.opening import is_pipe
from diglot.data.readers.reading import CLAIMS, FileReader, OwnReader, Reader, SgmReader
from diglot.data.readers.sides import Column, Side, Wanted, sides_of, typed
from diglot.data.readers.unit_formats import is_sgm
from diglot.data.references import KEYS, Referenced, expand_references, further
from diglot.data.split import split_off
from diglot.data.text import (
    PairFiles,
    PairReader,
    Parallel,
    ParallelText,
    expand,
    have_same_content,
    side_endings,
    write_lines,
)
from diglot.errors import UserError
from diglot.system.atomic import scratch_folder
from diglot.system.masking import in_one_line

SPLITS = ("train", "dev", "test")
_COMPARED_PAIRS = 1000  # number of pairs that are compared at once
_SINGLE = (*CLAIMS, "file")  # the keys of one file that holds both sides
Paths = Mapping[str, Any]  # a path or a list of paths by key; dev and test have the keys of references, too


class Corpus(ABC):
    """Parallel text in up to three splits.

    `prepare` does everything that is slow or needs a network, once. `read` is fast, and every process may call it.

    Attributes:
        name: name of the corpus in messages and results.
        src_lang: code of the source language.
        tgt_lang: code of the target language; it decides sacreBLEU's tokenizer.
        notes: remarks for the user about the text, one line each; filled by `read`.
    """

    name: str
    src_lang: str
    tgt_lang: str

    def __init__(self) -> None:
        self.notes: list[str] = []

    def prepare(self, cache_dir: Path) -> None:  # noqa: B027 - most corpora have nothing to prepare
        """Fetch and convert what `read` needs; do nothing if it already exists.

        Raises:
            UserError: the text is not available; the message names alternatives.
        """

    @abstractmethod
    def read(self, cache_dir: Path) -> Mapping[str, Parallel]:
        """Return the existing splits among "train", "dev" and "test"; fetch nothing.

        Raises:
            UserError: the corpus is not prepared, or its files are invalid.
        """

    def load(self, cache_dir: Path) -> dict[str, ParallelText]:
        """Return the splits of `read`, loaded into memory."""
        return {split: text.load() for split, text in self.read_checked(cache_dir).items()}

    def read_checked(self, cache_dir: Path) -> Mapping[str, Parallel]:
        """Return the splits of `read`, after a check that they are what a corpus must return.

        Raises:
            UserError: they are not; or `read` raises it.
        """
        what = f"data._target_: {type(self).__qualname__}.read()"
        try:
            splits: Any = self.read(cache_dir)
        except (UserError, MemoryError):
            raise
        except Exception as error:
            if type(self).__module__.startswith("diglot."):  # a bug in diglot
                raise
            raise UserError(f"{what} fails: {in_one_line(error)}; HYDRA_FULL_ERROR=1 shows where") from error
        if not isinstance(splits, Mapping):
            raise UserError(
                f"{what} returned {_a(splits)}; it must return a mapping, such as {{'train': ParallelText}}"
            )
        for split, text in splits.items():
            if split not in SPLITS:
                raise UserError(f"{what} returned a split {split!r}; the names are {', '.join(SPLITS)}")
            if not all(callable(getattr(text, name, None)) for name in ("blocks", "digest", "load")):
                raise UserError(f"{what} returned {_a(text)} as {split}; it must be a ParallelText")
            if isinstance(text, ParallelText):
                _check_lines(f"{what}: {split}", text)
        return splits  # type: ignore[no-any-return]

    @abstractmethod
    def describe(self) -> str:
        """Return one line for the user: the text, its origin, and its licence if known."""


def _a(found: object) -> str:
    return "None" if found is None else f"a {type(found).__name__}"


def _check_lines(what: str, text: ParallelText) -> None:
    """Check that a text has pairs, and that each of its sides is a list of lines.

    Raises:
        UserError: it is not.
    """
    if not len(text):
        raise UserError(f"{what} has no pairs")
    sides = {"src": text.src, "tgt": text.tgt, **{f"more[{i}]": lines for i, lines in enumerate(text.more)}}
    for name, side in sides.items():
        if not isinstance(side, list):
            raise UserError(f"{what}.{name} is {_a(side)}; it must be a list of lines")
        for number, line in enumerate(side, start=1):
            if line is None and name.startswith("more"):
                continue
            if not isinstance(line, str):
                raise UserError(f"{what}.{name}, line {number}: {_a(line)}; it must be text")
            if "\n" in line:
                raise UserError(f"{what}.{name}, line {number}: a line break inside a line")


class Files(Corpus):
    """The user's own files: two whose lines correspond, or one that holds both sides.

    A path may name several files, by wildcards or as a list. Each file may be compressed (.gz, .zst, .xz, .bz2, or the
    only text of a .zip). Dev and test files are used unchanged, with all of their references. If dev or test is
    missing, it is split off from train (see `grouped_split`); all of train must then fit into memory.

    Args:
        train: {"src": paths, "tgt": paths}, or one of {"tsv": paths}, {"csv": paths}, {"jsonl": paths} and {"file":
            paths}, of which the last takes any format that the content shows; paths of None count as missing. Required
            for everything except scoring.
        dev: the same, or None. Two more keys name further references: "references", files with a line per pair, and
            "reference_columns", columns of the file that holds both sides.
        test: as for dev, or None.
        src_lang: language code, which also selects the source in a file of several languages; None takes it from the
            name of the file (`train.de`, `zh.txt`) or of the column, or from what the file declares, else "src".
        tgt_lang: language code; None takes it in the same way, else "tgt".
        columns: columns of source and target: numbers from 0, or names, which the first row then lists. A side may be a
            list of columns, which are joined by a space.
        reader: a reader of the user's own for the paths of "file".
        name: name of the corpus.
        dev_size: number of pairs to split off for dev, at most a tenth of train.
        test_size: number of pairs to split off for test, at most a tenth of train.
        split_seed: seed of that split.

    Raises:
        UserError: a path is missing (the message names its key), an argument is invalid, or a file of "jsonl" or "file"
            cannot be read, or does not show which languages to take.
    """

    def __init__(
        self,
        *,
        train: Paths,
        dev: Paths | None = None,
        test: Paths | None = None,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        columns: Sequence[Column | Sequence[Column]] = (0, 1),
        reader: Reader | None = None,
        name: str = "files",
        dev_size: int = 500,
        test_size: int = 1000,
        split_seed: int = 1,
    ) -> None:
        super().__init__()
        self.name = name
        check_sizes(dev_size, test_size)
        self.dev_size, self.test_size, self.split_seed = dev_size, test_size, split_seed
        self.wanted = Wanted(_checked_columns(columns), src_lang, tgt_lang)
        self.reader = reader
        given = {"train": train, "dev": dev, "test": test}
        self.paths = {split: _given_paths(split, paths or {}) for split, paths in given.items()}
        self.further = {split: further(split, paths or {}, self.paths[split]) for split, paths in given.items()}
        if self.reader is not None and (split := next((s for s in given if self.further[s].columns), None)):
            raise UserError(f"data.{split}.reference_columns has no effect: data.reader yields the pairs")
        if not any(self.paths.values()):
            raise UserError(
                "data.train.src is missing: give data.train.src=FILE data.train.tgt=FILE, or data.train.file=FILE"
            )
        self.src_lang, self.tgt_lang = self._languages()

    @property
    def columns(self) -> tuple[Column | Side, ...]:
        """The columns of source and target; several columns of a side are a tuple."""
        return tuple(side[0] if len(side) == 1 else side for side in self.wanted.columns)

    def _languages(self) -> tuple[str, str]:
        split, paths = next((split, paths) for split, paths in self.paths.items() if paths)
        reader = self._reader(split, paths)
        if reader is None:
            guesses = _guesses(reader, (paths["src"][0], paths["tgt"][0]))
        elif isinstance(reader, FileReader) and reader.columns_only:
            guesses = _languages_of(self.wanted.columns)
        else:
            guesses = _guesses(reader, _shards(split, paths)[0])
        return self.wanted.src_lang or guesses[0] or "src", self.wanted.tgt_lang or guesses[1] or "tgt"

    def _refuse_other_languages(self, split: str, pairs: PairFiles) -> None:
        """Check that the languages that files declare are those of the corpus.

        Names of files of lines are less certain than declarations: they are refused only if the sides are swapped.

        Raises:
            UserError: they are not, so that the two directions would be mixed.
        """
        ours = (self.src_lang, self.tgt_lang)
        if (self.wanted.src_lang and self.wanted.tgt_lang) or None in map(writing_of_code, ours):
            return
        for shard in pairs.shards:
            theirs = _guesses(pairs.reader, shard)
            if None in theirs or None in (writing_of_code(str(code)) for code in theirs):
                continue
            src, tgt = map(str, theirs)
            is_same = has_same_language(src, ours[0]) and has_same_language(tgt, ours[1])
            is_swapped = has_same_language(src, ours[1]) and has_same_language(tgt, ours[0])
            if is_same or (len(shard) == 2 and not is_swapped):
                continue
            told = f"{src}-{tgt}, but this corpus is {ours[0]}-{ours[1]} according to its first files"
            if len(shard) == 2:
                raise UserError(f"data.{split}: {shard[0]} and {shard[1]} are {told}: swap data.{split}.src and .tgt")
            raise UserError(f"data.{split}: {shard[0]} is {told}: type data.src_lang={ours[0]} data.tgt_lang={ours[1]}")

    def read(self, cache_dir: Path) -> Mapping[str, Parallel]:
        given = self.given()
        self.notes = [f"{split}: {note}" for split, pairs in given.items() for note in reading_notes(pairs)]
        for split, pairs in given.items():
            self._refuse_other_languages(split, pairs)
        if self.src_lang != self.tgt_lang:
            for split, pairs in given.items():
                refuse_equal_sides(f"data.{split}", pairs)
        missing = [split for split in ("dev", "test") if split not in given]
        if "train" not in given or not missing:  # a corpus without train serves only for scoring
            return given
        sizes = {split: self.dev_size if split == "dev" else self.test_size for split in missing}
        carved, note = split_off(given["train"].load(), sizes, self.split_seed, self._files("train"))
        self.notes.append(f"no {' or '.join(missing)} files given: {note}")
        return {**given, **carved}

    def given(self) -> dict[str, PairFiles]:
        """Return the splits whose files are given."""
        return {split: self._pairs(split, paths) for split, paths in self.paths.items() if paths}

    def _pairs(self, split: str, paths: Mapping[str, Sequence[str]]) -> PairFiles:
        kind = next(iter(paths))
        options: tuple[Any, ...] = (self.columns,)  # as in earlier versions, so that what they prepared stays valid
        if kind == "csv":
            options += ("commas",)
        elif kind in ("jsonl", "file"):
            options += (kind, self.wanted.src_lang, self.wanted.tgt_lang)
            if kind == "file" and self.reader is not None:
                options += (type(self.reader).__qualname__, sorted(map(str, vars(self.reader).items())))
        shards = _shards(split, paths)
        reader = self._reader(split, paths)
        if reader is None and Path(shards[0][0]).is_file() and is_sgm(shards[0][0]):
            reader = SgmReader(all_references=split != "train")
        if isinstance(reader, (FileReader, SgmReader)) and reader.all_references and kind not in CLAIMS:
            options += ("all references",)  # earlier versions read only the first
        patterns, columns = self.further[split]
        if columns:
            options += (columns,)
        if not patterns:
            return PairFiles(split, shards, reader, options)
        key = f"data.{split}.references"
        files = expand_references(key, patterns, used=[shard[-1] for shard in shards])
        if not files:
            raise UserError(f"{key}={patterns[0]}: matches only the file of the first reference")
        _refuse_pipes(key, files)
        return Referenced(split, shards, reader, options, files)

    def _reader(self, split: str, paths: Mapping[str, Sequence[str]]) -> PairReader | None:
        kind = next(iter(paths))
        if kind in ("src", "tgt"):
            return None
        if kind == "file" and self.reader is not None:
            return OwnReader(self.reader)
        wanted = self.wanted._replace(references=self.further[split].columns)
        return FileReader(wanted, CLAIMS.get(kind), kind in ("tsv", "csv"), all_references=split != "train")

    def _files(self, split: str) -> str:
        return " and ".join(paths[0] + (" ..." if len(paths) > 1 else "") for paths in self.paths[split].values())

    def describe(self) -> str:
        split = next(split for split, paths in self.paths.items() if paths)
        return f"{self.name}: {self.src_lang}-{self.tgt_lang} from {self._files(split)}"


class Sample(Corpus):
    """The corpus that ships with diglot: two invented languages, Avi and Bol, generated by a small grammar."""

    def __init__(self) -> None:
        super().__init__()
        self.name, self.src_lang, self.tgt_lang = "sample", "avi", "bol"

    def read(self, cache_dir: Path) -> Mapping[str, Parallel]:
        return read_splits(_sample_folder(), self.src_lang, self.tgt_lang)

    def describe(self) -> str:
        return "sample: avi-bol, a small synthetic corpus of two invented languages that ships with diglot (Apache-2.0)"


def reading_notes(pairs: PairFiles) -> Iterator[str]:
    """Yield what was decided from the content of files that hold both sides, for the first file of each format.

    Also yield a note for each file of references with blank lines.
    """
    reader = pairs.reader
    if isinstance(reader, FileReader):
        first = {reader.describe(path): path for (path,) in reversed(pairs.shards)}
        yield from (f"{path} is read as {note}" for note, path in reversed(first.items()) if note)
    if isinstance(pairs, Referenced):
        yield from pairs.notes()


def refuse_equal_sides(key: str, pairs: PairFiles) -> None:
    """Check that the source and the target of each file, or pair of files, differ.

    Raises:
        UserError: they are the same file, or have the same content.
    """
    meant = "if that is meant, type the same language for both, data.src_lang=CODE data.tgt_lang=CODE"
    for shard in pairs.shards:
        if len(shard) == 2:
            if have_same_content(*shard):
                raise UserError(f"{key}.src={shard[0]} and {key}.tgt={shard[1]} have the same content; {meant}")
        elif pairs.reader is not None and _have_same_sides(pairs.reader.blocks(shard, _COMPARED_PAIRS)):
            raise UserError(f"{key}: source and target of {shard[0]} have the same content; {meant}")


def _have_same_sides(blocks: Iterator[ParallelText]) -> bool:
    """Return whether all pairs have equal sides, and some have text; read only up to the first other pair."""
    has_text = False
    with suppress(UserError):  # the code that reads all pairs reports it
        for block in blocks:
            if block.src != block.tgt:
                return False
            has_text = has_text or any(map(str.strip, block.src))
        return has_text
    return False


def check_sizes(dev_size: int, test_size: int) -> None:
    """Raise UserError unless both sizes are positive."""
    for key, size in (("dev_size", dev_size), ("test_size", test_size)):
        if size < 1:
            raise UserError(f"data.{key}={size}: must be at least 1 pair")


def prepared_folder(cache_dir: Path, kind: str, label: str, options: object) -> Path:
    """Return the folder of a corpus's prepared text, named after a label and a hash of the options."""
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:10]
    safe_label = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.")
    return Path(cache_dir) / kind / f"{safe_label}-{digest}"


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that gets its final name only when the block ends without an error.

    A killed process leaves nothing under that name. If two processes fill the same folder at once, the first to finish
    wins, and the other's work is discarded.

    Raises:
        UserError: the folder cannot be created.
    """
    try:
        with scratch_folder(folder) as temporary:
            yield temporary
            try:
                temporary.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
    except OSError as error:
        raise UserError(f"{folder}: cannot be created: {error.strerror or error}") from None


def write_splits(folder: Path, splits: Mapping[str, ParallelText], src_lang: str, tgt_lang: str) -> None:
    """Write each split as two files, such as `train.<src_lang>` and `train.<tgt_lang>` (see `side_endings`)."""
    src, tgt = side_endings(src_lang, tgt_lang)
    for split, pairs in splits.items():
        write_lines(folder / f"{split}.{src}", pairs.src)
        write_lines(folder / f"{split}.{tgt}", pairs.tgt)


def read_splits(folder: Path, src_lang: str, tgt_lang: str) -> dict[str, PairFiles]:
    """Return the splits that `write_splits` wrote; leave out those without files."""
    endings = side_endings(src_lang, tgt_lang)
    files = {split: [folder / f"{split}.{ending}" for ending in endings] for split in SPLITS}
    return {split: PairFiles(split, [(str(src), str(tgt))]) for split, (src, tgt) in files.items() if src.exists()}


def read_prepared(folder: Path, corpus: Corpus) -> dict[str, PairFiles]:
    """Return the splits that a corpus has prepared in a folder.

    Raises:
        UserError: the corpus is not prepared; the message names the command to run.
    """
    if not folder.is_dir():
        raise UserError(
            f"{corpus.name} {corpus.src_lang}-{corpus.tgt_lang} is not prepared ({folder} is missing): "
            "run `make prepare` or `diglot-prepare` with the same data settings"
        )
    return read_splits(folder, corpus.src_lang, corpus.tgt_lang)


def _guesses(reader: PairReader | None, shard: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Return the languages of the two sides of a shard, from the names of files or columns, or None."""
    if reader is None:
        src, tgt = map(language_of_file, shard)
        return (src, tgt) if src != tgt else (None, None)
    if not isinstance(reader, FileReader) or reader.columns_only:
        return None, None
    return _languages_of(reader.sides(shard[0]))


def _languages_of(sides: tuple[Side, Side]) -> tuple[str | None, str | None]:
    """Return the languages that columns are named after, or None."""
    src, tgt = (language_of_column(side[0]) if len(side) == 1 else None for side in sides)
    return (src, tgt) if src != tgt else (None, None)


def _checked_columns(columns: Sequence[Column | Sequence[Column]]) -> tuple[Side, Side]:
    """Return the columns of source and target as sides.

    Raises:
        UserError: they are not two different sides, of names only or of numbers only.
    """
    sides = sides_of("data.columns", columns)
    if len(sides) != 2 or sides[0] == sides[1]:
        raise UserError(f"data.columns={typed(sides)}: must be two different columns, source and target")
    return sides[0], sides[1]


def _given_paths(split: str, paths: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the given paths, after checking that their keys are src and tgt, one for a single file, or none."""
    key = f"data.{split}"
    paths = {name: value for name, value in paths.items() if name not in KEYS}
    for name in paths:
        if name not in ("src", "tgt", *_SINGLE):
            raise UserError(
                f"{key}.{name} is not known; the keys are src, tgt, {', '.join(_SINGLE[:-1])} and {_SINGLE[-1]}"
            )
    given = {name: [value] if isinstance(value, str) else list(value) for name, value in paths.items() if value}
    single = [name for name in _SINGLE if name in given]
    if single and len(given) > 1:
        others = " and ".join(f"{key}.{name}" for name in given if name != single[0])
        raise UserError(f"{key}.{single[0]} cannot be combined with {others}: give one file, or src and tgt")
    if "src" in given and "tgt" not in given:
        raise UserError(f"{key}.tgt is missing: {key}.src is {given['src'][0]}, which file holds its translations?")
    if "tgt" in given and "src" not in given:
        raise UserError(f"{key}.src is missing: {key}.tgt is {given['tgt'][0]}, which file does it translate?")
    return given


def _shards(split: str, paths: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the files as the shards of PairFiles."""
    found = {
        name: [file for path in values for file in expand(str(path), f"data.{split}.{name}")]
        for name, values in paths.items()
    }
    for name, files in found.items():
        _refuse_pipes(f"data.{split}.{name}", files)
    counts = {name: len(files) for name, files in found.items()}
    if len(set(counts.values())) > 1:
        raise UserError(
            f"data.{split}.src matches {counts['src']} files, data.{split}.tgt matches {counts['tgt']}: "
            "each file needs its translation"
        )
    return list(zip(*found.values(), strict=True))


def _refuse_pipes(key: str, files: Sequence[str]) -> None:
    if pipe := next((file for file in files if is_pipe(file)), None):
        raise UserError(f"{key}={pipe}: a pipe can be read only once: write its text to a file")


def _sample_folder() -> Path:
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "sample", package.parents[1] / "data" / "sample"):  # in a wheel, in a checkout
        if folder.is_dir():
            return folder
    raise UserError(f"the sample corpus is missing from {package / 'sample'}: reinstall diglot")
