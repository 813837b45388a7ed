"""Files are written atomically on any file system, and files of others are left alone."""

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diglot.data.shards import map_array
from diglot.runs import folder as folders
from diglot.sweeps.sweep import Objective, Sweep
from diglot.system import atomic as whole
from diglot.training.checkpoint_writer import _link


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_other_files_with_a_date_in_their_name_are_no_leftovers(tmp_path: Path) -> None:
    (tmp_path / ".backup.20251129").mkdir()
    (tmp_path / ".backup.20251129" / "thesis.tex").touch()
    for name in (".out.txt.20251129", ".out.txt.deadbeef", ".out.txt.lock", ".out.txt.tmp", ".out.txt.partial"):
        (tmp_path / name).touch()
    before = names(tmp_path)
    with whole.atomic_file(tmp_path / "out.txt") as file:
        file.write(b"whole")
    with whole.scratch_folder(tmp_path / "backup"):
        pass
    whole.remove_leftovers(tmp_path)
    assert names(tmp_path) == sorted([*before, "out.txt"])
    assert (tmp_path / ".backup.20251129" / "thesis.tex").exists()


def lacking(number: int) -> Any:
    """Return a function that fails like one that a file system does not support."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def write_all(folder: Path) -> None:
    """Write everything that this module can write."""
    for content in (b"first", b"second"):
        with whole.atomic_file(folder / "file") as file:
            file.write(content)
    with whole.scratch_folder(folder / "made") as made:
        (made / "x").touch()
        made.rename(folder / "made")
    _link(folder / "file", folder / "copy")
    with whole.locked(whole.lock_name(folder / "file"), lambda: pytest.fail("nobody has it")):
        whole.remove_leftovers(folder)
    (folder / "run").mkdir()
    assert not folders.is_folder_locked(folder / "run")
    folders.lock_folder(folder / "run")
    sweep = Sweep(folder / "sweep", Objective("dev/bleu"))
    sweep.lock()
    sweep.unlock()
    assert names(folder) == ["copy", "file", "made", "run", "sweep"]
    assert (folder / "copy").read_bytes() == (folder / "file").read_bytes() == b"second"
    assert names(folder / "made") == ["x"]


@pytest.fixture(autouse=True)
def nothing_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "locked_folders", [])


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM])
def test_a_file_system_that_syncs_nothing_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "fsync", lacking(number))
    write_all(tmp_path)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_errors_of_a_full_or_broken_disk_are_not_suppressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "fsync", lacking(number))
    with pytest.raises(OSError, match=os.strerror(number)), whole.atomic_file(tmp_path / "file"):
        pass
    with pytest.raises(OSError, match=os.strerror(number)):
        whole.sync_folder(tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EINVAL, errno.EISDIR])
def test_a_file_system_whose_folders_cannot_be_opened_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real = os.open

    def opened(path: Any, *arguments: Any, **options: Any) -> int:
        return lacking(number)() if Path(path).is_dir() else real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", opened)
    write_all(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EBADF, errno.ENOSYS])
def test_a_file_system_without_locks_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", lacking(number))
    write_all(tmp_path)


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV])
def test_a_file_system_without_hard_links_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "link", lacking(number))
    write_all(tmp_path)


def test_a_file_system_on_which_an_open_file_keeps_its_name_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, opened = Path.replace, []

    def replace(source: Path, target: Path) -> Any:
        return real(source, target) if opened[0].closed else lacking(errno.EBUSY)()

    monkeypatch.setattr(Path, "replace", replace)
    with whole.atomic_file(tmp_path / "file") as file:
        opened.append(file)
        file.write(b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"


def test_a_file_system_that_maps_no_files_is_read_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.arange(5).tofile(tmp_path / "numbers")
    monkeypatch.setattr(np, "memmap", lacking(errno.ENODEV))
    assert map_array(tmp_path / "numbers", np.dtype(np.int64)).tolist() == [0, 1, 2, 3, 4]
