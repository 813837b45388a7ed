"""Learning rate schedules. Updates count from 1, so that the first one has a rate above zero."""

import math
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


class Schedule(LambdaLR):
    """Learning rate schedule with linear warm-up, followed by `decay`, which is constant in this class.

    The schedule sets the whole rate: the optimizer is created with a rate of 1, which `rate` multiplies. The rate of a
    parameter group may be another factor.

    Args:
        optimizer: optimizer to schedule; its own rate must be 1.
        total_updates: length of the run.
        lr: the rate at the end of the warm-up.
        warmup: number of warm-up updates; 0 for none.

    Raises:
        ValueError: lr is not positive, or warmup is negative.
    """

    def __init__(self, optimizer: Optimizer, total_updates: int, lr: float, warmup: int = 0) -> None:
        if lr <= 0:
            raise ValueError(f"lr ({lr}) must be positive")
        if warmup < 0:
            raise ValueError(f"warmup ({warmup}) must not be negative")
        self.total_updates, self.lr, self.warmup = total_updates, lr, warmup
        super().__init__(optimizer, lambda done: self.rate(done + 1))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume at the update of a saved schedule, with the rates of this one.

        The saved schedule may be a different one.
        """
        own_keys = {"total_updates", "lr", "warmup", "base_lrs"}
        super().load_state_dict({name: value for name, value in state_dict.items() if name not in own_keys})
        for group, factor in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = factor * self.rate(self.last_epoch + 1)

    def rate(self, update: int) -> float:
        """Return the learning rate of an update."""
        return self.lr * (update / self.warmup if update < self.warmup else self.decay(update))

    def decay(self, update: int) -> float:
        """Return the share of `lr` that is left at an update after the warm-up."""
        return 1.0

    def _left(self, update: int) -> float:
        """Return the share of the updates after the warm-up that remain, including this one."""
        after_rise = self.total_updates - max(1, self.warmup) + 1  # includes the update that ends the warm-up
        return max(0.0, (self.total_updates - update + 1) / max(1, after_rise))


class Constant(Schedule):
    """Constant rate after the warm-up."""


class Linear(Schedule):
    """Linear decay to zero after the last update."""

    def decay(self, update: int) -> float:
        return min(1.0, self._left(update))


class Cosine(Schedule):
    """Half-cosine decay to zero after the last update (Loshchilov and Hutter, 2017)."""

    def decay(self, update: int) -> float:
        return 0.5 * (1 - math.cos(math.pi * min(1.0, self._left(update))))


class InverseSqrt(Schedule):
    """Decay with the inverse square root of the update."""

    def decay(self, update: int) -> float:
        return (max(1, self.warmup) / update) ** 0.5


class Paper(InverseSqrt):
    """Schedule of Vaswani et al. (2017): factor x d_model^-0.5 x min(update^-0.5, update x warmup^-1.5).

    Args:
        optimizer, total_updates, warmup: see Schedule.
        d_model: width of the model.
        factor: factor of the rate; 1 in the paper.
    """

    def __init__(
        self, optimizer: Optimizer, total_updates: int, d_model: int, factor: float = 1.0, warmup: int = 4000
    ) -> None:
        super().__init__(optimizer, total_updates, lr=factor * (d_model * max(1, warmup)) ** -0.5, warmup=warmup)
