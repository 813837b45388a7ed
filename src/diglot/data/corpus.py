"""Sources of parallel text: the interface of all corpora, the user's own files, and the sample corpus."""

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
from diglot.data.readers.reading import NAMED_FORMATS, CustomReader, FileReader, Reader, SgmReader
from diglot.data.readers.sides import Column, Side, SideRequest, sides_of, typed
from diglot.data.readers.unit_formats import is_sgm
from diglot.data.references import KEYS, Referenced, expand_references, further
from diglot.data.split import split_off
from diglot.data.text import (
    PairFiles,
    PairReader,
    Parallel,
    ParallelText,
    StoredLines,
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
_SINGLE_FILE_KEYS = (*NAMED_FORMATS, "file")  # keys of files that hold both sides
Paths = Mapping[str, Any]  # a path or a list of paths by key; dev and test also have the keys of references


class Corpus(ABC):
    """Base class of parallel text in up to three splits.

    `prepare` does everything that is slow or needs a network, once. `read` is fast and is called in every process.

    Attributes:
        name: name of the corpus in messages and results.
        src_lang: code of the source language.
        tgt_lang: code of the target language, which determines sacreBLEU's tokenizer.
        notes: remarks for the user about the text, one line each. `read` sets them.
    """

    name: str
    src_lang: str
    tgt_lang: str

    def __init__(self) -> None:
        self.notes: list[str] = []

    def prepare(self, cache_dir: Path) -> None:  # noqa: B027 - most corpora have nothing to prepare
        """Fetch and convert what `read` needs, unless it already exists.

        Args:
            cache_dir: folder for everything that is fetched or converted.

        Raises:
            UserError: the text is not available. The message names alternatives.
        """

    @abstractmethod
    def read(self, cache_dir: Path) -> Mapping[str, Parallel]:
        """Return the existing splits among "train", "dev" and "test", without a download.

        Args:
            cache_dir: folder that `prepare` has filled.

        Raises:
            UserError: the corpus is not prepared, or its files are invalid.
        """

    def load(self, cache_dir: Path) -> dict[str, ParallelText]:
        """Return the splits of `read`, loaded into memory."""
        return {split: text.load() for split, text in self.read_checked(cache_dir).items()}

    def read_checked(self, cache_dir: Path) -> Mapping[str, Parallel]:
        """Return the splits of `read`, after a check of their names and types.

        Raises:
            UserError: a name or a type is wrong; or `read` raises it.
        """
        source = f"data._target_: {type(self).__qualname__}.read()"
        try:
            splits: Any = self.read(cache_dir)
        except (UserError, MemoryError):
            raise
        except Exception as error:
            if type(self).__module__.startswith("diglot."):  # a bug in diglot
                raise
            raise UserError(f"{source} fails: {in_one_line(error)}; HYDRA_FULL_ERROR=1 shows where") from error
        if not isinstance(splits, Mapping):
            expected = "it must return a mapping, such as {'train': ParallelText}"
            raise UserError(f"{source} returned {_describe_type(splits)}; {expected}")
        for split, text in splits.items():
            if split not in SPLITS:
                raise UserError(f"{source} returned a split {split!r}; the names are {', '.join(SPLITS)}")
            if not all(callable(getattr(text, name, None)) for name in ("blocks", "digest", "load")):
                raise UserError(f"{source} returned {_describe_type(text)} as {split}; it must be a ParallelText")
            if isinstance(text, ParallelText):
                _check_lines(f"{source}: {split}", text)
        return splits  # type: ignore[no-any-return]

    @abstractmethod
    def describe(self) -> str:
        """Return one line for the user about the text, its origin, and its licence if known."""


def _describe_type(value: object) -> str:
    """Return the type of a value with an article, for a message."""
    return "None" if value is None else f"a {type(value).__name__}"


def _check_lines(source: str, text: ParallelText) -> None:
    """Check that a text has pairs, and that each of its sides is a list of lines.

    Args:
        source: name of the text in errors.
        text: the text.

    Raises:
        UserError: the text has no pairs, or a side is not a list of lines.
    """
    if not len(text):
        raise UserError(f"{source} has no pairs")
    sides = {"src": text.src, "tgt": text.tgt, **{f"more[{i}]": lines for i, lines in enumerate(text.more)}}
    for name, side in sides.items():
        if not isinstance(side, list):
            raise UserError(f"{source}.{name} is {_describe_type(side)}; it must be a list of lines")
        for number, line in enumerate(side, start=1):
            if line is None and name.startswith("more"):
                continue
            if not isinstance(line, str):
                raise UserError(f"{source}.{name}, line {number}: {_describe_type(line)}; it must be text")
            if "\n" in line:
                raise UserError(f"{source}.{name}, line {number}: a line break inside a line")


class Files(Corpus):
    """Corpus of the user's own files: two files whose lines correspond, or one file that holds both sides.

    A path may name several files, by wildcards or as a list. Each file may be compressed (.gz, .zst, .xz, .bz2, or the
    only text of a .zip). Dev and test files are used unchanged, with all of their references. If dev or test is
    missing, it is split off from train (see `grouped_split`), and all of train must fit into memory.

    Args:
        train: {"src": paths, "tgt": paths}, or one of {"tsv": paths}, {"csv": paths}, {"jsonl": paths} and {"file":
            paths}. With "file", the format is detected from the content. Paths of None count as missing. Train is
            required for everything except scoring.
        dev: paths in the same form; None: there are none. Two more keys name further references: "references" for
            files with one line per pair, and "reference_columns" for columns of the file that holds both sides.
        test: paths in the same form as dev; None: there are none.
        src_lang: code of the source language, which also selects the source in a file of several languages; None: taken
            from the name of the file (`train.de`, `zh.txt`) or of the column, or from the declaration of the file, or
            else "src".
        tgt_lang: code of the target language; None: taken in the same way, or else "tgt".
        columns: columns of source and target. They are numbers from 0, or names, which the first row must list. A side
            may be a list of columns, which are joined by a space.
        reader: user-defined reader of the paths of "file"; None: there is none.
        name: name of the corpus.
        dev_size: number of pairs to split off for dev, at most a tenth of train.
        test_size: number of pairs to split off for test, at most a tenth of train.
        split_seed: seed of this split.

    Raises:
        UserError: a path is missing (the message names its key), an argument is invalid, a file of "jsonl" or "file"
            cannot be read, or its languages are ambiguous.
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
        self.request = SideRequest(_checked_columns(columns), src_lang, tgt_lang)
        self.reader = reader
        paths_of_splits = {"train": train, "dev": dev, "test": test}
        self.paths = {split: _given_paths(split, paths or {}) for split, paths in paths_of_splits.items()}
        self.further = {
            split: further(split, paths or {}, self.paths[split]) for split, paths in paths_of_splits.items()
        }
        if self.reader is not None and (split := next((s for s in self.further if self.further[s].columns), None)):
            raise UserError(f"data.{split}.reference_columns has no effect: data.reader yields the pairs")
        if not any(self.paths.values()):
            raise UserError(
                "data.train.src is missing: give data.train.src=FILE data.train.tgt=FILE, or data.train.file=FILE"
            )
        self.src_lang, self.tgt_lang = self._languages()

    @property
    def columns(self) -> tuple[Column | Side, ...]:
        """Columns of source and target; several columns of a side are a tuple."""
        return tuple(side[0] if len(side) == 1 else side for side in self.request.columns)

    def _languages(self) -> tuple[str, str]:
        split, paths = next((split, paths) for split, paths in self.paths.items() if paths)
        reader = self._reader(split, paths)
        if reader is None:
            guesses = _guess_languages(reader, (paths["src"][0], paths["tgt"][0]))
        elif isinstance(reader, FileReader) and reader.columns_only:
            guesses = _guess_from_columns(self.request.columns)
        else:
            guesses = _guess_languages(reader, _shards(split, paths)[0])
        return self.request.src_lang or guesses[0] or "src", self.request.tgt_lang or guesses[1] or "tgt"

    def _refuse_other_languages(self, split: str, pairs: PairFiles) -> None:
        """Check that files have the languages of the corpus, so that no other direction is mixed in.

        The languages in the names of two files of lines are less certain than those that a file declares. So such files
        are rejected only if their sides are swapped.

        Raises:
            UserError: files have other languages.
        """
        languages = (self.src_lang, self.tgt_lang)
        if (self.request.src_lang and self.request.tgt_lang) or None in map(writing_of_code, languages):
            return
        for shard in pairs.shards:
            guesses = _guess_languages(pairs.reader, shard)
            if None in guesses or None in (writing_of_code(str(code)) for code in guesses):
                continue
            src, tgt = map(str, guesses)
            is_same = has_same_language(src, languages[0]) and has_same_language(tgt, languages[1])
            is_swapped = has_same_language(src, languages[1]) and has_same_language(tgt, languages[0])
            if is_same or (len(shard) == 2 and not is_swapped):
                continue
            src_lang, tgt_lang = languages
            message = f"{src}-{tgt}, but this corpus is {src_lang}-{tgt_lang} according to its first files"
            if len(shard) == 2:
                files, advice = f"{shard[0]} and {shard[1]} are", f"swap data.{split}.src and .tgt"
            else:
                files, advice = f"{shard[0]} is", f"type data.src_lang={src_lang} data.tgt_lang={tgt_lang}"
            raise UserError(f"data.{split}: {files} {message}: {advice}")

    def read(self, cache_dir: Path) -> Mapping[str, Parallel]:
        splits = self.given()
        self.notes = [f"{split}: {note}" for split, pairs in splits.items() for note in reading_notes(pairs)]
        for split, pairs in splits.items():
            self._refuse_other_languages(split, pairs)
        if self.src_lang != self.tgt_lang:
            for split, pairs in splits.items():
                refuse_equal_sides(f"data.{split}", pairs)
        missing = [split for split in ("dev", "test") if split not in splits]
        if "train" not in splits or not missing:  # a corpus without train is used only for scoring
            return splits
        sizes = {split: self.dev_size if split == "dev" else self.test_size for split in missing}
        new_splits, note = split_off(splits["train"].load(), sizes, self.split_seed, self._files("train"))
        self.notes.append(f"no {' or '.join(missing)} files given: {note}")
        return {**splits, **new_splits}

    def given(self) -> dict[str, PairFiles]:
        """Return the splits whose files are given."""
        return {split: self._pairs(split, paths) for split, paths in self.paths.items() if paths}

    def _pairs(self, split: str, paths: Mapping[str, Sequence[str]]) -> PairFiles:
        kind = next(iter(paths))
        options: tuple[Any, ...] = (self.columns,)  # as in earlier versions, so that their prepared files stay valid
        if kind == "csv":
            options += ("commas",)
        elif kind in ("jsonl", "file"):
            options += (kind, self.request.src_lang, self.request.tgt_lang)
            if kind == "file" and self.reader is not None:
                options += (type(self.reader).__qualname__, sorted(map(str, vars(self.reader).items())))
        shards = _shards(split, paths)
        reader = self._reader(split, paths)
        if isinstance(reader, FileReader) and any(reader.is_quoted_tsv(path) for (path,) in shards):
            options += ("quoted",)  # earlier versions took the quotes for text
        if reader is None and Path(shards[0][0]).is_file() and is_sgm(shards[0][0]):
            reader = SgmReader(all_references=split != "train")
        if isinstance(reader, (FileReader, SgmReader)) and reader.all_references and kind not in NAMED_FORMATS:
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
            return CustomReader(self.reader)
        request = self.request._replace(references=self.further[split].columns)
        return FileReader(
            request,
            NAMED_FORMATS.get(kind),
            columns_only=kind in ("tsv", "csv"),
            all_references=split != "train",
        )

    def _files(self, split: str) -> str:
        return " and ".join(paths[0] + (" ..." if len(paths) > 1 else "") for paths in self.paths[split].values())

    def describe(self) -> str:
        split = next(split for split, paths in self.paths.items() if paths)
        return f"{self.name}: {self.src_lang}-{self.tgt_lang} from {self._files(split)}"


class Sample(Corpus):
    """Synthetic corpus that ships with diglot, in two invented languages, Avi and Bol, generated by a small grammar."""

    def __init__(self) -> None:
        super().__init__()
        self.name, self.src_lang, self.tgt_lang = "sample", "avi", "bol"

    def read(self, cache_dir: Path) -> Mapping[str, Parallel]:
        return read_splits(_sample_folder(), self.src_lang, self.tgt_lang)

    def describe(self) -> str:
        return "sample: avi-bol, a small synthetic corpus of two invented languages that ships with diglot (Apache-2.0)"


def reading_notes(pairs: PairFiles) -> Iterator[str]:
    """Yield a note on the format and the sides that were detected in files, for the first file of each format.

    Also yield a note for each file of references that has blank lines.
    """
    reader = pairs.reader
    if isinstance(reader, FileReader):
        first_paths = {reader.describe(path): path for (path,) in reversed(pairs.shards)}
        yield from (f"{path} is read as {note}" for note, path in reversed(first_paths.items()) if note)
    if isinstance(pairs, Referenced):
        yield from pairs.notes()


def refuse_equal_sides(key: str, pairs: PairFiles) -> None:
    """Check that source and target of each shard differ.

    Args:
        key: config key of the files in errors.
        pairs: the files.

    Raises:
        UserError: source and target are the same file, or have the same content.
    """
    advice = "if that is meant, type the same language for both, data.src_lang=CODE data.tgt_lang=CODE"
    for shard in pairs.shards:
        if len(shard) == 2:
            if have_same_content(*shard):
                raise UserError(f"{key}.src={shard[0]} and {key}.tgt={shard[1]} have the same content; {advice}")
        elif pairs.reader is not None and _have_same_sides(pairs.reader.blocks(shard, _COMPARED_PAIRS)):
            raise UserError(f"{key}: source and target of {shard[0]} have the same content; {advice}")


def _have_same_sides(blocks: Iterator[ParallelText]) -> bool:
    """Return whether all pairs have equal sides, and some have text. Nothing after the first other pair is read."""
    has_text = False
    with suppress(UserError):  # reading all pairs will raise the same error
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
    """Return the folder of a corpus's prepared text, whose name contains a label and a hash of the options."""
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:10]
    safe_label = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.")
    return Path(cache_dir) / kind / f"{safe_label}-{digest}"


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that gets its final name only when the context ends without an error.

    A killed process leaves nothing under the final name. If two processes fill the same folder at once, that of the
    first to finish is kept, and the other one is discarded.

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
    """Return the splits that `write_splits` has written to a folder."""
    endings = side_endings(src_lang, tgt_lang)
    files = {split: [folder / f"{split}.{ending}" for ending in endings] for split in SPLITS}
    return {
        split: PairFiles(split, [(str(src), str(tgt))], StoredLines(split))
        for split, (src, tgt) in files.items()
        if src.exists()
    }


def read_prepared(folder: Path, corpus: Corpus) -> dict[str, PairFiles]:
    """Return the splits that a corpus has prepared in a folder.

    Raises:
        UserError: the corpus is not prepared. The message names the command to run.
    """
    if not folder.is_dir():
        raise UserError(
            f"{corpus.name} {corpus.src_lang}-{corpus.tgt_lang} is not prepared ({folder} is missing): "
            "run `make prepare` or `diglot-prepare` with the same data settings"
        )
    return read_splits(folder, corpus.src_lang, corpus.tgt_lang)


def _guess_languages(reader: PairReader | None, shard: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Return the languages of the two sides of a shard, from the names of files, columns or sides; None: unknown."""
    if reader is None:
        src, tgt = map(language_of_file, shard)
        return (src, tgt) if src != tgt else (None, None)
    if not isinstance(reader, FileReader) or reader.columns_only:
        return None, None
    return _guess_from_columns(reader.sides(shard[0]))


def _guess_from_columns(sides: tuple[Side, Side]) -> tuple[str | None, str | None]:
    """Return the languages after which columns are named; None: a column is not named after a language."""
    src, tgt = (language_of_column(side[0]) if len(side) == 1 else None for side in sides)
    return (src, tgt) if src != tgt else (None, None)


def _checked_columns(columns: Sequence[Column | Sequence[Column]]) -> tuple[Side, Side]:
    """Return the columns of source and target as sides.

    Raises:
        UserError: the columns are not two different sides, or mix names and numbers.
    """
    sides = sides_of("data.columns", columns)
    if len(sides) != 2 or sides[0] == sides[1]:
        raise UserError(f"data.columns={typed(sides)}: must be two different columns, source and target")
    return sides[0], sides[1]


def _given_paths(split: str, paths: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the paths of a split that are given, after a check of their keys.

    Raises:
        UserError: the keys are not src and tgt, one key of a file that holds both sides, or none.
    """
    key = f"data.{split}"
    paths = {name: value for name, value in paths.items() if name not in KEYS}
    for name in paths:
        if name not in ("src", "tgt", *_SINGLE_FILE_KEYS):
            raise UserError(
                f"{key}.{name} is not known; the keys are src, tgt, "
                f"{', '.join(_SINGLE_FILE_KEYS[:-1])} and {_SINGLE_FILE_KEYS[-1]}"
            )
    given = {name: _listed(f"{key}.{name}", value) for name, value in paths.items() if value or value == 0}
    single_keys = [name for name in _SINGLE_FILE_KEYS if name in given]
    if single_keys and len(given) > 1:
        others = " and ".join(f"{key}.{name}" for name in given if name != single_keys[0])
        raise UserError(f"{key}.{single_keys[0]} cannot be combined with {others}: give one file, or src and tgt")
    if "src" in given and "tgt" not in given:
        raise UserError(f"{key}.tgt is missing: type the file with the translations of {key}.src={given['src'][0]}")
    if "tgt" in given and "src" not in given:
        raise UserError(f"{key}.src is missing: type the file with the sources of {key}.tgt={given['tgt'][0]}")
    return given


def _listed(key: str, value: Any) -> list[str]:
    """Return the paths of a key as a list.

    Raises:
        UserError: the value is neither a path nor a list of paths.
    """
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, (list, tuple)) or not all(isinstance(path, str) for path in paths):
        raise UserError(f"{key}={value}: must be a path or a list of paths; a file named 5 is ./5")
    return list(paths)


def _shards(split: str, paths: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the files of a split as shards of PairFiles.

    Raises:
        UserError: a path matches no file or names a pipe, or the two sides have different numbers of files.
    """
    files_by_key = {
        name: [file for path in values for file in expand(str(path), f"data.{split}.{name}")]
        for name, values in paths.items()
    }
    for name, files in files_by_key.items():
        _refuse_pipes(f"data.{split}.{name}", files)
    counts = {name: len(files) for name, files in files_by_key.items()}
    if len(set(counts.values())) > 1:
        raise UserError(
            f"data.{split}.src matches {counts['src']} files, data.{split}.tgt matches {counts['tgt']}: "
            "each file needs its translation"
        )
    return list(zip(*files_by_key.values(), strict=True))


def _refuse_pipes(key: str, files: Sequence[str]) -> None:
    if pipe := next((file for file in files if is_pipe(file)), None):
        raise UserError(f"{key}={pipe}: a pipe can be read only once: write its text to a file")


def _sample_folder() -> Path:
    """Return the folder of the sample corpus."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "sample", package.parents[1] / "data" / "sample"):  # in a wheel, in a checkout
        if folder.is_dir():
            return folder
    raise UserError(f"the sample corpus is missing from {package / 'sample'}: reinstall diglot")
