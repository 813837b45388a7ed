"""The curves of a run, read from what its loggers wrote into its folder."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from diglot.data.held_out import PREFIX
from diglot.errors import UserError
from diglot.training.logged import all_logged

SPEED = "speed/updates_per_second"
MAX_POINTS = 300  # of a curve; further points are left out evenly


class Curves(NamedTuple):
    """The scores of a run's validations on dev and on further dev sets.

    Attributes:
        updates: the number of updates before each validation.
        minutes: the training time before each validation, without validations; None: the speed is unknown.
        values: the values of each score, by name, such as bleu (without `dev/`) and dev_old/bleu of a further dev set;
            None: not finite, or not logged.
    """

    updates: list[int]
    minutes: list[float] | None
    values: dict[str, list[float | None]]


def read_curves(folder: Path) -> Curves | None:
    """Return the curves of the run in a folder, from metrics.csv or TensorBoard's event files.

    Returns:
        The curves; None if there are no dev scores, or the files cannot be read.
    """
    try:
        scalars = all_logged(folder)
    except UserError:
        return None
    dev = {tag.removeprefix("dev/"): values for tag, values in scalars.items() if tag.startswith(("dev/", PREFIX))}
    updates = _thinned(sorted({update for values in dev.values() for update in values}))
    if not updates:
        return None
    values = {name: [_finite(by_update.get(update)) for update in updates] for name, by_update in dev.items()}
    return Curves(updates, _minutes(updates, scalars.get(SPEED, {})), values)


def _thinned(updates: list[int]) -> list[int]:
    """Return at most `MAX_POINTS` of the numbers, with the first and the last."""
    if len(updates) <= MAX_POINTS:
        return updates
    return [updates[round(i * (len(updates) - 1) / (MAX_POINTS - 1))] for i in range(MAX_POINTS)]


def _finite(value: float | None) -> float | None:
    return round(value, 4) if value is not None and math.isfinite(value) else None


def _minutes(updates: list[int], speeds: Mapping[int, float]) -> list[float] | None:
    """Return the training time before each number of updates.

    Args:
        updates: numbers of updates.
        speeds: by number of updates, the updates per second since the previous one.
    """
    known = sorted((update, speed) for update, speed in speeds.items() if speed > 0 and math.isfinite(speed))
    if not known:
        return None
    ends = np.array([0, *(update for update, _ in known)])
    seconds = np.cumsum([0.0, *((end - start) / speed for start, (end, speed) in zip(ends, known))])
    beyond = np.maximum(0, np.array(updates) - ends[-1]) / known[-1][1]
    return [round(float(time) / 60, 2) for time in np.interp(updates, ends, seconds) + beyond]
