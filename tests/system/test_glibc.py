"""With glibc, freed memory is kept for the next batch; another C library is left alone."""

import ctypes
import subprocess
import sys

import pytest

from diglot.system.glibc import keep_freed_memory

# Counts the page faults of 20 buffers of 50 MB that are filled and freed one after another.
FAULTS = """
import resource
from diglot.system.glibc import keep_freed_memory
{}
import numpy
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    numpy.ones(50_000_000, numpy.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is a library of Linux")
def test_freed_memory_is_reused_without_new_page_faults() -> None:
    plain, kept = (
        int(subprocess.run([sys.executable, "-c", FAULTS.format(call)], capture_output=True, check=True).stdout)
        for call in ("", "keep_freed_memory()")
    )
    if plain > 1_000:  # otherwise the system's pages are too large to tell
        assert kept < plain / 3


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise OSError("no such library")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    keep_freed_memory()
