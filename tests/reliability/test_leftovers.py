"""Temporary files of killed processes are removed by the next process; those of live processes are not."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from diglot.data.text import write_bytes
from diglot.runs.folder import run_folder
from diglot.system import atomic as whole
from diglot.training.checkpoint_writer import _link
from diglot.training.run import Budget

pytestmark = [
    pytest.mark.reliability,
    pytest.mark.promise(
        "The next start removes the incomplete files of killed processes and keeps those of running processes."
    ),
]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def make_a_file(path: Path, ready: Any) -> None:
    with whole.atomic_file(path) as file:
        file.write(b"half")
        file.flush()
        ready.set()
        time.sleep(60)


def make_a_folder(path: Path, ready: Any) -> None:
    with whole.scratch_folder(path) as folder:
        (folder / "half").write_bytes(b"half")
        ready.set()
        time.sleep(60)


def hold_a_lock(path: Path, ready: Any) -> None:
    with whole.locked(whole.lock_name(path), nullcontext):
        ready.set()
        time.sleep(60)


MAKERS = (make_a_file, make_a_folder, hold_a_lock)


@contextmanager
def process(maker: Callable[[Path, Any], None], path: Path) -> Iterator[Callable[[], None]]:
    """Start a process and wait until it is in the middle of its work; yield a function that kills it."""
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    child = context.Process(target=maker, args=(path, ready), daemon=True)
    child.start()
    assert ready.wait(30)

    def kill() -> None:
        child.kill()
        child.join()

    try:
        yield kill
    finally:
        kill()
        child.close()


@pytest.mark.parametrize("maker", MAKERS)
def test_what_a_living_process_makes_stays_and_what_a_killed_one_made_goes(
    tmp_path: Path, maker: Callable[[Path, Any], None]
) -> None:
    with process(maker, tmp_path / "last.ckpt") as kill:
        (made,) = names(tmp_path)
        whole.remove_leftovers(tmp_path)
        assert names(tmp_path) == [made]
        kill()
        whole.remove_leftovers(tmp_path, "other")
        assert names(tmp_path) == [made]
        whole.remove_leftovers(tmp_path)
        assert names(tmp_path) == []


def test_only_what_looks_like_ours_is_removed(tmp_path: Path) -> None:
    kept = [".hidden", ".last.ckpt.abc", ".out.txt.20251129", "last.ckpt.diglot-0123abcd.tmp", ".lock", ".x.lock"]
    kept += [".x.partial", ".x.diglot-0123ABCD.tmp", ".x.tmp", ".~lock.out.txt#"]
    for name in kept:
        (tmp_path / name).touch()
    (tmp_path / ".backup.20251129").mkdir()
    (tmp_path / ".full.diglot.lock").write_text("somebody's")
    (tmp_path / ".link.diglot-0123abcd.tmp").symlink_to(tmp_path / ".hidden")
    os.mkfifo(tmp_path / ".pipe.diglot-0123abcd.tmp")
    kept += [".backup.20251129", ".full.diglot.lock", ".link.diglot-0123abcd.tmp", ".pipe.diglot-0123abcd.tmp"]
    (tmp_path / ".last.ckpt.diglot-0123abcd.tmp").touch()
    (tmp_path / ".text.diglot-0123abcd.tmp").mkdir()
    (tmp_path / ".x.diglot.lock").touch()
    whole.remove_leftovers(tmp_path)
    assert names(tmp_path) == sorted(kept)
    whole.remove_leftovers(tmp_path / "missing")


def test_a_name_as_long_as_a_file_system_takes_leaves_room_for_the_mark(tmp_path: Path) -> None:
    one, other = tmp_path / ("ü" * 127), tmp_path / ("ü" * 126 + "x")
    left = whole.temporary_name(other)
    left.touch()
    write_bytes(one, b"whole")
    assert names(tmp_path) == sorted([one.name, left.name])
    write_bytes(other, b"whole")
    assert names(tmp_path) == sorted([one.name, other.name])


def test_whoever_writes_removes_what_killed_writers_of_the_same_left(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / f".{name}.diglot-00000000.tmp").write_bytes(b"half")
    write_bytes(tmp_path / "a", b"whole")
    _link(tmp_path / "a", tmp_path / "b")
    with whole.scratch_folder(tmp_path / "c"):
        pass
    assert names(tmp_path) == [".d.diglot-00000000.tmp", "a", "b"]


def test_a_run_that_goes_on_removes_what_the_killed_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIGLOT_RUN_FOLDER", raising=False)
    (tmp_path / "text").mkdir()
    (tmp_path / "config.yaml").touch()
    for name in (".last.ckpt", "text/.dev.translated.de"):
        (tmp_path / f"{name}.diglot-01234567.tmp").touch()

    class Alone:
        is_first, has_group = True, False
        shared = staticmethod(lambda value: value)

    run_folder(Budget(updates=1), "name", str(tmp_path), Alone())  # type: ignore[arg-type]
    monkeypatch.delenv("DIGLOT_RUN_FOLDER")
    assert names(tmp_path) == ["config.yaml", "text"]
    assert names(tmp_path / "text") == []


def test_a_file_taken_for_a_leftover_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, calls = whole.lock, []

    def late(descriptor: int) -> bool | None:
        calls.append(descriptor)
        if len(calls) == 1:  # another process cleans up between creation and locking
            for path in tmp_path.iterdir():
                path.unlink()
        return lock(descriptor)

    monkeypatch.setattr(whole, "lock", late)
    with whole.atomic_file(tmp_path / "a") as file:
        file.write(b"whole")
    assert len(calls) == 2
    assert (tmp_path / "a").read_bytes() == b"whole"
    assert names(tmp_path) == ["a"]


def count(path: Path, total: Path, n: int) -> None:
    for _ in range(n):
        with whole.locked(path, nullcontext):
            value = int(total.read_text())
            time.sleep(0.001)
            total.write_text(str(value + 1))


def test_one_at_a_time_though_the_lock_s_file_comes_and_goes(tmp_path: Path) -> None:
    total = tmp_path / "total"
    total.write_text("0")
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=count, args=(tmp_path / ".x.lock", total, 50)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert total.read_text() == "200"
    assert names(tmp_path) == ["total"]


def test_where_there_are_no_locks_files_are_made_and_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(whole.fcntl, "flock", no_locks)
    (tmp_path / ".a.diglot-00000000.tmp").touch()
    write_bytes(tmp_path / "a", b"whole")
    with whole.locked(tmp_path / ".x.lock", nullcontext):
        pass
    assert names(tmp_path) == [".a.diglot-00000000.tmp", "a"]
