"""The plugin through which Lightning writes and reads checkpoint files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch.plugins.io import TorchCheckpointIO

from diglot.checkpoint import container
from diglot.errors import UserError
from diglot.system.atomic import atomic_file


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoint plugin that writes atomically: the file is written next to its final name and then renamed.

    Args:
        read: reads a checkpoint without running code in it.
    """

    def __init__(self, read: Callable[[Path], dict[str, Any]]) -> None:
        self.read = read

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return self.read(Path(path))

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        path = Path(path)
        try:
            with atomic_file(path) as whole:
                container.write(checkpoint, whole)
                whole.flush()
                container.check(Path(whole.name))
        except UserError as error:
            hint = "what a callback of your own keeps must be plain data and tensors"
            raise UserError(f"{path}: the checkpoint cannot be written: {error} ({hint})") from None
        except OSError as error:
            raise UserError(f"{path}: the checkpoint cannot be written ({error.strerror or error})") from error
