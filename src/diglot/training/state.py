"""Where a run stands, beside its weights and its optimizer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diglot.data.batching import StreamPosition


@dataclass
class RunState:
    """What a run's checkpoints hold of where it stands.

    Each field is changed by one object, which is given the state when it is made.

    Attributes:
        update: updates done; changed by the checkpoint writer, like all but `skipped`.
        position: where the stream of batches stands after them; None: not known (checkpoints of earlier versions).
        skipped: updates that were not made because their gradient was not finite; changed by the task.
        validation_due_since: Unix time at which the validation began that follows these updates and has not come to its
            end; None: they need none.
        has_stopped: whether the run had been told to end with these updates.
        dev_rank: by what the newest validation is compared with others: the monitored score and what decides between
            equal ones. None: there was none.
    """

    update: int = 0
    position: StreamPosition | None = None
    skipped: int = 0
    validation_due_since: float | None = None
    has_stopped: bool = False
    dev_rank: tuple[float, ...] | None = None

    def to_record(self) -> dict[str, Any]:
        """Return the state as a checkpoint holds it, as plain data."""
        record = {
            "update": self.update,
            "place": list(self.position or ()),
            "skipped": self.skipped,
            "validation_due_since": self.validation_due_since,
            "has_stopped": self.has_stopped,
        }
        if self.dev_rank is not None:
            record |= {"dev_bleu": self.dev_rank[0], "dev_rank": list(self.dev_rank)}
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any], update: int) -> "RunState":
        """Return the state that a checkpoint holds.

        Args:
            record: of the checkpoint, already checked; one of an earlier version may lack any key.
            update: updates done.
        """
        place, rank = record.get("place"), record.get("dev_rank")
        return cls(
            update=update,
            position=StreamPosition(*place) if place else None,
            skipped=record.get("skipped", 0),
            validation_due_since=record.get("validation_due_since"),
            has_stopped=record.get("has_stopped", False),
            dev_rank=tuple(rank) if rank else None,
        )
