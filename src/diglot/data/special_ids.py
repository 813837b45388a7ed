"""Ids of special tokens."""

from typing import NamedTuple


class SpecialIds(NamedTuple):
    """Ids of the four special tokens.

    Attributes:
        pad: padding, `<pad>`.
        unk: an unknown token, `<unk>`.
        bos: start of a target: `<s>`, or in models of other origin `<pad>` or `</s>`.
        eos: end of a sequence, `</s>`.
    """

    pad: int
    unk: int
    bos: int
    eos: int
