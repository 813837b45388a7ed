"""The order of a run's callbacks."""

from collections.abc import Sequence

import lightning as L

from diglot.training.checkpoint_writer import CheckpointWriter, MissedValidation
from diglot.training.run import StopAfterLastUpdate
from diglot.training.signals import Signals, StopBeforeBatch


def in_order(
    *,
    kernels: Sequence[L.Callback],
    probe: L.Callback,
    scores: L.Callback,
    users: Sequence[L.Callback],
    records: Sequence[L.Callback] = (),
    writer: CheckpointWriter,
    reports: Sequence[L.Callback],
    throughput: L.Callback,
    signals: Signals,
    n_updates: int,
    early_end: Sequence[L.Callback] = (),
) -> list[L.Callback]:
    """Return a run's callbacks in the order in which Lightning calls each of their hooks.

    The order follows these rules:

    - A callback that ends the run comes before any that would see a batch that is not trained on.
    - A callback that changes the run (a user's callback may stop it) comes before the checkpoint that holds the change.
    - A validation is recorded before the checkpoint after it, so that a run that was killed has no gap in its records.
    - A callback that reports and times a validation comes after everything that is part of it.
    - A callback that checks whether the run has ended comes after everything that may end it.

    Args:
        kernels: compile the model or choose libraries, if the run does that.
        probe: remembers each batch, in case it does not fit into memory.
        scores: scores validations.
        users: watchers and the user's callbacks, which look at scores and models and may end the run.
        records: record validations for the comparison of a sweep's jobs.
        writer: writes checkpoints.
        reports: report the results of validations.
        throughput: measures speed outside validations.
        signals: ends the run if a signal asks for it.
        n_updates: length of the run.
        early_end: end a sweep's job after a validation.
    """
    return [
        StopBeforeBatch(signals),
        *kernels,
        probe,
        scores,
        *users,
        *records,
        writer,
        StopAfterLastUpdate(),
        *reports,
        throughput,
        *early_end,
        signals,
        MissedValidation(writer, n_updates),
    ]
