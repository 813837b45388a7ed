"""Processes that train one model: how they find each other, what only one of them does, and how they end together."""

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
from diglot.system.interruption import STARTED_BY, STOP_SIGNALS
from diglot.system.quoting import TYPED
from diglot.training.lightning_seams import LaunchingStrategy, ScriptLauncher, set_num_threads_if_needed


def strategy(requested: Any, world_size: int, timeout: float, command: Sequence[str] = ()) -> Any:
    """Return the strategy that distributes a run: `Distributed` in place of Lightning's ddp, else the requested one.

    Args:
        requested: a Lightning strategy by name.
        world_size: number of processes on all nodes.
        timeout: seconds after which a process that waits for another one gives up.
        command: command line of the other processes, if this one starts them.
    """
    if requested != "ddp" and not (requested == "auto" and world_size > 1):
        return requested
    return Distributed(command, timeout=timedelta(seconds=timeout))


def check_number(trainer: L.Trainer) -> None:
    """Check that torchrun or SLURM started as many processes as the config requests.

    Raises:
        UserError: the numbers differ, or several nodes are requested and neither torchrun nor srun is used.
    """
    environment = getattr(trainer.strategy, "cluster_environment", None)
    if environment is None and TorchElasticEnvironment.detect():
        environment = TorchElasticEnvironment()  # the config requests one process, but torchrun was used
    if environment is None and SLURMEnvironment.detect() and int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1) > 1:
        environment = SLURMEnvironment()  # the same for srun; an allocation alone starts no processes
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


def is_peer_failure(error: BaseException, world_size: int) -> bool:
    """Return whether an error came from waiting for a process that has died or does not respond."""
    of_torch = isinstance(error, torch.distributed.DistError) or (
        isinstance(error, RuntimeError) and re.search(r"gloo|NCCL|ProcessGroup|[Tt]imed out|closed by peer", str(error))
    )
    return world_size > 1 and bool(of_torch)


class Distributed(LaunchingStrategy):
    """DistributedDataParallel over processes that end together and train one config.

    Args:
        command: command line of the processes that this one starts.
        options: options of DDPStrategy.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        super().__init__(**options)
        self.command = command

    def make_launcher(self) -> "Launcher":
        assert self.cluster_environment is not None
        return Launcher(self.cluster_environment, self.num_processes, self.num_nodes, self.command)


class Launcher(ScriptLauncher):
    """Launcher of the other processes on this machine, which lets this process end cleanly if another one fails.

    This process then has time to report the failure and to save its state, whereas Lightning would kill it within five
    seconds. The other processes run `command`. Lightning would make them compose the config again, from files that may
    have changed.
    """

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
            is_over.set()  # this thread reports errors itself

    def start_others(self) -> None:
        """Start the other processes of this machine with the environment variables that torch.distributed reads."""
        self.check_can_start()
        environment = self.cluster_environment
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = environment.main_address, str(environment.main_port)
        os.environ["NODE_RANK"], os.environ["LOCAL_RANK"] = str(environment.node_rank()), str(environment.local_rank())
        os.environ["WORLD_SIZE"] = str(self.num_processes * self.num_nodes)
        for rank in range(1, self.num_processes):
            process_environment = {**os.environ, "LOCAL_RANK": str(rank), TYPED: json.dumps(sys.argv[1:])}
            self.procs.append(subprocess.Popen(self.command, env=process_environment))


def _end_with_any(processes: Sequence[subprocess.Popen], is_over: threading.Event) -> None:
    """End this process when one of the processes that it started fails; runs in a thread.

    If the main thread is waiting for the failed process, it notices the failure itself. It then has `_GRACE_SECONDS`
    seconds to end this process before this function does.
    """
    while not is_over.wait(_INTERVAL):
        failed = {rank: process.returncode for rank, process in enumerate(processes, start=2) if process.poll()}
        if failed:
            break
    else:
        return
    if is_over.wait(_GRACE_SECONDS):
        return
    process_number, status = next(iter(failed.items()))
    # A process that is asked to end before it has installed its handler is killed by the signal.
    signum = -status if status < 0 else status - 128
    if signum in STOP_SIGNALS:  # this process was also asked to end, but waits in compiled code
        code = interruption.tell("train", signum)
    else:
        code = 2
        label = f"process {process_number} of {len(processes) + 1}"
        print(f"diglot-train: {label} {how_it_ended(status)}", file=sys.stderr, flush=True)
    for process in processes:
        process.kill()
    os._exit(code)


def end_with_first() -> None:
    """End this process when the process that started it for a run ends; do nothing in a process that a user started."""
    first_pid = os.environ.get(STARTED_BY)
    if first_pid is None or "LOCAL_RANK" not in os.environ or os.getpid() == int(first_pid):
        return
    be_signalled_with_parent(signal.SIGCONT)  # continues a stopped process, so that it can end

    def watch() -> None:
        while os.getppid() == int(first_pid):
            time.sleep(_INTERVAL)
        time.sleep(_GRACE_SECONDS)  # the main thread may report it first
        print("diglot-train: the process that started this one has died", file=sys.stderr, flush=True)
        os._exit(2)

    threading.Thread(target=watch, daemon=True).start()


def end_others(trainer: L.Trainer) -> None:
    """End the processes that this failed process has started, because they would wait for it forever."""
    deadline = time.monotonic() + _GRACE_SECONDS
    for process in getattr(trainer.strategy.launcher, "procs", []):
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def kill_unresponsive(pids: Iterable[int]) -> None:
    """Kill processes that do not end by themselves."""
    # Wait longer than these processes wait for this one, so that they can report why they end.
    deadline = time.monotonic() + 1.5 * _GRACE_SECONDS
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < deadline:
                os.kill(pid, 0)
                time.sleep(_INTERVAL)
            os.kill(pid, signal.SIGKILL)


_GRACE_SECONDS = 10.0  # seconds for a process to end by itself
_INTERVAL = 0.2  # seconds between checks


class Processes:
    """The processes of a run, before its trainer exists.

    On one machine, the first process starts the others when training begins. torchrun and SLURM start all of them at
    once. In that case they form a process group here, so that one of them can create the run's folder for all.

    Args:
        trainer: a trainer with the run's options, used only to read the strategy and ranks.

    Attributes:
        has_group: whether the processes form a process group before training.
        starts_others: whether this process starts the others.
        neighbours: IDs of the known processes on this machine that this one did not start.
    """

    def __init__(self, trainer: L.Trainer) -> None:
        self.strategy, self.world_size, self.rank = trainer.strategy, trainer.world_size, trainer.global_rank
        self.local_rank = trainer.local_rank
        environment = getattr(trainer.strategy, "cluster_environment", None)
        started_externally = environment is not None and environment.creates_processes_externally
        self.has_group = self.world_size > 1 and started_externally and "DIGLOT_RUN_FOLDER" not in os.environ
        self.starts_others = self.world_size > 1 and not started_externally and self.rank == 0
        first_pid = int(os.environ.get(STARTED_BY, 0))
        self.neighbours = [first_pid] if first_pid and first_pid == os.getppid() else []

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def rendezvous(self) -> None:
        """Wait for all processes that torchrun or SLURM started.

        Raises:
            UserError: they do not all arrive.
        """
        if self.has_group:
            with self._waiting("the processes cannot find each other"):
                self.strategy.setup_environment()
                peers: list[Any] = [None] * self.world_size
                torch.distributed.all_gather_object(peers, (platform.node(), os.getpid()))
            self.neighbours = [pid for node, pid in peers if node == platform.node() and pid != os.getpid()]

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Run the block in the first process of each node, then in the others, which find its results."""
        if self.has_group and self.local_rank:
            self._wait_for_all()
        yield
        if self.has_group and not self.local_rank:
            self._wait_for_all()

    def shared(self, value: Any) -> Any:
        """Return the first process's value on all processes of the group."""
        if not self.has_group:
            return value
        with self._waiting(f"process {self.rank + 1} of {self.world_size} got no answer from another one"):
            return self.strategy.broadcast(value)

    def _wait_for_all(self) -> None:
        with self._waiting(f"process {self.rank + 1} of {self.world_size} got no answer from another one"):
            self.strategy.barrier()

    @contextmanager
    def _waiting(self, message: str) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError, torch.distributed.DistError) as error:
            kill_unresponsive(self.neighbours)
            raise UserError(f"{message}: {str(error).splitlines()[0]}") from None
