"""Flip single bits of a checkpoint: either it is rejected, or exactly what was written is loaded.

`python tests/reliability/flips.py 20000` flips 20,000 bits, with a random seed.
"""

import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from diglot.checkpoint import file as checkpoint
from diglot.errors import UserError

GOLDEN = Path(__file__).parent / "golden" / "golden.ckpt"
OLD_GOLDEN = Path(__file__).parent / "golden" / "golden_1.ckpt"  # the same checkpoint in the old format


def same(a: Any, b: Any) -> bool:
    """Return whether two loaded values are equal in all bits and types."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        bits = [each.reshape(-1).view(torch.uint8) for each in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a) and same(vars_of(a), vars_of(b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def vars_of(value: Any) -> Any:
    return dict(vars(value)) if hasattr(value, "__dict__") else None


def flips(count: int, seed: int, file: Path = GOLDEN, at: Sequence[tuple[int, int]] | None = None) -> dict[str, int]:
    """Flip one bit, load, and flip it back, `count` times at random places, or once at each (byte, bit) in `at`.

    Returns:
        The numbers of rejected files, by reason, and of harmless flips.

    Raises:
        AssertionError: something other than what was written was loaded, or a message has more than one line.
    """
    good, draw, found = file.read_bytes(), random.Random(seed), Counter[str]()
    original = checkpoint.read(file)
    flipped = at or [(draw.randrange(len(good)), draw.randrange(8)) for _ in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        damaged = Path(folder) / "flipped.ckpt"
        damaged.write_bytes(good)
        with damaged.open("r+b") as written:
            for place, bit in flipped:
                written.seek(place)
                written.write(bytes([good[place] ^ 1 << bit]))
                written.flush()
                try:
                    loaded = checkpoint.read(damaged)
                except UserError as error:
                    said = str(error)
                    assert said.startswith(f"checkpoint {damaged}: "), f"byte {place}, bit {bit}: {said}"
                    assert "\n" not in said, f"byte {place}, bit {bit}: {said}"
                    reason = re.sub(r"(its|the) (part|checksum|tensor|header).*|\(.*", "", said.partition(": ")[2])
                    found[reason.strip(" ,")] += 1
                else:
                    assert same(loaded, original), f"byte {place}, bit {bit}: loaded as something else"
                    found["harmless"] += 1
                written.seek(place)
                written.write(good[place : place + 1])
                written.flush()
    return dict(found)


if __name__ == "__main__":
    n, seed = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000, random.randrange(2**31)
    print(f"seed {seed}:", flips(n, seed))
