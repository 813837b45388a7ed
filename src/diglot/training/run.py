"""How long a run is, and when it validates: everything is counted in updates."""

from datetime import datetime
from pathlib import Path
from typing import Any

import lightning as L

from diglot.data.module import TranslationData
from diglot.errors import UserError
from diglot.system.atomic import numbered_folder


class Budget:
    """The budget of a training run.

    Args:
        updates: length of the run in updates (optimizer steps); None: `passes` says it.
        passes: length of the run in passes over the training pairs; None: `updates` says it.
        validate_every: updates between validations; one always follows the last update.
        folder: where the run's files go; None: a new folder under runs/.
        compile: whether to compile the model with torch.compile.
        skip_non_finite: updates whose gradient is not finite that may be passed over before the run ends.
        keep_best: of how many validations, those of the best dev BLEU, the checkpoint is kept.
        keep_last: of how many, the last ones.
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
        keep_best: int = 1,
        keep_last: int = 1,
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
        self.keep_best, self.keep_last = keep_best, keep_last

    def total_updates(self, data: TranslationData) -> int:
        """The length of the run on these data, in updates."""
        return self.updates if self.updates is not None else data.updates_in(self.passes or 0)

    def new_folder(self, name: str) -> Path:
        """Make the run's folder, which must not exist yet: two runs never share one.

        Args:
            name: ends the name of a folder that the user did not name.
        """
        if self.folder is not None:
            folder = Path(self.folder).expanduser()
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                raise UserError(f"run.folder={folder} exists already: a run needs a folder of its own") from None
            except OSError as error:
                raise UserError(f"run.folder={folder} cannot be made: {error.strerror}") from None
            return folder
        return numbered_folder(Path("runs") / f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{name}")


Run = Budget  # the name that configs know it by


class StopAfterLastUpdate(L.Callback):
    """Lets a validation follow the last update even where it falls between two."""

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step >= trainer.max_steps:
            trainer.should_stop = True
