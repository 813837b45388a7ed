"""The learning rate of each weight, and the optimizer's state if a run resumes with other factors."""

import copy
import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diglot.errors import UserError
from diglot.training.groups import arrange, parameter_groups, scheduled_rate
from diglot.training.schedule import Linear

TOTAL = 20


class Model(nn.Module):
    """Three weights, one of which is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.frozen = (nn.Parameter(torch.full((2,), float(i))) for i in range(1, 5))
        self.frozen.requires_grad_(False)


class Training:
    """A model with its optimizer and schedule, as a run has them."""

    def __init__(self, factors: dict[str, float], weight_decay: float = 0.1) -> None:
        torch.manual_seed(1)
        self.model = Model()
        self.make = partial(torch.optim.AdamW, lr=1.0, weight_decay=weight_decay)
        self.optimizer = self.make(parameter_groups(self.model, factors))
        self.schedule = Linear(self.optimizer, TOTAL, lr=0.1, warmup=3)

    def update(self, n: int) -> "Training":
        for _ in range(n):
            for i, weight in enumerate((self.model.a, self.model.b, self.model.c), 1):
                weight.grad = torch.tensor([1.0, -0.5]) * i
            self.optimizer.step()
            self.schedule.step()
        return self

    def rates(self) -> dict[str, float]:
        names = {id(weight): name for name, weight in self.model.named_parameters()}
        return {names[id(p)]: group["lr"] for group in self.optimizer.param_groups for p in group["params"]}

    def saved(self) -> dict[str, Any]:
        return copy.deepcopy(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "schedule": self.schedule.state_dict(),
            }
        )

    def resume(self, content: dict[str, Any]) -> "Training":
        """Load a saved training in the order in which Lightning loads it."""
        arrange(content["optimizer"], [content["schedule"]], self.model, self.optimizer)
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.schedule.load_state_dict(content["schedule"])
        return self

    def moments(self) -> dict[str, Tensor]:
        return {
            name: self.optimizer.state[w]["exp_avg"] for name, w in self.model.named_parameters() if w.grad is not None
        }


FACTORS: list[dict[str, float]] = [{}, {"a": 0.5}, {"a": 0.5, "b": 3.0}, {"a": 2.0, "b": 2.0, "c": 2.0}]


def test_without_factors_there_is_one_group_as_before() -> None:
    training = Training({})
    (group,) = training.optimizer.param_groups
    assert [id(p) for p in group["params"]] == [id(p) for p in (training.model.a, training.model.b, training.model.c)]
    assert group.keys().isdisjoint({"names", "factor"})


@pytest.mark.parametrize("factors", FACTORS)
def test_each_weight_has_the_rate_of_the_schedule_times_its_factor(factors: dict[str, float]) -> None:
    training, plain = Training(factors), Training({})
    for _ in range(TOTAL):
        rate = plain.rates()["a"]
        assert training.rates() == {name: pytest.approx(rate * factors.get(name, 1.0)) for name in "abc"}
        assert scheduled_rate(training.optimizer) == pytest.approx(rate)
        training.update(1)
        plain.update(1)


@pytest.mark.parametrize("factors", FACTORS)
def test_a_frozen_weight_has_no_state_and_does_not_decay(factors: dict[str, float]) -> None:
    training = Training(factors).update(3)
    assert training.model.frozen not in training.optimizer.state
    assert torch.equal(training.model.frozen, torch.full((2,), 4.0))
    assert len(training.optimizer.state) == 3


@pytest.mark.parametrize("factors", FACTORS)
def test_a_resumed_training_is_the_same_bit_for_bit(factors: dict[str, float]) -> None:
    whole = Training(factors).update(9)
    resumed = Training(factors).resume(Training(factors).update(4).saved()).update(5)
    assert resumed.rates() == whole.rates()
    for name, weight in whole.model.named_parameters():
        assert torch.equal(resumed.model.get_parameter(name), weight)


@pytest.mark.parametrize("before", FACTORS)
@pytest.mark.parametrize("after", FACTORS)
def test_other_factors_apply_from_the_next_update_and_each_weight_keeps_its_moments(
    before: dict[str, float], after: dict[str, float]
) -> None:
    first = Training(before).update(4)
    moments = {name: moment.clone() for name, moment in first.moments().items()}
    resumed = Training(after).resume(first.saved())
    expected = Training(after).update(4).rates()
    assert resumed.rates() == {name: pytest.approx(rate) for name, rate in expected.items()}
    state = {name: resumed.optimizer.state[w] for name, w in resumed.model.named_parameters() if w.requires_grad}
    assert state.keys() == moments.keys()
    assert all(torch.equal(state[name]["exp_avg"], moment) for name, moment in moments.items())
    resumed.update(3)
    expected = Training(after).update(7).rates()
    assert resumed.rates() == {name: pytest.approx(rate) for name, rate in expected.items()}
    groups = resumed.saved()["optimizer"]["param_groups"]
    assert [group.get("names") for group in groups] == [group.get("names") for group in resumed.optimizer.param_groups]
    assert all(("factor" in group) == bool(after) for group in groups)


def test_options_of_the_optimizer_may_change() -> None:
    resumed = Training({"a": 0.5}, weight_decay=0.7).resume(Training({"a": 0.5}).update(4).saved())
    assert [group["weight_decay"] for group in resumed.optimizer.param_groups] == [0.7, 0.7]


def test_the_state_of_other_weights_is_refused() -> None:
    content = Training({"a": 0.5}).update(1).saved()
    content["optimizer"]["param_groups"][1]["names"] = ["z"]
    with pytest.raises(UserError, match=re.escape("the checkpoint's optimizer has trained other weights")):
        Training({}).resume(content)
