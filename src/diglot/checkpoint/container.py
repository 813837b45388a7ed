"""Reader and writer of checkpoint files (format 2): one safetensors file, which other programs can also open.

The file consists of the header's length (8 bytes), the header (a JSON object), and the tensors' bytes without gaps. The
header's "__metadata__" holds

- "format": "pt", which other programs look for;
- "diglot": everything but the tensors, as JSON, see diglot.checkpoint.plain;
- "checksums": the SHA-256 of each tensor's bytes by name, as JSON;
- "sha256": the SHA-256 of these two texts and of the tensors' names, types and shapes.

Tensors are written and read one after the other to save memory: writing copies at most one of them (from a GPU, for
example). The writer of the safetensors library is not used. It creates a temporary file of its own, which is neither
locked nor synced, and renames it over the file that is being written. On reading, the library checks the tensors'
offsets in the header. This module checks what the library does not check, or checks only after allocating memory.
Tensors are read into memory that torch allocates, because its alignment may change the last bits of results.
"""

import gc
import hashlib
import json
import math
import os
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from diglot.checkpoint.plain import DTYPE_NAMES, DTYPES, MAX_DIMENSIONS, decode, encode
from diglot.config.storable import MAX_TENSORS
from diglot.errors import UserError

# A model of a thousand layers, with two moments and a step count for each weight, has a header of about 35,000,000.
MAX_HEADER_BYTES = 48_000_000  # bytes
MAX_JSON_DEPTH = 200  # each level of a tree takes up to four levels of JSON
# Upper bounds of the memory that parsed JSON takes in Python, in bytes per structural character: the start of an object
# or list, the colon before a value of an object, and the comma before the next value.
MEMORY = {"{": 240, "[": 90, ":": 105, ",": 75, "}": 0, "]": 0}
DEPTH = {"{": 1, "[": 1, ":": 0, ",": 0, "}": -1, "]": -1}
MAX_MEMORY, MAX_HEADER_MEMORY = 90_000_000, 135_000_000
MAX_BYTES_PER_CHARACTER = 4  # bytes per character of a text in which a \u escape stands for a wide character
CHUNK = 2**24

_METADATA = "__metadata__"
_KEYS = {"format", "diglot", "checksums", "sha256"}
_NO_DIGEST = "0" * 64
_WIDE = re.compile(r"(?<!\\)(?:\\\\)*+\\u")
# Matches up to the next structural character of JSON; possessive, so that no character is read twice.
_NEXT = re.compile(r'[^\[\]{}:,"]*+(?:"(?:[^"\\]++|\\.)*+"[^\[\]{}:,"]*+)*+([\[\]{}:,])', re.DOTALL)


class _Entry(NamedTuple):
    """A tensor's entry in the header; `begin` and `end` are offsets in bytes from the end of the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


class _Header(NamedTuple):
    tensors: dict[str, _Entry]
    tree: str  # the JSON of everything but the tensors
    checksums: dict[str, str]
    size: int  # in bytes, including the field with its length


def write(tree: Any, file: BinaryIO) -> None:
    """Write plain data and tensors, see `diglot.checkpoint.plain.encode`.

    Args:
        tree: the data to write.
        file: an empty, seekable file.

    Raises:
        UserError: something would not be restored exactly, or there is more than `read` accepts.
        OSError: the file cannot be written.
    """
    node, tensors = encode(tree)
    text = _dumped(node)
    _check_amount(text, tensors)
    # The library's order: larger types first, so that each tensor is aligned to its own type.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    checksums = dict.fromkeys(names, _NO_DIGEST)
    header = _header_bytes(text, checksums, tensors)
    file.write(header)
    for name in names:
        content = _bytes_of(tensors[name])
        checksums[name] = hashlib.sha256(content).hexdigest()
        file.write(content)
    file.seek(0)
    file.write(_header_bytes(text, checksums, tensors))  # of the same length as before


def check_tree(tree: Any) -> None:
    """Check that `write` accepts plain data and tensors.

    Raises:
        UserError: `write` would refuse them.
    """
    node, tensors = encode(tree)
    _check_amount(_dumped(node), tensors)


def read(path: Path, part: str | None = None) -> Any:
    """Return the plain data and tensors that `write` has written.

    Args:
        path: the file.
        part: the only key of the tree to read, with its tensors; None: all.

    Raises:
        UserError: the file is damaged, or was not written by `write`.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        header = _read_header(file, path)
        node = parse_json(header.tree)
        wanted = set(header.tensors)
        if part is not None:
            node = {part: node[part]} if isinstance(node, dict) and part in node else {}
            wanted &= set(_tensor_names(node))
        tensors = {}
        for name, entry in sorted(header.tensors.items(), key=lambda item: item[1].begin):
            if name in wanted:
                tensors[name] = _read_tensor(file, header, name, entry)
    return decode(node, tensors)


def _tensor_names(node: Any) -> Iterator[str]:
    """Yield the names of the tensors that a node of the encoded tree refers to."""
    if isinstance(node, dict) and isinstance(node.get("$tensor"), str):
        yield node["$tensor"]
    elif isinstance(node, (dict, list)):
        for value in node.values() if isinstance(node, dict) else node:
            yield from _tensor_names(value)


def check(path: Path) -> None:
    """Check that a file is intact, without reading the tensors' bytes.

    Raises:
        UserError: the file is damaged, or was not written by `write`.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        _read_header(file, path)


def _dumped(node: Any) -> str:
    return json.dumps(node, allow_nan=False, separators=(",", ":"))


def _check_amount(text: str, tensors: Mapping[str, Tensor]) -> None:
    """Refuse to write more than `read` accepts."""
    if len(tensors) > MAX_TENSORS:
        raise UserError(f"there are {len(tensors):,} tensors, more than {MAX_TENSORS:,}: write fewer")
    header = _header_bytes(text, dict.fromkeys(tensors, _NO_DIGEST), tensors)[8:].decode()
    check_json(text)
    check_json(header, MAX_HEADER_MEMORY)
    if len(header) > MAX_HEADER_BYTES:
        raise UserError(
            f"all but the tensors takes more than {MAX_HEADER_BYTES:,} bytes: write large values as tensors"
        )


def _header_bytes(text: str, checksums: Mapping[str, str], tensors: Mapping[str, Tensor]) -> bytes:
    """Return the header, preceded by its length, with the tensors in the order of the checksums."""
    sums = _dumped(checksums)
    entries, end = {}, 0
    for name in checksums:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.dtype.itemsize
        entries[name] = _Entry(tensor.dtype, tuple(tensor.shape), begin, end)
    metadata = {"format": "pt", "diglot": text, "checksums": sums, "sha256": _digest(text, sums, entries)}
    tensor_entries = {
        name: {"dtype": DTYPE_NAMES[dtype], "shape": shape, "data_offsets": [begin, end]}
        for name, (dtype, shape, begin, end) in entries.items()
    }
    header = _dumped({_METADATA: metadata, **tensor_entries}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header


def _digest(text: str, checksums: str, entries: Mapping[str, _Entry]) -> str:
    types_and_shapes = {name: [DTYPE_NAMES[entries[name].dtype], entries[name].shape] for name in sorted(entries)}
    return hashlib.sha256("\n".join((text, checksums, _dumped(types_and_shapes))).encode()).hexdigest()


def _bytes_of(tensor: Tensor) -> Any:
    """Return a view of a tensor's bytes, or a copy if it is on another device or not contiguous."""
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _read_header(file: BinaryIO, path: Path) -> _Header:
    size, start = os.fstat(file.fileno()).st_size, file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or not 2 <= length <= size - 8:
        raise UserError("damaged, or not a checkpoint (it does not begin like one)")
    if length > MAX_HEADER_BYTES:
        raise UserError(f"refused, its header of {length:,} bytes is too long")
    content = parse_json(file.read(length).decode("ascii"), MAX_HEADER_MEMORY)
    metadata = content.pop(_METADATA, None) if isinstance(content, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise UserError("not a diglot checkpoint (a safetensors file without diglot's metadata)")
    if metadata.keys() != _KEYS or metadata["format"] != "pt":
        raise UserError("not a diglot checkpoint (a safetensors file with other metadata)")
    entries = {name: _entry(name, content.pop(name)) for name in list(content)}
    if _digest(metadata["diglot"], metadata["checksums"], entries) != metadata["sha256"]:
        raise UserError("damaged, the checksum of its header is wrong")
    checksums = parse_json(metadata["checksums"])
    if not isinstance(checksums, dict) or checksums.keys() != entries.keys():
        raise UserError("damaged, its checksums belong to other tensors")
    try:
        with safe_open(path, framework="pt"):  # checks for holes, overlaps and sizes that do not match the shapes
            pass
    except SafetensorError as error:
        raise UserError(f"damaged ({error})") from None
    return _Header(entries, metadata["diglot"], checksums, 8 + length)


def _entry(name: str, value: Any) -> _Entry:
    match value:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]} if (
            len(value) == 3
            and dtype in DTYPES
            and len(shape) <= MAX_DIMENSIONS
            and all(type(n) is int and 0 <= n < 2**63 for n in shape)
        ):
            if 0 <= begin <= end and end - begin == math.prod(shape) * DTYPES[dtype].itemsize:
                return _Entry(DTYPES[dtype], tuple(shape), begin, end)
    raise UserError(f"damaged, its header has a wrong entry for the tensor {name[:60]!r}")


def _read_tensor(file: BinaryIO, header: _Header, name: str, entry: _Entry) -> Tensor:
    tensor = torch.empty(entry.shape, dtype=entry.dtype)
    content = _bytes_of(tensor)
    checksum = hashlib.sha256()
    file.seek(header.size + entry.begin)
    for start in range(0, len(content), CHUNK):
        chunk = content[start : start + CHUNK]
        if file.readinto(chunk) != len(chunk):  # type: ignore[attr-defined]
            raise UserError("damaged, it is shorter than its header says")
        checksum.update(chunk)
    if checksum.hexdigest() != header.checksums[name]:
        raise UserError(f"damaged, the checksum of its tensor {name[:60]!r} is wrong")
    if entry.dtype == torch.bool and tensor.numel() and tensor.view(torch.uint8).max() > 1:
        raise UserError(f"refused, its boolean tensor {name[:60]!r} has bytes other than 0 and 1")
    return tensor


def check_json(text: str, max_memory: int = MAX_MEMORY) -> int:
    """Check, before parsing, that JSON is not nested too deeply and takes no more memory than a checkpoint needs.

    Args:
        text: the JSON.
        max_memory: maximum memory of the parsed JSON, in bytes.

    Returns:
        The number of values in its objects.

    Raises:
        UserError: it is nested too deeply or takes too much memory.
    """
    depth = position = n = 0
    memory = len(text) * MAX_BYTES_PER_CHARACTER if "\\u" in text and _WIDE.search(text) else 0
    while depth <= MAX_JSON_DEPTH and memory <= max_memory and (match := _NEXT.match(text, position)):
        position, character = match.end(), match[1]
        memory += MEMORY[character]
        depth += DEPTH[character]
        n += character == ":"
    if depth > MAX_JSON_DEPTH:
        raise UserError("refused, its content is nested too deeply")
    if memory > max_memory:
        raise UserError("refused, its content other than tensors has too many values")
    return n


def parse_json(text: str, max_memory: int = MAX_MEMORY) -> Any:
    """Return the value of JSON in which no key occurs twice.

    Args:
        text: the JSON.
        max_memory: see `check_json`.

    Raises:
        UserError: it is nested too deeply, takes too much memory, or has a key twice.
        ValueError: it is not JSON.
    """
    n_remaining = check_json(text, max_memory)

    def count_keys(mapping: dict[str, Any]) -> dict[str, Any]:
        nonlocal n_remaining
        n_remaining -= len(mapping)
        return mapping

    was_enabled = gc.isenabled()
    gc.disable()  # it would scan the growing result again and again, and JSON has no cycles
    try:
        value = json.loads(text, object_hook=count_keys, parse_constant=_refuse_constant)
    finally:
        if was_enabled:
            gc.enable()
    if n_remaining:
        raise UserError("refused, a key occurs twice")
    return value


def _refuse_constant(name: str) -> None:
    raise UserError(f"refused, {name} is not valid JSON")
