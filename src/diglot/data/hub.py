"""Corpora from the Hugging Face Hub, and from JSON Lines, Parquet or Arrow files in the same form."""

import glob
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diglot.data.corpus import SPLITS, Corpus, atomic_folder, check_sizes, prepared_folder, read_prepared
from diglot.data.dataset_card import address_in_card
from diglot.data.readers.json_rows import checked_text, json_objects
from diglot.data.readers.parquet import is_text
from diglot.data.slices import Batch, Source, parse_parts, slice_rows
from diglot.data.split import split_off
from diglot.data.text import Parallel, side_endings, write_lines
from diglot.errors import UserError
from diglot.system.atomic import scratch_folder, sync
from diglot.system.progress import step

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset
    from pyarrow import Table

_FORMAT = 2  # increment when the same options give other text
_FILE_READERS = ("json", "parquet", "arrow")
_PARQUET_REVISION = "refs/convert/parquet"  # branch with the Hub's own conversion of a dataset
_BATCH_SIZE = 1000  # number of rows read and written at once
_HUB_TIMEOUT = 3  # seconds to wait for each of the Hub's several addresses
_LINE_BREAKS = re.compile(r"[\r\n]+")
_LOCAL_HINT = "for local files, type data=files data.train.file=FILE"
# Names that are taken for those of files, not of datasets on the Hub.
_FILE_NAME = re.compile(
    r".*\.(jsonl?|ndjson|parquet|arrow|csv|tsv|txt|tmx|xliff|xml)(\.(gz|zst|xz|bz2|zip))?", re.IGNORECASE
)

Files = Mapping[str, str | Sequence[str]] | Sequence[str] | str


class Hub(Corpus):
    """Corpus of a dataset whose rows contain a sentence in several languages.

    A row is {"translation": {"de": ..., "en": ...}}, or has a column for each language. `prepare` streams the dataset
    into plain text. It needs the memory of a thousand rows, or of a row group if the dataset is in Parquet, and runs no
    code of the dataset. Whitespace around a sentence is stripped, line breaks inside it become a space, and null
    becomes an empty line. Train pairs with an empty side are dropped and counted. If there is no dev, `read` splits it
    off from train, and also test if it is missing (see `grouped_split`). All of train must then fit into memory.

    Args:
        path: name of the dataset on the Hub; a local folder, which `save_to_disk` may have written; or "json" (JSON
            Lines), "parquet" or "arrow" for `data_files`.
        config: configuration of the dataset, such as "de-en"; None: the only one.
        revision: branch, tag or commit of the dataset; None: the newest. "refs/convert/parquet" is the Hub's own
            conversion, for datasets that exist only as a script.
        src_lang: source language as the dataset spells it.
        tgt_lang: target language as the dataset spells it.
        column: column that contains the languages; None: each language is a column.
        splits: the dataset's name for each of "train", "dev" and "test". A name may be a slice ("train[:500]",
            "train[10%:]") or a sum ("train+extra"). A split is not read if its name is None or missing. Dev and test
            are not read either if the dataset has only the split for train.
        data_files: paths, or paths by the dataset's splits; each is a string or a list, and may contain wildcards.
        max_train_pairs: greatest number of train rows to read, from the first on; None: all.
        expected: number of rows that each of "train", "dev" and "test" must have. It is checked if all rows are read.
        dev_size: number of pairs to split off for dev if it is missing, at most a tenth of train; None: 500.
        test_size: number of pairs to split off for test, in the same way; None: 1000.
        split_seed: seed of this split; None: 1.

    Raises:
        UserError: an argument is invalid.
    """

    needs_train = True  # whether a split to train on must be named

    def __init__(
        self,
        *,
        path: str | None,
        src_lang: str | None,
        tgt_lang: str | None,
        config: str | None = None,
        revision: str | None = None,
        column: str | None = "translation",
        splits: Mapping[str, str | None] | None = None,
        data_files: Files | None = None,
        max_train_pairs: int | None = None,
        expected: Mapping[str, int | None] | None = None,
        dev_size: int | None = None,
        test_size: int | None = None,
        split_seed: int | None = None,
    ) -> None:
        super().__init__()
        _check_path(path)
        self.src_lang, self.tgt_lang = _languages(src_lang, tgt_lang)
        self.name = "hub"
        self.sizes = {"dev": 500 if dev_size is None else dev_size, "test": 1000 if test_size is None else test_size}
        check_sizes(self.sizes["dev"], self.sizes["test"])
        self.split_seed = 1 if split_seed is None else split_seed
        self.path = os.path.expanduser(str(path))  # noqa: PTH111 - not a path, if it is the name of a set
        self.config, self.revision = config, revision
        self.column = column
        names = {"train": "train", "dev": "validation", "test": "test"} if splits is None else splits
        self.splits = {split: name for split, name in names.items() if name is not None}
        self.data_files = _as_lists(data_files) if data_files else None
        self.max_train_pairs = max_train_pairs
        self.expected = {split: rows for split, rows in (expected or {}).items() if rows is not None}
        for key, keys in (("splits", self.splits), ("expected", self.expected)):
            for split in keys:
                if split not in SPLITS:
                    raise UserError(f"data.{key}.{split} is not known; the keys are {', '.join(SPLITS)}")
        if self.needs_train and "train" not in self.splits:
            raise UserError("data.splits.train is missing: name the split of the dataset to train on")
        self._parts = {split: parse_parts(name, f"data.splits.{split}") for split, name in self.splits.items()}
        if path in ("csv", "text"):
            raise UserError(f"data.path={path}: for text, TSV and CSV, type data=files")
        if path in _FILE_READERS and not data_files:
            # Without files, `datasets` would read any files in the working directory.
            raise UserError(f"data.data_files is missing: it names the files that data.path={path} reads")
        if max_train_pairs is not None and max_train_pairs < 1:
            raise UserError(f"data.max_train_pairs={max_train_pairs}: must be at least 1, or null for all")

    def describe(self) -> str:
        dataset = " ".join(part for part in (self.path, self.config, self.revision) if part)
        files = f" {self.data_files}" if self.data_files else ""
        return f"hub: {self.src_lang}-{self.tgt_lang} from {dataset}{files} (licence: see the dataset's page)"

    def read(self, cache_dir: Path) -> Mapping[str, Parallel]:
        splits: dict[str, Parallel] = dict(read_prepared(self._folder(cache_dir), self))
        self.notes = []
        if "dev" not in splits:
            missing = {split: size for split, size in self.sizes.items() if split not in splits}
            new_splits, note = split_off(splits["train"].load(), missing, self.split_seed, self.path)
            splits |= new_splits
            self.notes.append(f"no {' or '.join(missing)} split read: {note}")
        return splits

    def prepare(self, cache_dir: Path) -> None:
        folder = self._folder(cache_dir)
        if folder.is_dir():
            return
        counts = []
        with (
            atomic_folder(folder) as temporary,
            # `datasets` requires a cache folder, but writes nothing there when it streams. TMPDIR may be full.
            scratch_folder(folder) as hub_cache,
            step(f"converting {self.path}", total=self._n_rows()) as advance,
        ):
            sources = self._sources(str(hub_cache))
            src, tgt = side_endings(self.src_lang, self.tgt_lang)
            splits = [split for split in self.splits if not self._is_to_split_off(split, sources)]
            self._check_names(splits, sources)
            # Small splits come first, so that errors are found early.
            for split in sorted(splits, key=SPLITS.index, reverse=True):
                rows = self._rows(split, sources)
                n_rows, n_pairs = _write_pairs(
                    rows, temporary, (f"{split}.{src}", f"{split}.{tgt}"), split == "train", advance
                )
                self._check_count(split, n_rows)
                if not n_pairs:
                    raise UserError(f"data.path={self.path}: split {self.splits[split]!r} has no pairs")
                counts.append(f"{split}: {n_pairs} pairs of {n_rows} rows")
            if "train" in splits:  # the last one
                counts.append(f"dropped from train for a blank side: {n_rows - n_pairs}")
            write_lines(temporary / "SOURCE.txt", [self.describe(), "", *counts])

    def _folder(self, cache_dir: Path) -> Path:
        label = "-".join(part for part in (self.path, self.config, self.src_lang, self.tgt_lang) if part)
        options = [_FORMAT, self.path, self.config, self.revision, self.src_lang, self.tgt_lang, self.column]
        options += [self.splits, self.data_files, self.max_train_pairs, self.expected]
        options.append(_file_stats(self.path, self.data_files))
        endings = side_endings(self.src_lang, self.tgt_lang)
        if endings != (self.src_lang, self.tgt_lang):  # earlier versions used other file names
            options.append(endings)
        return prepared_folder(cache_dir, self.name, label, options)

    def _is_to_split_off(self, split: str, sources: Mapping[str, Source]) -> bool:
        """Return whether the dataset lacks a split and has no other split than that for train."""
        if "train" not in self._parts:
            return False
        parts = {name: {part.name for part in self._parts[name]} for name in (split, "train")}
        return parts["train"] == set(sources) and not parts[split] & set(sources)

    def _check_names(self, splits: Sequence[str], sources: Mapping[str, Source]) -> None:
        """Check that the dataset has the splits to read, in their order.

        Raises:
            UserError: the dataset lacks a split.
        """
        for split in splits:
            if all(part.name in sources for part in self._parts[split]):
                continue
            advice = ""
            if split == "dev" and "train" in self.splits:
                advice = " (data.splits.dev=null splits it off from train)"
            elif split == "test":
                effect = "goes without it" if "dev" in splits else "splits it off from train"
                advice = f" (data.splits.test=null {effect})"
            raise UserError(f"data.splits.{split}={self.splits[split]}: the dataset has {', '.join(sources)}{advice}")

    def _reads_all_rows(self, split: str) -> bool:
        """Return whether all rows of a split are read."""
        return "[" not in self.splits[split] and (split != "train" or self.max_train_pairs is None)

    def _n_rows(self) -> int | None:
        """Return the number of rows to read; None: unknown."""
        if all(split in self.expected and self._reads_all_rows(split) for split in self.splits):
            return sum(self.expected[split] for split in self.splits)
        return None

    def _check_count(self, split: str, n_rows: int) -> None:
        expected = self.expected.get(split, n_rows)
        if self._reads_all_rows(split) and n_rows != expected:
            raise UserError(
                f"data.expected.{split}={expected}: {n_rows} rows found; the dataset has changed, or this is another "
                "revision (data.expected=null accepts any number)"
            )

    def _rows(self, split: str, sources: Mapping[str, Source]) -> Iterator[Batch]:
        """Yield the rows of "train", "dev" or "test", from one or more parts of the dataset's splits."""
        limit = self.max_train_pairs if split == "train" else None
        for part in self._parts[split]:
            start, stop = part.bounds(sources[part.name])
            n_rows = start
            for batch in slice_rows(sources[part.name](), start, stop if limit is None else min(stop, start + limit)):
                n_rows += len(batch[0])
                yield batch
            if limit is not None:
                limit -= n_rows - start
                if not limit:
                    return
            if part.stop is not None and n_rows < stop:
                raise UserError(f"data.splits.{split}={self.splits[split]}: {part.name} has fewer rows")

    def _sources(self, hub_cache: str) -> dict[str, Source]:
        """Return a function that reads a split of the dataset, for each split by its name in the dataset.

        Args:
            hub_cache: cache folder for `datasets`, which stays empty.
        """
        import datasets  # imported here, because the import takes a second

        datasets.disable_progress_bars()  # diglot shows its own
        datasets.logging.set_verbosity(logging.CRITICAL)  # it also raises all errors that it logs
        datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # otherwise it reports even local files to the Hub
        if any((Path(self.path) / name).is_file() for name in ("state.json", "dataset_dict.json")):
            with self._user_errors():
                saved = datasets.load_from_disk(self.path)
            splits = saved if isinstance(saved, datasets.DatasetDict) else {str(saved.split or "train"): saved}
            return {str(name): self._table_source(rows) for name, rows in splits.items()}
        if self.path not in _FILE_READERS and not Path(self.path).exists():
            self._reach_hub()
        with self._user_errors():
            address = address_in_card(Path(self.path))
        if address:
            raise UserError(f"data.path={self.path}: its description names {address}: a local dataset opens no address")
        config, data_files = self.config, self.data_files
        if self.revision == _PARQUET_REVISION and config and not data_files:
            # In this branch, each configuration is a folder.
            split_names = {part.name for parts in self._parts.values() for part in parts}
            config, data_files = None, {name: [f"{config}/{name}/*.parquet"] for name in sorted(split_names)}
        with self._user_errors():
            builder = datasets.load_dataset_builder(
                self.path, name=config, revision=self.revision, data_files=data_files, cache_dir=hub_cache
            )
        files: dict[str, list[str]] = {str(name): list(paths) for name, paths in builder.config.data_files.items()}
        for name, paths in files.items():
            if not paths:
                raise UserError(f"data.data_files={self.data_files}: no file found for split {name}")
        kind = type(builder).__module__.rpartition(".")[2]
        if kind not in _FILE_READERS:
            raise UserError(
                f"data.path={self.path}: contains {kind} files; data=hub reads only JSON Lines, Parquet and Arrow, "
                "and data=files reads text, TSV and CSV"
            )
        if kind == "json" and all(Path(path).is_file() for paths in files.values() for path in paths):
            # `datasets` would change the text; see diglot.data.readers.json_rows.
            return {name: lambda paths=paths: self._json_rows(paths) for name, paths in files.items()}  # type: ignore[misc]
        if hasattr(builder.config, "on_mixed_types"):
            builder.config.on_mixed_types = None  # raise an error instead of adding quotes
        if hasattr(builder.config, "batch_size"):
            builder.config.batch_size = _BATCH_SIZE  # otherwise a complete row group of the file
        with self._user_errors():
            streams = builder.as_streaming_dataset()
        return {str(name): self._table_source(rows) for name, rows in streams.items()}

    def _reach_hub(self) -> None:
        """Check that the Hub can be reached, because `datasets` would retry for half a minute.

        Raises:
            UserError: no connection is possible.
        """
        from huggingface_hub import constants
        from huggingface_hub.utils import get_session

        try:
            get_session().head(constants.ENDPOINT, timeout=_HUB_TIMEOUT)
        except Exception as error:  # the type depends on the HTTP library
            if isinstance(error, ConnectionError) or "Connect" in type(error).__name__:
                raise UserError(
                    f"data.path={self.path}: no such folder, and the Hub cannot be reached; {_LOCAL_HINT}"
                ) from None

    @contextmanager
    def _user_errors(self, n_rows: int = 0) -> Iterator[None]:
        """Convert any error of `datasets` into a UserError with a one-line message.

        Args:
            n_rows: number of rows that were read before, for the message.
        """
        import datasets

        try:
            yield
        except datasets.exceptions.DatasetNotFoundError as error:
            if "evision" in str(error):
                raise UserError(
                    f"data.revision={self.revision}: the dataset {self.path} has no such revision"
                ) from None
            if "gated" in str(error):
                page = f"request access on https://huggingface.co/datasets/{self.path} and log in with `hf auth login`"
                raise UserError(f"data.path={self.path}: this dataset is gated; {page}") from None
            raise UserError(
                f"data.path={self.path}: no such dataset on the Hub (or no access to it); {_LOCAL_HINT}"
            ) from None
        except ConnectionError:
            raise UserError(f"data.path={self.path}: the Hub cannot be reached; {_LOCAL_HINT}") from None
        except Exception as error:  # for an unreadable dataset, `datasets` may raise almost any type
            if "scripts are no longer supported" in str(error):
                raise UserError(
                    f"data.path={self.path}: this dataset exists only as a script, which diglot does not run; use the "
                    f"Hub's conversion, data.revision={_PARQUET_REVISION}, or local files, data=files "
                    "data.train.file=FILE"
                ) from None
            reason = " ".join(str(error.__cause__ or error).split()).partition(" with any supported extension ")[0]
            if reason.startswith("BuilderConfig"):
                available = reason.partition("Available: ")[2]
                raise UserError(
                    f"data.config={self.config}: {self.path} has {available} (null if there is only one)"
                ) from None
            where = f"data.path={self.path}" + (f", after row {n_rows}" if n_rows else "")
            raise UserError(f"{where}: {reason or type(error).__name__}") from error

    def _table_source(self, rows: "Dataset | IterableDataset") -> Source:
        def read() -> Iterator[Batch]:
            n_rows = 0
            with self._user_errors():
                tables = iter(rows.with_format("arrow").iter(batch_size=_BATCH_SIZE))
            while True:
                with self._user_errors(n_rows):
                    table = next(tables, None)
                if table is None:
                    return
                yield self._table_sides(table, n_rows)
                n_rows += table.num_rows

        return read

    def _table_sides(self, table: "Table", n_rows: int) -> Batch:
        """Return the sentences of a table in the two languages.

        Args:
            table: rows of the dataset.
            n_rows: number of rows before the table, for errors.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        columns = dict(zip(table.column_names, table.columns))
        if self.column is not None:
            self._check_column(columns)
            translations = columns[self.column]
            if not pa.types.is_struct(translations.type):
                raise self._no_languages()
            fields = range(translations.type.num_fields)
            columns = {translations.type.field(i).name: pc.struct_field(translations, i) for i in fields}
        self._check_languages(columns)
        sides = []
        for language in (self.src_lang, self.tgt_lang):
            data_type = columns[language].type
            if not is_text(data_type):
                raise UserError(f"data.path={self.path}: {language} contains {data_type}, not text")
            try:
                sides.append(columns[language].to_pylist())
            except UnicodeDecodeError:
                where = f"rows {n_rows + 1} to {n_rows + table.num_rows}"
                raise UserError(f"data.path={self.path}, {where}: {language} is not UTF-8") from None
        return sides[0], sides[1]

    def _json_rows(self, paths: Sequence[str]) -> Iterator[Batch]:
        """Yield the sentences of JSON Lines files in the two languages. A missing key counts as null."""
        is_first = True
        for path in paths:
            objects = json_objects(path)
            while batch := list(islice(objects, _BATCH_SIZE)):
                numbers, rows = zip(*batch)
                if self.column is not None:
                    if is_first:
                        self._check_column(dict.fromkeys(key for row in rows for key in row))
                    translations = [row.get(self.column) for row in rows]
                    rows = tuple({} if row is None else row for row in translations)
                    if not all(isinstance(row, dict) for row in rows):
                        raise self._no_languages()
                if is_first and any(rows):
                    self._check_languages(dict.fromkeys(key for row in rows for key in row))
                    is_first = False
                src, tgt = (
                    [checked_text(row.get(language), path, number) for number, row in zip(numbers, rows)]
                    for language in (self.src_lang, self.tgt_lang)
                )
                yield src, tgt

    def _check_column(self, columns: Mapping[str, Any]) -> None:
        if self.column not in columns:
            raise UserError(
                f"data.column={self.column}: the dataset's columns are {', '.join(columns)} (null: one per language)"
            )

    def _no_languages(self) -> UserError:
        return UserError(
            f"data.column={self.column}: not a column of languages; type data.column=null for one column per language"
        )

    def _check_languages(self, languages: Mapping[str, Any]) -> None:
        for key, language in (("src_lang", self.src_lang), ("tgt_lang", self.tgt_lang)):
            if language not in languages:
                raise UserError(f"data.{key}={language}: the dataset {self.path} has {', '.join(languages)}")


def _check_path(path: str | None) -> None:
    """Check that a path is not the name of a file, which would be sent to the Hub as the name of a dataset.

    Raises:
        UserError: the path is the name of a file, or is missing.
    """
    if not path:
        raise UserError("data.path is missing: name a dataset on the Hub, a folder, or json, parquet or arrow")
    file = Path(path).expanduser()
    if file.is_file():
        raise UserError(f"data.path={path}: this is a file: type data=files data.train.file={path}")
    is_local = path.startswith(("/", "./", "../", "~")) or path.count("/") > 1 or _FILE_NAME.fullmatch(path)
    if is_local and not file.exists():
        raise UserError(f"data.path={path}: no such file or folder; {_LOCAL_HINT}")


def _languages(src_lang: str | None, tgt_lang: str | None) -> tuple[str, str]:
    """Return the codes of the two languages, after a check.

    Raises:
        UserError: a code is missing or cannot be part of a file name, or both are the same.
    """
    for key, language in (("src_lang", src_lang), ("tgt_lang", tgt_lang)):
        if not language:
            raise UserError(f"data.{key} is missing: name the language as the dataset spells it")
        if "/" in language or "\0" in language:
            raise UserError(f"data.{key}={language}: not usable in a file name")
    if src_lang == tgt_lang:
        raise UserError(f"data.src_lang and data.tgt_lang are both {src_lang}")
    return str(src_lang), str(tgt_lang)


def _write_pairs(
    batches: Iterator[Batch], folder: Path, names: tuple[str, str], drops_blank: bool, advance: Callable[[int], None]
) -> tuple[int, int]:
    """Write two files of corresponding lines; return the numbers of rows read and of pairs written.

    Args:
        batches: sentences of the rows.
        folder: folder of the two files.
        names: names of the source and the target file.
        drops_blank: whether to leave out pairs with a blank side.
        advance: function that reports a number of rows as progress.

    Raises:
        UserError: the files cannot be written.
    """
    n_rows = n_pairs = 0
    try:
        with (folder / names[0]).open("xb") as src_file, (folder / names[1]).open("xb") as tgt_file:
            for batch in batches:
                pairs = [(_one_line(src), _one_line(tgt)) for src, tgt in zip(*batch)]
                n_rows += len(pairs)
                if drops_blank:
                    pairs = [(src, tgt) for src, tgt in pairs if src and tgt]
                n_pairs += len(pairs)
                src_file.write("".join(f"{src}\n" for src, _ in pairs).encode())
                tgt_file.write("".join(f"{tgt}\n" for _, tgt in pairs).encode())
                advance(len(batch[0]))
            for file in (src_file, tgt_file):
                file.flush()
                sync(file.fileno())
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from None
    return n_rows, n_pairs


def _one_line(text: str | None) -> str:
    text = (text or "").strip()
    while text.startswith("\ufeff"):  # readers drop a byte order mark at the start of a file
        text = text[1:].lstrip()
    return _LINE_BREAKS.sub(" ", text) if "\n" in text or "\r" in text else text


def _as_lists(data_files: Files) -> dict[str, list[str]] | list[str]:
    """Return the files in the form that `datasets` accepts, with all paths in lists."""
    if isinstance(data_files, Mapping):
        return {str(name): _paths(paths) for name, paths in data_files.items()}
    return _paths(data_files)


def _paths(paths: str | Sequence[str]) -> list[str]:
    expanded = [os.path.expanduser(path) for path in ([paths] if isinstance(paths, str) else paths)]  # noqa: PTH111 - URLs
    return [glob.escape(path) if Path(path).is_file() else path for path in expanded]  # `a[1].jsonl` may be a file name


def _file_stats(path: str, data_files: dict[str, list[str]] | list[str] | None) -> list[list[Any]]:
    """Return the sizes and times of local files, so that changed files are converted again."""
    lists = data_files.values() if isinstance(data_files, dict) else [data_files or []]
    patterns = [pattern for paths in lists for pattern in paths]
    if Path(path).is_dir():
        patterns.append(f"{glob.escape(path)}/**/*")
    files = sorted({Path(file) for pattern in patterns for file in glob.glob(pattern, recursive=True)})  # noqa: PTH207 - absolute patterns too
    stats = [(file, file.stat()) for file in files if file.is_file()]
    # Include the inode's change time: unlike the modification time, it cannot be set back.
    return [[str(file), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino] for file, stat in stats]
