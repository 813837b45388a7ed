"""Settings of the C library."""

import contextlib
import ctypes


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next batch.

    By default, glibc returns large blocks to the system at once. On a CPU, getting them back page by page costs a tenth
    of the time of training and of translating (benchmarks/training.py, benchmarks/decode.py).
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no block is mapped separately
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: nothing is returned
