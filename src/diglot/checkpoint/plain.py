"""Exact conversion of plain data and tensors to JSON and named tensors, and back.

Writing a value that would not be restored exactly is an error, which names the value. A value without a JSON form
becomes an object whose first key begins with "$": {"$tuple": [1, 2]}, {"$tensor": NAME}. Types are compared exactly,
because a subclass of str or int would be restored as another type. Values, types, the order of keys, and shapes and
strides of tensors are kept. Tensors that share all their memory are restored as one tensor. Views that share a part of
it are stored separately, and a tensor with gaps between its elements is restored without them. All tensors are restored
on the CPU.
"""

import base64
import enum
import json
import math
import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from diglot.errors import UserError

MAX_DEPTH = 40  # configs are about six levels deep
MAX_NODES = 2_000_000
MAX_DIGITS = 4300  # of an integer; Python's own limit for parsing one
MAX_DIMENSIONS = 64  # torch supports no more
MAX_NAME_LENGTH = 200
_TOO_LARGE = 10**MAX_DIGITS

# The types of tensors that a safetensors file holds, by their names there.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

Path = tuple[Any, ...]  # the keys and indices that lead to a value
T = TypeVar("T")


class _Leaf(NamedTuple):
    """Functions that encode the values of a type as text and decode them."""

    tag: str
    encode: Callable[[Any], str]
    decode: Callable[[str], Any]


def _dtype(name: str) -> torch.dtype:
    dtype = vars(torch).get(name)
    if type(dtype) is not torch.dtype:
        raise ValueError(name)
    return dtype


_LEAVES: dict[type, _Leaf] = {
    float: _Leaf(  # only NaN and infinity, which JSON has no form for
        "$float", lambda value: struct.pack(">d", value).hex(), lambda text: struct.unpack(">d", bytes.fromhex(text))[0]
    ),
    complex: _Leaf(
        "$complex",
        lambda value: struct.pack(">2d", value.real, value.imag).hex(),
        lambda text: complex(*struct.unpack(">2d", bytes.fromhex(text))),
    ),
    str: _Leaf(  # only texts with surrogates: JSON would join two of them
        "$str",
        lambda value: value.encode("utf-8", "surrogatepass").hex(),
        lambda text: bytes.fromhex(text).decode("utf-8", "surrogatepass"),
    ),
    bytes: _Leaf(
        "$bytes", lambda value: base64.b64encode(value).decode(), lambda text: base64.b64decode(text, validate=True)
    ),
    torch.dtype: _Leaf("$dtype", lambda value: str(value).removeprefix("torch."), _dtype),
    torch.device: _Leaf("$device", str, torch.device),
}
_SEQUENCES: dict[type, str] = {
    tuple: "$tuple",
    torch.Size: "$size",
    set: "$set",
    frozenset: "$frozenset",
}
_LEAF_BY_TAG = {leaf.tag: leaf for leaf in _LEAVES.values()}
_SEQUENCE_BY_TAG = {tag: kind for kind, tag in _SEQUENCES.items()}
_KEYS = (type(None), bool, int, *_LEAVES)


def encode(tree: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return a form of plain data and tensors that JSON can hold, and the tensors by the names that it uses.

    Args:
        tree: None, bool, int, float, complex, str, bytes, torch.dtype, torch.device and tensors, in any nesting of
            list, tuple, torch.Size, set, frozenset, dict and OrderedDict.

    Raises:
        UserError: a value would not be restored exactly; the message names the first one.
    """
    encoder = _Encoder()
    return encoder.node(tree, ()), encoder.tensors


class _Encoder:
    """Encoder of one tree.

    Attributes:
        tensors: the tensors by name, in the order of the tree.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}  # by what identifies a tensor: its device, memory and view
        self._n_nodes = 0

    def node(self, value: Any, path: Path) -> Any:
        value_type = type(value)
        self._n_nodes += 1
        if len(path) > MAX_DEPTH:
            raise UserError(f"{_dotted(path)[:200]} is nested more than {MAX_DEPTH} levels deep, or contains itself")
        if self._n_nodes > MAX_NODES:
            raise UserError(f"{_dotted(path)}: there are more than {MAX_NODES:,} values up to here: write fewer")
        if value_type is int and abs(value) >= _TOO_LARGE:
            raise UserError(f"{_dotted(path)} is an integer of more than {MAX_DIGITS:,} digits: write it as bytes")
        if value_type in (type(None), bool, int) or _is_plain(value):
            return value
        if value_type in _LEAVES:
            return {_LEAVES[value_type].tag: _LEAVES[value_type].encode(value)}
        if value_type is list:
            return self._items(value, path)
        if value_type in _SEQUENCES:
            items = self._items(value, path)
            if value_type in (set, frozenset):  # their order differs between processes
                self._check_keys(value, path)
                items.sort(key=json.dumps)
            return {_SEQUENCES[value_type]: items}
        if value_type is dict:
            return self._mapping(value, path)
        if value_type is OrderedDict:
            return self._ordered(value, path)
        if value_type is Tensor:
            return self._tensor(value, path)
        raise UserError(f"{_dotted(path)} is {_type_name(value)}: {_replacement_hint(value)}")

    def _items(self, values: Iterable[Any], path: Path) -> list[Any]:
        return [self.node(value, (*path, index)) for index, value in enumerate(values)]

    def _mapping(self, value: Mapping[Any, Any], path: Path) -> dict[str, Any]:
        if all(type(key) is str and _is_plain(key) and not key.startswith("$") for key in value):
            return {key: self.node(item, (*path, key)) for key, item in value.items()}
        pairs = [[self.node(key, (*path, key)), self.node(item, (*path, key))] for key, item in value.items()]
        self._check_keys(value, path)
        return {"$dict": pairs}

    def _ordered(self, value: OrderedDict[Any, Any], path: Path) -> dict[str, Any]:
        """Encode an OrderedDict; torch's state dicts hold the versions of modules as `_metadata`."""
        attributes = vars(value)
        if attributes.keys() - {"_metadata"}:
            raise UserError(f"{_dotted(path)} is an OrderedDict with attributes: write them as keys")
        metadata = {name[1:]: self.node(attribute, (*path, name)) for name, attribute in attributes.items()}
        return {"$ordered": self._mapping(value, path)} | metadata

    def _check_keys(self, keys: Iterable[Any], path: Path) -> None:
        for key in keys:
            if not _is_key(key):
                raise UserError(f"{_dotted(path)}: a key or member is {_type_name(key)}: write it as text or a number")

    def _tensor(self, value: Tensor, path: Path) -> dict[str, Any]:
        if problem := _problem(value):
            raise UserError(f"{_dotted(path)} is {problem}")
        memory = value.untyped_storage().data_ptr() or id(value)  # an empty tensor may have no memory
        view = (value.storage_offset(), value.shape, value.stride(), value.dtype)
        name = self._names.get((value.device, memory, *view))
        if name is None:
            name = self._names[(value.device, memory, *view)] = self._new_name(path)
            self.tensors[name] = value
        strides = value.stride()
        if strides == _contiguous(value.shape) or layout(value.shape, strides) != "dense":
            return {"$tensor": name}
        return {"$tensor": name, "strides": list(strides)}

    def _new_name(self, path: Path) -> str:
        """Return a name for a tensor: a weight keeps its own, any other tensor is named by the keys that lead to it."""
        if len(path) == 2 and path[0] == "state_dict" and isinstance(path[1], str):
            name = path[1].removeprefix("model.")
        else:
            name = "/".join(map(str, path))
        name = base = name.encode("utf-8", "backslashreplace").decode()[:MAX_NAME_LENGTH] or "tensor"
        n = len(self.tensors)
        while name in self.tensors or name == "__metadata__":
            name, n = f"{base}#{n}", n + 1
        return name


def _is_plain(value: Any) -> bool:
    """Return whether a value is a float or a text that JSON keeps exactly."""
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is str and (value.isascii() or not re.search("[\ud800-\udfff]", value))


def _is_key(value: Any) -> bool:
    if type(value) in (tuple, torch.Size, frozenset):
        return all(map(_is_key, value))
    return type(value) in _KEYS


def layout(shape: Iterable[int], strides: Iterable[int]) -> Literal["dense", "gaps", "overlaps"]:
    """Return how the elements of a tensor lie in memory."""
    lengths = list(shape)
    room, has_gaps = 1, False  # room: number of elements that the dimensions so far span
    for stride, length in sorted(zip(strides, lengths)):
        if length > 1:
            if stride < room:
                return "overlaps" if 0 not in lengths else "dense"
            has_gaps |= stride > room
            room += (length - 1) * stride
    return "gaps" if has_gaps and 0 not in lengths else "dense"


def _contiguous(shape: Iterable[int]) -> tuple[int, ...]:
    """Return the strides that torch gives a new tensor."""
    strides, step = [], 1
    for length in reversed(list(shape)):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def _problem(value: Tensor) -> str | None:
    """Return why a tensor would not be restored exactly, and what to write instead; None if it would be."""
    problems = {
        "a tensor that requires grad: write tensor.detach()": value.requires_grad,
        "a nested tensor: write its parts": value.is_nested,
        "a sparse tensor: write tensor.to_dense()": value.layout != torch.strided,
        "a quantized tensor: write tensor.dequantize()": value.is_quantized,
        "a tensor on the meta device, which has no numbers: write its shape": value.device.type == "meta",
        "a tensor that is conjugated when it is read: write tensor.resolve_conj()": value.is_conj(),
        "a tensor that is negated when it is read: write tensor.resolve_neg()": value.is_neg(),
        f"a tensor of {value.dtype}, which a safetensors file cannot hold: write another type": value.dtype
        not in DTYPE_NAMES,
        f"a tensor of more than {MAX_DIMENSIONS} dimensions: write a view of it": value.dim() > MAX_DIMENSIONS,
        "a tensor with extra attributes: write them as separate values": bool(vars(value)),
    }
    if problem := next((problem for problem, applies in problems.items() if applies), None):
        return problem
    if layout(value.shape, value.stride()) == "overlaps":
        return "a tensor whose elements share memory, such as an expanded one: write tensor.clone()"
    return None


def _type_name(value: Any) -> str:
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _replacement_hint(value: Any) -> str:
    """Return what to write in place of a value of an unsupported type."""
    if isinstance(value, enum.Enum):
        return "write its value"
    if isinstance(value, np.generic):
        return "write value.item()"
    if isinstance(value, np.ndarray):
        return "write torch.from_numpy(value)"
    if isinstance(value, Tensor):
        return "write value.detach()" if isinstance(value, torch.nn.Parameter) else "write a plain torch.Tensor"
    for base in (*_KEYS[1:], list, *_SEQUENCES, OrderedDict, dict):
        if isinstance(value, base):
            return f"write {base.__name__}(value)"
    return "write plain data and tensors"


def _dotted(path: Path) -> str:
    """Return a path as Python would write it, such as callbacks.Mine.scores[3]."""
    text = "".join(
        f".{key}" if isinstance(key, str) and re.fullmatch(r"[\w./-]+", key) else f"[{key!r}]"[:80] for key in path
    )
    return text.removeprefix(".") or "it"


def decode(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the tree that `encode` was given.

    Args:
        node: the parsed JSON.
        tensors: the tensors by name, contiguous.

    Raises:
        UserError: `encode` never creates such a node, or the node does not name every tensor.
    """
    decoder = _Decoder(tensors)
    tree = decoder.value(node, 0)
    if unused := tensors.keys() - decoder.restored.keys():
        raise UserError(f"refused, its tensor {min(unused)[:60]!r} is unused")
    return tree


class _Decoder:
    """Decoder of one tree.

    Attributes:
        tensors: the tensors of the file by name.
        restored: the tensors that the tree has named so far, with their strides.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self.restored: dict[str, Tensor] = {}

    def value(self, node: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise UserError(f"refused, its content is nested more than {MAX_DEPTH} levels deep")
        if type(node) is list:
            return [self.value(item, depth + 1) for item in node]
        if type(node) is not dict:
            return node
        tag = next((key for key in node if key.startswith("$")), None)
        if tag is None:
            return {key: self.value(item, depth + 1) for key, item in node.items()}
        value, extra = node[tag], {key: item for key, item in node.items() if key != tag}
        if tag == "$tensor":
            return self._tensor(value, **extra)
        if tag == "$ordered":
            return self._ordered(value, depth, **extra)
        if extra:
            raise UserError(f"refused, it has unexpected keys beside {tag[:60]!r}")
        if tag in _LEAF_BY_TAG:
            return _LEAF_BY_TAG[tag].decode(value)
        if tag in _SEQUENCE_BY_TAG:
            return self._sequence(_SEQUENCE_BY_TAG[tag], _of_type(list, value), depth)
        if tag == "$dict":
            pairs = [(self.value(key, depth + 1), self.value(item, depth + 1)) for key, item in _of_type(list, value)]
            return _check_no_duplicates(pairs, dict(pairs))
        raise UserError(f"refused, it holds a value that this diglot cannot read ({tag[:60]!r})")

    def _sequence(self, sequence_type: type, node: list[Any], depth: int) -> Any:
        values = [self.value(item, depth + 1) for item in node]
        return _check_no_duplicates(values, sequence_type(values))

    def _ordered(self, node: Any, depth: int, **extra: Any) -> OrderedDict[Any, Any]:
        mapping = OrderedDict(_of_type(dict, self.value(node, depth)))
        if extra:
            vars(mapping)["_metadata"] = self.value(extra.pop("metadata"), depth + 1)
        if extra:
            raise UserError("refused, it holds a malformed OrderedDict")
        return mapping

    def _tensor(self, name: Any, strides: Any = None) -> Tensor:
        if name not in self.tensors:
            raise UserError(f"refused, it names a tensor that does not exist ({str(name)[:60]!r})")
        if name not in self.restored:
            self.restored[name] = _with_strides(self.tensors[name], strides)
        tensor = self.restored[name]
        if strides is not None and tensor.stride() != tuple(strides):
            raise UserError(f"refused, its tensor {name[:60]!r} has two layouts")
        return tensor


def _with_strides(tensor: Tensor, strides: Any) -> Tensor:
    if strides is None:
        return tensor
    are_counts = all(type(stride) is int and 0 <= stride < 2**63 for stride in _of_type(list, strides))
    if not are_counts or len(strides) != tensor.dim() or layout(tensor.shape, strides) != "dense":
        raise UserError("refused, a tensor has strides that do not fit its shape")
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def _of_type(expected: type[T], value: Any) -> T:
    if type(value) is not expected:
        raise UserError(f"refused, it holds a {type(value).__name__} where a {expected.__name__} belongs")
    return value


def _check_no_duplicates(items: list[Any], container: T) -> T:
    if len(items) != len(container):  # type: ignore[arg-type]
        raise UserError("refused, it holds a key or member twice")
    return container
