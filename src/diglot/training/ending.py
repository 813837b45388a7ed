"""Early endings of a run: what is reported, what is saved, and the exit status."""

import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import lightning as L

from diglot.data.module import TranslationData
from diglot.data.text import write_json
from diglot.errors import NON_FINITE, RESUME_ME, UserError
from diglot.system import interruption
from diglot.system.console import say
from diglot.system.masking import in_one_line
from diglot.system.quoting import override, printable, resuming
from diglot.training.checkpoint_writer import CheckpointWriter
from diglot.training.gradients import NonFiniteError
from diglot.training.memory_probe import OutOfMemoryProbe
from diglot.training.processes import Processes, end_others, is_peer_failure, kill_unresponsive


def leave(name: str, folder: Path, trainer: L.Trainer, writer: CheckpointWriter) -> NoReturn:
    """Report that a signal has stopped the run and how to resume it, and exit."""
    message = f"Stopped by {name} at update {trainer.global_step:,}"
    say(f"{message}. {writer.describe()} {resuming(folder)} resumes the run.")
    sys.exit(interruption.status(signal.Signals[name], RESUME_ME))


def fail(
    error: BaseException,
    folder: Path,
    trainer: L.Trainer,
    data: TranslationData,
    processes: Processes,
    writer: CheckpointWriter,
    probe: OutOfMemoryProbe,
    resumed_from: tuple[Path, int] | None = None,
) -> None:
    """Report why training ended, if the reason is known; otherwise return, so that the caller can re-raise the error.

    The caller re-raises errors in diglot's own code and a callback's own SystemExit.

    Args:
        error: the exception that ended training.
        folder: the run's folder.
        trainer: the run's trainer.
        data: the run's data.
        processes: the processes that share the run.
        writer: writes the run's checkpoints.
        probe: knows the batch that ran out of memory.
        resumed_from: the checkpoint that the run resumed from and its number of updates; None for a new run.

    Raises:
        UserError: memory ran out, a process or a loader worker failed, or the checkpoint's training state does not
            fit.
        SystemExit: with the matching exit status, for a gradient that is not finite or a signal outside training.
    """
    if isinstance(error, NonFiniteError):
        file = folder / f"non_finite_{processes.rank}.json"
        write_json(file, explained(error, data))
        print(f"diglot-train: {error}; {printable(file)} has the details. {writer.describe()}", file=sys.stderr)
        sys.exit(NON_FINITE)
    if isinstance(error, SystemExit):  # raised by Lightning for a signal outside training, or by a callback
        of_lightning = signal.SIGINT if isinstance(error.__context__, KeyboardInterrupt) else 0
        signum = interruption.received or (signal.SIGTERM if trainer.received_sigterm else of_lightning)
        status, outcome = interruption.outcome()
        say(f"Stopped by {signal.Signals(signum).name if signum else 'a callback that exits'}. {outcome}")
        if signum:
            sys.exit(interruption.status(signum, status))
        return
    is_lost = is_peer_failure(error, processes.world_size)
    end_others(trainer)
    if is_lost:
        kill_unresponsive(processes.neighbours)
    resume_hint = f"{resuming(folder)} resumes the run. {writer.describe()}"
    if probe.refusal and probe.is_training:  # a run cannot resume with other batches
        new_run = f" in a new run ({override('init_from', writer.last)} starts it with these weights)"
        advice = f"{new_run if writer.last.is_file() else ' in a new run'}; with more memory, {resume_hint}"
        raise UserError(f"{probe.refusal},{advice}") from None
    if probe.refusal:
        raise UserError(f"{probe.refusal}; with a batch that fits, {resume_hint}") from None
    if reason := data.worker_failure(error):
        raise UserError(
            f"one of the data.n_workers={data.options.n_workers} processes {reason}; {resume_hint}"
        ) from None
    if resumed_from and is_state_error(error, trainer.global_step <= resumed_from[1]):
        raise UserError(
            f"checkpoint {resumed_from[0]}: no run can resume from it, because its training state cannot be used "
            f"({type(error).__name__}: {in_one_line(error)})"
        ) from None
    if is_lost:
        raise UserError(
            f"process {processes.rank + 1} of {processes.world_size} got no answer from another one, which has died "
            f"or does not respond; {resume_hint}"
        ) from None


def is_state_error(error: BaseException, is_new: bool) -> bool:
    """Return whether an error was caused by the training state in a checkpoint: by anything in it except the weights.

    Args:
        error: the exception.
        is_new: whether the run has done no update since it loaded the state.
    """
    if not isinstance(error, Exception) or isinstance(error, UserError):
        return False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        file, name = Path(frame.f_code.co_filename).as_posix(), frame.f_code.co_name
        if file.endswith("checkpoint_connector.py") and name.startswith(("restore", "_restore")):
            return True
        if is_new and "/torch/optim/" in file and name in ("step", "_update_param_group", "load_state_dict"):
            return True
    return False


def explained(error: NonFiniteError, data: TranslationData) -> dict[str, Any]:
    """Return the details of a gradient that is not finite, with the texts of its pairs, as plain data."""
    decode = data.tokenizer.decode
    pairs = [
        {"number": pair, "src": decode(data.shards.src[pair].tolist(), (), "src")}
        | {"tgt": decode(data.shards.tgt[pair].tolist(), (), "tgt")}
        for pair in error.pairs
    ]
    step = {"update": error.update, "learning_rate": error.learning_rate}
    return {**step, "gradient_norms": error.norms, "pairs": pairs}
