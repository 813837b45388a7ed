"""The moving average of weights preserves values that do not change, and ties."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from omegaconf import DictConfig
from torch import nn

from diglot.config import build
from diglot.model import Transformer


class Holder(L.LightningModule):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


def storages(model: nn.Module) -> list[set[str]]:
    """Return the names of the weights that share storage, group by group."""
    groups: dict[int, set[str]] = {}
    for name, value in model.state_dict().items():
        groups.setdefault(value.untyped_storage().data_ptr(), set()).add(name)
    return sorted(groups.values(), key=sorted)


@pytest.mark.parametrize("tying", ["none", "target", "all"])
def test_an_average_of_equal_weights_equals_them_and_keeps_ties(
    build_model: Callable[..., Transformer], compose_train: Callable[..., DictConfig], tying: str
) -> None:
    task = Holder(build_model(f"model.tying={tying}"))
    before = {name: value.clone() for name, value in task.state_dict().items()}
    averaging: Any = build(compose_train("callbacks=[ema]").callbacks.ema, "callbacks.ema")
    averaging.setup(None, task, "fit")

    def update(number: int) -> dict[str, torch.Tensor]:
        averaging.on_train_batch_end(SimpleNamespace(global_step=number), task, None, None, number)
        return averaging._average_model.module.state_dict()

    for number in (1, 2, 3):
        average = update(number)
    for name, value in average.items():
        torch.testing.assert_close(value, before[name], rtol=1e-6, atol=0)
    assert storages(averaging._average_model.module) == storages(task)

    with torch.no_grad():
        for parameter in task.parameters():
            parameter += 1.0
    average = update(4)  # a tied weight that moved once is averaged once
    for name, value in average.items():
        torch.testing.assert_close(value, before[name] + 0.001, rtol=0, atol=1e-6)
    assert all(torch.equal(value, before[name] + 1.0) for name, value in task.state_dict().items())
