"""Reader of checkpoints of format 1, which diglot wrote before format 2: plain data and tensors from torch.save.

torch.load(weights_only=True) runs no code. However, it compares no checksums, unpacks compressed records, trusts the
lengths of records that the pickle gives, and does not limit the number of objects that a pickle creates. Therefore a
file is checked before torch loads it. It must have the form in which torch.save writes it: uncompressed records, and a
pickle of plain data and of tensors that lie within their records.
"""

import math
import pickletools
import re
import struct
import warnings
import zipfile
from collections import OrderedDict
from typing import Any, BinaryIO, NamedTuple

import torch

from diglot.errors import UserError

ZIP_START = b"PK\3\4"  # how a file of this format begins
MAX_RECORDS = 100_000
# A tensor takes about 40 operations and 150 bytes of the pickle; all else in a checkpoint takes a few thousand.
MAX_OPERATIONS, OPERATIONS_PER_RECORD = 200_000, 60
MAX_BYTES, BYTES_PER_RECORD = 4_000_000, 400
MAX_DEPTH = 40  # configs are about six levels deep

_RECORD = re.compile(
    r"(?P<folder>[^/\0]+)/(data\.pkl|data/\d+|\.data/serialization_id|\.format_version|\.storage_alignment|byteorder|version)"
)
_FLAGS = 0x808  # the checksum follows the record, the name is UTF-8
# How torch.save ends a file: the end record of zip64, its locator, and the older end record.
_END = struct.Struct("<4sQHHIIQQQQ 4sIQI 4sHHHHIIH")

_ORDERED, _REBUILD = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"
_STORAGES = {
    f"torch {name}Storage": dtype.itemsize
    for name, dtype in {
        "Double": torch.float64,
        "Float": torch.float32,
        "Half": torch.float16,
        "BFloat16": torch.bfloat16,
        "Long": torch.int64,
        "Int": torch.int32,
        "Short": torch.int16,
        "Char": torch.int8,
        "Byte": torch.uint8,
        "Bool": torch.bool,
    }.items()
}


class _Global(NamedTuple):
    name: str


class _Storage:
    """Storage of tensors: a complete record.

    Attributes:
        kind: type of its elements.
        n_elements: number of its elements.
        views: offset, shape and strides of the tensors in it; tied weights are one view.
    """

    def __init__(self, kind: str, n_elements: int) -> None:
        self.kind, self.n_elements = kind, n_elements
        self.views: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()


# Placeholders for the objects that a pickle would create: lists, mappings, and tensors.
_LIST, _DICT, _ORDERED_DICT, _TENSOR = object(), object(), object(), object()


def read(file: BinaryIO) -> Any:
    """Return the content of a file. No code in it is run, regardless of environment variables.

    Args:
        file: a seekable file.

    Raises:
        UserError: the file is damaged or refused; the message says why.
    """
    n_operations = check(file)
    file.seek(0)
    with warnings.catch_warnings(action="ignore"):
        content = torch.load(file, map_location="cpu", weights_only=True)
    check_tree(content, n_operations)
    return content


def read_any(file: BinaryIO) -> Any:
    """Return the content of a file of weights that torch.save has written, by any version. No code in it is run.

    Before version 1.6, torch wrote pickles and bytes without an archive. Its restricted reader creates only tensors and
    plain data from them, and its memory is limited by the file: a tensor that the file does not hold is an error.

    Args:
        file: a seekable file.

    Raises:
        UserError: the file is damaged or refused; the message says why.
        Exception: a file without an archive is damaged or refused by torch.
    """
    if file.read(len(ZIP_START)) == ZIP_START:
        return read(file)
    file.seek(0)
    with warnings.catch_warnings(action="ignore"):
        return torch.load(file, map_location="cpu", weights_only=True)


def check(file: BinaryIO, checksums: bool = True) -> int:
    """Check that torch.save has written a file completely, with plain data and tensors only.

    Args:
        file: a seekable file.
        checksums: whether to read the whole file and compare its checksums; otherwise only its pickle is read.

    Returns:
        The number of operations in its pickle, which limits the number of objects that it creates.

    Raises:
        UserError: the file is damaged or refused; the message says why.
    """
    _check_end(file)
    with zipfile.ZipFile(file) as archive:
        sizes = _check_records(archive.infolist())
        if "data.pkl" not in sizes:
            raise UserError("not a checkpoint, it has no data.pkl")
        if sizes["data.pkl"] > MAX_BYTES + BYTES_PER_RECORD * len(sizes):
            raise UserError(f"refused, its pickle of {sizes['data.pkl']:,} bytes is too long for {len(sizes):,} parts")
        folder = archive.namelist()[0].partition("/")[0]
        n_operations = check_pickle(archive.read(f"{folder}/data.pkl"), sizes)
        if checksums and (damaged := archive.testzip()) is not None:  # torch compares no checksums
            raise UserError(f"damaged, the checksum of its part {damaged} is wrong")
        return n_operations


def _check_end(file: BinaryIO) -> None:
    """Check that a file ends as torch.save ends it.

    Otherwise, readers of zip files could disagree: if data precede or follow the archive, or if it has two end records.
    """
    size = file.seek(0, 2)
    file.seek(max(0, size - _END.size))
    tail = file.read(_END.size)
    fields = _END.unpack(tail) if len(tail) == _END.size else ()
    end64, locator, end = fields[:10], fields[10:14], fields[14:]
    if not end or (end64[0], locator[0], end[0]) != (b"PK\6\6", b"PK\6\7", b"PK\5\6"):
        raise UserError("damaged, or not a checkpoint (it does not end like one)")
    n_records, directory = end64[7], end64[8] + end64[9]
    if locator[2] != size - _END.size or directory != size - _END.size or end[-1] or end64[6] != n_records:
        raise UserError("damaged, or not a checkpoint (it does not end like one)")
    if n_records > MAX_RECORDS:
        raise UserError(f"refused, it has {n_records:,} parts, more than {MAX_RECORDS:,}")


def _check_records(records: list[zipfile.ZipInfo]) -> dict[str, int]:
    """Check the records, and return their sizes by the names under which torch reads them."""
    sizes: dict[str, int] = {}
    folder, end = None, 0
    for record in records:
        match = _RECORD.fullmatch(record.orig_filename)
        if match is None or folder not in (None, match["folder"]):
            raise UserError(f"refused, it holds more than weights and plain data ({record.orig_filename[:60]!r})")
        folder = match["folder"]
        name = record.filename.removeprefix(f"{folder}/")
        if record.compress_type != zipfile.ZIP_STORED or record.compress_size != record.file_size:
            raise UserError(f"refused, its part {name} is compressed")
        # One bit of the attributes would mark the record as a folder, and torch would not read its content.
        is_plain = not (record.external_attr or record.internal_attr or record.volume or record.comment)
        if not is_plain or record.flag_bits & ~_FLAGS or record.extra[:2] not in (b"", b"\1\0"):
            raise UserError(f"damaged, its part {name} has unexpected attributes")
        if name in sizes or record.header_offset < end or (not sizes and record.header_offset):
            raise UserError(f"damaged, its part {name} is not where it should be")
        sizes[name] = record.file_size
        end = record.header_offset + 30 + len(record.orig_filename) + record.file_size
    return sizes


# One branch for each operation that a checkpoint may hold; a table of functions would be longer and hide the order.
def check_pickle(content: bytes, sizes: dict[str, int]) -> int:  # noqa: C901, PLR0915
    """Go through a pickle as its reader would, but create nothing except tuples and placeholders.

    Args:
        content: the content of data.pkl.
        sizes: sizes of the records, in bytes.

    Returns:
        The number of its operations.

    Raises:
        UserError: it would create anything but plain data and tensors, or tensors that reach beyond their records.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    max_operations = MAX_OPERATIONS + OPERATIONS_PER_RECORD * len(sizes)
    storages: dict[str, _Storage] = {}  # by the names of their records
    n = 0

    def top(count: int) -> list[Any]:
        start = len(stack) - count
        if start < (marks[-1] if marks else 0):
            raise UserError("damaged, its pickle takes more from its stack than there is")
        items_above = stack[start:]
        del stack[start:]
        return items_above

    def since_mark() -> list[Any]:
        return top(len(stack) - marks.pop())

    argument: Any
    for operation, argument, _ in pickletools.genops(content):
        n += 1
        if n > max_operations:
            raise UserError(f"refused, its pickle has more than {max_operations:,} operations for {len(sizes):,} parts")
        match operation.name:
            case "BINPUT" | "LONG_BINPUT":
                (memo[argument],) = top(1)
                stack.append(memo[argument])
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "PROTO" if argument == 2 and n == 1:
                pass
            case "STOP":
                (result,) = top(1)
                if stack or marks or result is not _DICT:
                    raise UserError("damaged, its pickle does not produce exactly one dictionary")
            case "BININT" | "BININT1" | "BININT2" | "BINFLOAT" | "BINUNICODE":
                stack.append(argument)
            case "LONG1" if -(2**64) < argument < 2**64:
                stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[operation.name])
            case "EMPTY_DICT":
                stack.append(_DICT)
            case "EMPTY_LIST":
                stack.append(_LIST)
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(top(int(operation.name[-1]))))
            case "MARK":
                marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(since_mark()))
            case "APPEND" | "APPENDS":
                _ = top(1) if operation.name == "APPEND" else since_mark()
                _check_target(top(1), stack, (_LIST,))
            case "SETITEM" | "SETITEMS":
                items = top(2) if operation.name == "SETITEM" else since_mark()
                if len(items) % 2 or not all(isinstance(key, (str, int, float)) for key in items[::2]):
                    raise UserError("refused, it holds a dictionary whose keys are neither text nor numbers")
                _check_target(top(1), stack, (_DICT, _ORDERED_DICT))
            case "GLOBAL":
                if argument not in (_ORDERED, _REBUILD) and argument not in _STORAGES:
                    raise UserError(f"refused, it holds more than weights and plain data ({_dotted(argument)})")
                stack.append(_Global(argument))
            case "BINPERSID":
                (identity,) = top(1)
                storage = _storage(identity, sizes)
                registered = storages.setdefault(f"data/{identity[2]}", storage)
                if registered.kind != storage.kind:
                    raise UserError(f"refused, its part data/{identity[2]} is used with two types")
                stack.append(registered)
            case "REDUCE":
                function, arguments = top(2)
                stack.append(_called(function, arguments))
            case "BUILD":  # torch stores the versions of modules beside their weights
                (result, state) = top(2)
                _check_target([result], stack, (_ORDERED_DICT,))
                if state is not _DICT:
                    raise UserError("refused, it holds more than weights and plain data (BUILD)")
            case other:
                description = f"{other} {_dotted(argument)}" if isinstance(argument, str) else other
                raise UserError(f"refused, it holds more than weights and plain data ({description})")
    if unused := [name for name in sizes if name.startswith("data/") and name not in storages]:
        raise UserError(f"refused, its part {unused[0]} is unused")
    for name, storage in storages.items():
        _check_views(name, storage)
    return n


def _check_views(name: str, storage: _Storage) -> None:
    """Check that tensors do not overlap in a record, so that together they are no larger than the record."""
    end = 0
    for offset, shape, strides in sorted(storage.views):
        if offset < end:
            raise UserError(f"refused, tensors overlap in its part {name}")
        end = offset + 1 + sum((length - 1) * stride for length, stride in zip(shape, strides))


def _check_target(popped: list[Any], stack: list[Any], containers: tuple[object, ...]) -> None:
    """Check that items are put into a container of one of these kinds, and push the container back onto the stack."""
    (target,) = popped
    if not any(target is container for container in containers):
        raise UserError("refused, it holds more than weights and plain data (items added to what is not a container)")
    stack.append(target)


def _storage(identity: Any, sizes: dict[str, int]) -> _Storage:
    """Return the storage that a tensor lies in: a complete record."""
    match identity:
        case ("storage", _Global(kind), str(key), str(), int(n_elements)) if kind in _STORAGES:
            n_bytes = sizes.get(f"data/{key}")
            if n_bytes is None:
                raise UserError(f"damaged, it has no part data/{key[:20]}")
            if n_elements * _STORAGES[kind] != n_bytes:
                raise UserError(f"refused, its part data/{key} has {n_bytes:,} bytes, not {n_elements:,} numbers")
            return _Storage(kind, n_elements)
    raise UserError("refused, it holds more than weights and plain data (a malformed storage)")


def _called(function: Any, arguments: Any) -> object:
    match function, arguments:
        case _Global(name), () if name == _ORDERED:
            return _ORDERED_DICT
        case _Global(name), (_Storage() as storage, offset, tuple(shape), tuple(strides), False, hooks) if (
            name == _REBUILD
        ):
            n_stored = storage.n_elements
            numbers = [offset, *shape, *strides]
            is_valid = all(type(number) is int and 0 <= number < 2**63 for number in numbers)
            if not is_valid or len(shape) != len(strides) or len(shape) > 8 or hooks is not _ORDERED_DICT:
                raise UserError("refused, it holds a malformed tensor")
            last_index = offset + sum((length - 1) * stride for length, stride in zip(shape, strides))
            if math.prod(shape) > n_stored or (0 not in shape and last_index >= n_stored):
                raise UserError(f"refused, a tensor of shape {shape} claims more than the {n_stored:,} numbers there")
            if 0 not in shape:
                if not _is_dense(shape, strides):
                    raise UserError(f"refused, elements of a tensor of shape {shape} share memory")
                storage.views.add((offset, shape, strides))
            return _TENSOR
    raise UserError(f"refused, it holds more than weights and plain data (a call of {_dotted(function)})")


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether no two elements of a tensor share memory."""
    extent = 0
    for stride, length in sorted(zip(strides, shape)):
        if length > 1:
            if stride <= extent:
                return False
            extent += (length - 1) * stride
    return True


def _dotted(name: Any) -> str:
    text = name.name if isinstance(name, _Global) else name if isinstance(name, str) else "something"
    return text.replace(" ", ".")[:80]


def check_tree(content: Any, n_operations: int) -> None:
    """Check that loaded content can be traversed with bounded time and recursion depth.

    It must not be nested more than `MAX_DEPTH` levels deep. A short pickle can refer to the same objects many times, on
    each level of nesting, so that a traversal takes exponential time. So the number of values in a traversal must not
    exceed twice the number of operations.

    Raises:
        UserError: a limit is exceeded; the message names it.
    """
    pending, n = [(content, 0)], 0
    while pending:
        node, depth = pending.pop()
        n += 1
        if depth > MAX_DEPTH:
            raise UserError(f"refused, its content is nested more than {MAX_DEPTH} levels deep")
        if n > 2 * n_operations:
            raise UserError("refused, its content repeats the same objects too often")
        if isinstance(node, OrderedDict) and vars(node):
            if vars(node).keys() != {"_metadata"}:
                raise UserError("refused, it holds more than weights and plain data (BUILD)")
            pending.append((vars(node)["_metadata"], depth + 1))
        if isinstance(node, dict):
            pending += [(value, depth + 1) for value in node.values()]
        elif isinstance(node, (list, tuple)) and not isinstance(node, torch.Size):
            pending += [(value, depth + 1) for value in node]
