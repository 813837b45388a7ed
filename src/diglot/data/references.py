"""Further references of dev and test, in files of their own or in columns of a file that holds both sides."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from diglot.data.readers.reading import segments
from diglot.data.readers.sides import Side, sides_of
from diglot.data.readers.unit_formats import is_sgm
from diglot.data.readers.wmt import join_sides
from diglot.data.text import (
    BLOCK,
    EXTRACT,
    PairFiles,
    PairReader,
    ParallelText,
    expand,
    have_same_content,
    join_blocks,
    read_lines,
    refuse_address,
    sentence_blocks,
)
from diglot.errors import UserError

KEYS = ("references", "reference_columns")  # of data.dev and data.test


class Further(NamedTuple):
    """The further references that a config names for a split.

    Attributes:
        patterns: paths of files whose lines correspond to the pairs; they may have wildcards.
        columns: the columns, or the language, of each reference in the file that holds both sides.
    """

    patterns: tuple[str, ...] = ()
    columns: tuple[Side, ...] = ()


def further(split: str, node: Mapping[str, Any], paths: Mapping[str, Sequence[str]]) -> Further:
    """Return the further references that the node of a split names.

    Args:
        split: train, dev or test.
        node: the node, as in data.dev.
        paths: the files of the split, by their keys.

    Raises:
        UserError: they are not for this split, or malformed.
    """
    key = f"data.{split}"
    patterns, columns = (_listed(node.get(name)) for name in KEYS)
    if not patterns and not columns:
        return Further()
    name = KEYS[0] if patterns else KEYS[1]
    if split not in ("dev", "test"):
        raise UserError(f"{key}.{name}: only dev and test have further references")
    if not paths:
        raise UserError(f"{key}.{name}: {key}.src and {key}.tgt, or {key}.file, must be given, too")
    if columns and "src" in paths:
        told = f"{key}.reference_columns selects columns of a file that holds both sides, but {key}.src is given"
        raise UserError(f"{told}: type {key}.references=FILE")
    if wrong := next((each for each in patterns if not isinstance(each, str)), None):
        raise UserError(f"{key}.references={wrong}: must be a path")
    return Further(tuple(patterns), sides_of(f"{key}.reference_columns", columns))


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, (str, int)) else list(value or ())


def expand_references(key: str, patterns: Iterable[str], used: Iterable[str]) -> list[str]:
    """Return the files of further references.

    Args:
        key: the config key that names them.
        patterns: paths. Wildcards may also match files in `used`, which are not counted twice.
        used: the files of the other references.

    Raises:
        UserError: no file matches, or a path is a URL.
    """
    known = {Path(path).resolve() for path in used}
    found: list[str] = []
    for pattern in patterns:
        refuse_address(key, pattern)
        files = expand(pattern, key)
        is_pattern = files != [str(Path(pattern).expanduser())]
        found += [file for file in files if not (is_pattern and Path(file).resolve() in known)]
    return found


def check_count(key: str, path: str, n_lines: int, n_pairs: int, where: str) -> None:
    """Check that a file has one line per pair.

    Args:
        key: the config key that names the file.
        path: the file.
        n_lines: its number of lines.
        n_pairs: the number of pairs.
        where: the text that has the pairs, for errors.

    Raises:
        UserError: the numbers differ.
    """
    if n_lines != n_pairs:
        raise UserError(f"{key}={path} has {n_lines} lines, {where} has {n_pairs}; the numbers must be equal")


class Referenced(PairFiles):
    """Pairs that stay in their files, with further references in files of their own.

    Each of these files has a line for each pair, or is a test set in SGML, whose segments have the ids of the sources.

    Args:
        name: dev or test.
        shards: see `PairFiles`.
        reader: see `PairFiles`.
        options: see `PairFiles`.
        references: the files of further references.
    """

    def __init__(
        self,
        name: str,
        shards: Sequence[tuple[str, ...]],
        reader: PairReader | None,
        options: tuple[Any, ...],
        references: Sequence[str],
    ) -> None:
        super().__init__(name, shards, reader, (*options, "references", len(references)))
        self.key, self.references = f"data.{name}.references", list(references)

    def files(self) -> list[str]:
        return [*super().files(), *self.references]

    def load(self) -> ParallelText:
        """Load all pairs and references into memory.

        Raises:
            UserError: a file of references does not correspond to the pairs, or cannot be read.
        """
        pairs = join_blocks(super().blocks())
        more = [lines for path in self.references for lines in self._read(path, len(pairs))]
        return ParallelText(pairs.src, pairs.tgt, (*pairs.more, *more))

    def blocks(self, size: int = BLOCK) -> Iterator[ParallelText]:
        """Yield all pairs in order, at most `size` at a time."""
        yield from self.load().blocks(size)

    def _read(self, path: str, n_pairs: int) -> list[list[str | None]]:
        if is_sgm(path):
            return self._segments(path)
        lines = list(chain.from_iterable(sentence_blocks(path, instead=EXTRACT)))
        check_count(self.key, path, len(lines), n_pairs, ", ".join(shard[-1] for shard in self.shards))
        return [[*lines]]

    def _segments(self, path: str) -> list[list[str | None]]:
        sources = [shard[0] for shard in self.shards]
        if not all(map(is_sgm, sources)):
            raise UserError(
                f"{self.key}={path}: a test set (SGML), but {sources[0]} has no ids of segments: give lines"
            )
        units = join_sides(chain.from_iterable(map(segments, sources)), segments(path), ", ".join(sources), path)
        return [list(lines) for lines in zip_longest(*(unit.texts["tgt"] for unit in units))]

    def notes(self) -> Iterator[str]:
        """Yield a note for each file of references that has blank lines.

        Raises:
            UserError: a file has the same content as another one.
        """
        others = [*self.shards[0]] if len(self.shards) == 1 else []
        for path in self.references:
            if same := next((other for other in others if have_same_content(path, other)), None):
                raise UserError(f"{self.key}={path} has the same content as {same}")
            others.append(path)
            if not is_sgm(path):
                lines = read_lines(path)
                if n_blank := sum(not line.strip() for line in lines):
                    yield f"{path}: {n_blank:,} of {len(lines):,} lines are blank; each counts as an empty reference"
