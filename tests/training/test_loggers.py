"""A resumed run continues its curves."""

import copy
import csv
import inspect
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.fabric.loggers import Logger as FabricLogger
from lightning.pytorch.loggers import CSVLogger as LightningCSVLogger
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from omegaconf import DictConfig
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as PluginEventAccumulator
from torch.utils.tensorboard import SummaryWriter

from diglot.commands.schema import TrainKeys
from diglot.config import check as check_config
from diglot.errors import UserError
from diglot.runs.session import make_loggers
from diglot.training import csv_logger, event_file, loggers
from diglot.training.csv_logger import CSVLogger


def test_a_table_keeps_the_rows_up_to_the_update_at_which_a_run_resumes(tmp_path: Path) -> None:
    first = loggers.csv(tmp_path)
    for step in (1, 2, 3, 4):
        first.log_metrics({"loss": step / 10}, step)
    first.save()
    second = loggers.csv(tmp_path, loggers.Resumed(2))
    for step in (3, 4, 5):
        second.log_metrics({"loss": step / 10, "new": 1.0}, step)
    second.save()
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["loss"]) for row in rows] == [(str(n), str(n / 10)) for n in (1, 2, 3, 4, 5)]
    assert [row["new"] for row in rows] == ["", "", "1.0", "1.0", "1.0"]


def test_a_table_whose_columns_change_is_never_without_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail in the middle of any write, also of the first one after resuming, as if killed or on a full disk."""
    file = tmp_path / "metrics.csv"
    logger = loggers.csv(tmp_path)
    logger.log_metrics({"loss": 0.5}, 1)
    logger.save()
    before = file.read_bytes()

    def fail(*_: Any) -> None:
        assert file.read_bytes() == before
        raise UserError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(csv_logger, "write_bytes", fail)
        logger.log_metrics({"loss": 0.25, "new": 1.0}, 2)
        for _ in range(2):
            with pytest.raises(UserError):
                logger.save()
            assert file.read_bytes() == before
        with pytest.raises(UserError):
            loggers.csv(tmp_path, loggers.Resumed(1))
        assert file.read_bytes() == before
    logger.save()
    with file.open(newline="") as lines:
        assert [dict(row) for row in csv.DictReader(lines)] == [
            {"loss": "0.5", "new": "", "step": "1"},
            {"loss": "0.25", "new": "1.0", "step": "2"},
        ]


def test_events_after_the_update_at_which_a_run_resumes_are_dropped(tmp_path: Path) -> None:
    for resumed, steps in ((None, (1, 2, 3, 4)), (loggers.Resumed(2), (3, 4, 5))):
        logger = loggers.tensorboard(tmp_path, resumed)
        for step in steps:
            logger.log_metrics({"loss": float(step)}, step)
        loggers.Loggers([logger]).flush()
        logger.finalize("success")
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4, 5]


READERS = [EventAccumulator, PluginEventAccumulator]  # the default reader, and that of --load_fast=false


def steps_of(folder: Path, reader: Any) -> list[int]:
    """Return the steps of the curve `loss`, as TensorBoard reads them."""
    events = reader(str(folder))
    events.Reload()
    values = events.Scalars("loss") if reader is EventAccumulator else events.Tensors("loss")
    return [event.step for event in values]


def write_lives(folder: Path, monkeypatch: pytest.MonkeyPatch, *shifts: float) -> None:
    """Write several lives of a run, each with another clock.

    Each life resumes at the second last step of the life before.
    """
    real = time.time
    for life, shift in enumerate(shifts):
        with monkeypatch.context() as patch:
            patch.setattr(event_file, "now", event_file.Clock())  # each process has its own clock
            patch.setattr(time, "time", lambda shift=shift: real() + shift)
            logger = loggers.tensorboard(folder, loggers.Resumed(2 * life) if life else None)
            for step in range(2 * life + 1, 2 * life + 4):
                logger.log_metrics({"loss": float(step)}, step)
            loggers.Loggers([logger]).flush()
            logger.finalize("success")
            logger.log_hyperparams({"seed": 1}, {"best/bleu": 1.0})  # after training, in a separate file
            logger.finalize("success")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("shifts", [(0, 0, 0), (0, -3600, -86400), (0, 86400, -86400), (0, -86400, 3600)])
def test_each_step_occurs_once_whatever_the_clock_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Any, shifts: tuple[int, ...]
) -> None:
    write_lives(tmp_path, monkeypatch, *shifts)
    assert steps_of(tmp_path, reader) == [1, 2, 3, 4, 5, 6, 7]
    files = sorted(tmp_path.glob("events.out.tfevents.*"))
    assert files == sorted(files, key=lambda file: file.stat().st_mtime_ns)
    times = [event.wall_time for file in files for event in LegacyEventFileLoader(str(file)).Load()]
    assert times == sorted(times)


@pytest.mark.parametrize("reader", READERS)
def test_each_step_occurs_once_if_an_earlier_version_began_the_run(tmp_path: Path, reader: Any) -> None:
    first = SummaryWriter(str(tmp_path))
    for step in (1, 2, 3, 4):
        first.add_scalar("loss", float(step), step)
    first.close()
    second = loggers.tensorboard(tmp_path, loggers.Resumed(2))
    for step in (3, 4, 5):
        second.log_metrics({"loss": float(step)}, step)
    second.finalize("success")
    assert steps_of(tmp_path, reader) == [1, 2, 3, 4, 5]


def test_values_logged_before_a_validation_are_kept_if_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, due_since = time.time, 0.0
    for life, shift in enumerate((0, -3600)):  # each life is killed in the validation after its two updates
        monkeypatch.setattr(event_file, "now", event_file.Clock())
        monkeypatch.setattr(time, "time", lambda shift=shift: real() + shift)
        logger = loggers.tensorboard(tmp_path, loggers.Resumed(2 * life) if life else None)
        for step in (2 * life + 1, 2 * life + 2):
            logger.log_metrics({"loss": 0.5}, step)
        due_since = event_file.now()
        logger.log_metrics({"dev/bleu": 0.5}, 2 * life + 2)
        logger.finalize("success")
    loggers.tensorboard(tmp_path, loggers.Resumed(4, due_since)).finalize("success")
    assert steps_of(tmp_path, EventAccumulator) == [1, 2, 3, 4]
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.step for event in events.Scalars("1_dev/bleu")] == [2]


@pytest.mark.parametrize("make", [loggers.csv, loggers.tensorboard])
def test_a_validation_that_is_made_up_for_is_logged_once(tmp_path: Path, make: Callable[..., Any]) -> None:
    due_since = 0.0
    for life in range(3):  # each life is killed after the validation was logged and before its checkpoint
        logger = make(tmp_path, loggers.Resumed(2, due_since) if life else None)
        if life == 0:
            for step in (1, 2):
                logger.log_metrics({"train/loss": step / 8}, step)
            due_since = event_file.now()
        logger.log_metrics({"dev/bleu": 0.5}, 2)
        if life == 2:
            logger.log_metrics({"train/loss": 3 / 8}, 3)
        loggers.Loggers([logger]).flush()
        logger.finalize("success")
    if make is loggers.csv:
        with (tmp_path / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        found = {tag: [(int(r["step"]), float(r[tag])) for r in rows if r[tag]] for tag in ("train/loss", "dev/bleu")}
    else:
        events = EventAccumulator(str(tmp_path))
        events.Reload()
        tags = {"train/loss": "2_train/loss", "dev/bleu": "1_dev/bleu"}
        found = {name: [(e.step, e.value) for e in events.Scalars(tag)] for name, tag in tags.items()}
    assert found == {"train/loss": [(1, 1 / 8), (2, 2 / 8), (3, 3 / 8)], "dev/bleu": [(2, 0.5)]}


def curves(folder: Path) -> dict[str, list[int]]:
    """Return the steps of one curve, as each of two loggers has it."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [int(row["step"]) for row in csv.DictReader(file) if row["loss"]]
    events = EventAccumulator(str(folder))
    events.Reload()
    return {"csv": rows, "tensorboard": [event.step for event in events.Scalars("loss")]}


def test_several_named_loggers_write_and_resume_side_by_side(
    tmp_path: Path, compose_train: Callable[..., DictConfig]
) -> None:
    nodes = compose_train("logger=[csv,tensorboard]").logger
    for resumed, steps in ((None, (1, 2, 3, 4)), (loggers.Resumed(2), (3, 4, 5))):
        made = make_loggers(nodes, tmp_path, resumed)
        for step in steps:
            for logger in made:
                logger.log_metrics({"loss": float(step)}, step)
        loggers.Loggers(made).flush()
    assert curves(tmp_path) == {"csv": [1, 2, 3, 4, 5], "tensorboard": [1, 2, 3, 4, 5]}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], ["tensorboard"]),
        (["logger=none"], []),
        (["logger=[]"], []),
        (["logger=[csv,tensorboard]", "~logger.csv"], ["tensorboard"]),
        (["logger=[tensorboard,csv]", "logger.tensorboard=null", "+logger.csv.flush_logs_every_n_steps=3"], ["csv"]),
        (["logger=[wandb,csv]", "logger.wandb.project=mine"], ["wandb", "csv"]),
    ],
)
def test_a_command_line_names_any_number_of_loggers(
    compose_train: Callable[..., DictConfig], words: list[str], names: list[str]
) -> None:
    config = compose_train(*words)
    check_config(config, TrainKeys)
    assert [name for name, node in config.logger.items() if node is not None] == names


def unreachable(folder: Path, resumed: Any) -> Logger:
    raise ConnectionError("no answer\nfrom the server")


def test_a_logger_that_cannot_start_stops_neither_training_nor_the_others(
    tmp_path: Path, compose_train: Callable[..., DictConfig], caplog: pytest.LogCaptureFixture
) -> None:
    nodes = copy.deepcopy(compose_train("logger=[csv,wandb]").logger)
    nodes.wandb = {"_target_": f"{__name__}.unreachable", "_partial_": True}
    (made,) = make_loggers(nodes, tmp_path, None)
    assert isinstance(made, CSVLogger)
    assert [record.getMessage() for record in caplog.records] == [
        "logger.wandb cannot start (no answer from the server): training continues without its curves"
    ]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_logger_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(loggers, "find_spec", lambda package: None)
    said = loggers.missing_package(f"diglot.training.loggers.{name}")
    assert said is not None
    assert f"pip install 'diglot[{name}]'" in said
    assert loggers.missing_package("diglot.training.loggers.csv") is None


class Broken(CSVLogger):
    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        raise OSError(28, "No space left on device")

    def save(self) -> None:
        raise ConnectionError("no answer")


def test_a_logger_that_fails_is_reported_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = loggers.forgiving(Broken(tmp_path))
    for step in range(3):
        logger.log_metrics({"x": 1.0}, step)
        logger.save()
    (line,) = [record.getMessage() for record in caplog.records if "fails" in record.getMessage()]
    assert line == "Broken fails ([Errno 28] No space left on device): training continues without its curves"


def test_a_writer_that_fails_stops_nothing_either(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = loggers.forgiving(loggers.tensorboard(tmp_path))
    logger.log_metrics({"x": 1.0}, 1)
    assert isinstance(logger, TensorBoardLogger)
    logger.experiment.file_writer.failure = OSError(28, "No space left on device")
    logger.log_metrics({"x": 2.0}, 2)
    logger.experiment.add_text("t", "text", 2)
    logger.experiment.flush()
    assert len([record for record in caplog.records if "fails" in record.getMessage()]) == 1


def test_a_logger_whose_errors_are_suppressed_keeps_its_type(tmp_path: Path) -> None:
    for logger in (LightningCSVLogger(tmp_path), loggers.csv(tmp_path), loggers.tensorboard(tmp_path)):
        kind, experiment = type(logger), logger.experiment
        made = loggers.forgiving(logger)
        assert made is logger
        assert isinstance(made, kind)
        assert type(made).__name__ == kind.__name__
        assert logger.experiment is experiment


def test_the_list_of_logger_methods_that_lightning_calls_is_complete() -> None:
    called = {
        name
        for kind in (Logger, FabricLogger)
        for name, value in vars(kind).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    assert called == set(loggers.CALLED_BY_LIGHTNING)


def test_values_that_one_logger_fails_to_write_reach_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/figures").touch()  # a file, not a folder
    made = [CSVLogger(tmp_path / "broken"), CSVLogger(tmp_path / "whole")]
    logged = loggers.Loggers(made)
    for step in (1, 2):
        logged.text("a", "text", step)
        logged.scalars({"x": 1.0}, step)
    logged.flush()
    assert len([record for record in caplog.records if "CSVLogger fails" in record.getMessage()]) == 1
    assert sorted(file.name for file in (tmp_path / "whole/figures/a").iterdir()) == ["1.md", "2.md"]
    assert (tmp_path / "broken/metrics.csv").read_bytes() == (tmp_path / "whole/metrics.csv").read_bytes()


def test_tensorboard_s_threads_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", said.append)
    loggers._silence_writer_threads.__wrapped__()
    of_tensorboard = type("Writer", (), {"__module__": "tensorboard.summary.writer"})()
    threading.excepthook(SimpleNamespace(thread=of_tensorboard))  # type: ignore[arg-type]
    assert said == []
    other: Any = SimpleNamespace(thread=threading.current_thread())
    threading.excepthook(other)
    assert said == [other]
