"""Loggers of a run's metrics.

Each factory takes the run's folder and, for a resumed run, the point where it resumes. With this point, a logger holds
each value exactly once, at its step.
"""

import functools
import io
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
from lightning.pytorch.loggers import CSVLogger as LightningCSVLogger
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from PIL import Image
from torch.utils.tensorboard.summary import hparams

from diglot.data.text import write_bytes
from diglot.errors import UserError
from diglot.system.masking import in_one_line
from diglot.training.csv_logger import CSVLogger
from diglot.training.event_file import EventWriter, logged_at
from diglot.training.lightning_seams import set_experiment, writer_options

warn = logging.getLogger("diglot").warning


class Resumed(NamedTuple):
    """The point where a run resumes. Values logged after it are discarded.

    Attributes:
        update: number of updates done.
        validation_due_since: Unix time at which their validation started, if it will be repeated; otherwise None.
    """

    update: int
    validation_due_since: float | None = None


def tensorboard(folder: Path, resumed: Resumed | None = None, **options: Any) -> Logger:
    """Return a logger that writes TensorBoard events into the run's folder, for `make tensorboard`.

    Args:
        folder: the run's folder.
        resumed: where the run resumes; None for a new run.
        options: options of torch.utils.tensorboard.SummaryWriter.
    """
    options["purge_step"] = 0  # TensorBoard ignores the first purge that it sees, so a new run writes one
    until = None if resumed is None else resumed.validation_due_since
    if resumed is not None:
        # Events can be discarded only by step. Discard the step of a validation that is repeated, and write the step's
        # events from before that validation again.
        options["purge_step"] = resumed.update + (until is None)
    repeated_events = logged_at(folder, 0 if resumed is None else resumed.update, until)
    logger = TensorBoardLogger(folder, name="", version="", default_hp_metric=False, **options)
    writer = EventWriter(logger.log_dir, functools.partial(forgiven, logger), **writer_options(logger))
    set_experiment(logger, writer)
    if resumed is not None:  # purge twice: a run started by an earlier version lacks the first purge
        writer.begin_session(options["purge_step"])
    for event in repeated_events:
        writer.file_writer.add_event(event, event.step, event.wall_time)
    return logger


def csv(folder: Path, resumed: Resumed | None = None, flush_logs_every_n_steps: int = 100) -> Logger:
    """Return a logger that writes one table, metrics.csv. For the arguments see `tensorboard`."""
    keep = None if resumed is None else functools.partial(_keeps_row, resumed)
    return CSVLogger(folder, flush_logs_every_n_steps, keep)


def _keeps_row(resumed: Resumed, row: Mapping[str, str]) -> bool:
    """Return whether a row was written before the point where the run resumes."""
    if not (row["step"] or "").isdigit() or int(row["step"]) > resumed.update:
        return False
    is_of_training = any(value and name.startswith("train/") for name, value in row.items())
    return resumed.validation_due_since is None or int(row["step"]) < resumed.update or is_of_training


def wandb(folder: Path, resumed: Resumed | None = None, project: str = "diglot", **options: Any) -> Logger:
    """Return a logger for Weights & Biases; WANDB_MODE=offline keeps everything in the run's folder.

    Args:
        folder: the run's folder.
        resumed: see `tensorboard`; the service itself ignores steps that it has already received.
        project: project in which the run is listed.
        options: options of lightning.pytorch.loggers.WandbLogger and wandb.init.
    """
    return WandbLogger(name=folder.name, id=folder.name, resume="allow", save_dir=folder, project=project, **options)


def mlflow(
    folder: Path,
    resumed: Resumed | None = None,
    tracking_uri: str | None = None,
    experiment_name: str = "diglot",
    **options: Any,
) -> Logger:
    """Return a logger for MLflow.

    Args:
        folder: the run's folder.
        resumed: see `tensorboard`.
        tracking_uri: URI of a server or database; None: mlflow.db next to the run's folder.
        experiment_name: experiment in which the run is listed.
        options: options of lightning.pytorch.loggers.MLFlowLogger.
    """
    id_file = folder / "mlflow.txt"  # holds the run's id, for resuming
    if resumed is not None and id_file.exists():
        options["run_id"] = id_file.read_text(encoding="utf-8").strip()
    logger = MLFlowLogger(
        experiment_name=experiment_name,
        run_name=folder.name,
        tracking_uri=tracking_uri or f"sqlite:///{folder.absolute().parent / 'mlflow.db'}",
        **options,
    )
    write_bytes(id_file, f"{logger.run_id}\n".encode())
    return logger


@contextmanager
def forgiven(logger: Logger) -> Iterator[None]:
    """Suppress exceptions raised in the block, and report the first one of each logger."""
    try:
        yield
    except Exception as error:
        if logger not in _failed:
            _failed.add(logger)
            warn(f"{type(logger).__name__} fails ({in_one_line(error)}): training continues without its curves")


_failed: WeakSet[Logger] = WeakSet()

# Logger methods that Lightning calls itself, including through `self.log`.
CALLED_BY_LIGHTNING = ("log_metrics", "log_hyperparams", "log_graph", "save", "finalize", "after_save_checkpoint")


def forgiving(logger: Logger) -> Logger:
    """Make a logger report its first failure and never stop training, even when Lightning calls it directly.

    A full disk or a service that does not respond, for example, makes a logger fail.

    Returns:
        The same logger. Its class is replaced by a subclass of its former class.
    """
    logger_class = type(logger)
    methods = {name: _attempt(getattr(logger_class, name)) for name in CALLED_BY_LIGHTNING}
    logger.__class__ = type(logger_class.__name__, (logger_class,), {"__module__": logger_class.__module__, **methods})
    if isinstance(logger, TensorBoardLogger):
        _silence_writer_threads()
    return logger


def _attempt(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def attempt(self: Logger, *arguments: Any, **options: Any) -> None:
        with forgiven(self):
            method(self, *arguments, **options)

    return attempt


@functools.cache
def _silence_writer_threads() -> None:
    """Suppress the tracebacks of TensorBoard's writer threads, which a user's own logger may start.

    The next logging call raises a thread's exception again, so nothing is lost.
    """
    previous_hook = threading.excepthook

    def silent_hook(failure: Any) -> None:
        if not type(failure.thread).__module__.startswith("tensorboard."):
            previous_hook(failure)

    threading.excepthook = silent_hook


class Loggers:
    """All loggers of a run, with one interface for scalars, figures and texts.

    The first failure of each logger is reported. No failure stops training.

    Args:
        loggers: a trainer's loggers.
    """

    def __init__(self, loggers: Iterable[Any]) -> None:
        self.adapters = [_adapter(logger) for logger in loggers]

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log values by tag."""
        self._each(lambda adapter: adapter.scalars(values, step))

    def table(self, values: Mapping[str, float], step: int) -> None:
        """Log many values by tag; TensorBoard, which would show each in a card of its own, does not get them."""
        self._each(lambda adapter: adapter.table(values, step))

    def figure(self, tag: str, pixels: np.ndarray, step: int) -> None:
        """Log an 8-bit RGB image (height, width, 3) to each logger that supports images."""
        self._each(lambda adapter: adapter.figure(tag, pixels, step))

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Log a text to each logger that supports texts."""
        self._each(lambda adapter: adapter.text(tag, markdown, step))

    def hyper_parameters(self, values: Mapping[str, Any], scores: Sequence[str]) -> None:
        """Log a run's hyperparameters, and to loggers that compare runs by scores the tags of `best` scores."""
        self._each(lambda adapter: adapter.hyper_parameters(values, scores))

    def best(self, scores: Mapping[str, float], step: int) -> None:
        """Log the scores of the best checkpoint by tag, to loggers that compare runs by them."""
        self._each(lambda adapter: adapter.best(scores, step))

    def flush(self) -> None:
        """Write buffered values, so that a kill after a checkpoint loses no value logged before it."""
        self._each(lambda adapter: adapter.flush())

    def _each(self, write: Callable[["Adapter"], None]) -> None:
        for adapter in self.adapters:
            with forgiven(adapter.logger):
                write(adapter)


class Adapter:
    """Adapter that passes scalars, figures and texts to a logger.

    This base class serves a user's own loggers. It calls only methods that Lightning requires of every logger.
    """

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self.logger.log_metrics(dict(values), step)

    def table(self, values: Mapping[str, float], step: int) -> None:
        self.scalars(values, step)

    def figure(self, tag: str, pixels: np.ndarray, step: int) -> None:
        """Do nothing."""

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Do nothing."""

    def hyper_parameters(self, values: Mapping[str, Any], scores: Sequence[str]) -> None:
        self.logger.log_hyperparams(dict(values))
        self.logger.save()

    def best(self, scores: Mapping[str, float], step: int) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""


class _TensorBoardAdapter(Adapter):
    def figure(self, tag: str, pixels: np.ndarray, step: int) -> None:
        self.logger.experiment.add_image(tag, pixels, step, dataformats="HWC")

    def text(self, tag: str, markdown: str, step: int) -> None:
        self.logger.experiment.add_text(tag, markdown, step)

    def table(self, values: Mapping[str, float], step: int) -> None:
        """Do nothing."""

    def hyper_parameters(self, values: Mapping[str, Any], scores: Sequence[str]) -> None:
        # Lightning's log_hyperparams would also log a value of each score, and there is none yet.
        for summary in hparams(dict(values), dict.fromkeys(scores, 0.0)):
            self.logger.experiment.file_writer.add_summary(summary)

    def best(self, scores: Mapping[str, float], step: int) -> None:
        self.scalars(scores, step)

    def flush(self) -> None:
        self.logger.experiment.flush()


class _TableAdapter(Adapter):
    """Adapter of the CSV loggers, which writes figures and texts as files under figures/, next to the table."""

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


class _WandbAdapter(Adapter):
    def figure(self, tag: str, pixels: np.ndarray, step: int) -> None:
        self.logger.log_image(tag, [pixels], step=step)

    def text(self, tag: str, markdown: str, step: int) -> None:
        self.logger.log_text(tag, columns=["markdown"], data=[[markdown]], step=step)


class _MLFlowAdapter(Adapter):
    def figure(self, tag: str, pixels: np.ndarray, step: int) -> None:
        self.logger.experiment.log_image(self.logger.run_id, pixels, artifact_file=f"figures/{tag}/{step}.png")

    def text(self, tag: str, markdown: str, step: int) -> None:
        self.logger.experiment.log_text(self.logger.run_id, markdown, f"figures/{tag}/{step}.md")


_ADAPTERS: dict[type[Logger], type[Adapter]] = {
    TensorBoardLogger: _TensorBoardAdapter,
    CSVLogger: _TableAdapter,
    LightningCSVLogger: _TableAdapter,
    WandbLogger: _WandbAdapter,
    MLFlowLogger: _MLFlowAdapter,
}


def _adapter(logger: Any) -> Adapter:
    return next((adapter for cls, adapter in _ADAPTERS.items() if isinstance(logger, cls)), Adapter)(logger)


def check(nodes: Mapping[str, Any]) -> None:
    """Check that each logger node of a config has a `_target_` whose package is installed.

    Args:
        nodes: logger nodes by name; None disables a logger.

    Raises:
        UserError: a node has no `_target_` or a package is missing; the message names the key.
    """
    for name, node in nodes.items():
        if node is None:
            continue
        if not isinstance(node, Mapping) or "_target_" not in node:
            raise UserError(f"logger.{name} is not a logger: it needs a _target_")
        if missing := missing_package(node["_target_"]):
            raise UserError(missing)


@contextmanager
def beginning(name: str) -> Iterator[None]:
    """Report a logger that cannot start, for example because a service does not respond, and continue without it.

    Raises:
        UserError: the logger does not accept the config's values.
    """
    try:
        yield
    except TypeError as error:
        raise UserError(f"{name}: {error}") from error
    except Exception as error:
        cause = error.__cause__ if isinstance(error, UserError) else error
        if cause is None or isinstance(cause, (TypeError, ValueError)):
            raise
        warn(f"{name} cannot start ({in_one_line(cause)}): training continues without its curves")


def missing_package(target: str) -> str | None:
    """Return an error message if the package that a factory of this module needs is not installed; otherwise None."""
    package = target.rpartition(".")[2]
    if target.startswith(f"{__name__}.") and package in ("wandb", "mlflow") and find_spec(package) is None:
        return (
            f"logger={package}: {package} is not installed: pip install 'diglot[{package}]', "
            f"or in a checkout .venv/bin/pip install -e '.[{package}]'"
        )
    return None
