"""The sweeper of hydra/sweeper=optuna. Optuna chooses the values of each job from the results of the jobs before it."""

import hashlib
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn
from omegaconf import DictConfig, OmegaConf

from diglot.errors import UserError
from hydra_plugins.diglot_launcher.launcher import begin, for_launcher, for_others, job_config, launch
from hydra_plugins.diglot_launcher.sweeper import DiglotSweeper

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from diglot.sweeps.job import Job
    from diglot.sweeps.search import Search
    from diglot.sweeps.sweep import Sweep


class DiglotOptunaSweeper(DiglotSweeper):
    """Sweeper whose jobs are the trials of a search by Optuna.

    Args:
        sampler: node of the sampler.
        direction: maximize or minimize.
        n_trials: the number of trials.
        n_jobs: the number of trials that are chosen, and then run, together.
        max_failure_rate: the maximum share of failed trials among those; above it, the search ends.
        params: what is searched in addition to the command line, like {model.dropout: "interval(0.0, 0.4)"}.
    """

    def __init__(
        self,
        sampler: DictConfig,
        direction: str = "maximize",
        n_trials: int = 20,
        n_jobs: int = 1,
        max_failure_rate: float = 1.0,
        params: dict[str, str] | None = None,
    ) -> None:
        super().__init__(params=params)
        self.sampler, self.direction = sampler, direction
        self.n_trials, self.n_jobs, self.max_failure_rate = n_trials, n_jobs, max_failure_rate

    def sweep(self, arguments: list[str]) -> list[JobReturn]:
        """Run all trials that have not ended.

        Raises:
            UserError: nothing varies, or some trials failed. The others have run, unless sweep.stop_at_first_failure is
                set.
        """
        from diglot.sweeps.search import JOURNAL, write_pictures
        from diglot.sweeps.sweep import failed, some_failed

        assert self.config is not None
        assert self.hydra_context is not None
        assert self.launcher is not None
        self._check_keys()
        parsed = OverridesParser.create(config_loader=self.hydra_context.config_loader).parse_overrides(
            [*self.typed_params(), *arguments, *for_launcher(self.launcher, self.config)]
        )
        overrides = list({override.get_key_element(): override for override in parsed}.values())
        self._check_first(overrides)
        sweep = begin(self.launcher, self.config)
        try:
            search = self._search(overrides, sweep.folder / JOURNAL)
            refused = self._run(search, sweep, overrides)
            made = write_pictures(search, sweep.folder, sweep.objective.score)
            sweep.conclude(made)
        finally:
            sweep.unlock()
        jobs = sweep.jobs
        broken = [failed(job, jobs) for job in jobs if job.status not in ("finished", "tried", "stopped", "outdated")]
        if broken or refused:
            raise some_failed([*broken, *refused], search.n_done)
        return []

    def _check_keys(self) -> None:
        assert self.config is not None
        if self.config.sweep.stop == "evidence":
            raise UserError(
                "sweep.stop=evidence needs jobs that are known beforehand: with hydra/sweeper=optuna, type "
                "sweep.stop=median"
            )
        for key, value, kind in (
            ("n_trials", self.n_trials, int),
            ("n_jobs", self.n_jobs, int),
            ("max_failure_rate", self.max_failure_rate, (int, float)),
        ):
            lowest = 0 if key == "max_failure_rate" else 1
            if not isinstance(value, kind) or isinstance(value, bool) or value < lowest:
                raise UserError(f"hydra.sweeper.{key}={value} must be a number of at least {lowest}")
        if self.direction not in ("maximize", "minimize"):
            raise UserError(f"hydra.sweeper.direction={self.direction} must be maximize or minimize")

    def _check_first(self, overrides: Sequence[Override]) -> None:
        """Check the config of the first trial before anything is written.

        Raises:
            UserError: the config is wrong, or there is nothing to search.
        """
        if not any(override.is_sweep_override() for override in overrides):
            raise UserError("nothing varies: name values to search, like 'model.dropout=interval(0.0,0.3)'")
        assert self.config is not None
        assert self.hydra_context is not None
        (trial,) = self._search(overrides).next_trials(1, 1)
        job_config(self.hydra_context, self.config, job_overrides(trial, overrides))

    def _search(self, overrides: Sequence[Override], journal: Path | None = None) -> "Search":
        """Return the search of a command, with the trials in a journal or none."""
        from diglot.config import build, meaning_of, objective
        from diglot.sweeps.search import Search, distribution

        searched = [override for override in overrides if override.is_sweep_override()]
        node: Any = OmegaConf.to_container(self.sampler, resolve=True)

        if str(node["_target_"]).endswith("GPSampler") and find_spec("scipy") is None:
            raise UserError("hydra/sweeper/sampler=gp: scipy is not installed: pip install scipy")

        def sampler(number: int) -> Any:
            (seed,) = np.random.SeedSequence([int(node.get("seed") or 0), number]).generate_state(1)
            return build(node, "hydra.sweeper.sampler", seed=int(seed))

        assert self.config is not None
        counting = [o for o in overrides if meaning_of(o.get_key_element().lstrip("+~")).hashed != "never"]
        words = sorted(str(override.input_line) for override in counting)
        identity = [words, node, self.direction, objective(self.config)]
        name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]
        space = {override.get_key_element(): distribution(override) for override in searched}
        return Search(space, sampler, self.direction, name, journal, repeats_pruned=self.config.sweep.stop is None)

    def _run(self, search: "Search", sweep: "Sweep", overrides: Sequence[Override]) -> list[UserError]:
        """Run the trials, and return why some were not possible.

        Raises:
            UserError: too many trials of a batch failed, or a job was interrupted.
        """
        from diglot.sweeps.sweep import failed, some_failed

        refused: list[UserError] = []
        while trials := search.next_trials(self.n_jobs, self.n_trials):
            jobs, errors = self._run_batch(trials, sweep, overrides, search.n_done)
            refused += errors
            unfinished = [job for job in jobs.values() if job.status in ("running", "interrupted", "not started")]
            for trial in trials:
                job = jobs.get(trial.number)
                if job is None or job not in unfinished:
                    search.tell(trial, job, sweep.objective.score)
            if unfinished:
                raise some_failed([failed(job, sweep.jobs) for job in unfinished], search.n_done + len(unfinished))
            n_failed = len(errors) + sum(job.status == "failed" for job in jobs.values())
            if n_failed / len(trials) > self.max_failure_rate:
                break
        return refused

    def _run_batch(
        self, trials: "Sequence[FrozenTrial]", sweep: "Sweep", overrides: Sequence[Override], n_done: int
    ) -> "tuple[dict[int, Job], list[UserError]]":
        """Run a batch of trials.

        Returns:
            The jobs by number of the trial, and why the values of other trials do not go together.
        """
        from diglot.sweeps.job import say

        assert self.config is not None
        assert self.hydra_context is not None
        assert self.launcher is not None
        configs: dict[int, tuple[DictConfig, str]] = {}
        launched: list[list[str]] = []
        errors: list[UserError] = []
        for trial in trials:
            words = job_overrides(trial, overrides)
            try:
                configs[trial.number] = job_config(self.hydra_context, self.config, words)
            except UserError as error:
                say(str(error))
                errors.append(error)
            else:
                launched.append(words)
        if launched:
            named = for_others(self.launcher, self.config, sweep, launched, list(configs.values()))
            launch(self.launcher, self.config, sweep, named, n_done)
        by_hash = {job.hash: job for job in sweep.jobs if job.status != "outdated"}
        return {number: by_hash[digest] for number, (_, digest) in configs.items()}, errors


def job_overrides(trial: "FrozenTrial", overrides: Sequence[Override]) -> list[str]:
    """Return the overrides of a trial's job, in the order of the command line."""
    return [
        f"{key}={trial.params[key] if key in trial.params else override.get_value_element_as_str()}"
        for override in overrides
        for key in [override.get_key_element()]
    ]
