"""Plain data and tensors are restored to the last bit and type, or refused by name."""

import enum
import json
import math
import struct
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from diglot.checkpoint.plain import DTYPES, MAX_DEPTH, MAX_DIGITS, decode, encode, layout
from diglot.errors import UserError
from support.made import same


def again(tree: Any) -> Any:
    node, tensors = encode(tree)
    stored = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    return decode(json.loads(json.dumps(node, allow_nan=False)), stored)


def from_bits(number: int) -> float:
    return struct.unpack("<d", struct.pack("<Q", number))[0]


TEXT = st.text(st.characters(exclude_categories=())) | st.sampled_from(["$tensor", "$", "", "\ud83d\ude00", "\udc00"])
FLOATS = st.floats() | st.integers(0, 2**64 - 1).map(from_bits)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | FLOATS
    | TEXT
    | st.binary()
    | st.complex_numbers()
    | st.sampled_from([*DTYPES.values(), torch.complex128, torch.device("cuda:1"), torch.device("cpu")])
)
KEYS = st.recursive(LEAVES, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=2), max_leaves=3)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(list(DTYPES.values())))
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    n = math.prod(shape) * dtype.itemsize
    content = bytearray(draw(st.binary(min_size=n, max_size=n)))
    if dtype == torch.bool:
        content = bytearray(byte % 2 for byte in content)
    made = torch.empty(shape, dtype=dtype)
    if n:
        made = torch.frombuffer(content, dtype=torch.uint8).clone().view(dtype).reshape(shape)
    return made.permute(draw(st.permutations(range(len(shape)))))


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    mappings = st.dictionaries(TEXT, inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
    few = st.lists(inner, max_size=3)
    members = st.lists(KEYS, max_size=3)
    sizes = st.lists(st.integers(0, 2**62), max_size=3).map(torch.Size)
    ordered = mappings.map(OrderedDict)
    return few | few.map(tuple) | mappings | ordered | sizes | members.map(set) | members.map(frozenset)


@given(st.recursive(LEAVES | tensors(), containers, max_leaves=12))
def test_any_tree_is_restored_exactly(tree: Any) -> None:
    assert same(again(tree), tree)


@pytest.mark.parametrize(
    "tree",
    [
        *(0, -0.0, 1e300, 5e-324, float("inf"), -float("inf"), from_bits(0x7FF0000000000001), from_bits(2**64 - 1)),
        *(
            10 ** (MAX_DIGITS - 1),
            -(10 ** (MAX_DIGITS - 1)),
            True,
            "\ud83d\ude00",
            "\0",
            b"",
            complex(-0.0, math.nan),
        ),
        *({1: "a", "1": "b", (1, "a"): "c", None: "d", 2.5: "e"}, {"$dict": []}, {"a": {"$b": 1}}, (), {(): set()}),
        *(torch.Size([2]), torch.float8_e5m2, torch.device("meta"), OrderedDict({"b": 1, "a": 2}), {"b": 1, "a": 2}),
    ],
    ids=repr,
)
def test_values_that_json_cannot_hold_are_restored(tree: Any) -> None:
    assert same(again(tree), tree)


def test_versions_of_modules_are_restored_with_their_weights() -> None:
    state = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).state_dict()
    found = again({"state_dict": state})["state_dict"]
    assert same(found, state)
    assert found._metadata == state._metadata


def test_tied_weights_are_stored_once_and_restored_as_one() -> None:
    weight, empty = torch.rand(3, 4), torch.empty(0)
    tree = {"a": weight, "b": weight.detach(), "c": weight.T, "d": weight[1:], "e": empty, "f": empty}
    tree["g"] = torch.empty(0)
    assert list(encode(tree)[1]) == ["a", "c", "d", "e", "g"]
    found = again(tree)
    assert found["a"] is found["b"]
    assert found["e"] is found["f"]
    assert len({id(each) for each in found.values()}) == 5
    assert same(found, tree)


def test_a_tensor_with_gaps_is_restored_without_them() -> None:
    found = again(torch.arange(8)[::2])
    assert found.tolist() == [0, 2, 4, 6]
    assert found.stride() == (1,)


def test_names_describe_a_tensor() -> None:
    one = torch.ones
    weights = {"model.encoder.weight": one(1), "encoder.weight": one(2), "__metadata__": one(3), "\ud800": one(4)}
    tree = {
        "state_dict": weights,
        "optimizer_states": [{"state": {0: {"exp_avg": one(5)}}}],
        "x/y": {"z": one(6)},
        "x": {"y/z": one(7), "l" * 500: one(8)},
        "": one(9),
    }
    names = list(encode(tree)[1])
    assert names == [
        *("encoder.weight", "encoder.weight#1", "__metadata__#2", "\\ud800", "optimizer_states/0/state/0/exp_avg"),
        *("x/y/z", "x/y/z#6", ("x/" + "l" * 500)[:200], "tensor"),
    ]
    assert same(again(tree), tree)


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    pass


SUBCLASS = torch.ones(1).as_subclass(type("Mine", (Tensor,), {}))
WITH_ATTRIBUTE = torch.ones(1)
WITH_ATTRIBUTE.note = "mine"  # type: ignore[attr-defined]
WITH_ATTRIBUTES = OrderedDict()
WITH_ATTRIBUTES.note = "mine"  # type: ignore[attr-defined]
LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Colour.RED, "test_plain.Colour: write its value"),
        (np.float64(1), "numpy.float64: write value.item()"),
        (np.ones(1), "numpy.ndarray: write torch.from_numpy(value)"),
        (Text("a"), "test_plain.Text: write str(value)"),
        (defaultdict(int), "collections.defaultdict: write dict(value)"),
        (Counter(), "collections.Counter: write dict(value)"),
        (object(), "object: write plain data and tensors"),
        pytest.param(10**MAX_DIGITS, "an integer of more than 4,300 digits: write it as bytes", id="digits"),
        (torch.nn.Parameter(torch.ones(1)), "Parameter: write value.detach()"),
        (SUBCLASS, "Mine: write a plain torch.Tensor"),
        (torch.ones(1, requires_grad=True), "a tensor that requires grad: write tensor.detach()"),
        (torch.eye(2).to_sparse(), "a sparse tensor: write tensor.to_dense()"),
        (torch.quantize_per_tensor(torch.ones(1), 1.0, 0, torch.qint8), "tensor.dequantize()"),
        (torch.ones(1, device="meta"), "meta device"),
        (torch.ones(1, dtype=torch.complex64).conj(), "write tensor.resolve_conj()"),
        (torch.ones(1, dtype=torch.complex64).conj().imag, "write tensor.resolve_neg()"),
        (torch.ones(1, dtype=torch.complex128), "a tensor of torch.complex128, which a safetensors file cannot hold"),
        (torch.ones(2).expand(3, 2), "elements share memory"),
        (torch.zeros(16).as_strided((2, 2), (1, 1)), "elements share memory"),
        (torch.ones([1] * 65), "more than 64 dimensions"),
        (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "nested tensor"),
        (WITH_ATTRIBUTE, "a tensor with extra attributes"),
        (WITH_ATTRIBUTES, "an OrderedDict with attributes"),
        ({torch.ones(1): 1}, "a key or member is torch.Tensor"),
        ({(1, Colour.RED): 1}, "test_plain.Colour"),
        ({Text("a"): 1}, "test_plain.Text"),
        (LOOP, f"nested more than {MAX_DEPTH} levels deep, or contains itself"),
    ],
)
def test_values_that_would_not_be_restored_exactly_are_refused_by_name(value: Any, said: str) -> None:
    with pytest.raises(UserError) as refused:
        encode({"callbacks": {"MyCallback": {"scores": [0, 1, 2, value]}}})
    assert str(refused.value).startswith("callbacks.MyCallback.scores[3]")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.reliability
def test_a_tree_that_repeats_the_same_object_too_often_is_refused() -> None:
    node: list[Any] = ["ha"] * 10
    for _ in range(30):
        node = [node] * 10
    with pytest.raises(UserError, match="more than 2,000,000 values"):
        encode(node)


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ({"$unknown": 1}, "cannot read"),
        ({"$tuple": [], "more": 1}, "unexpected keys"),
        ({"a": 1, "$bytes": ""}, "unexpected keys"),
        ({"$tuple": {}}, "dict where a list"),
        ({"$tensor": "b"}, "names a tensor that does not exist"),
        ([{"$tensor": "a"}, {"$tensor": "a", "strides": [1, 3]}], "two layouts"),
        ({"$tensor": "a", "strides": [1, 2]}, "strides that do not fit"),
        ({"$tensor": "a", "strides": [10**15, 1]}, "strides that do not fit"),
        ({"$tensor": "a", "strides": [-2, 1]}, "strides that do not fit"),
        ({"$tensor": "a", "strides": [2]}, "strides that do not fit"),
        ({"$dict": [["a", 1], ["a", 2]]}, "twice"),
        ({"$set": [1, 1]}, "twice"),
        ({"$ordered": []}, "list where a dict"),
        ({"$ordered": {}, "metadata": {}, "more": 1}, "malformed OrderedDict"),
        ([], "tensor 'a' is unused"),
    ],
)
def test_a_malformed_tree_is_refused(node: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        decode(node, {"a": torch.ones(3, 2)})


@pytest.mark.parametrize(
    "node",
    [
        *({"$float": "00"}, {"$float": 1}, {"$bytes": "~"}, {"$dtype": "load"}, {"$dtype": "Tensor"}, {"$device": "x"}),
        *({"$dict": [[[], 1]]}, {"$dict": [[1]]}, {"$size": ["a"]}, {"$set": [[]]}, {"$tensor": []}, {"$str": "ff"}),
        {"$tensor": "a", "more": 1},
    ],
    ids=repr,
)
def test_a_malformed_value_is_refused(node: Any) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError, AttributeError, struct.error)):
        decode(node, {"a": torch.ones(1)})


def test_the_layout_of_elements_is_recognised() -> None:
    assert layout((2, 3), (3, 1)) == layout((2, 3), (1, 2)) == layout((1, 3), (99, 1)) == layout((), ()) == "dense"
    assert layout((0, 3), (0, 0)) == "dense"
    assert layout((3,), (2,)) == layout((2, 2), (9, 1)) == "gaps"
    assert layout((3,), (0,)) == layout((2, 2), (1, 1)) == layout((8, 8), (4, 1)) == "overlaps"
