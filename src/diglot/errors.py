"""The exception for mistakes that users can correct, and the exit statuses of commands."""

import re

import torch


class UserError(Exception):
    """A wrong config, file or argument. Commands print it as one line, without a traceback, and exit with 2."""


# The exit status of a command whose output pipe is closed: the status for SIGPIPE.
READER_GONE = 141
# The exit status of a run that a signal has ended and that can resume: EX_TEMPFAIL of sysexits.h.
RESUME_ME = 75
# The exit status of a run whose loss or gradient was NaN or infinite. A restart would fail in the same way.
NON_FINITE = 76


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that a GPU or the machine has run out of memory."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    pattern = r"DefaultCPUAllocator|can't allocate memory|Cannot allocate memory|STATUS_ALLOC_FAILED"
    return isinstance(error, RuntimeError) and re.search(pattern, str(error)) is not None
