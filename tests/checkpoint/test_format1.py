"""No element of a checkpoint's record is used twice, so the content takes no more memory than the file."""

from collections import OrderedDict

import pytest
import torch

from diglot.checkpoint import format1
from diglot.errors import UserError

BASE = torch.zeros(64)


def checked(tmp_path, tensors):
    path = tmp_path / "x.ckpt"
    with path.open("wb") as file:
        torch.save({"state_dict": OrderedDict(tensors)}, file)
    with path.open("rb") as file:
        format1.check(file)


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": BASE, "b": BASE},  # tied
        {"a": BASE.view(8, 8), "b": BASE.view(8, 8)},
        {"a": BASE[:32], "b": BASE[32:].view(4, 8)},  # weights of a GRU, all in one record
        {"a": BASE.view(8, 8).T},
        {"a": BASE[:1].expand(1), "b": BASE[1]},
        {"a": torch.zeros(0), "b": torch.zeros(3, 0)},
        {"a": BASE[::2]},
    ],
)
def test_tensors_that_share_no_number_are_accepted(tmp_path, tensors):
    checked(tmp_path, tensors)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"a": BASE, "b": BASE[1:]}, "overlap"),
        ({"a": BASE[:40], "b": BASE[30:]}, "overlap"),
        ({"a": BASE.view(8, 8), "b": BASE}, "overlap"),
        ({"a": BASE[::2], "b": BASE[1::2]}, "overlap"),
        ({"a": BASE[:1].expand(64)}, "share memory"),
        ({"a": BASE[:8].expand(8, 8)}, "share memory"),
        ({"a": BASE.as_strided((8, 8), (4, 1))}, "share memory"),
    ],
)
def test_tensors_that_share_numbers_are_refused(tmp_path, tensors, said):
    with pytest.raises(UserError, match=said):
        checked(tmp_path, tensors)
