"""Callbacks that break a run from inside; put this folder on PYTHONPATH, and name a class on the command line."""

import json
import os
import resource
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning as L
import torch

from diglot.checkpoint import container
from diglot.data.batch import Pairs
from diglot.data.module import TranslationData
from diglot.training import loggers


def break_down(kind: str) -> None:
    """Make this process fail in the given way."""
    match kind:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang":
            time.sleep(3600)
        case "raise":
            raise ZeroDivisionError("injected")
        case "exit":
            raise SystemExit(0)
        case "status":
            os._exit(3)
        case "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class Fault(L.Callback):
    """Callback that breaks one process, as set by the environment variable FAULT=KIND:RANK:WHERE.

    WHERE is begin (before anything is done), prepare, a number of updates, or validation. The fault happens only once
    per folder; the file `broken` marks that it has happened.
    """

    def __init__(self) -> None:
        self.kind, self.rank, self.where = os.environ.get("FAULT", "none:0:never").split(":")
        if self.where == "prepare":
            prepare = TranslationData.prepare_data

            def broken(data: TranslationData) -> None:
                self.at("prepare")
                prepare(data)

            TranslationData.prepare_data = broken  # type: ignore[method-assign]
        self.at("begin")

    def at(self, where: str) -> None:
        rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))
        if where == self.where and rank == self.rank and not Path("broken").exists():
            Path("broken").write_text(str(time.monotonic()))
            break_down(self.kind)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, index: int) -> None:
        with Path(f"updates.{trainer.global_rank}").open("a") as file:
            file.write(json.dumps([trainer.global_step + 1, batch.pairs.tolist(), bool(batch.tgt_mask.any())]) + "\n")

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.at(str(trainer.global_step))

    def on_validation_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.at("validation")


class Removal(L.Callback):
    """Callback that moves the run's folder away after 30 updates."""

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == 30:
            Path("run").rename("gone")


class RemovalInSave(L.Callback):
    """Callback that moves the run's folder away while the second checkpoint is being written."""

    def __init__(self) -> None:
        write, n_saves = container.write, 0

        def moved(*arguments: Any, **options: Any) -> None:
            nonlocal n_saves
            n_saves += 1
            if n_saves == 2:
                Path("run").rename("gone")
            write(*arguments, **options)

        container.write = moved


class Edit(L.Callback):
    """Callback that replaces OLD by NEW in the file EDIT, as soon as the first process has read its config."""

    def __init__(self) -> None:
        file = Path(os.environ["EDIT"])
        file.write_text(file.read_text().replace(os.environ["OLD"], os.environ["NEW"]))


class Weights(L.Callback):
    """Callback that saves the weights of each process at the end."""

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        torch.save(pl_module.state_dict(), f"weights.{trainer.global_rank}")


class Elsewhere(L.Callback):
    """Callback that makes the logger write into the folder ELSEWHERE."""

    def __init__(self) -> None:
        for name in ("tensorboard", "csv"):
            make = getattr(loggers, name)
            setattr(loggers, name, lambda folder, *more, make=make, **rest: make(Path(os.environ["ELSEWHERE"]), *more))


class FillAtEnd(L.Callback):
    """Callback that fills the file system of the folder FILL at the end of training."""

    def on_fit_end(self, *_: Any) -> None:
        folder = Path(os.environ["FILL"])
        if folder.exists():
            (folder / "filling").write_bytes(b"x" * shutil.disk_usage(folder).free)


class Worker(L.Callback):
    """Callback that breaks the loader worker collating the batch at position UPDATE (FAULT=KIND:UPDATE).

    The fault happens only once per folder.
    """

    def __init__(self) -> None:
        self.kind, self.update = os.environ.get("FAULT", "none:0").split(":")

    def on_fit_start(self, *_: Any) -> None:
        collate = Pairs.__getitem__

        def broken(pairs: Pairs, micro_batch: Any) -> Any:
            if torch.utils.data.get_worker_info() is not None:
                Path(f"worker.{os.getpid()}").touch()
                if micro_batch.position == int(self.update) and not Path("broken").exists():
                    Path("broken").write_text(str(time.monotonic()))
                    break_down(self.kind)
            return collate(pairs, micro_batch)

        Pairs.__getitem__ = broken  # type: ignore[method-assign]


class Memory(L.Callback):
    """Callback that lets batches of more than ROWS rows run out of memory after UPDATE updates.

    With WHERE=validation, this applies to translation instead of training. With LIMIT, the process's memory is really
    limited, to LIMIT further MiB.
    """

    def __init__(self) -> None:
        self.rows, self.update = int(os.environ["ROWS"]), int(os.environ.get("UPDATE", 0))
        self.where, self.limit = os.environ.get("WHERE", "training"), int(os.environ.get("LIMIT", 0))

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        if trainer.global_step != self.update:
            return
        if self.limit:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            size = pages * resource.getpagesize() + self.limit * 2**20
            resource.setrlimit(resource.RLIMIT_AS, (size, size))
            taken = []  # also uses up memory that was freed earlier, whose amount varies
            with suppress(RuntimeError):
                while True:
                    taken.append(torch.empty(2**18))  # 1 MiB
            del taken[-self.limit :]
            self.taken = taken
        else:
            refuse(pl_module.model, "forward" if self.where == "training" else "encode", self.rows)


def refuse(model: Any, name: str, rows: int) -> None:
    """Let a method of a model run out of memory for batches of more than `rows` rows.

    A method other than forward does so only in evaluation, because a training step calls it, too.
    """
    method = getattr(model, name)

    def limited(src: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if len(src) > rows and (name == "forward" or not model.training):
            break_down("memory")
        return method(src, *arguments, **options)

    setattr(model, name, limited)


class Stateful(L.Callback):
    """Callback with a state of plain data and tensors, all of which depend on all updates so far."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"by_update": {}, "pair": (0, None), "sum": torch.zeros(2, dtype=torch.bfloat16)}

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        update = trainer.global_step
        self.state["by_update"][update] = float("nan") if update == 2 else update / 3
        self.state["pair"] = (self.state["pair"][0] + update, None)
        self.state["sum"] += update
        if update == 10:
            content = {key: str(value) for key, value in self.state.items()}
            Path("run/text/state.de").write_text(json.dumps(content))

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        assert list(map(type, state_dict.values())) == [dict, tuple, torch.Tensor]
        assert all(type(update) is int for update in state_dict["by_update"])
        self.state = state_dict
