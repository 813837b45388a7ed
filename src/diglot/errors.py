"""The one exception for mistakes a user can mend, and what others mean."""

import re

import torch


class UserError(Exception):
    """A wrong config, file or argument. Commands print it as one line, without a traceback, and exit with 2."""


# The exit status of a command whose output nobody reads any more: that of SIGPIPE.
READER_GONE = 141
# The exit status of a run that a signal has ended and that can go on: EX_TEMPFAIL of sysexits.h.
RESUME_ME = 75
# That of a run whose loss or gradient was no number: the same again would come to the same.
NON_FINITE = 76


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is too little memory, on a GPU or beside it."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    words = r"DefaultCPUAllocator|can't allocate memory|Cannot allocate memory|STATUS_ALLOC_FAILED"
    return isinstance(error, RuntimeError) and re.search(words, str(error)) is not None
