"""The length of a run and its validation interval, both counted in updates."""

from datetime import datetime
from pathlib import Path
from typing import Any

import lightning as L

from diglot.data.module import TranslationData
from diglot.errors import UserError
from diglot.system.atomic import numbered_folder


class Budget:
    """The length of a training run, its validation interval, its folder and the checkpoints that it keeps.

    Args:
        updates: length of the run in updates (optimizer steps); None if `passes` is given.
        passes: length of the run in passes over the training pairs; None if `updates` is given.
        validate_every: number of updates between validations; one always follows the last update.
        folder: the run's folder; None creates a new folder under runs/.
        compile: whether to compile the layers of the model with torch.compile; see diglot.training.compilation.
        skip_non_finite: number of updates with a gradient that is not finite that may be skipped before the run ends.
        monitor: name of the metric that ranks validations; None: the first one. Code reads it from the config; see
            diglot.config.monitored.
        keep_best: number of validations with the best value of that metric whose checkpoints are kept.
        keep_last: number of most recent validations whose checkpoints are kept.
        test: whether the best checkpoint is scored on the test set at the end. Jobs of a sweep never are.

    Raises:
        ValueError: not exactly one of updates and passes is given, or a number is out of range.
    """

    def __init__(
        self,
        *,
        updates: int | None = None,
        passes: int | None = None,
        validate_every: int = 1000,
        folder: str | None = None,
        compile: bool = False,
        skip_non_finite: int = 0,
        monitor: str | None = None,
        keep_best: int = 1,
        keep_last: int = 1,
        test: bool = True,
    ) -> None:
        if (updates is None) == (passes is None):
            raise ValueError(f"exactly one of updates ({updates}) and passes ({passes}) must be given, the other null")
        positive = {"updates": updates, "passes": passes, "validate_every": validate_every}
        for name, value in {**positive, "keep_best": keep_best, "keep_last": keep_last}.items():
            if value is not None and value < 1:
                raise ValueError(f"{name} ({value}) must be positive")
        self.updates, self.passes, self.validate_every = updates, passes, validate_every
        if skip_non_finite < 0:
            raise ValueError(f"skip_non_finite ({skip_non_finite}) must not be negative")
        self.folder, self.compile, self.skip_non_finite = folder, compile, skip_non_finite
        self.monitor, self.keep_best, self.keep_last = monitor, keep_best, keep_last
        self.test = test

    def total_updates(self, data: TranslationData) -> int:
        """Return the length of the run on these data, in updates."""
        return self.updates if self.updates is not None else data.updates_in(self.passes or 0)

    def new_folder(self, name: str) -> Path:
        """Create the run's folder, which must not exist yet: two runs never share one.

        Args:
            name: end of the folder's name, if the user did not name it.

        Raises:
            UserError: the folder exists or cannot be created.
        """
        if self.folder is not None:
            folder = Path(self.folder).expanduser()
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                raise UserError(f"run.folder={folder} already exists: each run needs a new folder") from None
            except OSError as error:
                raise UserError(f"run.folder={folder} cannot be created: {error.strerror}") from None
            return folder
        return numbered_folder(Path("runs") / f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{name}")


Run = Budget  # its name in configs


class StopAfterLastUpdate(L.Callback):
    """Callback that lets a validation follow the last update, even if none is due there."""

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step >= trainer.max_steps:
            trainer.should_stop = True
