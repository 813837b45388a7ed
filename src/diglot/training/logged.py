"""Reading a run's logged metrics back, from the table metrics.csv or from TensorBoard's event files."""

import csv
from pathlib import Path

from diglot.errors import UserError
from diglot.system.masking import in_one_line
from diglot.training.csv_logger import METRICS


def logged(folder: Path, name: str) -> dict[int, float]:
    """Return the values of a metric by update; empty if the run in a folder has logged none.

    The table has exact values and is preferred. TensorBoard rounds them to single precision.

    Raises:
        UserError: the files are damaged.
    """
    try:
        return dict(sorted((_in_table(folder / METRICS, name) or _in_events(folder, name)).items()))
    except Exception as error:  # readers of damaged files raise many types
        raise UserError(f"{folder}: its logged metrics cannot be read ({in_one_line(error)})") from None


def _in_table(file: Path, name: str) -> dict[int, float]:
    if not file.is_file():
        return {}
    with file.open(newline="", encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row.get(name) and (row.get("step") or "").isdigit()]
    return {int(row["step"]): float(row[name]) for row in rows}


def _in_events(folder: Path, name: str) -> dict[int, float]:
    if not any(folder.glob("events.out.tfevents.*")):
        return {}
    # Imported here, because the import is slow.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 1, "tensors": 1})
    events.Reload()
    return {event.step: event.value for event in events.Scalars(name)} if name in events.Tags()["scalars"] else {}
