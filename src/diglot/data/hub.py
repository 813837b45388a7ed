"""Translation sets of the Hugging Face hub, and JSON or Parquet files in the same form, through `datasets`."""

import glob
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diglot.data.corpus import SPLITS, Corpus, prepared_folder, read_prepared, whole_folder, write_splits
from diglot.data.progress import step
from diglot.data.text import Parallel, ParallelText, drop_blank_pairs, write_lines
from diglot.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset

_FORMAT = 1  # raise it when the same options make other text
_FILE_READERS = ("json", "parquet")
_LINE_BREAKS = re.compile(r"[\r\n]+")
_LOCAL_WAY = "local files need no hub: data=files, or data.path=json data.data_files=FILE"


class Hub(Corpus):
    """A set whose rows hold a sentence in several languages, as {"translation": {"de": ..., "en": ...}} or in columns.

    `prepare` writes the two languages as plain text. Line breaks inside a sentence become a blank; train pairs with a
    blank side are dropped.

    Args:
        path: the set's name on the hub, a local folder, or "json" or "parquet" for `data_files`.
        config: the set's configuration, "de-en" say.
        revision: branch, tag or commit of the set; None takes the newest.
        src_lang: source language as the set spells it.
        tgt_lang: target language as the set spells it.
        column: the column that holds the languages; None where each language is a column of its own.
        splits: the set's name for each of "train", "dev" and "test"; a slice such as "train[:500]" is a name too, and
            None or an absent one means there is none.
        data_files: files for "json" or "parquet": a path, or paths by split.
        max_train_pairs: only the first so many train pairs.

    Raises:
        UserError: an argument is wrong.
    """

    def __init__(
        self,
        *,
        path: str,
        src_lang: str,
        tgt_lang: str,
        config: str | None = None,
        revision: str | None = None,
        column: str | None = "translation",
        splits: Mapping[str, str | None] | None = None,
        data_files: Mapping[str, str] | str | None = None,
        max_train_pairs: int | None = None,
    ) -> None:
        super().__init__()
        self.name = "hub"
        self.path, self.config, self.revision = path, config, revision
        self.src_lang, self.tgt_lang, self.column = src_lang, tgt_lang, column
        names = {"train": "train", "dev": "validation", "test": "test"} if splits is None else splits
        self.splits = {split: name for split, name in names.items() if name is not None}
        self.data_files = dict(data_files) if isinstance(data_files, Mapping) else data_files
        self.max_train_pairs = max_train_pairs
        for split in self.splits:
            if split not in SPLITS:
                raise UserError(f"data.splits.{split} is not known; the keys are {', '.join(SPLITS)}")
        if "train" not in self.splits:
            raise UserError("data.splits.train is missing: name the split of the set to train on")
        if path in _FILE_READERS and not data_files:
            # Without files, `datasets` would read whatever lies in the working directory.
            raise UserError(f"data.data_files is missing: data.path={path} reads the files it names")
        if max_train_pairs is not None and max_train_pairs < 1:
            raise UserError(f"data.max_train_pairs={max_train_pairs}: at least 1, or null for all")

    def describe(self) -> str:
        what = " ".join(part for part in (self.path, self.config, self.revision) if part)
        files = f" {self.data_files}" if self.data_files else ""
        return f"hub: {self.src_lang}-{self.tgt_lang} from {what}{files} (licence: see the set's own page)"

    def read(self, cache_dir: Path) -> Mapping[str, Parallel]:
        return read_prepared(self._folder(cache_dir), self)

    def prepare(self, cache_dir: Path) -> None:
        folder = self._folder(cache_dir)
        if folder.is_dir():
            return
        sets = self._load(folder.parent / "datasets")
        if self.max_train_pairs is not None:
            sets["train"] = sets["train"].select(range(min(self.max_train_pairs, len(sets["train"]))))
        splits = {}
        with step(f"converting {self.path}", total=sum(len(rows) for rows in sets.values())) as advance:
            for split, rows in sets.items():
                splits[split] = ParallelText([], [])
                for batch in rows.iter(batch_size=1000):
                    src, tgt = self._sides(batch)
                    splits[split].src.extend(map(_one_line, src))
                    splits[split].tgt.extend(map(_one_line, tgt))
                    advance(len(src))
            splits["train"], n_blank = drop_blank_pairs(splits["train"])
            for split, pairs in splits.items():
                if not len(pairs):
                    raise UserError(f"data.path={self.path}: split {self.splits[split]!r} has no pairs")
            with whole_folder(folder) as temporary:
                write_splits(temporary, splits, self.src_lang, self.tgt_lang)
                counts = [f"{split}: {len(pairs)} pairs" for split, pairs in splits.items()]
                counts.append(f"dropped from train for a blank side: {n_blank}")
                write_lines(temporary / "SOURCE.txt", [self.describe(), "", *counts])

    def _folder(self, cache_dir: Path) -> Path:
        label = "-".join(part for part in (self.path, self.config, self.src_lang, self.tgt_lang) if part)
        options = [_FORMAT, self.path, self.config, self.revision, self.src_lang, self.tgt_lang, self.column]
        options += [self.splits, self.data_files, self.max_train_pairs, _stamps(self.path, self.data_files)]
        return prepared_folder(cache_dir, self.name, label, options)

    def _load(self, datasets_cache: Path) -> dict[str, "Dataset"]:
        import datasets  # here, because it takes a second that the other corpora need not wait

        def load() -> list["Dataset"]:
            return datasets.load_dataset(
                self.path,
                name=self.config,
                revision=self.revision,
                data_files=self.data_files,
                split=list(self.splits.values()),
                cache_dir=str(datasets_cache),
            )

        try:
            if sys.stderr.isatty():  # `datasets` draws bars of its own
                return dict(zip(self.splits, load()))
            datasets.disable_progress_bars()
            with step(f"loading {self.path}"):
                return dict(zip(self.splits, load()))
        except datasets.exceptions.DatasetNotFoundError:
            raise UserError(
                f"data.path={self.path}: no such set on the hub (or no access to it); {_LOCAL_WAY}"
            ) from None
        except ConnectionError:
            raise UserError(f"data.path={self.path}: the hub cannot be reached; {_LOCAL_WAY}") from None
        except Exception as error:  # `datasets` raises nearly every type there is for a set that it cannot read
            if "scripts are no longer supported" in str(error):
                reason = "this set exists only as a script that would have to be run, which datasets does not do"
                raise UserError(f"data.path={self.path}: {reason}; {_LOCAL_WAY}") from None
            reason = " ".join(str(error.__cause__ or error).split())
            raise UserError(f"data.path={self.path}: {reason or type(error).__name__}") from error

    def _sides(self, batch: Mapping[str, list[Any]]) -> tuple[list[Any], list[Any]]:
        """The two languages of a batch of rows."""
        sides = []
        for key, language in (("src_lang", self.src_lang), ("tgt_lang", self.tgt_lang)):
            if self.column is None:
                found: Mapping[str, list[Any]] = batch
            elif self.column not in batch:
                raise UserError(
                    f"data.column={self.column}: the set's columns are {', '.join(batch)} (null: one a language)"
                )
            else:
                rows = batch[self.column]
                row: object = next((row for row in rows if row is not None), {})
                if not isinstance(row, Mapping):
                    raise UserError(
                        f"data.column={self.column}: it does not hold languages; data.column=null reads columns"
                    )
                found = {code: [(row or {}).get(code) for row in rows] for code in row}
            if language not in found:
                raise UserError(f"data.{key}={language}: the set {self.path} has {', '.join(found)}")
            sides.append(found[language])
        return sides[0], sides[1]


def _one_line(text: object) -> str:
    if text is None:
        return ""
    if not isinstance(text, str):
        raise UserError(f"a sentence of the set is a {type(text).__name__}, not text: {str(text)[:60]}")
    return _LINE_BREAKS.sub(" ", text).removeprefix("\ufeff").strip()


def _stamps(path: str, data_files: Mapping[str, str] | str | None) -> list[list[Any]]:
    """Size and time of the local files, so that changed files are converted anew."""
    patterns = [data_files] if isinstance(data_files, str) else list((data_files or {}).values())
    if Path(path).is_dir():
        patterns.append(f"{glob.escape(path)}/**/*")
    files = sorted({Path(file) for pattern in patterns for file in glob.glob(pattern, recursive=True)})  # noqa: PTH207 - absolute patterns too
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.is_file()]
