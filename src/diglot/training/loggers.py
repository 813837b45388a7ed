"""Where a run's curves go.

Each maker takes the run's folder and, for a run that goes on, where it does so, so that every value stands once at its
step.
"""

import functools
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

from lightning.pytorch.loggers import CSVLogger as LightningCSVLogger
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import DummyLogger

from diglot.data.text import write_bytes
from diglot.errors import UserError
from diglot.system.masking import in_one_line
from diglot.training.csv_logger import CSVLogger
from diglot.training.event_file import EventWriter, logged_at
from diglot.training.lightning_seams import set_experiment, writer_options

warn = logging.getLogger("diglot").warning
_WRITING = re.compile(r"add_|log_|save$|flush$|close$|finalize$|after_save_checkpoint$")  # methods


class Resumed(NamedTuple):
    """Where a run is taken up again: what was logged later does not count.

    Attributes:
        update: how many were done.
        validation_due_since: Unix time from which on they were being validated, which will be done once more; None:
            that was done.
    """

    update: int
    validation_due_since: float | None = None


def tensorboard(folder: Path, resumed: Resumed | None = None, **options: Any) -> Logger:
    """Events in the run's folder, for `make tensorboard`.

    Args:
        folder: the run's.
        resumed: where it goes on; None: it begins.
        options: of torch.utils.tensorboard.SummaryWriter.
    """
    options["purge_step"] = 0  # TensorBoard takes nothing back at the first one that it sees: also a run's first has it
    until = None if resumed is None else resumed.validation_due_since
    if resumed is not None:
        # Events can be taken back by step alone: that of a validation goes, and what was before it comes again.
        options["purge_step"] = resumed.update + (until is None)
    again = logged_at(folder, 0 if resumed is None else resumed.update, until)
    logger = TensorBoardLogger(folder, name="", version="", default_hp_metric=False, **options)
    writer = EventWriter(logger.log_dir, **writer_options(logger))
    set_experiment(logger, writer)
    if resumed is not None:  # once more: a run that was begun by an earlier version has not had its first
        writer.begin_session(options["purge_step"])
    for event in again:
        writer.file_writer.add_event(event, event.step, event.wall_time)
    return logger


def csv(folder: Path, resumed: Resumed | None = None, flush_logs_every_n_steps: int = 100) -> Logger:
    """One table, metrics.csv. For the arguments see `tensorboard`."""
    keep = None if resumed is None else functools.partial(_stays, resumed)
    return CSVLogger(folder, flush_logs_every_n_steps, keep)


def _stays(resumed: Resumed, row: Mapping[str, str]) -> bool:
    """Whether a row was written before where a run is taken up again."""
    if not (row["step"] or "").isdigit() or int(row["step"]) > resumed.update:
        return False
    is_of_training = any(value and name.startswith("train/") for name, value in row.items())
    return resumed.validation_due_since is None or int(row["step"]) < resumed.update or is_of_training


def wandb(folder: Path, resumed: Resumed | None = None, project: str = "diglot", **options: Any) -> Logger:
    """Weights & Biases; WANDB_MODE=offline keeps all in the run's folder.

    Args:
        folder: the run's.
        resumed: see `tensorboard`; the service itself leaves out steps that it has seen.
        project: where the run is listed.
        options: of lightning.pytorch.loggers.WandbLogger and wandb.init.
    """
    return WandbLogger(name=folder.name, id=folder.name, resume="allow", save_dir=folder, project=project, **options)


def mlflow(
    folder: Path,
    resumed: Resumed | None = None,
    tracking_uri: str | None = None,
    experiment_name: str = "diglot",
    **options: Any,
) -> Logger:
    """MLflow.

    Args:
        folder: the run's.
        resumed: see `tensorboard`.
        tracking_uri: of a server or database; None: mlflow.db beside the run's folder.
        experiment_name: where the run is listed.
        options: of lightning.pytorch.loggers.MLFlowLogger.
    """
    about = folder / "mlflow.txt"  # the run's id, to go on with it
    if resumed is not None and about.exists():
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
    _forgive(logger, logger)
    if isinstance(logger, TensorBoardLogger):
        _be_silent_about_writers()
        with forgiven(logger):
            _forgive(logger.experiment, logger)
            return logger
        return DummyLogger()  # it cannot even begin
    return logger


def _be_silent_about_writers() -> None:
    """What fails in TensorBoard's thread comes up again where something is logged next: no traceback for it here."""
    before = threading.excepthook

    def hook(failure: Any) -> None:
        if not type(failure.thread).__module__.startswith("tensorboard."):
            before(failure)

    threading.excepthook = hook


@contextmanager
def forgiven(logger: Logger) -> Iterator[None]:
    """What fails in this block stops nothing, and is told where it is the first time for a logger."""
    try:
        yield
    except Exception as error:
        if logger not in _failed:
            _failed.add(logger)
            warn(f"{type(logger).__name__} fails ({in_one_line(error)}): training goes on without its curves")


_failed: WeakSet[Logger] = WeakSet()


def _forgive(writer: Any, logger: Logger) -> None:
    for name in filter(_WRITING.match, dir(writer)):
        method = getattr(writer, name)
        if not callable(method):
            continue

        @functools.wraps(method)
        def attempt(*arguments: Any, _method: Any = method, **options: Any) -> Any:
            with forgiven(logger):
                return _method(*arguments, **options)

        setattr(writer, name, attempt)


def flush(loggers: list[Logger]) -> None:
    """Write out what loggers hold back, so that a kill after a checkpoint loses no value that came before it."""
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.flush()
        elif isinstance(logger, (CSVLogger, LightningCSVLogger)):
            logger.save()


def check(nodes: Mapping[str, Any]) -> None:
    """Make sure of loggers, before anything is made, that each names one, and that its package is installed.

    Args:
        nodes: of a config, by name; null in place of one leaves it out.

    Raises:
        UserError: naming the key.
    """
    for name, node in nodes.items():
        if node is None:
            continue
        if not isinstance(node, Mapping) or "_target_" not in node:
            raise UserError(f"logger.{name} is no logger: it needs a _target_")
        if missing := missing_package(node["_target_"]):
            raise UserError(missing)


@contextmanager
def beginning(name: str) -> Iterator[None]:
    """Where a logger cannot begin (a service that does not answer, say), that is told and stops nothing.

    Raises:
        UserError: it does not take what the config says.
    """
    try:
        yield
    except TypeError as error:
        raise UserError(f"{name}: {error}") from error
    except Exception as error:
        cause = error.__cause__ if isinstance(error, UserError) else error
        if cause is None or isinstance(cause, (TypeError, ValueError)):
            raise
        warn(f"{name} cannot begin ({in_one_line(cause)}): training goes on without its curves")


def missing_package(target: str) -> str | None:
    """What to say where the package that a maker here needs is not installed."""
    package = target.rpartition(".")[2]
    if target.startswith(f"{__name__}.") and package in ("wandb", "mlflow") and find_spec(package) is None:
        return (
            f"logger={package}: {package} is not installed: pip install 'diglot[{package}]', "
            f"or in a checkout .venv/bin/pip install -e '.[{package}]'"
        )
    return None
