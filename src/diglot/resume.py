"""What a run goes on from, where it goes on."""

import logging
from pathlib import Path
from typing import Any, NamedTuple

from diglot import checkpoint as checkpoints
from diglot.config import changes, other_values, refuse_other_config
from diglot.data.batching import Place
from diglot.data.shards import Shards
from diglot.errors import UserError
from diglot.training.folder import CONFIG, is_finished, is_held

say = logging.getLogger("diglot").info

AUTO = "auto"  # resume=auto


class Begun(NamedTuple):
    """Where a run stands.

    Attributes:
        checkpoint: the file to go on from; None: there is none yet.
        update: how many updates are done.
        place: where the stream of batches stands after these; None: not known.
        validation_due_since: Unix time from which on these updates were being validated, which did not come to its
            end; None: they need no validation.
        has_stopped: whether the run had been told to end with them.
    """

    checkpoint: Path | None = None
    update: int = 0
    place: Place | None = None
    validation_due_since: float | None = None
    has_stopped: bool = False


def unfinished(folder: str | None, config: dict[str, Any]) -> str | None:
    """The newest run of a config that has not come to its end and that no living process holds.

    Args:
        folder: where it is; None: anywhere under runs/.
        config: as it is now.
    """
    folders = [Path(folder).expanduser()] if folder is not None else list(Path("runs").glob("*"))
    begun = [each for each in folders if (each / CONFIG).is_file() and not is_finished(each) and not is_held(each)]
    begun.sort(key=lambda each: (each / CONFIG).stat().st_mtime_ns, reverse=True)
    for each in begun:
        try:
            if not other_values(each / CONFIG, config):
                return str(each)
        except UserError as error:
            say(f"resume=auto: passed over, {error}")
    return None


def take_up(folder: Path, config: dict[str, Any], shards: Shards) -> Begun:
    """Where the run in a folder stands, from its newest checkpoint that is whole.

    Args:
        folder: the run's.
        config: as it is now.
        shards: the training text as it is now.

    Raises:
        UserError: the run would go on as another one, or all its checkpoints are damaged.
    """
    refuse_other_config(folder / CONFIG, config)
    found = checkpoints.newest_whole(folder)
    if found is None:
        return Begun()
    checkpoint, content, damaged = found
    record = content["diglot"]
    if others := changes(record["config"], config):
        raise UserError(f"{checkpoint}: this is another run's checkpoint: {', '.join(others[:3])}")
    if record.get("data", shards.key) != shards.key:
        raise UserError(f"resume={folder}: the training text is no longer the one that the run began with")
    for line in damaged:
        say(f"{line}; the run goes on from {checkpoint} (update {content['global_step']:,})")
    place = record.get("place")
    return Begun(
        checkpoint,
        content["global_step"],
        Place(*place) if place else None,
        record.get("validation_due_since"),
        record.get("has_stopped", False),
    )
