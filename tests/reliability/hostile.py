"""Malicious files: pickles that run code when loaded, and small files that expand to fill the memory."""

import copy
import ctypes
import gc
import json
import os
import pickle
import resource
import select
import signal
import struct
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from diglot.checkpoint import container
from diglot.checkpoint import file as checkpoint
from diglot.commands import train
from diglot.config import CONF

# A minimal run: 1 + 1 layers of width 8, two updates.
TINY = (
    *("data=sample", "trainer=cpu", "search=greedy", "watch=none", "logger=csv", "tokenizer.vocab_size=330"),
    *("model.d_model=8", "model.d_ff=8", "model.n_heads=2", "model.n_encoder_layers=1", "model.n_decoder_layers=1"),
    *("run.updates=2", "run.validate_every=1", "data.tokens_per_batch=300", "trainer.precision=32-true"),
    *("search.max_len_a=0", "search.max_len_b=3"),  # an untrained model rarely ends its outputs
)


def composed(*words: str, command: str = "train") -> DictConfig:
    """Return a command's config, which the caller may modify."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return copy.deepcopy(compose(command, list(words)))


def run(folder: Path, *words: str, tiny: Sequence[str] = TINY) -> Path:
    """Train in this process, in the given folder, with the cache beside it."""
    given = any(word.startswith(("run.folder=", "resume=")) for word in words)
    where = () if given else (f"run.folder='{folder}'",)
    return train.train(composed(*tiny, f"data.cache_dir='{folder.parent / 'cache'}'", *where, *words))


# --------------------------------------------------------------------------------------------------------- pickles


class Call:
    """Object whose unpickling calls a function."""

    def __init__(self, function: Callable, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple:
        return self.function, self.arguments


def _text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def _call(name: str, *arguments: bytes) -> bytes:
    module, _, function = name.rpartition(".")
    return b"c" + f"{module}\n{function}\n".encode() + b"(" + b"".join(arguments) + b"tR"


def payloads(canary: Path, folder: Path) -> dict[str, bytes]:
    """Return pickled values that create a file, the canary, if they are unpickled without protection.

    Args:
        canary: the file.
        folder: folder of other files that they need.
    """
    command, path = _text(f"touch {canary}"), _text(str(canary))
    inner = pickle.dumps(Call(os.system, f"touch {canary}"), 2)
    (folder / "inner.pickle").write_bytes(inner)
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
    (folder / "inner.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + inner)
    npy, source = _text(str(folder / "inner.npy")), _text(f"open({str(canary)!r}, 'w')")
    write = _text("w")
    called = b"(" + command + b"tR"  # calls the object on the stack with the command
    instance = b"ctypes\nSimpleNamespace\n)R"
    return {
        "os.system": _call("os.system", command),
        "posix.system": _call("posix.system", command),
        "exec": _call("builtins.exec", source),
        "eval": _call("builtins.eval", source),
        "eval by its old name": _call("__builtin__.eval", source),
        "open": _call("builtins.open", path, write),
        "subprocess.call": _call("subprocess.call", b"](" + _text("touch") + path + b"e"),
        "subprocess.getoutput": _call("subprocess.getoutput", command),
        "INST": b"(" + command + b"ios\nsystem\n",
        "OBJ": b"(cos\nsystem\n" + command + b"o",
        "STACK_GLOBAL": _text("os") + _text("system") + b"\x93" + command + b"\x85R",
        "TUPLE2": b"cio\nopen\n" + path + write + b"\x86R",
        "BUILD that calls": instance + b"}" + _text("__setstate__") + b"cos\nsystem\nsb" + command + b"b0N",
        "from the memo": b"cos\nsystem\nq\xfa0h\xfa" + command + b"\x85R",
        "getattr": _call("builtins.getattr", _call("importlib.import_module", _text("os")), _text("system")) + called,
        "functools.reduce": _call(
            "functools.reduce", b"cbuiltins\ngetattr\n", b"](cos\n__dict__\n" + _text("get") + b"e"
        )
        + b"("
        + _text("system")
        + b"tR"
        + called,
        "operator.methodcaller": _call("operator.methodcaller", _text("touch"))
        + b"("
        + _call("pathlib.Path", path)
        + b"tR",
        "pickle in pickle": _call(
            "pickle.loads", _call("_codecs.encode", _text(inner.decode("latin1")), _text("latin1"))
        ),
        "an extension of copyreg": _call("copyreg.add_extension", _text("os"), _text("system"), b"K\xf0")
        + b"0\x82\xf0"
        + called
        + _call("copyreg.remove_extension", _text("os"), _text("system"), b"K\xf0")
        + b"0N",
        "functools.partial": _call("functools.partial", b"cos\nsystem\n", command) + b")R",
        "map": _call("builtins.list", _call("builtins.map", b"cos\nsystem\n", b"](" + command + b"e")),
        "a log file": _call("logging.FileHandler", path),
        "a copy": _call("shutil.copyfile", _text(str(folder / "inner.pickle")), path),
        "a download": _call("urllib.request.urlretrieve", _text(f"file://{folder}/inner.pickle"), path),
        "timeit": _call("timeit.timeit", source, _text("pass"), b"ctime\nperf_counter\n", b"K\x01"),
        "cProfile": _call("cProfile.run", source, path),
        "pydoc": _call("pydoc.pipepager", _text("x"), command),
        "numpy.load": _call("numpy.load", npy, b"N", b"\x88"),
        "torch's shell": _call("torch.utils.collect_env.run", command),
        "ours": _call("diglot.data.text.write_lines", path, b"](" + _text("x") + b"e"),
    }


def records(path: Path) -> dict[str, bytes]:
    """Return the records of a checkpoint in torch's archive format, by name."""
    with zipfile.ZipFile(path) as archive:
        named = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    own = ("version", "byteorder", ".data/serialization_id", ".format_version", ".storage_alignment")
    return {name: content for name, content in named.items() if name not in own}


def write_archive(path: Path, parts: dict[str, bytes]) -> Path:
    """Write an archive in the format of torch.save from arbitrary records."""
    writer = torch._C.PyTorchFileWriter(str(path))
    for name, content in parts.items():
        writer.write_record(name, content, len(content))
    writer.write_end_of_file()
    return path


def with_pickle(good: Path, path: Path, pickled: bytes) -> Path:
    """Write a copy of a checkpoint with another pickle and correct checksums."""
    return write_archive(path, records(good) | {"data.pkl": pickled})


def with_payload(good: Path, path: Path, payload: bytes) -> Path:
    """Write a copy of a checkpoint with a payload added to its pickle."""
    plain = records(good)["data.pkl"]
    return with_pickle(good, path, plain[:-1] + _text("more") + payload + b"s.")


def pickled(value: Any) -> bytes:
    """Pickle a value without tensors like torch.save."""
    return pickle.dumps(value, 2)


class Part(NamedTuple):
    """A part of a zip file, as its headers describe it."""

    name: str
    content: bytes  # stored bytes
    method: int = 0
    size: int | None = None  # stated unpacked size; None: the stored size
    checksum: int | None = None
    offset: int | None = None  # stated offset of the header; None: the true one


def saved(path: Path, value: Any) -> Path:
    """Save a checkpoint's content in the old format, a pickle."""
    ours = value.get("diglot")
    if isinstance(ours, dict) and ours.get("format") == checkpoint.FORMAT:
        value = {**value, "diglot": {**ours, "format": checkpoint.OLD_FORMAT}}
    with path.open("wb") as file:
        torch.save(value, file)
    return path


def written(path: Path, value: Any) -> Path:
    """Save a checkpoint's content in the current format."""
    with path.open("wb") as file:
        container.write(value, file)
    return path


def zipped(parts: list[Part]) -> bytes:
    """Return a zip file with torch's end records; all headers may be wrong."""
    body, directory = bytearray(), bytearray()
    for part in parts:
        name, stored = part.name.encode(), len(part.content)
        size = stored if part.size is None else part.size
        checksum = zlib.crc32(part.content) if part.checksum is None else part.checksum
        offset = len(body) if part.offset is None else part.offset
        fields = (0, part.method, 0, 0, checksum, stored, size, len(name), 0)
        if part.offset is None:
            body += struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 20, *fields) + name + part.content
        directory += struct.pack("<4sHHHHHHIIIHHHHHII", b"PK\1\2", 20, 20, *fields, 0, 0, 0, 0, offset) + name
    n, start = len(parts), len(body)
    end64 = start + len(directory)
    tail = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, n, n, len(directory), start)
    tail += struct.pack("<4sIQI", b"PK\6\7", 0, end64, 1)
    tail += struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, min(n, 65535), min(n, 65535), len(directory), start, 0)
    return bytes(body + directory + tail)


def tensor(key: str, n: int, shape: tuple, strides: tuple, kind: str = "FloatStorage", offset: int = 0) -> bytes:
    """Return a pickled tensor with arbitrary claims about the record that holds its data."""

    def numbers(values: tuple) -> bytes:
        return b"(" + b"".join(pickle.dumps(value, 2)[2:-1] for value in values) + b"t"

    storage = b"(" + _text("storage") + f"ctorch\n{kind}\n".encode() + _text(key) + _text("cpu")
    storage += pickle.dumps(n, 2)[2:-1] + b"tQ"
    hooks = b"ccollections\nOrderedDict\n)R"
    where = storage + pickle.dumps(offset, 2)[2:-1] + numbers(shape) + numbers(strides)
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + where + b"\x89" + hooks + b"tR"


# --------------------------------------------------------------------------------------------------------- measuring


class Measured(NamedTuple):
    """The outcome of a call in a separate process."""

    said: str  # message of the error; empty: no error
    kind: str  # class of the error
    seconds: float  # processor time, which other processes hardly affect
    grown: int  # peak resident memory in bytes, minus that at the start


def measure(function: Callable[[], Any], allowed: int = 4 * 2**30) -> Measured:
    """Call a function in a forked process that may use at most `allowed` further bytes."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reader)
            taken = int(_status("VmSize")) * 1024
            resource.setrlimit(resource.RLIMIT_AS, (taken + allowed, taken + allowed))
            gc.collect()
            gc.freeze()  # so that objects of other tests are not traversed any more
            ctypes.CDLL(None).malloc_trim(0)  # so that memory that other tests freed is not reused uncounted
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak
            before, start, said, kind = _status("VmHWM"), time.process_time(), "", ""
            try:
                function()
            except BaseException as error:
                said, kind = str(error), type(error).__name__
            found = Measured(said, kind, time.process_time() - start, (_status("VmHWM") - before) * 1024)
            os.write(writer, json.dumps(found).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        if not select.select([pipe], [], [], 300)[0]:
            os.kill(child, signal.SIGKILL)
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if not answer:
        return Measured(f"died of {status}", "death", 0.0, 0)
    return Measured(*json.loads(answer))


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
