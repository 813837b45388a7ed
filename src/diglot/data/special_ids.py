"""The ids of special tokens."""

from typing import NamedTuple


class SpecialIds(NamedTuple):
    """The ids of the four special tokens."""

    pad: int
    unk: int
    bos: int
    eos: int
