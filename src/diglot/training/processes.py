"""Several processes that train one model: how they find each other, and what only one of them does."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import lightning as L
import torch
from lightning.pytorch.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy

from diglot.errors import UserError


def strategy(wanted: Any, world_size: int, timeout: float) -> Any:
    """What Lightning is to spread a run by: DistributedDataParallel with a time limit of ours, or what was asked for.

    Args:
        wanted: a Lightning strategy by name.
        world_size: number of processes on all nodes.
        timeout: seconds after which a process that waits for another one gives up.
    """
    if wanted != "ddp" and not (wanted == "auto" and world_size > 1):
        return wanted
    return DDPStrategy(timeout=timedelta(seconds=timeout))


def check_number(trainer: L.Trainer) -> None:
    """Make sure that torchrun or SLURM started as many processes as the config speaks of.

    Raises:
        UserError: naming both numbers.
    """
    environment = getattr(trainer.strategy, "cluster_environment", None)
    if environment is None and TorchElasticEnvironment.detect():
        environment = TorchElasticEnvironment()  # one process is to train alone, and several were started
    if trainer.num_nodes > 1 and not isinstance(environment, (TorchElasticEnvironment, SLURMEnvironment)):
        raise UserError(
            f"trainer.num_nodes={trainer.num_nodes}: start one command on each machine with torchrun, or all with srun"
        )
    if isinstance(environment, (TorchElasticEnvironment, SLURMEnvironment)):
        started, expected = environment.world_size(), trainer.num_devices * trainer.num_nodes
        if started != expected:
            raise UserError(
                f"{started} processes were started, but trainer.devices x trainer.num_nodes is "
                f"{trainer.num_devices} x {trainer.num_nodes}"
            )


def lost_another(error: BaseException, world_size: int) -> bool:
    """Whether an error came from waiting for a process that has died or does not answer."""
    of_torch = isinstance(error, torch.distributed.DistError) or (
        isinstance(error, RuntimeError) and re.search(r"gloo|NCCL|ProcessGroup|[Tt]imed out|closed by peer", str(error))
    )
    return world_size > 1 and bool(of_torch)


def end_others(trainer: L.Trainer, patience: float = 10.0) -> None:
    """End the processes that Lightning started for this one, where this one fails: they would wait for it for ever.

    Args:
        trainer: this process's.
        patience: seconds that they have to end by themselves.
    """
    others = getattr(trainer.strategy.launcher, "procs", [])
    deadline = time.monotonic() + patience
    for other in others:
        try:
            other.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            other.kill()


class Processes:
    """The processes of a run, before its trainer exists.

    On one machine Lightning starts the others when training begins, as runs of the same command. torchrun and SLURM
    start all at once: these meet here, so that one of them can make the run's folder for all.

    Args:
        trainer: a trainer with the run's options, which does nothing else.
    """

    def __init__(self, trainer: L.Trainer) -> None:
        self.strategy, self.world_size, self.rank = trainer.strategy, trainer.world_size, trainer.global_rank
        self.local_rank = trainer.local_rank
        environment = getattr(trainer.strategy, "cluster_environment", None)
        from_outside = environment is not None and environment.creates_processes_externally
        self.are_met = self.world_size > 1 and from_outside and "DIGLOT_RUN_FOLDER" not in os.environ

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def meet(self) -> None:
        """Wait for all processes that were started from outside.

        Raises:
            UserError: if they do not come.
        """
        if not self.are_met:
            return
        try:
            self.strategy.setup_environment()
        except (RuntimeError, ValueError, torch.distributed.DistError) as error:
            raise UserError(f"the processes do not find each other: {str(error).splitlines()[0]}") from None

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """The block is run by the first process of each node, then by the others, which find what it made."""
        if self.are_met and self.local_rank:
            self.strategy.barrier()
        yield
        if self.are_met and not self.local_rank:
            self.strategy.barrier()

    def shared(self, value: Any) -> Any:
        """The first process's value, on all that have met."""
        return self.strategy.broadcast(value) if self.are_met else value
