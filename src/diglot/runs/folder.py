"""A run's folder: creating, finding and locking it, and the files that describe the run.

A folder belongs to a single run.
"""

import hashlib
import json
import os
import platform
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from diglot.config.composed import CONFIG
from diglot.data.text import ending_of, file_hash, refuse_address, write_bytes
from diglot.data.tokenizer import Tokenizer
from diglot.errors import UserError
from diglot.system.atomic import lock, lock_name, locked, open_folder, remove_leftovers
from diglot.system.machine import machine

if TYPE_CHECKING:  # these modules import Lightning, which takes seconds
    from diglot.training.processes import Processes
    from diglot.training.run import Budget

PACKAGES = ("torch", "lightning", "hydra-core", "sentencepiece", "datasets", "sacrebleu", "numpy")

RESULTS = "results.json"  # marks the run as finished
STOPPED = "stopped.json"  # why the sweep's rule has ended the run early
# What a run's results depend on besides its config.
ENVIRONMENT = "environment.json"
LOG = "log.txt"
# Files that are written in place, and folders that a run writes to. Other files are replaced atomically.
IN_PLACE = (LOG, "hparams.yaml", "output.txt")
FOLDERS = ("text", "evaluation", "figures", "validations", "records")
# Written by a sweep into a folder before a run begins there.
JOB = "job.json"

LOCK_ATTEMPTS = 5
locked_folders: list[int] = []  # descriptors of the folders that this process keeps locked until it ends


def run_folder(budget: "Budget", name: str, resume: str | None, processes: "Processes") -> Path:
    """Return the run's folder, which the first process finds or creates for all.

    Args:
        budget: names the folder, or leaves the name to this function.
        name: end of the folder's name, if the user did not name it.
        resume: folder of the run to resume; None for a new run.
        processes: the processes that share the folder.
    """
    if "LOCAL_RANK" in os.environ and "DIGLOT_RUN_FOLDER" in os.environ:  # started by the first process
        return Path(os.environ["DIGLOT_RUN_FOLDER"])
    folder: Any = None
    if processes.is_first:
        folder = budget.new_folder(name) if resume is None else resumable_folder(resume)
        lock_folder(folder)
        for path in (folder, folder / "text", folder / "records"):
            remove_leftovers(path)
    folder = Path(processes.shared(folder))
    if not processes.has_group:
        os.environ["DIGLOT_RUN_FOLDER"] = str(folder.absolute())
    return folder


def resumable_folder(path: str) -> Path:
    """Return the folder of a run that can be resumed.

    Raises:
        UserError: the folder holds no run, or links that lead out of it.
    """
    refuse_address("resume", path)
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UserError(f"resume={path}: no such folder")
    if not any((folder / name).is_file() for name in (CONFIG, JOB)):
        raise UserError(f"resume={path}: there is no run in it (no {CONFIG})")
    refuse_links(folder)
    return folder


def refuse_links(folder: Path) -> None:
    """Check that a run's folder holds only its own files and folders, and nothing that leads elsewhere.

    The folder itself may be reached through a link.

    Raises:
        UserError: there is a symbolic link, a hard link (of a file that is written in place), a pipe or a device; the
            message names it.
    """
    nested = [p for name in FOLDERS if not (folder / name).is_symlink() for p in (folder / name).rglob("*")]
    for path in [*folder.iterdir(), *nested]:
        status, name = path.lstat(), path.relative_to(folder)
        if stat.S_ISLNK(status.st_mode):
            raise UserError(f"{folder}: {name} is a link, but a run writes only into its own folder: remove it")
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise UserError(f"{folder}: {name} is neither a file nor a folder: remove it")
        if path.name in IN_PLACE and stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            raise UserError(f"{folder}: {name} is a hard link to another file: remove it")


def refuse_path_outside(path: Path, folder: Path) -> None:
    """Check that no link on a path in a run's folder leads out of it; somebody else may have created the folder.

    Raises:
        UserError: a link on the path leads elsewhere.
    """
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{path}: a link on this path leads out of {folder}: remove it, or give output=FOLDER")


class DevOutputs(NamedTuple):
    """The files with a run's translations of the dev sources, one per line: the newest, and the best checkpoint's."""

    newest: Path
    best: Path


def dev_outputs(folder: Path, tgt_lang: str, name: str = "dev") -> DevOutputs:
    """Return the files with the translations of a dev set of the run in a folder."""
    ending, text = ending_of(tgt_lang), folder / "text"
    return DevOutputs(text / f"{name}.translated.{ending}", text / f"{name}.best.{ending}")


def holding_run(file: Path) -> Path | None:
    """Return the run's folder that a file is in; None if its folder is not a run's."""
    return file.parent if (file.parent / CONFIG).is_file() else None


def read_results(folder: Path) -> dict[str, Any]:
    """Return the results of the run in a folder; empty if the run is not finished."""
    try:
        # Reading a pipe would block.
        results = json.loads((folder / RESULTS).read_bytes()) if (folder / RESULTS).is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return results if isinstance(results, dict) and results.get("finished") else {}


def read_stopped(folder: Path) -> str:
    """Return why the sweep's rule has ended the run in a folder early; empty if it has not."""
    try:
        record = json.loads((folder / STOPPED).read_bytes()) if (folder / STOPPED).is_file() else {}
    except (OSError, ValueError, RecursionError):
        return ""
    return str(record.get("reason", "")) if isinstance(record, dict) else ""


def is_finished(folder: Path) -> bool:
    """Return whether the run in a folder is finished."""
    return bool(read_results(folder))


def is_folder_locked(folder: Path) -> bool:
    """Return whether a running process trains in a run's folder."""
    descriptor = open_folder(folder)
    if descriptor is None:
        return False
    try:
        return lock(descriptor) is False
    finally:
        os.close(descriptor)


@contextmanager
def folder_lock(budget: "Budget", processes: "Processes") -> Iterator[None]:
    """Let one process at a time find and lock its run's folder, so that the next process sees that it is taken.

    If the lock cannot be created, the block runs without it: the folder of a run to resume may still be writable, and
    creating a new folder fails with an error that names it.
    """
    if not processes.is_first:
        yield
        return
    folder = Path("runs/any") if budget.folder is None else Path(budget.folder).expanduser()
    path = lock_name(folder.with_name("taking"))
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(locked(path, nullcontext))
        yield


def lock_folder(folder: Path) -> None:
    """Keep other processes from writing to a run's folder while this one lives.

    Raises:
        UserError: another process is training in the folder.
    """
    descriptor = open_folder(folder)
    if descriptor is None:
        return
    for attempts_left in reversed(range(LOCK_ATTEMPTS)):
        if lock(descriptor) is not False:
            break
        if not attempts_left:
            os.close(descriptor)
            raise UserError(f"{folder}: another process is training in it")
        time.sleep(0.1)  # a process that only checks the lock (is_folder_locked) holds it for a moment
    locked_folders.append(descriptor)


def environment(command: Sequence[str], contents: Mapping[str, str]) -> dict[str, Any]:
    """Return the versions, the hardware and the content that a run's results may depend on, and the command line."""
    return {
        "diglot": version("diglot"),
        "commit": commit(),
        "sources": sources_hash(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "machine": machine(),
        "packages": {name: version(name) for name in PACKAGES},
        "command": list(command),
        "contents": dict(contents),
    }


def write_description(
    folder: Path, config_yaml: str, tokenizer: Tokenizer, environment: Mapping[str, Any]
) -> list[Path]:
    """Write the files that describe a run into its folder, unless they exist.

    Args:
        folder: the run's folder.
        config_yaml: the run's config.
        tokenizer: the run's tokenizer.
        environment: what its results may depend on besides its config; see the function `environment`.

    Returns:
        The files. The last one, the config, marks the folder as a run's folder.
    """
    contents = {
        ENVIRONMENT: (json.dumps(environment, indent=2) + "\n").encode(),
        "tokenizer.model": tokenizer.model,
        "tokenizer.tgt.model": tokenizer.tgt_model,
        CONFIG: config_yaml.encode(),  # last: it marks the folder as a run's folder
    }
    files = {folder / name: content for name, content in contents.items() if content is not None}
    write_missing(files)
    return list(files)


def restore_folder(folder: Path, files: dict[Path, bytes]) -> list[str]:
    """Rewrite files that were removed from a run's folder, or the whole folder if it was removed or moved.

    Args:
        folder: the run's folder. If another folder has that name now, this process also locks that one.
        files: the files and their contents.

    Returns:
        The names of the missing files.

    Raises:
        UserError: the files cannot be written, or another process is training in the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not any(os.path.samestat(folder.stat(), os.fstat(descriptor)) for descriptor in locked_folders):
            lock_folder(folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from None
    return write_missing(files)


def write_missing(files: dict[Path, bytes]) -> list[str]:
    """Write the files that do not exist, and return their names."""
    missing = [file for file in files if not file.exists()]
    for file in missing:
        write_bytes(file, files[file])
    return [file.name for file in missing]


def commit() -> str | None:
    """Return the checkout's commit, with a + if files have been changed since; None outside a checkout."""
    source = Path(__file__).parent
    git = ["git", "-C", str(source)]
    try:
        tracked = subprocess.run([*git, "ls-files", "--error-unmatch", __file__], capture_output=True, check=True)
        name = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        status = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return name.stdout.strip() + ("+" if status.stdout.strip() else "") if tracked.stdout else None


def sources_hash() -> str:
    """Return a hash of the package's source files, which is the same in a checkout and in an installed wheel."""
    package = Path(__file__).parents[1]
    files = {file.relative_to(package).as_posix(): file for file in package.rglob("*.py")}
    lines = "".join(f"{name} {file_hash(files[name])}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()
