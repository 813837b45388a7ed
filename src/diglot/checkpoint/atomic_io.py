"""The plugin through which Lightning writes and reads checkpoint files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch.plugins.io import TorchCheckpointIO

from diglot.checkpoint.file import write


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoint plugin that writes atomically, see `diglot.checkpoint.file.write`.

    Args:
        read: reads a checkpoint without running code in it.
    """

    def __init__(self, read: Callable[[Path], dict[str, Any]]) -> None:
        self.read = read

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return self.read(Path(path))

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        write(checkpoint, Path(path))
