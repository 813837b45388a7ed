"""A checkpoint file is read as it was written, also by other programs, or it is refused."""

import hashlib
import io
import json
import random
import struct
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from diglot.checkpoint import container
from diglot.errors import UserError
from support.made import same

TREE = {
    "epoch": 3,
    "state_dict": OrderedDict({"model.w": torch.arange(12.0).reshape(3, 4), "model.b": torch.tensor([True, False])}),
    "optimizer_states": [{"state": {0: {"step": torch.tensor(7.0), "exp_avg": torch.rand(4, 3).T}}}],
    "diglot": {
        "tokenizer": torch.arange(250, dtype=torch.uint8),
        "rank": (1.0, float("-inf")),
        "empty": torch.empty(0, 3),
    },
}


def written(path: Path, tree: Any = TREE) -> Path:
    with path.open("wb") as file:
        container.write(tree, file)
    return path


def header_of(content: bytes) -> dict[str, Any]:
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])


def with_header(header: Any, data: bytes, length: int | None = None) -> bytes:
    """Return the content of a file with this header: JSON, text or bytes."""
    raw = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def signed(tensors: dict[str, Any], tree: str, data: bytes, checksums: Any = None) -> dict[str, Any]:
    """Return a header with valid checksums for any content."""
    if checksums is None:
        places = {name: entry["data_offsets"] for name, entry in tensors.items()}
        checksums = {name: hashlib.sha256(data[begin:end]).hexdigest() for name, (begin, end) in places.items()}
    sums = checksums if isinstance(checksums, str) else json.dumps(checksums)
    told = {name: [tensors[name]["dtype"], tensors[name]["shape"]] for name in sorted(tensors)}
    signed = "\n".join((tree, sums, json.dumps(told, separators=(",", ":"))))
    digest = hashlib.sha256(signed.encode()).hexdigest()
    metadata = {"format": "pt", "diglot": tree, "checksums": sums, "sha256": digest}
    return {"__metadata__": metadata, **tensors}


def entry(begin: int, end: int, n: int | None = None, dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - begin if n is None else n], "data_offsets": [begin, end]}


def test_a_tree_is_restored_in_separate_memory(tmp_path: Path) -> None:
    path = written(tmp_path / "x.ckpt")
    found = container.read(path)
    assert same(found, TREE)
    path.write_bytes(bytes(path.stat().st_size))
    assert same(found, TREE)
    for tensor in (found["state_dict"]["model.w"], found["diglot"]["tokenizer"]):
        assert tensor.data_ptr() % 64 == 0
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_other_programs_read_it(tmp_path: Path) -> None:
    path = written(tmp_path / "x.ckpt")
    with safe_open(path, framework="pt") as file:
        assert {"w", "b", "optimizer_states/0/state/0/exp_avg", "diglot/tokenizer"} <= set(file.keys())
        assert file.metadata()["format"] == "pt"
        assert torch.equal(file.get_tensor("w"), TREE["state_dict"]["model.w"])  # type: ignore[index]
    assert torch.equal(load_file(path)["optimizer_states/0/state/0/step"], torch.tensor(7.0))
    content = path.read_bytes()
    offsets = [each["data_offsets"][0] for name, each in header_of(content).items() if name != "__metadata__"]
    assert offsets == sorted(offsets)


def test_the_same_tree_is_the_same_file(tmp_path: Path) -> None:
    assert written(tmp_path / "a").read_bytes() == written(tmp_path / "b").read_bytes()


def test_a_file_may_have_no_tensors(tmp_path: Path) -> None:
    assert container.read(written(tmp_path / "x.ckpt", {"x": 1})) == {"x": 1}


def test_check_finds_an_incomplete_file_from_its_header(tmp_path: Path) -> None:
    path = written(tmp_path / "x.ckpt")
    good = path.read_bytes()
    container.check(path)
    path.write_bytes(good[:-1] + b"x")  # a byte of a tensor
    container.check(path)
    path.write_bytes(good[:-1])
    with pytest.raises(UserError, match="damaged"):
        container.check(path)


def test_every_flipped_bit_of_a_few_hundred_is_detected(tmp_path: Path) -> None:
    path = written(tmp_path / "x.ckpt")
    good, draw = path.read_bytes(), random.Random(1)
    places = [*range(16), *(draw.randrange(len(good)) for _ in range(300))]
    for place in places:
        content = bytearray(good)
        content[place] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        with pytest.raises((UserError, ValueError)):
            container.read(path)


def test_a_truncated_file_or_one_with_extra_bytes_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "x.ckpt")
    good = path.read_bytes()
    for content in [*(good[: len(good) * n // 40] for n in range(40)), good[:-1], good[1:], good + b"\0", b"\0" + good]:
        path.write_bytes(content)
        with pytest.raises((UserError, ValueError)):
            container.read(path)


DATA = bytes(range(10))
A, B = {"$tensor": "a"}, {"$tensor": "b"}
BOTH = json.dumps([A, B])


def of_two(a: dict[str, Any], b: dict[str, Any]) -> bytes:
    return with_header(signed({"a": a, "b": b}, BOTH, DATA), DATA)


def twice() -> bytes:
    text = json.dumps(signed({"a": entry(0, 5), "b": entry(5, 10)}, BOTH, DATA))
    return with_header(text[:-1] + ', "\\u0061": ' + json.dumps(entry(0, 5)) + "}", DATA)


def changed(change: Callable[[dict[str, Any]], Any]) -> bytes:
    header = signed({"a": entry(0, 5), "b": entry(5, 10)}, BOTH, DATA)
    change(header)
    return with_header(header, DATA)


def tree(text: str, checksums: Any = None) -> bytes:
    return with_header(signed({"a": entry(0, 5), "b": entry(5, 10)}, text, DATA, checksums), DATA)


def metadata(**more: Any) -> bytes:
    return changed(lambda header: header["__metadata__"].update(more))


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "does not begin like one"),
    "a length alone": (bytes(8), "does not begin like one"),
    "a length of 2**63": (with_header({}, DATA, 2**63), "does not begin like one"),
    "a length beyond the file": (with_header({}, DATA, 100), "does not begin like one"),
    "not UTF-8": (with_header(b'{"\xff": 1}', DATA), "decode"),
    "UTF-8": (with_header('{"ä": 1}', DATA), "decode"),
    "a wide text": (with_header('{"\\ud83e\\udd23' + "x" * 34_000_000 + '":1}', DATA), "too many values"),
    "a wide text after backslashes": (
        with_header('{"' + "\\\\" * 1_000_000 + "\\u1234" + "x" * 34_000_000 + '":1}', DATA),
        "too many values",
    ),
    "UTF-16": (with_header("{}".encode("utf-16"), DATA), "decode"),
    "not JSON": (with_header("{]", DATA), "Expecting"),
    "a list": (with_header([1], DATA), "without diglot's metadata"),
    "no metadata": (with_header({"a": entry(0, 10)}, DATA), "without diglot's metadata"),
    "metadata that are no text": (metadata(sha256=1), "without diglot's metadata"),
    "metadata that are a list": (changed(lambda header: header.update(__metadata__=[])), "without diglot's metadata"),
    "more metadata": (metadata(more="x"), "other metadata"),
    "less metadata": (changed(lambda header: header["__metadata__"].pop("sha256")), "other metadata"),
    "another format": (metadata(format="np"), "other metadata"),
    "a wrong digest": (metadata(sha256="0" * 64), "checksum of its header"),
    "another tree": (metadata(diglot="[]"), "checksum of its header"),
    "another shape": (changed(lambda header: header["a"].update(shape=[1, 5])), "checksum of its header"),
    "another type": (changed(lambda header: header["a"].update(dtype="I8")), "checksum of its header"),
    "a name twice": (twice(), "a key occurs twice"),
    "metadata twice": (with_header('{"__metadata__": {}, "__metadata__": {}}', DATA), "a key occurs twice"),
    "a wrong name of a type": (of_two(entry(0, 5, dtype="F31"), entry(5, 10)), "entry for the tensor 'a'"),
    "a type that is a number": (changed(lambda header: header["a"].update(dtype=1)), "entry for the tensor 'a'"),
    "a shape that is a number": (changed(lambda header: header["a"].update(shape=5)), "entry for the tensor 'a'"),
    "a truth for a length": (changed(lambda header: header["a"].update(shape=[True, 5])), "entry for the tensor 'a'"),
    "a negative length": (of_two(entry(0, 5, -5), entry(5, 10)), "entry for the tensor 'a'"),
    "more than the shape": (of_two(entry(0, 5, 4), entry(5, 10)), "entry for the tensor 'a'"),
    "more beside the shape": (changed(lambda header: header["a"].update(more=1)), "entry for the tensor 'a'"),
    "many dimensions": (changed(lambda header: header["a"].update(shape=[1] * 1000)), "entry for the tensor 'a'"),
    "an overlap": (of_two(entry(0, 6), entry(5, 10)), "damaged"),
    "a hole": (of_two(entry(0, 4), entry(5, 10)), "damaged"),
    "the end not used": (of_two(entry(0, 4), entry(4, 9)), "damaged"),
    "beyond the end": (of_two(entry(0, 5), entry(5, 11)), "damaged"),
    "huge offsets": (of_two(entry(0, 5), entry(2**62, 2**62 + 5)), "damaged"),
    "offsets beyond all numbers": (of_two(entry(0, 5), entry(2**70, 2**70 + 5)), "damaged"),
    "offsets the wrong way round": (of_two(entry(5, 0, 5), entry(5, 10)), "entry for the tensor 'a'"),
    "negative offsets": (of_two(entry(-5, 0, 5), entry(5, 10)), "entry for the tensor 'a'"),
    "three offsets": (changed(lambda header: header["a"].update(data_offsets=[0, 5, 5])), "entry for the tensor 'a'"),
    "a checksum of nothing": (tree(BOTH, {"a": "", "b": "", "c": ""}), "belong to other tensors"),
    "no checksums": (tree(BOTH, {}), "belong to other tensors"),
    "checksums that are a list": (tree(BOTH, []), "belong to other tensors"),
    "a checksum twice": (tree(BOTH, '{"a": "", "a": "", "b": ""}'), "a key occurs twice"),
    "a wrong checksum": (tree(BOTH, {"a": "0" * 64, "b": "0" * 64}), "checksum of its tensor 'a' is wrong"),
    "a checksum that is a number": (tree(BOTH, {"a": 1, "b": 1}), "checksum of its tensor 'a' is wrong"),
    "a tensor that is not there": (tree(json.dumps([A, B, {"$tensor": "c"}])), "does not exist ('c')"),
    "a tensor that nobody names": (tree(json.dumps([A])), "tensor 'b' is unused"),
    "an unknown tag": (tree(json.dumps([A, B, {"$code": "x"}])), "cannot read ('$code')"),
    "NaN": (tree(f"[NaN, {BOTH}]"), "NaN is not valid JSON"),
    "a key twice": (tree(f'[{{"x": 1, "x": 1}}, {BOTH}]'), "a key occurs twice"),
    "a deep header": (with_header('{"a":' * 100_000, DATA), "nested too deeply"),
    "a deep tree": (tree("[" * 100_000 + "]" * 100_000), "nested too deeply"),
    "a tree deeper than its values are": (tree("[" * 60 + BOTH + "]" * 60), "more than 40 levels deep"),
    "a wide header": (with_header("[" + "[]," * 2_000_000 + "[]]", DATA), "too many values"),
    "a wide tree": (tree("[" + "{}," * 1_000_000 + "{}]"), "too many values"),
    "a long header": (with_header(" " * 50_000_000, b""), "header of 50,000,000 bytes"),
    "neither true nor false": (
        with_header(signed({"a": entry(0, 10, dtype="BOOL")}, json.dumps(A), DATA), DATA),
        "bytes other than 0 and 1",
    ),
}


def test_the_helpers_that_write_hostile_files_can_write_valid_ones(tmp_path: Path) -> None:
    (tmp_path / "x.ckpt").write_bytes(of_two(entry(0, 5), entry(5, 10)))
    assert [tensor.tolist() for tensor in container.read(tmp_path / "x.ckpt")] == [[*range(5)], [*range(5, 10)]]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused(tmp_path: Path, name: str) -> None:
    content, said = HOSTILE[name]
    (tmp_path / "x.ckpt").write_bytes(content)
    with pytest.raises((UserError, ValueError)) as refused:
        container.read(tmp_path / "x.ckpt")
    assert said in str(refused.value)


@pytest.mark.reliability
def test_content_that_would_not_be_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "MAX_TENSORS", 2)
    with pytest.raises(UserError, match="5 tensors, more than 2"):
        container.check_tree([torch.ones(1) for _ in range(5)])
    with pytest.raises(UserError, match="too many values"):
        container.check_tree({"x": [{} for _ in range(500_000)]})
    with pytest.raises(UserError, match="48,000,000 bytes"):
        container.check_tree({"x": "x" * 48_000_000})


def test_no_part_of_refused_content_is_written() -> None:
    file = io.BytesIO()
    with pytest.raises(UserError, match="x is object"):
        container.write({"a": torch.ones(3), "x": object()}, file)
    assert file.getvalue() == b""
