"""Where a run's curves go.

Each maker takes the run's folder and, for a run that goes on, the update it goes on from, so that every value stands
once at its step.
"""

import csv as csv_format
import functools
import logging
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from diglot.data.text import write_bytes

warn = logging.getLogger("diglot").warning
_WRITING = re.compile(r"add_|log_|save$|flush$|close$|finalize$|after_save_checkpoint$")  # methods


def tensorboard(folder: Path, resumed_at: int | None = None, **options: Any) -> Logger:
    """Events in the run's folder, for `make tensorboard`.

    Args:
        folder: the run's.
        resumed_at: updates that were done when the run was taken up again; what was logged after it does not count.
        options: of torch.utils.tensorboard.SummaryWriter.
    """
    if resumed_at is not None:
        options["purge_step"] = resumed_at + 1
    return TensorBoardLogger(folder, name="", version="", default_hp_metric=False, **options)


def csv(folder: Path, resumed_at: int | None = None, flush_logs_every_n_steps: int = 100) -> Logger:
    """One table, metrics.csv. For the arguments see `tensorboard`."""
    file = folder / "metrics.csv"
    rows: list[dict[str, Any]] = []
    if resumed_at is not None and file.exists():
        with file.open(newline="", encoding="utf-8") as lines:
            rows = [row for row in csv_format.DictReader(lines) if int(row["step"]) <= resumed_at]
    logger = CSVLogger(folder, name="", version="", flush_logs_every_n_steps=flush_logs_every_n_steps)
    if rows:  # Lightning would delete them
        logger.experiment.metrics = rows
        logger.save()
    return logger


def wandb(folder: Path, resumed_at: int | None = None, project: str = "diglot", **options: Any) -> Logger:
    """Weights & Biases; WANDB_MODE=offline keeps all in the run's folder.

    Args:
        folder: the run's.
        resumed_at: see `tensorboard`; the service itself leaves out steps that it has seen.
        project: where the run is listed.
        options: of lightning.pytorch.loggers.WandbLogger and wandb.init.
    """
    return WandbLogger(name=folder.name, id=folder.name, resume="allow", save_dir=folder, project=project, **options)


def mlflow(
    folder: Path,
    resumed_at: int | None = None,
    tracking_uri: str | None = None,
    experiment_name: str = "diglot",
    **options: Any,
) -> Logger:
    """MLflow.

    Args:
        folder: the run's.
        resumed_at: see `tensorboard`.
        tracking_uri: of a server or database; None: mlflow.db beside the run's folder.
        experiment_name: where the run is listed.
        options: of lightning.pytorch.loggers.MLFlowLogger.
    """
    about = folder / "mlflow.txt"  # the run's id, to go on with it
    if resumed_at is not None and about.exists():
        options["run_id"] = about.read_text(encoding="utf-8").strip()
    logger = MLFlowLogger(
        experiment_name=experiment_name,
        run_name=folder.name,
        tracking_uri=tracking_uri or f"sqlite:///{folder.absolute().parent / 'mlflow.db'}",
        **options,
    )
    write_bytes(about, f"{logger.run_id}\n".encode())
    return logger


def forgiving(logger: Logger) -> Logger:
    """A logger whose failures (a full disk, a service that does not answer) are told once and stop nothing."""
    told: list[BaseException] = []
    _forgive(logger, told)
    if isinstance(logger, TensorBoardLogger):
        _forgive(logger.experiment, told)
    return logger


def _forgive(writer: Any, told: list[BaseException]) -> None:
    for name in filter(_WRITING.match, dir(writer)):
        method = getattr(writer, name)
        if not callable(method):
            continue

        @functools.wraps(method)
        def attempt(*arguments: Any, _method: Any = method, **options: Any) -> Any:
            try:
                return _method(*arguments, **options)
            except Exception as error:
                if not told:
                    reason = " ".join(str(error).split()) or type(error).__name__
                    warn(f"{type(writer).__name__} fails ({reason[:200]}): training goes on without its curves")
                told.append(error)

        setattr(writer, name, attempt)


def flush(loggers: list[Logger]) -> None:
    """Write out what loggers hold back, so that a kill after a checkpoint loses no value that came before it."""
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.flush()
        elif isinstance(logger, CSVLogger):
            logger.save()


def missing_package(target: str) -> str | None:
    """What to say where the package that a maker here needs is not installed."""
    package = target.rpartition(".")[2]
    if target.startswith(f"{__name__}.") and package in ("wandb", "mlflow") and find_spec(package) is None:
        return (
            f"logger={package}: {package} is not installed: pip install 'diglot[{package}]', "
            f"or in a checkout .venv/bin/pip install -e '.[{package}]'"
        )
    return None
