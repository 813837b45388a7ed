"""The ids of the tokens that are no text."""

from typing import NamedTuple


class SpecialIds(NamedTuple):
    """The four ids that are no text."""

    pad: int
    unk: int
    bos: int
    eos: int
