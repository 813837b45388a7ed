"""What is asked of the C library."""

import contextlib
import ctypes


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next batch. It gives large blocks back to the system at once, and on a CPU
    fetching them again page by page costs a tenth of the time of training and of translating (benchmarks/training.py,
    benchmarks/decode.py)."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no block has pages of its own
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: nothing is given back
