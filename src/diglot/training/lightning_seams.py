"""What diglot uses of Lightning beside its public interface. A test of each fails where Lightning has changed it."""

from typing import Any

import lightning as L
from lightning.fabric.utilities.distributed import _set_num_threads_if_needed as set_num_threads_if_needed
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher as ScriptLauncher

__all__ = [
    "ScriptLauncher",
    "loops_state",
    "set_experiment",
    "set_num_threads_if_needed",
    "validate_now",
    "writer_options",
]


def loops_state(trainer: L.Trainer) -> dict[str, Any]:
    """Return where the trainer's loops stand, as a checkpoint holds it."""
    return trainer._checkpoint_connector._get_loops_state_dict()


def validate_now(trainer: L.Trainer) -> None:
    """Run a validation, as Lightning does in the middle of training."""
    first = trainer._logger_connector._first_loop_iter
    trainer.validating = True
    loop = trainer.fit_loop.epoch_loop.val_loop
    loop.restarting = False
    loop.run()
    trainer.training = True
    trainer._logger_connector._first_loop_iter = first


def set_experiment(logger: Logger, experiment: Any) -> None:
    """Let a logger write by means of ours instead of what it would make when it is first used."""
    logger._experiment = experiment  # type: ignore[attr-defined]


def writer_options(logger: TensorBoardLogger) -> dict[str, Any]:
    """Return the options that a logger of TensorBoard gives its SummaryWriter."""
    return logger._kwargs
