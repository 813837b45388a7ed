"""Check that the gradient of each update is finite, without waiting for a GPU in every update."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diglot.system.console import say
from diglot.training.state import RunState


class NonFiniteError(Exception):
    """Raised if the gradient of an update is not finite; the update was not made.

    Attributes:
        update: number of the update.
        pairs: numbers of the update's pairs on this process.
        norms: gradient norm of each parameter.
        learning_rate: learning rate of the update.
    """

    def __init__(self, update: int, pairs: list[int], norms: dict[str, float], learning_rate: float) -> None:
        non_finite = [name for name, norm in norms.items() if not math.isfinite(norm)]
        super().__init__(
            f"the gradient of update {update:,} is not finite in {len(non_finite):,} of {len(norms):,} parameters"
        )
        self.update, self.pairs, self.norms, self.learning_rate = update, pairs, norms, learning_rate


class Update(NamedTuple):
    """The data of an update that a report about its gradient needs.

    Attributes:
        number: number of the update.
        learning_rate: its learning rate.
        pairs: numbers of its pairs on this process, a tensor per micro-batch.
        names: names of the parameters with a gradient.
        norms: norm of each of their gradients (P,).
        norm: norm of the whole gradient.
    """

    number: int
    learning_rate: float
    pairs: Sequence[Tensor]
    names: Sequence[str]
    norms: Tensor
    norm: Tensor


class GradientCheck:
    """Check that skips updates whose gradient is not finite, and ends the run after too many of them.

    On a CPU, the decision is made immediately. On a GPU, this would make every update wait for the device. Therefore a
    fused optimizer decides on the device, as it does for `torch.amp.GradScaler`: if the gradient is not finite, it
    leaves weights and moments unchanged. `report` finds out about it later.

    Args:
        state: state of the run, which counts the skipped updates.
        limit: number of updates that are skipped; the next one ends the run.
    """

    def __init__(self, state: RunState, limit: int) -> None:
        self.state, self.limit = state, limit
        self._unreported: list[Update] = []

    def accept(self, update: Update, optimizer: Optimizer) -> bool:
        """Return whether to make an update; also True if the optimizer decides on the device.

        Raises:
            NonFiniteError: too many updates have been skipped.
        """
        if decides_on_device(optimizer, update.norm.device):
            optimizer.found_inf = (~torch.isfinite(update.norm)).float()  # type: ignore[attr-defined]
            self._unreported.append(update)
            return True
        if torch.isfinite(update.norm):
            return True
        self._skip(update)
        return False

    def report(self) -> None:
        """Report the updates since the last call that the optimizer skipped on the device.

        Raises:
            NonFiniteError: too many updates have been skipped.
        """
        updates, self._unreported = self._unreported, []
        if updates:
            are_finite = torch.stack([update.norm for update in updates]).isfinite().tolist()
            for update, is_finite in zip(updates, are_finite, strict=True):
                if not is_finite:
                    self._skip(update)

    @property
    def ends_next(self) -> bool:
        """Whether the next update with a gradient that is not finite ends the run."""
        return self.state.skipped >= self.limit

    def _skip(self, update: Update) -> None:
        if self.ends_next:
            norms = dict(zip(update.names, update.norms.tolist(), strict=True))
            raise NonFiniteError(update.number, torch.cat(list(update.pairs)).tolist(), norms, update.learning_rate)
        self.state.skipped += 1
        count = f"{self.state.skipped} of at most {self.limit}"
        say(f"update {update.number:,}: the gradient is not finite; update skipped, {count}")


def decides_on_device(optimizer: Optimizer, device: torch.device) -> bool:
    """Return whether an optimizer itself skips an update, if told so by a tensor on its device."""
    return device.type != "cpu" and getattr(optimizer, "_step_supports_amp_scaling", False)


def gradient_norms(module: nn.Module) -> tuple[list[str], Tensor, Tensor]:
    """Return the names of the parameters with a gradient, the norm of each gradient (P,), and of all together."""
    gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    norms = torch.stack(torch._foreach_norm(list(gradients.values())))  # as torch.nn.utils.get_total_norm does
    return list(gradients), norms, torch.linalg.vector_norm(norms)
