"""The rules of sweep.stop, which end a job of a sweep early. The job's own process asks its rule at each validation."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from diglot.config import higher_is_better, objective
from diglot.config.scores import metric_names
from diglot.data.text import write_json
from diglot.errors import UserError
from diglot.evaluation.validation import Validation, read_validations
from diglot.runs.folder import JOB, STOPPED
from diglot.sweeps.configuration import configurations
from diglot.sweeps.evidence import Point, Run, deficit
from diglot.sweeps.job import Job
from diglot.sweeps.search import load_optuna

EVIDENCE, MEDIAN = RULES = ("evidence", "median")
CANNOT_WIN = "stopped: cannot win"
N_STARTUP = 5  # finished jobs that median needs, as in Optuna's MedianPruner


def check_rule(config: DictConfig) -> None:
    """Check that a sweep's rule can be applied to its objective.

    Raises:
        UserError: it cannot. The message says what to type.
    """
    rule, score = config.sweep.stop, objective(config)
    if rule == MEDIAN:
        load_optuna()
    if rule == EVIDENCE:
        if score.removeprefix("dev/") not in metric_names(config):
            raise UserError(
                f"sweep.stop={EVIDENCE} compares translations, and objective={score} is no metric of them: type "
                f"objective=dev/{metric_names(config)[0]} or sweep.stop={MEDIAN}"
            )
        if not config.sweep.catch_up >= 1:
            raise UserError(f"sweep.catch_up={config.sweep.catch_up} must be at least 1")


def rule_of(config: DictConfig, folder: Path) -> Callable[[], str | None] | None:
    """Return the rule of the run in a folder, or None if it is no job of a sweep with a rule."""
    if config.sweep.stop is None or not (folder / JOB).exists():
        return None
    return {EVIDENCE: cannot_win, MEDIAN: below_median}[config.sweep.stop](config, folder)


def stop_with_configuration(job: Job, jobs: Sequence[Job], rule: str | None) -> bool:
    """Stop a job before it starts if `evidence` has stopped one that differs by its seed alone; return whether it has.

    The test is one of the configuration, so that its result holds for each of its jobs.
    """
    twins = [twin for twin in jobs if twin.configuration == job.configuration and twin.number != job.number]
    twin = next((twin for twin in twins if twin.status == "stopped" and twin.message.startswith(CANNOT_WIN)), None)
    if rule != EVIDENCE or twin is None or job.status in ("finished", "outdated"):
        return False
    job.status, job.message = "stopped", f"{CANNOT_WIN}, like job {twin.number}"
    write_json(job.folder / STOPPED, {"reason": job.message, "update": None})
    job.write()
    return True


def _jobs_around(folder: Path) -> list[Job]:
    """Return all jobs of the sweep that the job in a folder belongs to, ordered by number."""
    jobs = [Job.read(path.parent) for path in folder.parent.glob(f"*/{JOB}")]
    return sorted((job for job in jobs if job.status != "outdated"), key=lambda job: job.number)


def cannot_win(config: DictConfig, folder: Path) -> Callable[[], str | None]:
    """Return the rule `evidence` for the job in a folder; see `diglot.sweeps.evidence`."""
    score = objective(config)
    sign = 1 if higher_is_better(config, score) else -1

    def rule() -> str | None:
        newest = read_validations(folder, score)[-1]
        jobs = _jobs_around(folder)
        rows = configurations(jobs)
        runs = {job.number: run_of(job, score, sign, newest) for job in jobs}
        has_come = [[run for job in row.jobs if (run := runs[job.number]) is not None] for row in rows]
        own = next(i for i, row in enumerate(rows) if folder.name in {job.folder.name for job in row.jobs})
        others = [i for i in range(len(rows)) if i != own]
        n_looks = -(-newest.updates // config.run.validate_every) - 1
        found = deficit(
            has_come[own],
            [has_come[i] for i in others],
            newest.update,
            n_tests=(len(jobs) - 1) * n_looks,
            has_seeds=any(len(row.jobs) > 1 for row in rows),
            catch_up=config.sweep.catch_up,
        )
        if found is None or not found.is_final:
            return None
        return (
            f"{CANNOT_WIN} (update {newest.update:,} of {newest.updates:,}); {found.value:.2f} behind "
            f"{rows[others[found.best]].name} there, and it can catch up {max(0.0, found.margin):.2f}"
        )

    return rule


def run_of(job: Job, score: str, sign: int, newest: Validation) -> Run | None:
    """Return a job's run for the comparison with another job; None if they cannot be compared.

    Args:
        job: the job.
        score: the objective.
        sign: 1 if higher values are better, otherwise -1.
        newest: the newest validation of the other job. Runs are comparable if they have as many updates, the same
            references and the same metric, and have come to this update.
    """
    validations = read_validations(job.folder, score)
    if newest.update not in {each.update for each in validations}:
        return None
    if any((each.updates, each.measure) != (newest.updates, newest.measure) for each in validations):
        return None
    points: dict[int, Point] = {}
    best: Point | None = None
    for each in validations:
        if best is None or sign * each.value > best.score:
            best = Point(sign * each.value, sign * np.array(each.influences))
        points[each.update] = best
    return Run(points, is_finished=bool(job.results))


def below_median(config: DictConfig, folder: Path) -> Callable[[], str | None]:
    """Return the rule `median` for the job in a folder: Optuna's MedianPruner among all jobs."""
    score = objective(config)
    direction = "maximize" if higher_is_better(config, score) else "minimize"

    def rule() -> str | None:
        optuna = load_optuna()
        create, states = optuna.trial.create_trial, optuna.trial.TrialState
        study = optuna.create_study(direction=direction)
        for job in _jobs_around(folder):
            values = {each.update: each.value for each in read_validations(job.folder, score)}
            if job.folder.name != folder.name and values:
                result = job.value(score)
                ended: dict[str, Any] = {"state": states.PRUNED}
                if result is not None:
                    ended = {"state": states.COMPLETE, "value": result}
                study.add_trial(create(intermediate_values=values, **ended))
        own = read_validations(folder, score)
        trial = create(state=states.RUNNING, intermediate_values={each.update: each.value for each in own})
        if not optuna.pruners.MedianPruner(n_startup_trials=N_STARTUP).prune(study, trial):
            return None
        return f"pruned: worse than the median of the jobs (update {own[-1].update:,} of {own[-1].updates:,})"

    return rule
