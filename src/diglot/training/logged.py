"""Reading a run's logged metrics back, from the table metrics.csv or from TensorBoard's event files."""

import csv
from pathlib import Path

from diglot.errors import UserError
from diglot.system.masking import in_one_line
from diglot.training.csv_logger import METRICS
from diglot.training.event_file import without_number

Scalars = dict[str, dict[int, float]]  # values by the name of the metric and the update


def logged(folder: Path, name: str) -> dict[int, float]:
    """Return the values of a metric by update; empty if the run in a folder has logged none.

    Raises:
        UserError: the files are damaged.
    """
    return dict(sorted(all_logged(folder).get(name, {}).items()))


def all_logged(folder: Path) -> Scalars:
    """Return the values of all metrics that the run in a folder has logged.

    The table has exact values and is preferred. TensorBoard rounds them to single precision.

    Raises:
        UserError: the files are damaged.
    """
    try:
        return _in_table(folder / METRICS) or _in_events(folder)
    except Exception as error:  # readers of damaged files raise many types
        raise UserError(f"{folder}: its logged metrics cannot be read ({in_one_line(error)})") from None


def _in_table(file: Path) -> Scalars:
    found: Scalars = {}
    if file.is_file():
        with file.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                step = row.pop("step", None) or ""
                for name, value in row.items() if step.isdigit() else ():
                    if value:
                        found.setdefault(name, {})[int(step)] = float(value)
    return found


def _in_events(folder: Path) -> Scalars:
    """Return the values in TensorBoard's event files, without those that a resumed run replaced."""
    if not any(folder.glob("events.out.tfevents.*")):
        return {}
    # Imported here, because the import is slow.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    others = dict.fromkeys(("images", "audio", "histograms", "compressedHistograms", "tensors"), 1)
    events = EventAccumulator(str(folder), size_guidance={**others, "scalars": 0})
    events.Reload()
    found: Scalars = {}
    # A run that an earlier version began has tags without numbers, too. They come first, and later ones replace them.
    for tag in sorted(events.Tags()["scalars"], reverse=True):
        values = {event.step: event.value for event in events.Scalars(tag)}
        found.setdefault(without_number(tag), {}).update(values)
    return found
