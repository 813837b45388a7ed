"""Run commands with faults, and check what they leave behind."""

import contextlib
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch

from diglot.checkpoint import container
from diglot.checkpoint.file import newest_intact

HERE = Path(__file__).parent
SIDES = {"src": "en", "tgt": "de"}
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
TINY = (
    *("trainer=cpu", "trainer.precision=64-true", "trainer.log_every_n_steps=1", "watch=none"),
    *("model.d_model=32", "model.n_heads=2", "model.d_ff=48", "model.dropout=0.1"),
    *("search=greedy", "search.max_len_a=0", "search.max_len_b=6", "run.folder=run"),
)
TWO = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2")
FAULT = "+callbacks.fault._target_=faults.Fault"


def text(folder: Path, n_dev: int = 7, n_train: int = 7) -> tuple[str, ...]:
    """Write sentences of different lengths, and return overrides that use them as train, dev and test text."""
    lines = [" ".join(WORDS[i % 12 : i % 12 + 1 + (i * 5 + 6) % 7]) for i in range(max(n_dev, n_train))]
    files = []
    for split, n in (("train", n_train), ("dev", n_dev), ("test", n_dev)):
        for side, end in SIDES.items():
            written = [line if side == "src" else line[::-1] for line in lines[:n]]
            (folder / f"{split}.{end}").write_text("".join(f"{line}\n" for line in written))
            files.append(f"data.{split}.{side}={folder}/{split}.{end}")
    return ("data=files", *files, "data.vocab_size=284", "data.tokens_per_batch=60", "data.max_len=60")


class Ended(NamedTuple):
    """A run that has ended.

    Attributes:
        code: its exit status.
        said: its standard output and standard error.
        seconds: time from its start to the end of its last process.
        orphans: processes that outlived it and were killed.
    """

    code: int
    said: str
    seconds: float
    orphans: list[int]

    def lines(self, of: str) -> list[str]:
        return [line for line in self.said.splitlines() if of in line]


class Run:
    """A command in the background, whose processes are identified by a mark in their environment."""

    def __init__(self, cwd: Path, *words: str, module: tuple[str, ...] = (), **environment: str) -> None:
        self.mark, self.cwd, self.began = f"MARK={secrets.token_hex(8)}", cwd, time.monotonic()
        paths = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DIGLOT")}
        env = {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "MARK": self.mark[5:], **environment}
        self.output = (cwd / "output").open("w+")
        command = [sys.executable, *module, "-m", "diglot", "train", *words]
        self.process = subprocess.Popen(
            command, cwd=cwd, stdout=self.output, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )

    def processes(self) -> list[int]:
        """Return the ids of the live processes."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):
                    is_zombie = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
                    if not is_zombie and self.mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                        found.append(int(folder.name))
        return sorted(found)

    def end(self, seconds: float = 150, linger: float = 12) -> Ended:
        """Wait for the end of the command and then, for a short time, of its other processes."""
        try:
            self.process.wait(seconds)
            orphans = self.processes()
            deadline = time.monotonic() + linger
            while orphans and time.monotonic() < deadline:
                time.sleep(0.1)
                orphans = self.processes()
            took = time.monotonic() - self.began
        finally:
            for process in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, 9)
            self.process.wait()
        self.output.seek(0)
        return Ended(self.process.returncode, self.output.read(), took, orphans)


def run(cwd: Path, *words: str, code: int | None = 0, module: tuple[str, ...] = (), **environment: str) -> Ended:
    """Run `diglot-train`, and check its exit status and that no process is left."""
    ended = Run(cwd, *words, module=module, **environment).end()
    assert not ended.orphans, ended.said
    assert code is None or ended.code == code, ended.said
    return ended


def after_the_fault(ended: Ended, cwd: Path, run: Run) -> float:
    """Return the seconds from the fault to the end of the last process."""
    return ended.seconds - (float((cwd / "broken").read_text()) - run.began)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return container.read(folder / "last.ckpt")["state_dict"]


def same_weights(a: Path, b: Path) -> bool:
    ours, theirs = weights(a), weights(b)
    return ours.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in ours.items())


def is_whole(folder: Path) -> bool:
    """Return whether the newest checkpoint is complete, and no temporary file is left beside it."""
    found = newest_intact(folder)
    return found is not None and found[0].name == "last.ckpt" and not list(folder.glob(".*"))
