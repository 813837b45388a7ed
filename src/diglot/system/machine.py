"""The machine that a command runs on, described without the names of hosts, users or folders."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypedDict

import torch

from diglot.system.children import n_cores


class Machine(TypedDict):
    """What the rounding of results may depend on.

    Attributes:
        processor: name of the processor.
        capability: the vector instructions that PyTorch uses, such as AVX2.
        cores: number of cores that the process may use.
        threads: number of threads of an operation on the CPU.
        gpu: name of the GPU; None if there is none.
        system: operating system and architecture.
    """

    processor: str
    capability: str
    cores: int
    threads: int
    gpu: str | None
    system: str


def machine() -> Machine:
    """Return a description of this machine."""
    return {
        "processor": _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": n_cores(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}",
    }


def rounds_alike(one: Machine, other: Machine) -> bool:
    """Return whether two machines round alike, if they use the same number of threads."""
    return {**one, "cores": 0, "threads": 0} == {**other, "cores": 0, "threads": 0}


@contextmanager
def using_threads(n: int) -> Iterator[int]:
    """Let an operation on the CPU use `n` threads during the block, but no more than there are cores.

    Yields:
        The number of threads.
    """
    before = torch.get_num_threads()
    number = max(1, min(n, n_cores()))
    torch.set_num_threads(number)
    try:
        yield number
    finally:
        torch.set_num_threads(before)


def _processor() -> str:
    """Return the processor's name, or its architecture if the system does not report a name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine() or "unknown"
