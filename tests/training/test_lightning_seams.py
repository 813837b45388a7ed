"""What diglot uses of Lightning beyond its public interface exists.

Its behaviour is tested where it is used.
"""

import inspect
from pathlib import Path
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins.environments import LightningEnvironment

from diglot.training import lightning_seams as seams


def test_a_trainer_knows_where_its_loops_stand() -> None:
    trainer = L.Trainer(accelerator="cpu", barebones=True)
    assert seams.loops_state(trainer).keys() >= {"fit_loop", "validate_loop"}, "Lightning changed the state of loops"


def test_a_trainer_has_what_a_validation_in_between_needs() -> None:
    trainer = L.Trainer(accelerator="cpu", barebones=True)
    assert trainer._logger_connector._first_loop_iter is None, "Lightning changed _first_loop_iter"
    assert callable(trainer.fit_loop.epoch_loop.val_loop.run), "Lightning changed the validation loop"


def test_a_bar_begins_with_a_description_of_ours() -> None:
    class Mine(seams.DescribedBar):
        first_description = "mine"
        train_description: Any = None

        def _add_task(self, total_batches: Any, description: str, visible: bool = True) -> Any:
            self.train_description = description

    bar = Mine()
    bar.setup(L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False), L.LightningModule(), "fit")
    bar._initialize_train_progress_bar_id()
    assert bar.train_description == "mine", "Lightning changed RichProgressBar"


def test_a_launcher_of_scripts_can_be_one_of_ours() -> None:
    names = inspect.signature(seams.ScriptLauncher.__init__).parameters.keys()
    assert names >= {"cluster_environment", "num_processes", "num_nodes"}, "Lightning changed _SubprocessScriptLauncher"
    launcher = seams.ScriptLauncher(LightningEnvironment(), num_processes=2, num_nodes=1)
    launcher.check_can_start()
    launcher.procs.append(None)
    with pytest.raises(RuntimeError, match="once"):
        launcher.check_can_start()
    names = inspect.signature(seams.set_num_threads_if_needed).parameters.keys()
    assert "num_processes" in names, "Lightning changed _set_num_threads_if_needed"


def test_a_strategy_takes_a_launcher_of_ours() -> None:
    class Mine(seams.LaunchingStrategy):
        def make_launcher(self) -> Any:
            return mine

    mine = object()
    strategy = L.Trainer(accelerator="cpu", devices=2, strategy=Mine(), barebones=True).strategy
    assert strategy.launcher is mine, "Lightning changed how a strategy gets its launcher"


def test_a_logger_takes_an_experiment_of_ours(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="", version="")
    seams.set_experiment(logger, mine := object())
    assert logger.experiment is mine, "Lightning changed TensorBoardLogger"


def test_the_options_of_a_logger_are_its_writer_s(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="", version="", default_hp_metric=False, purge_step=7)
    assert seams.writer_options(logger) == {"purge_step": 7}, "Lightning changed TensorBoardLogger"
