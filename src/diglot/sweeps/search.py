"""A search by Optuna: its trials in a journal in the sweep's folder, and its pictures.

Optuna chooses values (`Study.ask`), a job trains with them, and Optuna is told the result (`Study.tell`). The journal
is a file of JSON lines that only the process with the sweep's lock writes. So the same command continues a search whose
process was killed.
"""

import io
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from diglot.data.text import write_bytes
from diglot.errors import UserError
from diglot.evaluation.validation import read_validations
from diglot.sweeps.job import Job

if TYPE_CHECKING:  # it is optional, and slow
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

JOURNAL = "search.jsonl"
PICTURES = ("search_history.png", "search_importances.png", "search_slices.png")
_REPEATS = "repeats"  # attribute of a trial with the number of the trial that it repeats


def load_optuna() -> Any:
    """Import Optuna, and let it print only warnings.

    Raises:
        UserError: it is not installed.
    """
    try:
        import optuna
    except ImportError:
        advice = "pip install 'diglot[optuna]', or in a checkout .venv/bin/pip install -e '.[optuna]'"
        raise UserError(f"optuna is not installed: {advice}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def distribution(override: Override) -> "BaseDistribution":
    """Return the values that an override of the command line lets Optuna choose from.

    Raises:
        UserError: the override has no such values.
    """
    kinds = load_optuna().distributions
    value: Any = override.value()
    try:
        if isinstance(value, IntervalSweep):
            start, end = value.start, value.end
            is_log = "log" in value.tags
            if isinstance(start, int) and isinstance(end, int):
                return kinds.IntDistribution(start, end, log=is_log)  # type: ignore[no-any-return]
            return kinds.FloatDistribution(start, end, log=is_log)  # type: ignore[no-any-return]
        if isinstance(value, RangeSweep) and not value.shuffle:
            values = list(value.range())
            low, high, step = min(values), max(values), abs(value.step)
            kind = kinds.IntDistribution if all(isinstance(each, int) for each in values) else kinds.FloatDistribution
            return kind(low, high, step=step)  # type: ignore[no-any-return]
        return kinds.CategoricalDistribution(list(override.sweep_string_iterator()))  # type: ignore[no-any-return]
    except (ValueError, TypeError) as error:
        raise UserError(f"{override.input_line}: Optuna cannot choose from it: {error}") from None


class Search:
    """The trials of a search. Each trial is a job of the sweep.

    A trial that a killed process has left running is run again, as the same job. A trial that failed under an earlier
    command is repeated as a new trial with the same values, which leads to the same job.

    Args:
        space: the values to choose from, by key.
        sampler: returns a sampler with the seed for a trial of the given number. The choice of a trial then depends
            only on this number and on the trials before, not on which process chose them.
        direction: maximize or minimize.
        name: name of the study in the journal; a journal may have several.
        journal: the file; None: keep the trials in memory.
        repeats_pruned: whether trials that were pruned under an earlier command are repeated, too.

    Raises:
        UserError: the journal is damaged.
    """

    def __init__(
        self,
        space: Mapping[str, "BaseDistribution"],
        sampler: "Callable[[int], BaseSampler]",
        direction: str,
        name: str,
        journal: Path | None = None,
        repeats_pruned: bool = False,
    ) -> None:
        optuna = load_optuna()
        self.space, self.sampler = dict(space), sampler
        self._states, self._create_trial = optuna.trial.TrialState, optuna.trial.create_trial
        self._failed: set[int] = set()  # numbers of the trials that have failed under this command
        try:
            self._storage = optuna.storages.InMemoryStorage()
            if journal is not None:
                remove_partial_line(journal)
                backend = optuna.storages.journal.JournalFileBackend(str(journal), _Locked())
                self._storage = optuna.storages.JournalStorage(backend)
            self.study = optuna.create_study(
                storage=self._storage, study_name=name, direction=direction, load_if_exists=True, sampler=sampler(0)
            )
            self._resume(["FAIL", "PRUNED"] if repeats_pruned else ["FAIL"])
        except OSError as error:
            raise UserError(f"{journal}: cannot be used: {error.strerror}") from None
        except (ValueError, TypeError, KeyError, AttributeError, AssertionError) as error:
            advice = "delete it to begin the search again; finished jobs are not trained again"
            raise UserError(f"{journal}: damaged ({type(error).__name__}: {error}); {advice}") from None

    def _resume(self, repeated: Sequence[str]) -> None:
        """Give up trials that were killed while they were chosen, and repeat the trials of the given states."""
        for trial in self._in_state("RUNNING"):
            if not self._is_complete(trial):
                self.study.tell(trial.number, state=self._states.FAIL)
        for trial in self._in_state(*repeated):
            if self._is_complete(trial):
                again = self._create_trial(
                    state=self._states.RUNNING,
                    params=trial.params,
                    distributions=trial.distributions,
                    user_attrs={_REPEATS: trial.number},
                )
                self.study.add_trial(again)

    def _in_state(self, *names: str) -> list["FrozenTrial"]:
        """Return the trials in the given states, except those that another trial repeats."""
        trials = self.study.trials
        repeated = {trial.user_attrs.get(_REPEATS) for trial in trials}
        states = [self._states[name] for name in names]
        return [trial for trial in trials if trial.state in states and trial.number not in repeated]

    def _is_complete(self, trial: "FrozenTrial") -> bool:
        """Return whether a trial has all its values."""
        return trial.params.keys() == self.space.keys()

    @property
    def n_done(self) -> int:
        """The number of trials that have ended. One that failed under an earlier command does not count."""
        return len(self._in_state("COMPLETE", "PRUNED")) + len(self._failed)

    def next_trials(self, most: int, total: int) -> list["FrozenTrial"]:
        """Return the trials to run next: those that were left running, and new ones to complete a batch.

        Args:
            most: the number of trials in a batch.
            total: the number of trials of the whole search.
        """
        running = self._in_state("RUNNING")
        n_chosen = sum(map(self._is_complete, self.study.trials))
        # A batch that was killed is completed before the next one begins, whose choice depends on its results.
        n_missing = -n_chosen % most or (0 if running else most)
        for number in range(n_chosen, n_chosen + min(n_missing, total - self.n_done - len(running))):
            self.study.sampler = self.sampler(number)
            asked = self.study.ask(self.space).number
            running.append(self.study.trials[asked])
        return running[:most]

    def tell(self, trial: "FrozenTrial", job: Job | None, score: str) -> None:
        """Tell Optuna a trial's result. A trial without a result has failed.

        Args:
            trial: the trial.
            job: its job; None: its values do not go together.
            score: the objective, such as dev/bleu.
        """
        study_id = self._storage.get_study_id_from_name(self.study.study_name)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
        for validation in read_validations(job.folder, score) if job is not None else ():
            self._storage.set_trial_intermediate_value(trial_id, validation.update, validation.value)
        value = None if job is None else job.value(score)
        if value is not None:
            self.study.tell(trial.number, value)
        elif job is not None and job.status == "stopped":
            self.study.tell(trial.number, state=self._states.PRUNED)
        else:
            self._failed.add(trial.number)
            self.study.tell(trial.number, state=self._states.FAIL)

    def pictures(self, title: str) -> dict[str, bytes]:
        """Return pictures of the search by file name: its history, the importances of keys, and the scores by value.

        Args:
            title: name of the objective.
        """
        from optuna.visualization import matplotlib as drawing

        draw: dict[str, Callable[[], Any]] = {
            PICTURES[0]: lambda: drawing.plot_optimization_history(self.study, target_name=title),
            PICTURES[1]: lambda: drawing.plot_param_importances(self.study, target_name=title),
            PICTURES[2]: lambda: drawing.plot_slice(self.study, target_name=title),
        }
        done = self._in_state("COMPLETE")
        if not done:
            return {}
        if len(done) < 2 or len({trial.value for trial in done}) < 2:  # importances need different scores
            del draw[PICTURES[1]]
        return {name: _as_png(each) for name, each in draw.items()}


class _Locked:
    """The lock of a journal. It does nothing, because this process holds the sweep's lock."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def remove_partial_line(journal: Path) -> None:
    """Remove the last line of a journal if the process was killed while it wrote the line."""
    if journal.is_file():
        content = journal.read_bytes()
        if not content.endswith(b"\n"):
            os.truncate(journal, content.rfind(b"\n") + 1)


def _as_png(draw: Callable[[], Any]) -> bytes:
    """Return the picture that a function of Optuna draws."""
    import matplotlib.pyplot as plt
    from matplotlib import style

    plt.switch_backend("agg")  # needs no screen
    content = io.BytesIO()
    with style.context("default"), warnings.catch_warnings():  # Optuna changes the style
        warnings.simplefilter("ignore")
        drawn = draw()
        figure = (drawn.flat[0] if hasattr(drawn, "flat") else drawn).figure
        figure.savefig(content, format="png", dpi=120, bbox_inches="tight", metadata={"Software": None})
        plt.close(figure)
    return content.getvalue()


def write_pictures(search: Search, folder: Path, title: str) -> Sequence[str]:
    """Write a search's pictures into a folder, and return their names."""
    found = search.pictures(title)
    for name, content in found.items():
        write_bytes(folder / name, content)
    return list(found)
