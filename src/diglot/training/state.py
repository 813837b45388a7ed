"""The state of a run besides its weights and optimizer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diglot.data.batching import StreamPosition


@dataclass
class RunState:
    """State of a run that its checkpoints hold besides the weights and the optimizer.

    Each field is changed by one object, which receives the state when it is created.

    Attributes:
        update: number of updates done; changed by the checkpoint writer, like all fields except `skipped`.
        position: position of the batch stream after these updates; None if unknown (checkpoints of earlier versions).
        skipped: number of updates skipped because their gradient was not finite; changed by the task.
        validation_due_since: Unix time at which the validation after these updates began, if it has not finished; None
            if no validation is due.
        has_stopped: whether the run was to end after these updates.
        dev_score: name and value of the monitored score in the newest validation (see `run.monitor`). None before the
            first one.
        dev_rank: key by which this validation is compared with others; greater is better.
    """

    update: int = 0
    position: StreamPosition | None = None
    skipped: int = 0
    validation_due_since: float | None = None
    has_stopped: bool = False
    dev_score: tuple[str, float] | None = None
    dev_rank: tuple[float, ...] | None = None

    def to_record(self) -> dict[str, Any]:
        """Return the state as plain data for a checkpoint."""
        record = {
            "update": self.update,
            "place": list(self.position or ()),
            "skipped": self.skipped,
            "validation_due_since": self.validation_due_since,
            "has_stopped": self.has_stopped,
        }
        if self.dev_score is not None and self.dev_rank is not None:
            name, value = self.dev_score
            record |= {_key_of(name): value, "dev_rank": list(self.dev_rank)}
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any], update: int, monitor: str = "bleu") -> "RunState":
        """Return the state that a checkpoint holds.

        Args:
            record: the checkpoint's record, already checked; one of an earlier version may lack any key.
            update: number of updates done.
            monitor: name of the monitored score.
        """
        position, rank, score = (record.get(key) for key in ("place", "dev_rank", _key_of(monitor)))
        return cls(
            update=update,
            position=StreamPosition(*position) if position else None,
            skipped=record.get("skipped", 0),
            validation_due_since=record.get("validation_due_since"),
            has_stopped=record.get("has_stopped", False),
            dev_score=(monitor, score) if rank and score is not None else None,
            dev_rank=tuple(rank) if rank else None,
        )


def _key_of(monitor: str) -> str:
    """Return the key of a monitored score in a checkpoint's record: dev_bleu for bleu, or else dev_news/bleu."""
    return monitor if "/" in monitor else f"dev_{monitor}"
