"""Rejecting a malicious checkpoint takes no more memory and time than its size justifies."""

import hashlib
import json
import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import Part, measure, pickled, run, saved, tensor, with_payload, write_archive, written, zipped

from diglot.checkpoint import container
from diglot.checkpoint import file as checkpoint
from diglot.model.position import MAX_BUCKETS, MAX_DISTANCE

pytestmark = [
    pytest.mark.reliability,
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured as Linux tells it"),
]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the checkpoint of a run of two updates."""
    return run(tmp_path_factory.mktemp("work") / "run") / "best.ckpt"


def laughs(n: int = 30) -> list:
    node: list = ["ha"] * 10
    for _ in range(n):
        node = [node] * 10
    return node


def nested(depth: int) -> bytes:
    """Return a pickle of lists nested `depth` deep."""
    return b"\x80\x02}X\x01\x00\x00\x00a" + b"]" * depth + b"a" * (depth - 1) + b"s."


Save = Callable[[Path, Any], Path]
SAVES: tuple[Save, ...] = (saved, written)


def bombs(good: Path) -> dict[str, Callable[[Path], Path]]:
    """Return functions that write small files which would expand to much memory or take long to read."""
    of_both = {
        f"{name}, {save.__name__}": make for save in (saved, written) for name, make in models(good, save).items()
    }
    return of_both | pickles(good) | containers()


def models(good: Path, save: Save) -> dict[str, Callable[[Path], Path]]:
    """Return functions that write files which claim to hold something large."""

    def changed(**model: Any) -> Callable[[Path], Path]:
        def make(path: Path) -> Path:
            found: dict[str, Any] = container.read(good)
            found["diglot"]["model"] |= model
            return save(path, found)

        return make

    def told(key: str, value: Any) -> Callable[[Path], Path]:
        def make(path: Path) -> Path:
            found: dict[str, Any] = container.read(good)
            found["diglot"][key] = value
            return save(path, found)

        return make

    def many_names(path: Path) -> Path:
        found: dict[str, Any] = container.read(good)
        found["state_dict"] = OrderedDict(
            (f"model.{i}", found["state_dict"]["model.output.weight"]) for i in range(50_000)
        )
        found["diglot"]["model"]["n_encoder_layers"] = 10**9
        return save(path, found)

    def many_views(path: Path) -> Path:
        found: dict[str, Any] = container.read(good)
        one = torch.zeros(4000)
        found["state_dict"] = OrderedDict((f"model.{i}", one[i:]) for i in range(4000))
        found["diglot"]["model"]["n_encoder_layers"] = 10**9
        return save(path, found)

    def relative_bias(n_buckets: int, max_distance: int) -> dict[str, Any]:
        target = "diglot.model.position.RelativeBias"
        return {"_target_": target, "_partial_": True, "n_buckets": n_buckets, "max_distance": max_distance}

    gru = {
        "_target_": "diglot.model.GruAttention",
        **{"d_model": 8, "d_hidden": 10**9, "d_attention": 10**9, "dropout": 0.1, "tying": "all"},
    }
    wide = {"_target_": "torch.nn.Transformer", "_partial_": True, "num_encoder_layers": 10**9}
    return {
        "laughs by reference": changed(
            norm={"_target_": "torch.nn.LayerNorm", "a": "x" * 1000, "b": "${.a}${.a}${.a}"}
        ),
        "a wide model": changed(d_model=10**12),
        "a model wider than numbers are": changed(d_ff=2**70),
        "a model too wide for this machine": changed(d_ff=10**9),
        "a deep model": changed(n_encoder_layers=10**9),
        "a deep model of many names": many_names,
        "a deep model of many views": many_views,
        "heads without end": changed(n_heads=10**9, d_head=10**3),
        "positions without end": changed(
            position={"_target_": "diglot.model.position.Learned", "_partial_": True, "max_positions": 10**11}
        ),
        "buckets without end": changed(position=relative_bias(2 * 10**11, 10**12)),
        "as many buckets as allowed": changed(position=relative_bias(MAX_BUCKETS, MAX_DISTANCE)),
        "distances without end": changed(position=relative_bias(MAX_BUCKETS, 10**300)),
        "a norm that is a model": changed(norm=wide),
        "a recurrent network": told("model", gru),
        "a large tokenizer": told("tokenizer", torch.zeros(20_000_000, dtype=torch.uint8)),
        "a wide search": told("search", {"_target_": "diglot.decoding.BeamSearch", "beam_size": 10**9}),
        "a long search": told("search", {"_target_": "diglot.decoding.BeamSearch", "max_len_b": 10**12}),
        "an endless search": told("search", {"_target_": "diglot.decoding.BeamSearch", "max_len_a": float("inf")}),
    }


def pickles(good: Path) -> dict[str, Callable[[Path], Path]]:
    """Return functions that write malicious pickles and archives."""

    def old(path: Path) -> Path:
        return saved(path.with_suffix(".old"), container.read(good))

    def laughing(key: str, value: Any) -> Callable[[Path], Path]:
        def make(path: Path) -> Path:
            found: dict[str, Any] = container.read(good)
            found["diglot"][key] = value
            return saved(path, found)

        return make

    def payload(value: bytes) -> Callable[[Path], Path]:
        return lambda path: with_payload(old(path), path, value)

    def whole(value: Callable[[], bytes]) -> Callable[[Path], Path]:
        return lambda path: write_archive(path, {"data.pkl": value()})

    def parts(made: Callable[[], list[Part]]) -> Callable[[Path], Path]:
        return lambda path: path.write_bytes(zipped(made())) and path

    def zeros(name: str) -> Part:
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        return Part(name, packer.compress(bytes(200_000_000)) + packer.flush(), 8, 200_000_000, 0)

    a_part = Part("archive/data.pkl", pickled({}))
    million = bytes(10**6)
    return {
        "compressed records": parts(lambda: [a_part, zeros("archive/data/0")]),
        "a compressed pickle": parts(lambda: [zeros("archive/data.pkl")]),
        "records that claim more than the file": parts(lambda: [a_part, Part("archive/data/0", b"x", size=2**31)]),
        "records in one place": parts(
            lambda: [Part(f"archive/data/{i}", million, offset=0 if i else None) for i in range(9)] + [a_part]
        ),
        "a tensor of stride 0": payload(tensor("0", 2640, (10**6, 10**6), (0, 0))),
        "a tensor of a huge shape": payload(tensor("0", 2640, (10**6, 10**6), (10**6, 1))),
        "a tensor before its record": payload(tensor("0", 2640, (2, 2), (1, 1), offset=-8)),
        "a tensor behind its record": payload(tensor("0", 2640, (2, 2), (1, 1), offset=10**9)),
        "a tensor of 2**64 numbers": payload(tensor("0", 2640, (2**32, 2**32), (1, 1))),
        "a record said to be longer": payload(tensor("0", 10**9, (10**9,), (1,))),
        "a record said to be of other numbers": payload(tensor("0", 2640, (64,), (1,), kind="DoubleStorage")),
        "a record that is not there": payload(tensor("99999", 64, (64,), (1,))),
        "a large bytearray": payload(b"cbuiltins\nbytearray\n\x8a\x08" + (10**12).to_bytes(8, "little") + b"\x85R"),
        "a codec": payload(b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x08\x00\x00\x00punycodetR"),
        "a large number": payload(b"\x8b" + (10**6).to_bytes(4, "little") + b"\x7f" * 10**6),
        "a million keys": whole(lambda: pickled(dict.fromkeys(range(10**6), 1))),
        "a million empty lists": whole(lambda: b"\x80\x02}X\x01\x00\x00\x00a](" + b"]" * 10**6 + b"es."),
        "long text": whole(lambda: pickled({"a": "x" * 10**7 + "\N{ROLLING ON THE FLOOR LAUGHING}"})),
        "deep nesting": whole(lambda: nested(50_000)),
        "a deeply nested key": whole(lambda: b"\x80\x02})" + b"\x85" * 190_000 + b"K\x01s."),
        "a mapping that puts itself in itself": whole(lambda: b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s."),
        "marks": whole(lambda: b"\x80\x02" + b"(" * 10**6 + b"."),
        "a memo far away": whole(lambda: b"\x80\x02}r\xff\xff\xff\x7f."),
        "90,000 parts": parts(lambda: [a_part] + [Part(f"archive/data/{i}", b"") for i in range(90_000)]),
        "many parts and few words": parts(
            lambda: (
                [Part("archive/data.pkl", b"\x80\x02" + b"(" * 10**6)]
                + [Part(f"archive/data/{i}", b"") for i in range(20_000)]
            )
        ),
        "a billion laughs": laughing("laughs", laughs()),
        "a billion laughs in the config": laughing("config", {"x": laughs()}),
        "a billion laughs in the search": laughing("search", {"x": laughs()}),
    }


def signed(tree: str, tensors: dict[str, Any], checksums: str = "{}", data: bytes = b"") -> bytes:
    """Return a file in the current format whose checksums are right, except those of the tensors' data."""
    told = {name: [tensors[name]["dtype"], tensors[name]["shape"]] for name in sorted(tensors)}
    text = "\n".join((tree, checksums, json.dumps(told, separators=(",", ":"))))
    digest = hashlib.sha256(text.encode()).hexdigest()
    metadata = {"format": "pt", "diglot": tree, "checksums": checksums, "sha256": digest}
    return headed(json.dumps({"__metadata__": metadata, **tensors}), data)


def headed(header: str, data: bytes = b"") -> bytes:
    raw = header.encode()
    return struct.pack("<Q", len(raw)) + raw + data


def in_shape(part: str, n: int) -> str:
    return '{"a":{"dtype":"U8","data_offsets":[0,0],"shape":' + many(part, n) + "}}"


def many(part: str, n: int) -> str:
    return "[" + ",".join([part] * n) + "]"


def containers() -> dict[str, Callable[[Path], Path]]:
    """Return functions that write files in the current format with an excessive header."""

    def header(made: Callable[[], str]) -> Callable[[Path], Path]:
        return lambda path: path.write_bytes(headed(made())) and path

    def tree(made: Callable[[], str]) -> Callable[[Path], Path]:
        return lambda path: path.write_bytes(signed(made(), {})) and path

    def sparse(path: Path) -> Path:
        """Write a sparse file of 2 GB that declares no tensors."""
        path.write_bytes(headed('{"__metadata__":{}}'))
        with path.open("r+b") as holes:
            holes.truncate(2 * 10**9)
        return path

    def tensors(n: int, name: str = "{}") -> Callable[[Path], Path]:
        def make(path: Path) -> Path:
            entries = {name.format(i): {"dtype": "U8", "shape": [1, 1], "data_offsets": [i, i + 1]} for i in range(n)}
            sums = dict.fromkeys(entries, hashlib.sha256(b"\0").hexdigest())
            path.write_bytes(signed("[]", entries, json.dumps(sums), bytes(n)))
            return path

        return make

    def endless(path: Path) -> Path:
        entry = {"dtype": "U8", "shape": [2**50], "data_offsets": [0, 2**50]}
        path.write_bytes(signed("[]", {"a": entry}, '{"a":""}'))
        return path

    def sums(path: Path) -> Path:
        path.write_bytes(signed("[]", {}, "{" + ",".join(f'"{i}":0' for i in range(490_000)) + "}"))
        return path

    return {
        "a header of 2**63 bytes": lambda path: path.write_bytes(struct.pack("<Q", 2**63) + b"{}") and path,
        "a header of 100 MB": header(lambda: " " * 100_000_000),
        "a header of blanks": header(lambda: " " * 47_000_000),
        "a deep header": header(lambda: '{"a":' * 5_000_000),
        "lists in a shape": header(lambda: in_shape("[]", 10_000_000)),
        "as many lists as are parsed": header(lambda: in_shape("[]", 800_000)),
        "as many texts as are parsed": header(lambda: in_shape('"aa"', 1_750_000)),
        "as many lists of texts as are parsed": header(lambda: in_shape('["aa"]', 800_000)),
        "as many mappings as are parsed": header(lambda: in_shape('{"":0}', 320_000)),
        "mappings in the tree": tree(lambda: many('{"":0}', 210_000)),
        "more mappings in the tree": tree(lambda: many("{}", 5_000_000)),
        "texts in the tree": tree(lambda: many('"aa"', 1_190_000)),
        "a tree of one wide text": tree(lambda: json.dumps("\N{ROLLING ON THE FLOOR LAUGHING}" + "x" * 22_000_000)),
        "a wide header": header(lambda: json.dumps("\N{ROLLING ON THE FLOOR LAUGHING}" + "x" * 33_000_000)),
        "a header in UTF-8": header(lambda: '{"\N{ROLLING ON THE FLOOR LAUGHING}' + "x" * 40_000_000 + '":1}'),
        "a number without end": tree(lambda: "9" * 20_000_000),
        "checksums of nothing": sums,
        "50,000 tensors": tensors(50_000),
        "50,000 tensors of long names": tensors(50_000, "x" * 80 + "{}"),
        "a tensor without end": endless,
        "a tensor of many dimensions": header(lambda: in_shape("9" * 18, 1_000_000)),
        "many holes": sparse,
    }


def more_parts(path: Path) -> Path:
    """Write an archive of 200,000 records, more than any checkpoint has."""
    return path.write_bytes(zipped([Part(f"archive/data/{i}", b"") for i in range(200_000)])) and path


BOMBS = [*bombs(Path()), "200,000 parts"]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured as Linux tells it")
@pytest.mark.promise(
    "Loading a malicious checkpoint takes at most five seconds, and at most 150 MB more memory than twice its size"
)
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused(good: Path, tmp_path: Path, name: str) -> None:
    bad = ({**bombs(good), "200,000 parts": more_parts}[name])(tmp_path / "bad.ckpt")
    found = measure(lambda: checkpoint.load(bad))
    print(f"BOMB {name}: {found.seconds:.2f} s, {found.grown / 1e6:.0f} MB, {found.said.partition('bad.ckpt: ')[2]}")
    assert found.kind == "UserError", found
    assert "bad.ckpt" in found.said
    assert "\n" not in found.said
    assert found.seconds < 5
    assert found.grown < 2 * bad.stat().st_size + 150e6


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured as Linux tells it")
def test_a_whole_checkpoint_takes_twice_its_size(good: Path) -> None:
    found = measure(lambda: checkpoint.load(good))
    assert (found.kind, found.said) == ("", "")
    assert found.grown < 2 * (good).stat().st_size + 50e6
