"""The order of a run's callbacks."""

from collections.abc import Sequence

import lightning as L

from diglot.training.checkpoint_writer import CheckpointWriter, MissedValidation
from diglot.training.run import StopAfterLastUpdate
from diglot.training.signals import LeaveFirst, Signals


def in_order(
    *,
    probe: L.Callback,
    scores: L.Callback,
    users: Sequence[L.Callback],
    writer: CheckpointWriter,
    reports: Sequence[L.Callback],
    throughput: L.Callback,
    signals: Signals,
    n_updates: int,
) -> list[L.Callback]:
    """Return a run's callbacks in the order in which Lightning calls each of their hooks.

    What ends a run comes before anything that would see a batch that is not trained on; what changes a run (a user's
    callback may stop it) before the checkpoint that holds it; what reports and times a validation after all that is
    part of it; what asks whether the run has ended after all that may end it.

    Args:
        probe: notes each batch, in case that memory does not hold it.
        scores: scores validations.
        users: look at scores and models, and may end the run.
        writer: writes checkpoints.
        reports: say what a validation has come to.
        throughput: measures what is no validation.
        signals: ends the run where a signal asks for it.
        n_updates: length of the run.
    """
    return [
        LeaveFirst(signals),
        probe,
        scores,
        *users,
        writer,
        StopAfterLastUpdate(),
        *reports,
        throughput,
        signals,
        MissedValidation(writer, n_updates),
    ]
