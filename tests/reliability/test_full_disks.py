"""A full disk ends a run with one line and without loss; with free space again, it can be resumed."""

import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from diglot.checkpoint import container
from diglot.checkpoint.atomic_io import AtomicCheckpointIO
from diglot.checkpoint.file import newest_intact, read
from diglot.errors import UserError
from diglot.system import atomic as whole
from diglot.training.checkpoint_writer import _link
from runs import TINY, TWO, Ended, Run, is_whole, run, same_weights, text

pytestmark = pytest.mark.reliability

RUN = ("run.updates=8", "run.validate_every=3")
FULL = "No space left on device"


def words_of(*words: str) -> tuple[str, ...]:
    return tuple(word for word in words if not word.startswith("run.folder"))


class Disk:
    """A small file system.

    Args:
        folder: mount point.
        privileged: prefix of the mount command: nothing, or sudo.
    """

    def __init__(self, folder: Path, privileged: tuple[str, ...]) -> None:
        self.folder, self.privileged = folder, privileged

    def mount(self, size: int) -> None:
        options = f"size={size},uid={os.getuid()},mode=755"
        self._do("mount", "-t", "tmpfs", "-o", options, "none", str(self.folder))

    def resize(self, size: int) -> None:
        self._do("mount", "-o", f"remount,size={size}", str(self.folder))

    def read_only(self) -> None:
        self._do("mount", "-o", "remount,ro", str(self.folder))

    def unmount(self) -> None:
        self._do("umount", "-l", str(self.folder))

    def _do(self, *words: str) -> None:
        subprocess.run([*self.privileged, *words], check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Disk]]:
    """Return a function that mounts small file systems: `disk("run", 100_000)` mounts one at tmp_path / "run"."""
    made: list[Disk] = []

    def make(name: str, size: int) -> Disk:
        folder = tmp_path / name
        folder.mkdir()
        for privileged in ((), ("sudo", "-n")):
            try:
                one = Disk(folder, privileged)
                one.mount(size)
            except (subprocess.CalledProcessError, FileNotFoundError):
                continue
            made.append(one)
            return one
        pytest.skip("nobody here may mount a tmpfs")

    yield make
    for one in made:
        one.unmount()


def fill(folder: Path, leave: int) -> Path:
    """Write a file that leaves only `leave` bytes of a file system free."""
    file = folder / "filling"
    free = shutil.disk_usage(folder).free
    file.write_bytes(b"x" * max(0, free - leave))
    return file


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run with enough space."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run(folder, *text(folder), *TINY, *RUN)
    return folder / "run"


def losses(folder: Path) -> list[tuple[int, float]]:
    """Return the training loss by update, which must not depend on interruptions."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars("2_train/loss")]


def told_in_one_line(ended: Ended, wanted: str) -> str:
    (line,) = ended.lines("diglot-train")
    assert wanted in line, line
    assert FULL in line, line
    assert "Traceback" not in ended.said, ended.said
    assert "Exception ignored" not in ended.said, ended.said
    return line


@pytest.mark.end_to_end
@pytest.mark.promise(
    "If a checkpoint does not fit on the disk, one line reports it, the last checkpoint stays intact, and the run "
    "resumes exactly once there is space."
)
@pytest.mark.parametrize("checkpoints", [0, 1.5, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_a_checkpoint_on_a_full_disk(
    tmp_path: Path, disk: Callable[..., Disk], undisturbed: Path, checkpoints: float
) -> None:
    size = (undisturbed / "last.ckpt").stat().st_size
    small = disk("small", 50_000_000)
    words = (*text(tmp_path), *words_of(*TINY), *RUN)
    filling = fill(small.folder, leave=int((checkpoints + 0.5) * size))
    ended = run(tmp_path, *words, "run.folder=small/run", code=2)
    line = told_in_one_line(ended, "the checkpoint cannot be written")
    assert "resume=small/run resumes the run" in line
    folder = small.folder / "run"
    left = {file.name for file in folder.iterdir()}
    assert not {name for name in left if name.startswith(".")}
    for name in left & {"last.ckpt", "previous.ckpt", "best.ckpt"}:
        read(folder / name)
    assert ("last.ckpt" in left) == (checkpoints > 0)
    filling.unlink()
    run(tmp_path, *words, "resume=small/run")
    assert same_weights(folder, undisturbed)
    assert losses(folder) == losses(undisturbed)


@pytest.mark.end_to_end
@pytest.mark.exhaustive
@pytest.mark.promise("If a checkpoint does not fit on the disk, a run of two processes ends both.")
def test_a_checkpoint_on_a_full_disk_of_two_processes(
    tmp_path: Path, disk: Callable[..., Disk], undisturbed: Path
) -> None:
    small = disk("small", 50_000_000)
    fill(small.folder, leave=2 * (undisturbed / "last.ckpt").stat().st_size)
    words = (*text(tmp_path), *words_of(*TINY), *RUN, *TWO, "trainer.process_timeout=30", "run.folder=small/run")
    ended = run(tmp_path, *words, code=2)
    assert any(FULL in line for line in ended.lines("diglot-train"))
    assert newest_intact(small.folder / "run") is not None


@pytest.mark.end_to_end
@pytest.mark.promise("A run is not affected if TMPDIR is full or read-only.")
@pytest.mark.parametrize("what", ["full", pytest.param("read-only", marks=pytest.mark.exhaustive)])
def test_a_tmpdir_that_cannot_be_used(tmp_path: Path, disk: Callable[..., Disk], undisturbed: Path, what: str) -> None:
    tmp = disk("tmp", 4096)
    fill(tmp.folder, leave=0)
    if what == "read-only":
        tmp.read_only()
    words = (*text(tmp_path), *TINY, *RUN, "data.n_workers=2")
    ended = run(tmp_path, *words, TMPDIR=str(tmp.folder), HOME="/nonexistent", MPLCONFIGDIR="")
    assert "Traceback" not in ended.said
    assert same_weights(tmp_path / "run", undisturbed)


@pytest.mark.end_to_end
@pytest.mark.promise("If the disk of a logger is full, this is reported once, and training continues to the end.")
@pytest.mark.parametrize("logger", ["csv", pytest.param("tensorboard", marks=pytest.mark.exhaustive)])
def test_a_logger_on_a_full_disk(tmp_path: Path, disk: Callable[..., Disk], undisturbed: Path, logger: str) -> None:
    curves = disk("curves", 8192)
    fill(curves.folder, leave=0)
    ended = run(
        tmp_path, *text(tmp_path), *TINY, *RUN, f"logger={logger}", "watch=default", "watch.translations.every=1",
        "+callbacks.move._target_=faults.Elsewhere", ELSEWHERE=str(curves.folder),
    )  # fmt: skip
    told = ended.lines("training continues without its curves")
    assert len(told) == 1, ended.said
    assert "Traceback" not in ended.said, ended.said
    assert same_weights(tmp_path / "run", undisturbed)
    assert (tmp_path / "run" / "results.json").exists()


@pytest.mark.end_to_end
@pytest.mark.promise(
    "If the disk of the cache is full, one line names the folder, and the next run uses no incomplete file."
)
def test_a_full_cache(tmp_path: Path, disk: Callable[..., Disk], undisturbed: Path) -> None:
    cache = disk("cache", 50_000_000)
    words = (*text(tmp_path), *TINY, *RUN)
    for leave in (0, 8192, 270_000):  # room for nothing; too little for the tokenizer; too little for the shards
        filling = fill(cache.folder, leave)
        done = Run(tmp_path, *words).end()
        if done.code:
            assert done.code == 2
            line = told_in_one_line(done, "cache/")
            assert "cannot be" in line
        filling.unlink()
        assert not (tmp_path / "run").exists() or not done.code
        if not done.code:
            break
    else:
        run(tmp_path, *words)
    assert same_weights(tmp_path / "run", undisturbed)
    left = [path for path in cache.folder.rglob(".*") if path.name != ".lock"]
    assert not left


@pytest.mark.end_to_end
@pytest.mark.promise("If the results cannot be written after training, one line says that training is complete.")
def test_results_on_a_full_disk(tmp_path: Path, disk: Callable[..., Disk], undisturbed: Path) -> None:
    small = disk("small", 50_000_000)
    words = (*text(tmp_path), *words_of(*TINY), *RUN, "+callbacks.filling._target_=faults.FillAtEnd")
    ended = run(tmp_path, *words, "run.folder=small/run", code=2, FILL=str(small.folder))
    line = told_in_one_line(ended, "small/run/evaluation/test")
    assert "Training is done" in line
    assert "resume=small/run" in line
    assert is_whole(small.folder / "run")
    (small.folder / "filling").unlink()
    run(tmp_path, *words, "resume=small/run", FILL=str(tmp_path / "none"))
    assert (small.folder / "run" / "results.json").exists()
    assert same_weights(small.folder / "run", undisturbed)


@pytest.mark.end_to_end
@pytest.mark.promise("If a run's folder becomes read-only, one line reports it, and the checkpoints in it stay intact.")
def test_a_folder_that_turned_read_only(tmp_path: Path, disk: Callable[..., Disk], undisturbed: Path) -> None:
    small = disk("small", 50_000_000)
    folder = small.folder / "run"
    shutil.copytree(undisturbed, folder)
    (folder / "results.json").unlink()
    small.read_only()
    ended = run(tmp_path, *text(undisturbed.parent), *words_of(*TINY), *RUN, "resume=small/run", code=2)
    (line,) = ended.lines("diglot-train")
    assert "small/run" in line
    assert "Read-only file system" in line
    assert "Traceback" not in ended.said
    assert is_whole(folder)


@pytest.mark.end_to_end
@pytest.mark.promise(
    "If a checkpoint exceeds a limit on file sizes, one line reports it, and the last checkpoint stays intact."
)
def test_a_limit_that_a_run_meets(tmp_path: Path) -> None:
    begun = Run(tmp_path, *text(tmp_path), *TINY, "run.updates=1000000", "run.validate_every=20")
    wait_for(lambda: (tmp_path / "run" / "best.ckpt").exists(), begun)
    resource.prlimit(begun.process.pid, resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    ended = begun.end()
    assert ended.code == 2, ended.said
    (line,) = ended.lines("diglot-train")
    assert "File too large" in line
    assert "Traceback" not in ended.said
    assert is_whole(tmp_path / "run")


def wait_for(condition: Callable[[], bool], begun: Run) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert begun.process.poll() is None, (begun.cwd / "output").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.end_to_end
@pytest.mark.promise(
    "If a run's folder is removed during training, the run creates it again, with all files that are needed to resume."
)
@pytest.mark.parametrize("when", ["Removal", "RemovalInSave"])
def test_a_folder_that_is_removed(tmp_path: Path, when: str) -> None:
    callback = f"+callbacks.removal._target_=faults.{when}"
    ended = Run(tmp_path, *text(tmp_path), *TINY, "run.updates=80", "run.validate_every=20", callback).end()
    assert (tmp_path / "gone").exists()
    assert "Traceback" not in ended.said, ended.said
    assert ended.lines("run is missing; it is created again")
    assert newest_intact(tmp_path / "run") is not None
    made_again = {path.name for path in (tmp_path / "run").iterdir()}
    assert made_again >= {"config.yaml", "environment.json", "tokenizer.model", "text", "log.txt", "results.json"}


# ---------------------------------------------------------------------------------------------------- the parts


@pytest.mark.promise(
    "Whatever error a disk causes, a file with the name of a checkpoint is complete or does not exist."
)
@pytest.mark.parametrize(("number", "reason"), [(28, FULL), (122, "quota"), (30, "Read-only"), (5, "Input/output")])
@pytest.mark.parametrize("place", ["write", "fsync", "replace", "mkdir"])
def test_an_error_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str, place: str
) -> None:
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO(read).save_checkpoint({"x": torch.zeros(3)}, path)

    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        if place == "write":
            patch.setattr("diglot.checkpoint.container.write", fails)
        elif place == "fsync":
            patch.setattr(whole.os, "fsync", fails)
        else:
            patch.setattr(Path, place, fails)
        with pytest.raises(UserError, match=r"last\.ckpt: the checkpoint cannot be written .*" + reason) as refused:
            AtomicCheckpointIO(read).save_checkpoint({"x": torch.ones(3)}, path)
    assert "\n" not in str(refused.value)
    assert torch.equal(container.read(path)["x"], torch.zeros(3))
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


@pytest.mark.promise("If there is a folder where a checkpoint should be written, it is reported and left alone.")
def test_a_folder_in_a_checkpoint_s_place(tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").mkdir()
    (tmp_path / "last.ckpt" / "x").touch()
    with pytest.raises(UserError, match=r"last\.ckpt: the checkpoint cannot be written .*(Is a directory|not empty)"):
        AtomicCheckpointIO(read).save_checkpoint({"x": 1}, tmp_path / "last.ckpt")
    with pytest.raises(UserError, match=r"previous\.ckpt: the checkpoint cannot be written"):
        _link(tmp_path / "last.ckpt", tmp_path / "previous.ckpt")
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["last.ckpt", "x"]


@pytest.mark.promise(
    "If a checkpoint exceeds a limit on file sizes, one line reports it, and the last checkpoint stays intact."
)
def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO(read).save_checkpoint({"x": torch.zeros(3)}, path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(UserError, match="File too large"):
            AtomicCheckpointIO(read).save_checkpoint({"x": torch.ones(100_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert torch.equal(container.read(path)["x"], torch.zeros(3))
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]
