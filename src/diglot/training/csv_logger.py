"""A logger that writes a run's metrics to one table, metrics.csv."""

import csv
import io
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.core.saving import save_hparams_to_yaml
from lightning.pytorch.loggers import Logger
from torch import Tensor

from diglot.data.text import write_bytes

Row = dict[str, Any]
METRICS = "metrics.csv"


class CSVLogger(Logger):
    """Logger that writes metrics.csv like Lightning's CSVLogger, but loses no written row if the process is killed.

    If new columns appear, the whole table is replaced atomically.

    Args:
        folder: folder of the table.
        flush_logs_every_n_steps: number of steps between two writes.
        keep: selects the existing rows to keep; None starts with an empty table.
    """

    def __init__(
        self, folder: Path, flush_logs_every_n_steps: int = 100, keep: Callable[[Row], bool] | None = None
    ) -> None:
        self.folder, self.flush_every = folder, flush_logs_every_n_steps
        self.file = folder / METRICS
        self.columns: list[str] = []  # columns of the file
        self.waiting: list[Row] = []  # rows that are not written yet
        self.hparams: dict[str, Any] = {}
        folder.mkdir(parents=True, exist_ok=True)
        rows = [row for row in self._rows() if keep(row)] if keep is not None and self.file.exists() else []
        # After a failed write (to a full disk, for example), rows may have been written twice.
        rows = list({tuple(row.items()): row for row in rows}.values())
        if rows:
            self._replace(sorted(rows[0]), rows)
        else:
            self.file.unlink(missing_ok=True)

    @property
    def name(self) -> str:
        return ""

    @property
    def version(self) -> str:
        return ""

    @property
    def save_dir(self) -> str:
        return str(self.folder)

    @property
    def root_dir(self) -> str:
        return str(self.folder)

    @property
    def log_dir(self) -> str:
        return str(self.folder)

    @property
    def experiment(self) -> "CSVLogger":
        """Return the object that callbacks write to, which is the logger itself."""
        return self

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        step = len(self.waiting) if step is None else step
        row = {name: value.item() if isinstance(value, Tensor) else value for name, value in metrics.items()}
        self.waiting.append({**row, "step": step})
        if (step + 1) % self.flush_every == 0:
            self.save()

    def log_hyperparams(self, params: dict[str, Any] | Namespace | None, *_: Any, **__: Any) -> None:
        self.hparams |= vars(params) if isinstance(params, Namespace) else params or {}
        save_hparams_to_yaml(str(self.folder / "hparams.yaml"), self.hparams)

    def save(self) -> None:
        """Write all pending rows.

        Raises:
            OSError, UserError: writing fails; the rows are kept for the next attempt.
        """
        if not self.waiting:
            return
        columns = sorted({*self.columns, *(name for row in self.waiting for name in row)})
        if columns != self.columns and self.file.exists():
            self._replace(columns, [*self._rows(), *self.waiting])
        else:
            is_new = not self.file.exists()
            with self.file.open("a", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, columns)
                if is_new:
                    writer.writeheader()
                writer.writerows(self.waiting)
            self.columns = columns
        self.waiting = []

    def _rows(self) -> list[Row]:
        """Return the rows of the file, except those with too many fields.

        Such a row arises if a full disk truncates a row and the next row is appended to it.
        """
        with self.file.open(newline="", encoding="utf-8") as file:
            return [row for row in csv.DictReader(file) if None not in row]

    def _replace(self, columns: list[str], rows: list[Row]) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(rows)
        write_bytes(self.file, text.getvalue().encode())
        self.columns = columns
