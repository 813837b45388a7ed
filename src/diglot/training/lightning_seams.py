"""The private parts of Lightning that diglot uses.

Each use has a test that fails if Lightning changes it.
"""

from typing import Any

import lightning as L
from lightning.fabric.utilities.distributed import _set_num_threads_if_needed as set_num_threads_if_needed
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

__all__ = [
    "DescribedBar",
    "LaunchingStrategy",
    "ScriptLauncher",
    "loops_state",
    "set_experiment",
    "set_num_threads_if_needed",
    "validate_now",
    "writer_options",
]


class DescribedBar(RichProgressBar):
    """Lightning's progress bar with another initial description."""

    first_description = ""

    def _get_train_description(self, current_epoch: int) -> str:
        return self.first_description


class ScriptLauncher(_SubprocessScriptLauncher):
    """Lightning's launcher, which starts the other processes on this machine."""

    def check_can_start(self) -> None:
        """Raise an error if this process has started others before, or was itself started by another one."""
        self._check_can_spawn_children()


class LaunchingStrategy(DDPStrategy):
    """Lightning's DDPStrategy with a custom launcher."""

    def make_launcher(self) -> ScriptLauncher:
        """Return the launcher that starts the other processes."""
        raise NotImplementedError

    def _configure_launcher(self) -> None:
        self._launcher = self.make_launcher()


def loops_state(trainer: L.Trainer) -> dict[str, Any]:
    """Return the state of the trainer's loops, as a checkpoint holds it."""
    return trainer._checkpoint_connector._get_loops_state_dict()


def validate_now(trainer: L.Trainer) -> None:
    """Run a validation, as Lightning does in the middle of training."""
    is_first_iter = trainer._logger_connector._first_loop_iter
    trainer.validating = True
    loop = trainer.fit_loop.epoch_loop.val_loop
    loop.restarting = False
    loop.run()
    trainer.training = True
    trainer._logger_connector._first_loop_iter = is_first_iter


def set_experiment(logger: Logger, experiment: Any) -> None:
    """Make a logger write to `experiment` instead of creating its own on first use."""
    logger._experiment = experiment  # type: ignore[attr-defined]


def writer_options(logger: TensorBoardLogger) -> dict[str, Any]:
    """Return the options that a TensorBoard logger passes to its SummaryWriter."""
    return logger._kwargs
