"""Models on the meta device."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from diglot.model.meta import meta_device

BUILD = """
import sys
import torch
from diglot.model.meta import meta_device

with meta_device():
    layer = {layer}
    for parameter in layer.parameters():
        torch.nn.init.{init}
assert all(parameter.is_meta for parameter in layer.parameters())
assert "torch._dynamo" not in sys.modules, "imported torch's compiler"
"""


@pytest.mark.parametrize(
    ("layer", "init"),
    [
        ("torch.nn.Embedding(5, 4)", "xavier_uniform_(parameter)"),
        ("torch.nn.Linear(4, 4, bias=False)", "kaiming_normal_(parameter)"),
        ("torch.nn.Embedding(5, 4)", "trunc_normal_(parameter)"),
    ],
)
def test_building_on_the_meta_device_does_not_import_the_compiler(layer, init):
    subprocess.run([sys.executable, "-c", BUILD.format(layer=layer, init=init)], check=True)


def test_outside_the_context_weights_are_drawn_as_before():
    torch.manual_seed(0)
    expected = nn.Linear(3, 3).weight
    with meta_device():
        assert nn.Linear(3, 3).weight.is_meta
    torch.manual_seed(0)
    assert torch.equal(nn.Linear(3, 3).weight, expected)
