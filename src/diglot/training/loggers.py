"""Where a run's curves go.

Each maker takes the run's folder and, for a run that goes on, where it does so, so that every value stands once at its
step.
"""

import functools
import io
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
from lightning.pytorch.loggers import CSVLogger as LightningCSVLogger
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from PIL import Image

from diglot.data.text import write_bytes
from diglot.errors import UserError
from diglot.system.masking import in_one_line
from diglot.training.csv_logger import CSVLogger
from diglot.training.event_file import EventWriter, logged_at
from diglot.training.lightning_seams import set_experiment, writer_options

warn = logging.getLogger("diglot").warning


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
    writer = EventWriter(logger.log_dir, functools.partial(forgiven, logger), **writer_options(logger))
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


@contextmanager
def forgiven(logger: Logger) -> Iterator[None]:
    """Let what fails in the block stop nothing, and tell the first failure of each logger."""
    try:
        yield
    except Exception as error:
        if logger not in _failed:
            _failed.add(logger)
            warn(f"{type(logger).__name__} fails ({in_one_line(error)}): training goes on without its curves")


_failed: WeakSet[Logger] = WeakSet()

# What Lightning, and so `self.log`, calls of a logger.
CALLED_BY_LIGHTNING = (*("log_metrics", "log_hyperparams", "log_graph", "save", "finalize", "after_save_checkpoint"),)


def forgiving(logger: Logger) -> Logger:
    """Make the failures of a logger (a full disk, a service that does not answer) be told once and stop nothing, also
    where it is Lightning that calls it.

    Returns:
        The logger, which is now of a class derived from its own.
    """
    kind = type(logger)
    methods = {name: _attempt(getattr(kind, name)) for name in CALLED_BY_LIGHTNING}
    logger.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__, **methods})
    if isinstance(logger, TensorBoardLogger):
        _be_silent_about_writers()
    return logger


def _attempt(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def attempt(self: Logger, *arguments: Any, **options: Any) -> None:
        with forgiven(self):
            method(self, *arguments, **options)

    return attempt


@functools.cache
def _be_silent_about_writers() -> None:
    """Print no traceback of TensorBoard's threads, which a logger of a user's own may have: what fails in one is raised
    again where something is logged next."""
    before = threading.excepthook

    def hook(failure: Any) -> None:
        if not type(failure.thread).__module__.startswith("tensorboard."):
            before(failure)

    threading.excepthook = hook


class Loggers:
    """The loggers of a run as one, which each take scalars, figures and texts in their own way. What fails is told once
    for each of them and stops nothing.

    Args:
        loggers: those of a trainer.
    """

    def __init__(self, loggers: Iterable[Any]) -> None:
        self.adapters = [_adapter(logger) for logger in loggers]

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log values by tag."""
        self._each(lambda adapter: adapter.scalars(values, step))

    def figure(self, tag: str, pixels: np.ndarray, step: int) -> None:
        """Log a picture, (height, width, 3) bytes, by each logger that takes pictures."""
        self._each(lambda adapter: adapter.figure(tag, pixels, step))

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Log a text by each logger that takes texts."""
        self._each(lambda adapter: adapter.text(tag, markdown, step))

    def hyper_parameters(self, values: Mapping[str, Any], scores: Mapping[str, float]) -> None:
        """Log what a run was trained with, and the scores by which runs are compared where a logger compares them."""
        self._each(lambda adapter: adapter.hyper_parameters(values, scores))

    def flush(self) -> None:
        """Write out what is held back, so that a kill after a checkpoint loses no value that came before it."""
        self._each(lambda adapter: adapter.flush())

    def _each(self, write: Callable[["Adapter"], None]) -> None:
        for adapter in self.adapters:
            with forgiven(adapter.logger):
                write(adapter)


class Adapter:
    """How scalars, figures and texts go to a logger: here to one of a user's own, of which no more is known than what
    Lightning asks of every logger."""

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self.logger.log_metrics(dict(values), step)

    def figure(self, tag: str, pixels: np.ndarray, step: int) -> None:
        """Do nothing."""

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Do nothing."""

    def hyper_parameters(self, values: Mapping[str, Any], scores: Mapping[str, float]) -> None:
        self.logger.log_hyperparams(dict(values))
        self.logger.save()

    def flush(self) -> None:
        """Do nothing."""


class _OfTensorBoard(Adapter):
    def figure(self, tag: str, pixels: np.ndarray, step: int) -> None:
        self.logger.experiment.add_image(tag, pixels, step, dataformats="HWC")

    def text(self, tag: str, markdown: str, step: int) -> None:
        self.logger.experiment.add_text(tag, markdown, step)

    def hyper_parameters(self, values: Mapping[str, Any], scores: Mapping[str, float]) -> None:
        self.logger.log_hyperparams(dict(values), dict(scores))
        self.logger.save()

    def flush(self) -> None:
        self.logger.experiment.flush()


class _OfTable(Adapter):
    """Figures and texts are files beside the table, under figures/."""

    def figure(self, tag: str, pixels: np.ndarray, step: int) -> None:
        png = io.BytesIO()
        Image.fromarray(pixels).save(png, "png")
        self._write(f"{tag}/{step}.png", png.getvalue())

    def text(self, tag: str, markdown: str, step: int) -> None:
        self._write(f"{tag}/{step}.md", markdown.encode())

    def flush(self) -> None:
        self.logger.save()

    def _write(self, name: str, content: bytes) -> None:
        write_bytes(Path(self.logger.log_dir) / "figures" / name, content)


class _OfWandb(Adapter):
    def figure(self, tag: str, pixels: np.ndarray, step: int) -> None:
        self.logger.log_image(tag, [pixels], step=step)

    def text(self, tag: str, markdown: str, step: int) -> None:
        self.logger.log_text(tag, columns=["markdown"], data=[[markdown]], step=step)


class _OfMLFlow(Adapter):
    def figure(self, tag: str, pixels: np.ndarray, step: int) -> None:
        self.logger.experiment.log_image(self.logger.run_id, pixels, artifact_file=f"figures/{tag}/{step}.png")

    def text(self, tag: str, markdown: str, step: int) -> None:
        self.logger.experiment.log_text(self.logger.run_id, markdown, f"figures/{tag}/{step}.md")


_ADAPTERS: dict[type[Logger], type[Adapter]] = {
    TensorBoardLogger: _OfTensorBoard,
    CSVLogger: _OfTable,
    LightningCSVLogger: _OfTable,
    WandbLogger: _OfWandb,
    MLFlowLogger: _OfMLFlow,
}


def _adapter(logger: Any) -> Adapter:
    return next((adapter for kind, adapter in _ADAPTERS.items() if isinstance(logger, kind)), Adapter)(logger)


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
