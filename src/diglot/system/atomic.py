"""Files and folders that are there whole or not at all, and what killed processes have left of them.

What is being made stands beside its final name, as `.NAME.diglot-XXXXXXXX.tmp` with eight hexadecimal digits, and is
locked by the process that makes it. The lock ends with the process however that ends, so that what is not locked is
nobody's any more. Only names with that mark are ever removed: what other programs and people have put there stays.
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
# How a call fails that a file system does not have (FUSE, SMB, NFS, 9p, exFAT). What says that a disk is full or broken
# is none of these.
_LACKING = {
    *(errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY, errno.ENODEV),
    *(errno.EACCES, errno.EPERM, errno.EBADF, errno.EISDIR),
}
_LONGEST = 200  # bytes of a name that a marked one holds as it is: file systems take 255


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
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
            sync(file.fileno())
            try:
                temporary.replace(path)  # while it is locked
                is_held_open = False
            except OSError:
                is_held_open = True
        if is_held_open:  # as on SMB, where an open file keeps its name
            temporary.replace(path)
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
        try:
            descriptor = open_folder(temporary)
        except FileNotFoundError:  # another process took it for a leftover before it was locked
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
        if lock(descriptor) is False:
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


def link(source: Path, name: Path) -> None:
    """Give a file a second name, replacing what had that name; where there are no hard links, copy it.

    Raises:
        OSError: it cannot be done.
    """
    temporary = temporary_name(name)
    remove_leftovers(name.parent, name.name)
    try:
        os.link(source, temporary)
        temporary.replace(name)
        sync_folder(name.parent)
    except OSError:
        with source.open("rb") as whole, atomic_file(name) as copy:
            shutil.copyfileobj(whole, copy)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes have left in a folder: half-made files and folders, and locks.

    Args:
        folder: nothing is looked for in the folders in it.
        name: of what they were making; None: anything.
    """
    with suppress(OSError):  # what cannot be removed is in nobody's way
        for path in folder.iterdir():
            match = _TEMPORARY.fullmatch(path.name) or _LOCK.fullmatch(path.name)
            if match and (name is None or _shortened(name) == match[1]):
                with suppress(OSError):
                    _remove_if_left(path)


def _remove_if_left(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not (lock(descriptor) and _is(path, descriptor)):
            return
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            shutil.rmtree(path, ignore_errors=True)
        elif stat.S_ISREG(found.st_mode) and not (_LOCK.fullmatch(path.name) and found.st_size):  # our locks are empty
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def temporary_name(path: Path) -> Path:
    """Where something stands before it has its name."""
    return path.with_name(f".{_shortened(path.name)}.diglot-{secrets.token_hex(4)}.tmp")


def lock_name(path: Path) -> Path:
    """The file to lock while something is made that takes its name later."""
    return path.with_name(f".{_shortened(path.name)}.diglot.lock")


def _shortened(name: str) -> str:
    """A name that leaves room for our mark: a hash stands for the end of a long one."""
    encoded = os.fsencode(name)
    if len(encoded) <= _LONGEST:
        return name
    return os.fsdecode(encoded[: _LONGEST // 2]) + hashlib.sha256(encoded).hexdigest()[:20]


def sync_folder(folder: Path) -> None:
    """Let a folder's names be on the disk, as far as its file system does that."""
    descriptor = open_folder(folder)
    if descriptor is not None:
        try:
            sync(descriptor)
        finally:
            os.close(descriptor)


def sync(descriptor: int) -> None:
    """Let what was written to a file be on the disk, as far as its file system does that.

    Raises:
        OSError: the disk is full or broken.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _LACKING:
            raise


def open_folder(folder: Path) -> int | None:
    """Open a folder, to lock it or to sync it; None where the file system does not let it be opened.

    Raises:
        OSError: there is no such folder.
    """
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in _LACKING:
            raise
        return None


def lock(descriptor: int) -> bool | None:
    """Lock a file. False where another process has it, None where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _ours(temporary: Path, descriptor: int) -> bool:
    """Lock what was just made. False where another process took it for a leftover before that."""
    is_locked = lock(descriptor)
    return is_locked is None or (is_locked and _is(temporary, descriptor))


def _is(path: Path, descriptor: int) -> bool:
    """Whether a path still is what was opened."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def numbered_folder(folder: Path) -> Path:
    """Make a folder that was not there: this one, or, where it is there, the first free of folder_2, folder_3, ...

    Raises:
        UserError: if it cannot be made.
    """
    for number in range(1, 10_000):
        candidate = folder if number == 1 else folder.with_name(f"{folder.name}_{number}")
        try:
            candidate.mkdir(parents=True)
            return candidate
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"{candidate} cannot be made: {error.strerror}") from None
    raise UserError(f"{folder} and 9,998 more exist already")
