"""Files and folders that are there whole or not at all, and what killed processes have left of them.

What is being made stands beside its final name, as `.NAME.` and eight hexadecimal digits, and is locked by the process
that makes it. The lock ends with the process however that ends, so that what is not locked is nobody's any more.
"""

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}", re.DOTALL)
_LOCK = re.compile(r"\.(.+)\.lock", re.DOTALL)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to fill that appears under its name only when the block ends well, and then is on the disk.

    Raises:
        OSError: it cannot be written; what had that name before still has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, path.name)
    while True:
        temporary = temporary_name(path)
        # Not tempfile: its files are private (mode 0600), and the result would stay so.
        file = temporary.open("xb")
        if _ours(temporary, file.fileno()):
            break
        file.close()  # taken for a leftover before it was locked
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)  # while it is locked
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """A folder beside a path, as long as the block lasts.

    Raises:
        OSError: it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, path.name)
    while True:
        temporary = temporary_name(path)
        temporary.mkdir()
        descriptor = os.open(temporary, os.O_RDONLY)
        if _ours(temporary, descriptor):
            break
        os.close(descriptor)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(descriptor)


@contextmanager
def locked(path: Path, waiting: Callable[[], AbstractContextManager]) -> Iterator[None]:
    """One process at a time, however the others end. The file that is locked goes with the last of them.

    Args:
        path: of that file.
        waiting: entered while another process is inside.

    Raises:
        OSError: the file cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if _lock(descriptor) is False:
            with waiting():
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is(path, descriptor):
            break
        os.close(descriptor)  # whoever had it has removed it
    try:
        yield
    finally:
        try:
            path.unlink(missing_ok=True)  # while it is locked
        finally:
            os.close(descriptor)


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes have left in a folder: half-made files and folders, and locks.

    Args:
        folder: nothing is looked for in the folders in it.
        name: of what they were making; None: anything.
    """
    with suppress(OSError):  # what cannot be removed is in nobody's way
        for path in folder.iterdir():
            match = _TEMPORARY.fullmatch(path.name) or _LOCK.fullmatch(path.name)
            if match and name in (None, match[1]):
                with suppress(OSError):
                    _remove_if_left(path)


def _remove_if_left(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not (_lock(descriptor) and _is(path, descriptor)):
            return
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif not (_LOCK.fullmatch(path.name) and os.fstat(descriptor).st_size):  # ours are empty
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def temporary_name(path: Path) -> Path:
    """Where something stands before it has its name."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def sync_folder(folder: Path) -> None:
    """Let a folder's names be on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool | None:
    """Whether a file is ours alone now; None where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _ours(temporary: Path, descriptor: int) -> bool:
    """Lock what was just made. False where another process took it for a leftover before that."""
    is_locked = _lock(descriptor)
    return is_locked is None or (is_locked and _is(temporary, descriptor))


def _is(path: Path, descriptor: int) -> bool:
    """Whether a path still is what was opened."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False
