"""Atomic writing of files and folders, and removal of what killed processes have left behind.

A file or folder in progress lies next to its final name, as `.NAME.diglot-XXXXXXXX.tmp` with eight hexadecimal digits.
The process that creates it locks it, and the system releases the lock when the process ends in any way. So an unlocked
file or folder with such a name is a leftover. Apart from empty lock files (`.NAME.diglot.lock`), nothing with another
name is ever removed.
"""

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from diglot.errors import UserError

_TEMPORARY = re.compile(r"\.(.+)\.diglot-[0-9a-f]{8}\.tmp", re.DOTALL)
_LOCK = re.compile(r"\.(.+)\.diglot\.lock", re.DOTALL)
# Error codes of calls that a file system does not support (FUSE, SMB, NFS, 9p, exFAT). Those of a full or broken disk
# are not included.
_UNSUPPORTED_ERRNOS = {
    *(errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY, errno.ENODEV),
    *(errno.EACCES, errno.EPERM, errno.EBADF, errno.EISDIR),
}
_MAX_BYTES = 200  # maximum bytes of a name before the mark is added; file systems allow 255 in all


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that appears under its name only if the block succeeds, and is then on disk.

    Raises:
        OSError: the file cannot be written; an earlier file of that name is left as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, path.name)
    while True:
        temporary = temporary_name(path)
        # Do not use tempfile: its files are private (mode 0600), and the final file would keep that mode.
        file = temporary.open("xb")
        if _ours(temporary, file.fileno()):
            break
        file.close()  # removed as a leftover before it was locked
    try:
        with file:
            yield file
            file.flush()
            sync(file.fileno())
            try:
                temporary.replace(path)  # while it is locked
                is_held_open = False
            except OSError:
                is_held_open = True
        if is_held_open:  # on SMB, for example, an open file cannot be renamed
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """Create a folder next to a path, and remove it after the block.

    Raises:
        OSError: the folder cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, path.name)
    while True:
        temporary = temporary_name(path)
        temporary.mkdir()
        try:
            descriptor = open_folder(temporary)
        except FileNotFoundError:  # another process removed it as a leftover before it was locked
            continue
        if descriptor is None or _ours(temporary, descriptor):
            break
        os.close(descriptor)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def locked(path: Path, waiting: Callable[[], AbstractContextManager]) -> Iterator[None]:
    """Lock a file during the block, so that only one process at a time runs it.

    The lock is released even if the process is killed. The file is removed after the block.

    Args:
        path: the file to lock.
        waiting: context manager that is entered while another process holds the lock.

    Raises:
        OSError: the file cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if lock(descriptor) is False:
            with waiting():
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is(path, descriptor):
            break
        os.close(descriptor)  # the process that held the lock has removed the file
    try:
        yield
    finally:
        try:
            path.unlink(missing_ok=True)  # while it is locked
        finally:
            os.close(descriptor)


def link(source: Path, name: Path) -> None:
    """Give a file a second name, replacing the file that had that name; copy it if hard links are not supported.

    Raises:
        OSError: the file can be neither linked nor copied.
    """
    temporary = temporary_name(name)
    remove_leftovers(name.parent, name.name)
    try:
        os.link(source, temporary)
        temporary.replace(name)
        sync_folder(name.parent)
    except OSError:
        with source.open("rb") as original, atomic_file(name) as copy:
            shutil.copyfileobj(original, copy)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes have left in a folder: half-written files and folders, and lock files.

    Args:
        folder: the folder to search, without its subfolders.
        name: final name of the leftovers to remove; None for any.
    """
    with suppress(OSError):  # leftovers that cannot be removed do no harm
        for path in folder.iterdir():
            match = _TEMPORARY.fullmatch(path.name) or _LOCK.fullmatch(path.name)
            if match and (name is None or _shortened(name) == match[1]):
                with suppress(OSError):
                    _remove_if_abandoned(path)


def _remove_if_abandoned(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not (lock(descriptor) and _is(path, descriptor)):
            return
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            shutil.rmtree(path, ignore_errors=True)
        elif stat.S_ISREG(status.st_mode) and not (_LOCK.fullmatch(path.name) and status.st_size):
            # A lock of diglot is empty.
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def temporary_name(path: Path) -> Path:
    """Return the path at which a file or folder is written before it gets its name."""
    return path.with_name(f".{_shortened(path.name)}.diglot-{secrets.token_hex(4)}.tmp")


def lock_name(path: Path) -> Path:
    """Return the path of the lock file for something that gets its name later."""
    return path.with_name(f".{_shortened(path.name)}.diglot.lock")


def _shortened(name: str) -> str:
    """Return a name that leaves room for our mark: a hash replaces the end of a long one."""
    encoded = os.fsencode(name)
    if len(encoded) <= _MAX_BYTES:
        return name
    return os.fsdecode(encoded[: _MAX_BYTES // 2]) + hashlib.sha256(encoded).hexdigest()[:20]


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, if its file system supports it."""
    descriptor = open_folder(folder)
    if descriptor is not None:
        try:
            sync(descriptor)
        finally:
            os.close(descriptor)


def sync(descriptor: int) -> None:
    """Flush a file's content to disk, if its file system supports it.

    Raises:
        OSError: the disk is full or broken.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED_ERRNOS:
            raise


def open_folder(folder: Path) -> int | None:
    """Open a folder, to lock or sync it; return None if the file system does not support opening it.

    Raises:
        OSError: the folder does not exist.
    """
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in _UNSUPPORTED_ERRNOS:
            raise
        return None


def lock(descriptor: int) -> bool | None:
    """Lock a file. Return False if another process has locked it, None if the file system does not support locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _ours(temporary: Path, descriptor: int) -> bool:
    """Lock a new file or folder. Return False if another process has removed it as a leftover before."""
    is_locked = lock(descriptor)
    return is_locked is None or (is_locked and _is(temporary, descriptor))


def _is(path: Path, descriptor: int) -> bool:
    """Return whether a path still names the opened file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def numbered_folder(folder: Path) -> Path:
    """Create a new folder: the given one, or if it exists, the first free one of folder_2, folder_3, ...

    Raises:
        UserError: the folder cannot be created.
    """
    for number in range(1, 10_000):
        candidate = folder if number == 1 else folder.with_name(f"{folder.name}_{number}")
        try:
            candidate.mkdir(parents=True)
            return candidate
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"{candidate} cannot be created: {error.strerror}") from None
    raise UserError(f"{folder} and 9,998 numbered folders of that name already exist")
