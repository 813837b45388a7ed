"""The plugin through which Lightning writes and reads checkpoint files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from diglot.errors import UserError
from diglot.system.atomic import atomic_file


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its final name and renames it: under that name it is whole or not there.

    Args:
        read: how a checkpoint is read: without running code that is in it.
        check: refuses a file that `read` would refuse for what it is made of.
    """

    def __init__(
        self, read: Callable[[Path], dict[str, Any]], check: Callable[[BinaryIO], object] = lambda file: None
    ) -> None:
        self.read, self.check = read, check

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return self.read(Path(path))

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        path = Path(path)
        file: Failing | None = None
        try:
            with atomic_file(path) as whole:
                file = Failing(whole)
                torch.save(checkpoint, file)  # type: ignore[arg-type]  # it has all that torch asks for
                whole.flush()
                with Path(whole.name).open("rb") as written:
                    self.check(written)
        except UserError as error:
            hint = "what a callback of your own keeps must be plain data and tensors"
            raise UserError(f"{path}: this checkpoint could not be read again ({error}): {hint}") from None
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            reason = file.error if file and file.error else error
            told = getattr(reason, "strerror", None) or str(reason).splitlines()[0]
            raise UserError(f"{path}: the checkpoint cannot be written ({told})") from error


class Failing:
    """A file to write to that remembers why writing failed, which torch does not say.

    Attributes:
        error: the first one.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        try:
            return self.file.write(content)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        self.file.flush()
