"""The table of curves is the one that Lightning's CSVLogger writes."""

from pathlib import Path
from typing import Any

import lightning.pytorch.loggers
import pytest
import torch

from diglot.training.csv_logger import CSVLogger

ROWS: list[tuple[int | None, dict[str, Any]]] = [
    (0, {"train/loss": torch.tensor(0.1), "n": 3}),
    (1, {"train/loss": 1e-9, "epoch": 0}),
    (2, {"dev/bleu": float("nan"), "a,b": 2**40}),
    (2, {"train/loss": torch.tensor(0.1, dtype=torch.float64), "dev/bleu": 1 / 3}),
    (3, {}),
    (None, {"train/loss": 1e16}),
]


@pytest.mark.parametrize("every", [1, 2, 100])
def test_the_table_is_lightning_s(tmp_path: Path, every: int) -> None:
    tables = []
    theirs: Any = lightning.pytorch.loggers.CSVLogger(tmp_path / "theirs", "", "", flush_logs_every_n_steps=every)
    for logger in (theirs, CSVLogger(tmp_path / "ours", every)):
        folder = Path(logger.log_dir)
        found = []
        for step, metrics in ROWS:
            logger.log_metrics(metrics, step)
            found.append((folder / "metrics.csv").read_bytes() if (folder / "metrics.csv").exists() else None)
        logger.log_hyperparams({"a": {"b": 1}})
        logger.finalize("success")
        tables.append([*found, (folder / "metrics.csv").read_bytes(), (folder / "hparams.yaml").read_bytes()])
    assert tables[0] == tables[1]


def test_callbacks_find_where_it_writes(tmp_path: Path) -> None:
    theirs = lightning.pytorch.loggers.CSVLogger(tmp_path, "", "")
    ours = CSVLogger(tmp_path)
    for name in ("name", "version"):
        assert getattr(ours, name) == getattr(theirs, name)
    for name in ("save_dir", "root_dir", "log_dir"):
        assert Path(getattr(ours, name)) == Path(getattr(theirs, name)) == tmp_path
    ours.experiment.log_metrics({"a": 1.0}, 1)
    ours.experiment.save()
    assert (tmp_path / "metrics.csv").exists()


def test_rows_are_kept_until_they_can_be_written(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path / "a")
    logger.log_metrics({"x": 1.0}, 1)
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(OSError, match="No such file"):
        logger.save()
    assert not (tmp_path / "a").exists()  # writing a checkpoint reports that the folder is missing
    (tmp_path / "b").rename(tmp_path / "a")
    logger.file.touch()  # as a full disk leaves it
    logger.save()
    assert logger.file.read_text().split() == ["step,x", "1,1.0"]


def test_a_row_that_was_cut_short_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,x,y\n1,1.0,\n1,1.0,\n2,2.0,\n3,33,3.0,\n")
    logger = CSVLogger(tmp_path, keep=lambda row: row["step"] != "2")
    assert logger.file.read_text().split() == ["step,x,y", "1,1.0,"]
