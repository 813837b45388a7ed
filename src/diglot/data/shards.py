"""Tokenised pairs in memory-mapped files, which open instantly and are shared by all processes without a copy."""

import hashlib
import json
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from diglot.data.flat import FlatIds, id_type
from diglot.data.text import write_bytes
from diglot.errors import UserError
from diglot.system.atomic import sync

ABOUT = "about.json"
SIDES = ("src", "tgt")


class Rows(NamedTuple):
    """Sequences of token ids without special ids, concatenated.

    Attributes:
        ids: ids of all n sequences.
        lengths: number of ids of each sequence (n,).
    """

    ids: np.ndarray
    lengths: np.ndarray


class ShardWriter:
    """Writer of tokenised pairs, which can continue the files of an earlier writer.

    Args:
        folder: existing folder.
        vocab_size: size of the larger vocabulary, which determines the number of bytes per id.
        position: result of the earlier writer's `position`, to which the files are truncated; None: the files are
            started anew.
    """

    def __init__(self, folder: Path, vocab_size: int, position: dict[str, int] | None = None) -> None:
        self.id_type = id_type(vocab_size)
        self.files: dict[str, BinaryIO] = {}
        self.ends: dict[str, int] = {}
        for side in SIDES:
            for kind in ("ids", "offsets"):
                name = f"{side}.{kind}"
                file = (folder / name).open("ab")
                file.truncate((position or {}).get(name, 0))
                file.seek(0, 2)
                self.files[name] = file
            self.ends[side] = self.files[f"{side}.ids"].tell() // np.dtype(self.id_type).itemsize
            if not self.files[f"{side}.offsets"].tell():
                self.files[f"{side}.offsets"].write(np.zeros(1, np.int64).tobytes())

    def append(self, src: Rows, tgt: Rows) -> None:
        for side, rows in zip(SIDES, (src, tgt), strict=True):
            offsets = self.ends[side] + np.cumsum(rows.lengths, dtype=np.int64)
            self.files[f"{side}.ids"].write(rows.ids.astype(self.id_type, copy=False).tobytes())
            self.files[f"{side}.offsets"].write(offsets.tobytes())
            if len(offsets):
                self.ends[side] = int(offsets[-1])

    def position(self) -> dict[str, int]:
        """Flush all files to disk and return their lengths."""
        for file in self.files.values():
            file.flush()
            sync(file.fileno())
        return {name: file.tell() for name, file in self.files.items()}

    def close(self) -> None:
        for file in self.files.values():
            file.close()


class Shards(NamedTuple):
    """Tokenised pairs in a folder.

    Attributes:
        src: sources of all versions.
        tgt: targets of all versions.
        metadata: metadata given to `write_metadata`; see `diglot.data.preparation`.
    """

    src: FlatIds
    tgt: FlatIds
    metadata: dict[str, Any]
    key: int
    folder: Path

    @property
    def n_versions(self) -> int:
        """Number of versions of the pairs, which differ in segmentation or noise and are stored one after the other."""
        return int(self.metadata["versions"])

    def count(self, kind: str) -> int:  # type: ignore[override]  # hides tuple.count, which is not needed
        """Return the number of pairs "read" or "kept", over all corpora."""
        return sum(counts[kind] for counts in self.metadata["corpora"].values())


def write_metadata(folder: Path, metadata: dict[str, Any], vocab_size: int) -> None:
    """Write the metadata of the files. This must be the last step, because it marks the folder as complete."""
    write_bytes(folder / ABOUT, json.dumps({**metadata, "vocab_size": vocab_size}, indent=1).encode())


def open_shards(folder: Path) -> Shards:
    """Map the files of a folder into memory.

    Raises:
        UserError: they are missing or damaged.
    """
    try:
        metadata = json.loads((folder / ABOUT).read_bytes())
        sides = [_MappedIds(folder, side, metadata["vocab_size"]) for side in SIDES]
        n_pairs = metadata["versions"] * sum(counts["kept"] for counts in metadata["corpora"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{folder}: damaged ({error}): remove the folder") from None
    if not len(sides[0]) == len(sides[1]) == n_pairs:
        raise UserError(
            f"{folder}: {len(sides[0])} sources and {len(sides[1])} targets, not {n_pairs}: remove the folder"
        )
    key = int.from_bytes(hashlib.sha256(folder.name.encode()).digest()[:8], "little")
    return Shards(sides[0], sides[1], metadata, key, folder)


class _MappedIds(FlatIds):
    """Sequences in the files of one side. Pickling stores only their location, and unpickling maps the files again."""

    def __init__(self, folder: Path, side: str, vocab_size: int) -> None:
        offsets = map_array(folder / f"{side}.offsets", np.dtype(np.int64))
        ids = map_array(folder / f"{side}.ids", np.dtype(id_type(vocab_size)))
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(ids):
            raise UserError(f"{folder}: {side}.ids does not have the length that was written: remove the folder")
        super().__init__(ids, offsets)
        self._arguments = folder, side, vocab_size

    def __reduce__(self) -> tuple[Any, ...]:
        return _MappedIds, self._arguments


def map_array(path: Path, dtype: np.dtype) -> np.ndarray:
    """Return the numbers in a file, mapped into memory, or read if the file system does not support mapping."""
    if not path.stat().st_size:
        return np.empty(0, dtype)
    try:
        # A plain array over the memmap is sliced several times as fast as the memmap.
        return np.asarray(np.memmap(path, dtype, "r"))
    except OSError:
        return np.fromfile(path, dtype)
