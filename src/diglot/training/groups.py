"""The optimizer's parameter groups: one for each factor of the learning rate."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from diglot.errors import UserError

_RATES = ("lr", "initial_lr")  # the values of a group that a schedule sets


def parameter_groups(model: nn.Module, factors: Mapping[str, float]) -> list[Any]:
    """Return what an optimizer trains: the weights that are not frozen.

    Args:
        model: the model.
        factors: factors of the learning rate by weight; weights without one have the factor 1. Empty: no groups.

    Returns:
        The weights, or one group for each factor, the factor 1 first. A group also has its factor and the names of its
        weights, so that the optimizer's state can be arranged for other groups when a run resumes.
    """
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not factors:
        return list(trained.values())
    by_factor: dict[float, list[str]] = {}
    for name in trained:
        by_factor.setdefault(float(factors.get(name, 1.0)), []).append(name)
    return [
        {"params": [trained[name] for name in by_factor[factor]], "lr": factor, "factor": factor}
        | {"names": by_factor[factor]}
        for factor in sorted(by_factor, key=lambda factor: (factor != 1.0, factor))
    ]


def scheduled_rate(optimizer: Optimizer) -> float:
    """Return the learning rate of the schedule, which the groups multiply by their factors."""
    group = optimizer.param_groups[0]
    return float(group["lr"] / _factor(group))


def arrange(state: dict[str, Any], schedules: list[dict[str, Any]], model: nn.Module, optimizer: Optimizer) -> None:
    """Arrange the saved state of an optimizer for the groups of another one, in place. Both train the same weights.

    The options of the other optimizer replace the saved ones, except for the rates.

    Args:
        state: the saved state.
        schedules: the saved states of its schedules.
        model: the model.
        optimizer: the other optimizer, which has made no update yet.

    Raises:
        UserError: the saved state belongs to other weights.
    """
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    saved, groups = state["param_groups"], optimizer.param_groups
    if [group.get("names") for group in saved] == [group.get("names") for group in groups]:
        numbers = [group["params"] for group in saved]
    else:
        names = [group.get("names", trained) for group in groups]
        state["state"] = _renumbered(state, [name for of_group in names for name in of_group], trained)
        numbers = _consecutive(map(len, names))
    sources = [_source(saved, group) for group in groups]
    scales = [_factor(group) / _factor(saved[i]) for group, i in zip(groups, sources, strict=True)]
    for schedule in schedules:
        for name in ("base_lrs", "_last_lr"):
            if len(schedule.get(name, ())) == len(saved):
                schedule[name] = [schedule[name][i] * scale for i, scale in zip(sources, scales, strict=True)]
    state["param_groups"] = [
        {key: value for key, value in saved[i].items() if key not in ("names", "factor") or key in group}
        | {key: value for key, value in group.items() if key not in _RATES}
        | {key: saved[i][key] * scale for key in _RATES if key in saved[i]}
        | {"params": of_group}
        for group, i, scale, of_group in zip(groups, sources, scales, numbers, strict=True)
    ]


def _renumbered(state: dict[str, Any], names: list[str], trained: list[str]) -> dict[int, Any]:
    """Return the state of each weight by its number in another order.

    Args:
        state: the saved state of an optimizer.
        names: the names of the weights in the other order.
        trained: the names in the order of an optimizer with a single group.
    """
    old_names = [name for group in state["param_groups"] for name in group.get("names", trained)]
    old_numbers = [number for group in state["param_groups"] for number in group["params"]]
    if sorted(old_names) != sorted(names) or len(old_names) != len(old_numbers):
        raise UserError("the checkpoint's optimizer has trained other weights than this run does")
    number_of = dict(zip(old_names, old_numbers, strict=True))
    return {i: state["state"][number_of[name]] for i, name in enumerate(names) if number_of[name] in state["state"]}


def _consecutive(sizes: Iterable[int]) -> list[list[int]]:
    """Return lists of these sizes that count on from 0."""
    numbers = itertools.count()
    return [list(itertools.islice(numbers, size)) for size in sizes]


def _source(saved: list[dict[str, Any]], group: dict[str, Any]) -> int:
    """Return the index of the saved group with the factor of another one, or of the first saved group."""
    return next((i for i, each in enumerate(saved) if _factor(each) == _factor(group)), 0)


def _factor(group: dict[str, Any]) -> float:
    return float(group.get("factor", 1.0))
