"""Records of unusual updates: the content of `records/update_N.json` in a run's folder.

A record may come from a stranger, so that reading one checks each value.
"""

import json
import math
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from diglot import __version__
from diglot.data.text import write_json
from diglot.errors import UserError

FOLDER = "records"  # in a run's folder
FORMAT = 1
MAX_BYTES = 10_000_000
REASONS = {
    "non_finite": "the loss or the gradient is not finite",
    "loss": "the training loss is unusually high",
    "gradient_norm": "the gradient norm is unusually high",
}


@dataclass(frozen=True)
class Machine:
    """What the bits of a loss depend on besides the run.

    Attributes:
        diglot: version of diglot.
        torch: version of torch.
        device: cpu or cuda.
        processor: name of the GPU, or the processor's architecture and its vector instructions.
        threads: number of threads of torch.
        processes: number of processes that share the run.
    """

    diglot: str
    torch: str
    device: str
    processor: str
    threads: int
    processes: int

    @classmethod
    def here(cls, device: str, processes: int = 1) -> "Machine":
        """Return the description of this machine."""
        if device == "cuda":
            processor = torch.cuda.get_device_name()
        else:
            processor = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
        return cls(__version__, torch.__version__, device, processor, torch.get_num_threads(), processes)


@dataclass(frozen=True)
class Record:
    """An unusual update, and what is needed to repeat it.

    Beside the record lie the run's config, `update_N.yaml`, and the checkpoint that the update can be reached from,
    `update_N.ckpt`, unless there was none yet.

    Attributes:
        reason: key of `REASONS`.
        update: number of the update, from 1.
        start: number of updates of the checkpoint; 0: there is none, and the weights are the initial ones.
        loss: training loss of the update.
        gradient_norm: norm of its gradient, before clipping.
        bound: the value that the loss or the norm exceeds; None: it is not finite.
        seed: seed of the run.
        positions: numbers of the update's micro-batches in the stream of batches.
        pairs: numbers of its training pairs.
        data: folder of the prepared training text.
        data_key: hash that identifies this text.
        machine: what the bits of the loss depend on besides the run.
    """

    reason: str
    update: int
    start: int
    loss: float
    gradient_norm: float
    bound: float | None
    seed: int
    positions: list[int]
    pairs: list[int]
    data: str
    data_key: int
    machine: Machine

    def write(self, file: Path) -> None:
        """Write the record atomically.

        Raises:
            UserError: it cannot be written.
        """
        values = {name: _finite_or_text(value) for name, value in asdict(self).items()}
        write_json(file, {"format": FORMAT, **values})

    @classmethod
    def read(cls, file: Path) -> "Record":
        """Read a record, and check each value in it.

        Raises:
            UserError: the file is no record of this version. The message names the first wrong value.
        """
        content = _read_json(file)
        if content.get("format") != FORMAT:
            raise UserError(
                f"record {file}: its format is {content.get('format')!r:.40}, and this diglot reads {FORMAT}"
            )
        del content["format"]
        machine = content.get("machine")
        values = _checked(file, content, _FIELDS, "")
        values["machine"] = Machine(**_checked(file, machine, _MACHINE_FIELDS, "machine."))
        values |= {name: float(values[name]) for name in _FIGURES if values[name] is not None}
        record = cls(**values)
        if record.start >= record.update:
            raise UserError(f"record {file}: start={record.start} must be below update={record.update}")
        return record


_FIGURES = ("loss", "gradient_norm", "bound")


def _finite_or_text(value: Any) -> Any:
    """Return a value that JSON can hold: it has no numbers that are not finite."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _read_json(file: Path) -> dict[str, Any]:
    try:
        if not file.is_file():  # reading a pipe would block
            raise UserError(f"record={file}: no such file")
        if file.stat().st_size > MAX_BYTES:
            raise UserError(f"record {file}: a record has at most {MAX_BYTES:,} bytes")
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"record {file}: not a record ({type(error).__name__})") from None
    if not isinstance(content, dict):
        raise UserError(f"record {file}: not a record (it is no JSON object)")
    return content


def _checked(file: Path, content: Any, fields: dict[str, Callable[[Any], bool]], path: str) -> dict[str, Any]:
    """Return the content of a JSON object after a check of its names and values."""
    if not isinstance(content, dict):
        raise UserError(f"record {file}: {path.rstrip('.')} must be a JSON object")
    if missing := [name for name in fields if name not in content]:
        raise UserError(f"record {file}: {path}{missing[0]} is missing")
    if unknown := [name for name in content if name not in fields]:
        raise UserError(f"record {file}: there is no value {path}{unknown[0]!r:.40}")
    for name, is_valid in fields.items():
        if not is_valid(content[name]):
            raise UserError(f"record {file}: {path}{name}={content[name]!r:.40} is not possible")
    return dict(content)


def _is_count(value: Any, least: int = 0, most: int = 2**53) -> bool:
    return type(value) is int and least <= value < most


def _is_figure(value: Any) -> bool:
    return type(value) is float or (isinstance(value, str) and value in ("nan", "inf", "-inf"))


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(_is_count, value))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 4096 and value.isprintable()


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "reason": lambda value: isinstance(value, str) and value in REASONS,
    "update": lambda value: _is_count(value, least=1),
    "start": _is_count,
    "loss": _is_figure,
    "gradient_norm": _is_figure,
    "bound": lambda value: value is None or _is_figure(value),
    "seed": lambda value: _is_count(value, most=2**31),
    "positions": _are_counts,
    "pairs": _are_counts,
    "data": _is_name,
    "data_key": lambda value: _is_count(value, most=2**64),
    "machine": lambda value: isinstance(value, dict),
}
_MACHINE_FIELDS: dict[str, Callable[[Any], bool]] = {
    "diglot": _is_name,
    "torch": _is_name,
    "device": lambda value: isinstance(value, str) and value in ("cpu", "cuda"),
    "processor": _is_name,
    "threads": lambda value: _is_count(value, least=1, most=4097),
    "processes": lambda value: _is_count(value, least=1, most=1_000_001),
}
