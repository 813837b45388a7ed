"""Learning rates follow closed formulas of the update, counted from 1."""

import math
from collections.abc import Callable

import pytest
import torch
from hydra.utils import instantiate

from diglot.config import CONF
from diglot.training.schedule import Constant, Cosine, InverseSqrt, Linear, Paper, Schedule

SCHEDULES = sorted(file.stem for file in (CONF / "scheduler").glob("*.yaml"))
LR, WARMUP, TOTAL = 0.003, 10, 50


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


def rates(made: Callable[..., Schedule], n: int, total: int = TOTAL, **options: float) -> list[float]:
    """Return the rate that the optimizer has in each of the first n updates."""
    sgd = optimizer()
    schedule = made(sgd, total_updates=total, **options)
    found = []
    for _ in range(n):
        found.append(sgd.param_groups[0]["lr"])
        sgd.step()
        schedule.step()
    return found


def rise(update: int) -> float:
    return LR * update / WARMUP


FORMULAS = {
    Constant: lambda u: LR,
    # The update that ends the warm-up has the whole rate, and an update after the last one would have rate zero.
    Linear: lambda u: LR * (TOTAL + 1 - u) / (TOTAL + 1 - WARMUP),
    Cosine: lambda u: LR * (1 + math.cos(math.pi * (u - WARMUP) / (TOTAL + 1 - WARMUP))) / 2,
    InverseSqrt: lambda u: LR * math.sqrt(WARMUP / u),
}


@pytest.mark.parametrize("schedule", FORMULAS)
def test_rates_follow_the_formula(schedule: type[Schedule]) -> None:
    found = rates(schedule, TOTAL, lr=LR, warmup=WARMUP)
    expected = [rise(u) if u < WARMUP else FORMULAS[schedule](u) for u in range(1, TOTAL + 1)]
    assert found == pytest.approx(expected, rel=1e-9)
    assert max(found) == pytest.approx(LR)
    assert found[WARMUP - 1] == pytest.approx(LR)


@pytest.mark.parametrize("schedule", [Linear, Cosine])
def test_a_decay_ends_at_zero_right_after_the_last_update(schedule: type[Schedule]) -> None:
    found = rates(schedule, TOTAL + 3, lr=LR, warmup=WARMUP)
    assert 0 < found[TOTAL - 1] < LR / 30
    assert found[TOTAL:] == pytest.approx([0.0] * 3, abs=1e-12)


@pytest.mark.parametrize("schedule", FORMULAS)
def test_without_warmup_the_first_update_has_the_full_rate(schedule: type[Schedule]) -> None:
    found = rates(schedule, TOTAL, lr=LR, warmup=0)
    assert found[0] == pytest.approx(LR)
    assert found == sorted(found, reverse=True)
    assert all(rate > 0 for rate in found)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_starts_above_zero_and_never_falls_below(compose_train: Callable, name: str) -> None:
    node = compose_train(f"scheduler={name}").scheduler
    for warmup in (0, 1, 7):
        for total in (1, 5, 40):
            found = rates(instantiate(node, warmup=warmup), 45, total=total)
            assert found[0] > 0
            assert min(found) >= 0
            assert all(math.isfinite(rate) for rate in found)


def test_rates_equal_those_of_the_paper() -> None:
    d_model, warmup = 512, 4000
    schedule = Paper(optimizer(), total_updates=100_000, d_model=d_model, warmup=warmup)
    for update in (1, 2, 3999, 4000, 4001, 16_000, 100_000):
        expected = d_model**-0.5 * min(update**-0.5, update * warmup**-1.5)
        assert schedule.rate(update) == pytest.approx(expected, rel=1e-12)
    assert schedule.rate(1) == pytest.approx(1.7469e-07, rel=1e-4)
    assert schedule.rate(4000) == pytest.approx(6.9877e-04, rel=1e-4)
    assert schedule.rate(16_000) == pytest.approx(3.4939e-04, rel=1e-4)
    assert Paper(optimizer(), 9, d_model=d_model, factor=2.0).rate(4000) == pytest.approx(2 * schedule.rate(4000))


def test_the_paper_s_schedule_takes_the_model_s_width(compose_train: Callable) -> None:
    config = compose_train("scheduler=paper", "model=base")
    schedule = instantiate(config.scheduler)(optimizer=optimizer(), total_updates=10)
    assert schedule.rate(4000) == pytest.approx((512 * 4000) ** -0.5)


@pytest.mark.parametrize("options", [{"lr": 0.0}, {"lr": -1.0}, {"lr": 1.0, "warmup": -1}])
def test_impossible_values_of_a_schedule_are_refused_by_name(options: dict) -> None:
    with pytest.raises(ValueError, match="warmup" if "warmup" in options else "lr"):
        Constant(optimizer(), 10, **options)
