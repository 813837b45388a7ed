"""Several processes that train one model: how they find each other, what only one of them does, and that they end
together."""

import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import lightning as L
import torch
from lightning.pytorch.plugins.environments import ClusterEnvironment, SLURMEnvironment, TorchElasticEnvironment

from diglot.errors import UserError
from diglot.system import interruption
from diglot.system.children import be_signalled_with_parent, how_it_ended
from diglot.system.interruption import ASKING, STARTED_BY
from diglot.system.quoting import TYPED
from diglot.training.lightning_seams import LaunchingStrategy, ScriptLauncher, set_num_threads_if_needed


def strategy(wanted: Any, world_size: int, timeout: float, command: Sequence[str] = ()) -> Any:
    """What Lightning is to spread a run by: DistributedDataParallel with a time limit of ours, or what was asked for.

    Args:
        wanted: a Lightning strategy by name.
        world_size: number of processes on all nodes.
        timeout: seconds after which a process that waits for another one gives up.
        command: line of the other processes, where this one starts them.
    """
    if wanted != "ddp" and not (wanted == "auto" and world_size > 1):
        return wanted
    return Distributed(command, timeout=timedelta(seconds=timeout))


def check_number(trainer: L.Trainer) -> None:
    """Make sure that torchrun or SLURM started as many processes as the config speaks of.

    Raises:
        UserError: naming both numbers.
    """
    environment = getattr(trainer.strategy, "cluster_environment", None)
    if environment is None and TorchElasticEnvironment.detect():
        environment = TorchElasticEnvironment()  # one process is to train alone, and several were started
    if environment is None and SLURMEnvironment.detect() and int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1) > 1:
        environment = SLURMEnvironment()  # likewise by srun; an allocation alone starts none
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


class Distributed(LaunchingStrategy):
    """DistributedDataParallel over processes of which none outlives the others, and which train one config.

    Args:
        command: line of those that this one starts.
        options: of DDPStrategy.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        super().__init__(**options)
        self.command = command

    def make_launcher(self) -> "Launcher":
        assert self.cluster_environment is not None
        return Launcher(self.cluster_environment, self.num_processes, self.num_nodes, self.command)


class Launcher(ScriptLauncher):
    """Starts the other processes of this machine as Lightning does, but where one of them fails, this one has the time
    to say what that means, and to keep what it has. Lightning would kill it within five seconds. What they run is
    `command`: Lightning would have them compose the config again, of files that may have changed."""

    def __init__(
        self, environment: ClusterEnvironment, num_processes: int, num_nodes: int, command: Sequence[str] = ()
    ) -> None:
        super().__init__(environment, num_processes, num_nodes)
        self.command = command

    def launch(self, function: Callable, *args: Any, trainer: L.Trainer | None = None, **kwargs: Any) -> Any:
        is_over = threading.Event()
        if not self.cluster_environment.creates_processes_externally:
            os.environ[STARTED_BY] = str(os.getpid())
            self.start_others()
            threading.Thread(target=_end_with_any, args=(self.procs, is_over), daemon=True).start()
        set_num_threads_if_needed(num_processes=self.num_processes)
        try:
            return function(*args, **kwargs)
        finally:
            is_over.set()  # whatever has ended it is told by this thread

    def start_others(self) -> None:
        self.check_can_start()
        environment = self.cluster_environment
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = environment.main_address, str(environment.main_port)
        os.environ["NODE_RANK"], os.environ["LOCAL_RANK"] = str(environment.node_rank()), str(environment.local_rank())
        os.environ["WORLD_SIZE"] = str(self.num_processes * self.num_nodes)
        for rank in range(1, self.num_processes):
            own = {**os.environ, "LOCAL_RANK": str(rank), TYPED: json.dumps(sys.argv[1:])}
            self.procs.append(subprocess.Popen(self.command, env=own))


def _end_with_any(others: Sequence[subprocess.Popen], is_over: threading.Event) -> None:
    """In a thread of the process that started others: end with the first of them that fails. Where this process waits
    for that one it learns of it by itself, and is gone before this ends it."""
    while not is_over.wait(_INTERVAL):
        failed = {rank: other.returncode for rank, other in enumerate(others, start=2) if other.poll()}
        if failed:
            break
    else:
        return
    if is_over.wait(_PATIENCE):
        return
    number, status = next(iter(failed.items()))
    # One that is asked to end before it has a handler for that is killed by the signal.
    asked = -status if status < 0 else status - 128
    if asked in ASKING:  # also this one was asked to end, and waits in compiled code
        code = interruption.tell("train", asked)
    else:
        code = 2
        which = f"process {number} of {len(others) + 1}"
        print(f"diglot-train: {which} {how_it_ended(status)}", file=sys.stderr, flush=True)
    for other in others:
        other.kill()
    os._exit(code)


def end_with_first() -> None:
    """In a process that another one of ours has started: not to outlive it."""
    first = os.environ.get(STARTED_BY)
    if first is None or "LOCAL_RANK" not in os.environ or os.getpid() == int(first):
        return
    be_signalled_with_parent(signal.SIGCONT)  # one that is stopped goes on when the first has died, to see that and end

    def watch() -> None:
        while os.getppid() == int(first):
            time.sleep(_INTERVAL)
        time.sleep(_PATIENCE)  # to say so itself
        print("diglot-train: the process that started this one has died", file=sys.stderr, flush=True)
        os._exit(2)

    threading.Thread(target=watch, daemon=True).start()


def end_others(trainer: L.Trainer) -> None:
    """End the processes that Lightning started for this one, where this one fails: they would wait for it for ever."""
    deadline = time.monotonic() + _PATIENCE
    for other in getattr(trainer.strategy.launcher, "procs", []):
        try:
            other.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            other.kill()


def end_lost(others: Iterable[int]) -> None:
    """End processes that do not answer, if they do not end by themselves."""
    # Longer than these may wait for this one, after which they say themselves why they end.
    deadline = time.monotonic() + 1.5 * _PATIENCE
    for other in others:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < deadline:
                os.kill(other, 0)
                time.sleep(_INTERVAL)
            os.kill(other, signal.SIGKILL)


_PATIENCE = 10.0  # seconds that a process has to end by itself
_INTERVAL = 0.2  # seconds between looks


class Processes:
    """The processes of a run, before its trainer exists.

    On one machine the first one starts the others when training begins. torchrun and SLURM start all at once: these
    meet here, so that one of them can make the run's folder for all.

    Args:
        trainer: a trainer with the run's options, which does nothing else.

    Attributes:
        starts_others: whether this one starts the others.
        neighbours: numbers of those on this machine that this one did not start itself, as far as they are known.
    """

    def __init__(self, trainer: L.Trainer) -> None:
        self.strategy, self.world_size, self.rank = trainer.strategy, trainer.world_size, trainer.global_rank
        self.local_rank = trainer.local_rank
        environment = getattr(trainer.strategy, "cluster_environment", None)
        from_outside = environment is not None and environment.creates_processes_externally
        self.are_met = self.world_size > 1 and from_outside and "DIGLOT_RUN_FOLDER" not in os.environ
        self.starts_others = self.world_size > 1 and not from_outside and self.rank == 0
        first = int(os.environ.get(STARTED_BY, 0))
        self.neighbours = [first] if first and first == os.getppid() else []

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def rendezvous(self) -> None:
        """Wait for all processes that were started from outside.

        Raises:
            UserError: if they do not come.
        """
        if self.are_met:
            with self._waiting("the processes do not find each other"):
                self.strategy.setup_environment()
                known: list[Any] = [None] * self.world_size
                torch.distributed.all_gather_object(known, (platform.node(), os.getpid()))
            self.neighbours = [pid for node, pid in known if node == platform.node() and pid != os.getpid()]

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """The block is run by the first process of each node, then by the others, which find what it made."""
        if self.are_met and self.local_rank:
            self._wait_for_all()
        yield
        if self.are_met and not self.local_rank:
            self._wait_for_all()

    def shared(self, value: Any) -> Any:
        """The first process's value, on all that have met."""
        if not self.are_met:
            return value
        with self._waiting(f"process {self.rank + 1} of {self.world_size} waits in vain for another one"):
            return self.strategy.broadcast(value)

    def _wait_for_all(self) -> None:
        with self._waiting(f"process {self.rank + 1} of {self.world_size} waits in vain for another one"):
            self.strategy.barrier()

    @contextmanager
    def _waiting(self, told: str) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError, torch.distributed.DistError) as error:
            end_lost(self.neighbours)
            raise UserError(f"{told}: {str(error).splitlines()[0]}") from None
