"""The launcher of sweeps. It runs one job after another, each in its own process, so that a crash ends only one job."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

if TYPE_CHECKING:
    from diglot.sweeps.job import Job
    from diglot.sweeps.sweep import Sweep


class DiglotLauncher(Launcher):
    """Launcher that runs one job after another, each in its own process.

    Args:
        module: the module that a job runs.
    """

    def __init__(self, module: str = "diglot.commands.train") -> None:
        self.module = module
        self.sweep: Sweep | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from diglot.config.hydra_seams import read_once

        self.context, self.config = hydra_context, config
        read_once(hydra_context.config_loader)  # all jobs are composed from the same version of the files
        choose_folder(config)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Check all jobs, then run those that are not finished.

        Raises:
            UserError: a job's config is wrong, or a job failed and sweep.stop_at_first_failure is set.
        """
        from diglot.sweeps.job import Signals, say
        from diglot.sweeps.sweep import failed, some_failed

        configs = [job_config(self.context, self.config, list(overrides)) for overrides in job_overrides]
        if self.sweep is None:
            begin(self, self.config)
        assert self.sweep is not None
        jobs = [
            self.sweep.job(overrides, varied(overrides, self.config), config, hash)
            for overrides, (config, hash) in zip(job_overrides, configs, strict=True)
        ]
        # Jobs with the same config are one job.
        unique = list({job.hash: (job, config) for job, (config, _) in zip(jobs, configs, strict=True)}.values())
        n_jobs = OmegaConf.select(self.config, "hydra.sweeper.n_trials") or initial_job_idx + len(unique)
        with Signals() as signals:
            for number, (job, config) in enumerate(unique, initial_job_idx + 1):
                self._run(job, f"job {number} of {n_jobs}", bool(config.trainer.fast_dev_run), signals)
                if signals.received:
                    say("Stopped by a signal; the same command resumes the sweep")
                    raise SystemExit(128 + signals.received[0])
                if job.status == "failed" and self.config.sweep.stop_at_first_failure:
                    self.sweep.conclude()
                    raise some_failed([failed(job, self.sweep.jobs)], len(unique))
        by_hash = {job.hash: job for job, _ in unique}
        return [Returned(self.sweep, by_hash[job.hash]) for job in jobs]

    def _run(self, job: "Job", title: str, tries_only: bool, signals: Any) -> None:
        from diglot.sweeps.configuration import label, outcome
        from diglot.sweeps.job import OUTPUT, command, run, say
        from diglot.sweeps.stopping import stop_with_configuration

        assert self.sweep is not None
        jobs = self.sweep.jobs
        name = label(job, jobs)
        if job.status == "finished":
            say(f"{title}: {name}: finished before, {outcome(job)} ({job.folder})")
            return
        if job.status == "stopped" and self.config.sweep.stop is not None:
            say(f"{title}: {name}: stopped before, {job.message}; sweep.stop=null resumes it ({job.folder})")
            return
        if stop_with_configuration(job, jobs, self.config.sweep.stop):
            say(f"{title}: {name}: {job.message} ({job.folder})")
            return
        action = "resumes in" if job.status in ("running", "interrupted", "failed", "stopped") else "->"
        say(f"{title}: {name} {action} {job.folder}")
        args = command(self.module, self.config.hydra, job.folder)
        try:
            run(job, args, signals, tries_only)
        finally:
            self.sweep.write_tables()
        say(f"{title}: {outcome(job)}")
        if job.status == "failed":
            say(f"  its overrides: {name}\n  its log: {job.folder / OUTPUT}")


class Returned(JobReturn):
    """The result of a job for Hydra: its objective's value, or the reason for its failure."""

    def __init__(self, sweep: "Sweep", job: "Job") -> None:
        from diglot.sweeps.sweep import failed

        super().__init__()
        if job.status in ("finished", "tried", "stopped"):
            self.status, self.return_value = JobStatus.COMPLETED, job.value(sweep.objective.score)
        else:
            self.status, self.return_value = JobStatus.FAILED, failed(job, sweep.jobs)

    @JobReturn.return_value.getter  # type: ignore[attr-defined]
    def return_value(self) -> Any:  # that of JobReturn would print lines of its own
        from diglot.config.hydra_seams import returned_value

        value = returned_value(self)
        if self.status == JobStatus.FAILED:
            raise value
        return value


def begin(launcher: Launcher, config: DictConfig) -> "Sweep":
    """Lock the folder of a command's sweep, and return the sweep.

    Raises:
        UserError: the folder cannot be used, or another process has locked it.
    """
    from diglot.sweeps.sweep import Sweep

    sweep = Sweep.of(config)
    sweep.lock()
    if isinstance(launcher, DiglotLauncher):
        launcher.sweep = sweep
    sweep.refuse_running()
    sweep.find_outdated()
    return sweep


def for_others(
    launcher: Launcher,
    config: DictConfig,
    sweep: "Sweep",
    jobs: Sequence[list[str]],
    configs: Sequence[tuple[DictConfig, str]],
) -> list[list[str]]:
    """Return the overrides of jobs for a launcher, which include the name of the job's folder for other launchers.

    The folders of other launchers' jobs are created here. diglot's own launcher creates them itself.

    Args:
        launcher: the launcher.
        config: the sweep's config.
        sweep: the sweep.
        jobs: the overrides of each job.
        configs: the config of each job, with its hash.
    """
    from diglot.system.quoting import quoted

    if isinstance(launcher, DiglotLauncher):
        return list(jobs)
    folders = [
        sweep.job(job, varied(job, config), job_settings, digest).folder
        for job, (job_settings, digest) in zip(jobs, configs, strict=True)
    ]
    return [[*job, f"sweep.job={quoted(folder.name)}"] for job, folder in zip(jobs, folders, strict=True)]


def launch(
    launcher: Launcher, config: DictConfig, sweep: "Sweep", jobs: Sequence[list[str]], first: int
) -> Sequence[JobReturn]:
    """Run jobs by a launcher, and print what they do meanwhile. diglot's own launcher prints it itself.

    Args:
        launcher: the launcher.
        config: the sweep's config.
        sweep: the sweep.
        jobs: the overrides of each job, by `for_others`.
        first: number of jobs that the command has run before.
    """
    from diglot.sweeps.elsewhere import Following

    if isinstance(launcher, DiglotLauncher):
        return launcher.launch(jobs, initial_job_idx=first)
    with Following(sweep, is_slurm=config.hydra.launcher._target_.endswith(".SlurmLauncher")):
        return launcher.launch(jobs, initial_job_idx=first)


def job_config(context: HydraContext, sweep_config: DictConfig, overrides: list[str]) -> tuple[DictConfig, str]:
    """Return a job's config and its hash, after all checks that need no data.

    Raises:
        UserError: a check fails. The message names the job.
    """
    from diglot.commands.frame import explain
    from diglot.commands.schema import TrainKeys
    from diglot.config import MEANINGS, build_corpus, check, config_hash, meaning_of, settle_must_fit, trial_build
    from diglot.errors import UserError
    from diglot.runs.inheritance import inherit
    from diglot.runs.plan import build_budget, build_watchers
    from diglot.sweeps.stopping import check_rule

    try:
        composed = context.config_loader.load_sweep_config(sweep_config, overrides)
        config = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
        with hydra_config(composed):
            check(config, TrainKeys)
            settle_must_fit(config)
            inherit(config)
            for key, meaning in MEANINGS.items():
                if meaning.in_sweep and OmegaConf.select(config, key) is not None:
                    raise UserError(f"{key} is for a single run; {meaning.in_sweep}")
            for key in (override.partition("=")[0].lstrip("+~") for override in varied(overrides, sweep_config)):
                if meaning_of(key).hashed in ("as typed", "never"):
                    raise UserError(f"{key} changes nothing of what a job trains: give it one value for all jobs")
            check_rule(config)
            build_watchers(config, trial_build(config))
            build_budget(config)
            build_corpus(config.data)
            return config, config_hash(config)
    except (UserError, HydraException, OmegaConfBaseException) as error:
        name = " ".join(varied(overrides, sweep_config))
        raise UserError(f"{f'job {name}: ' if name else ''}{explain(error, 'train', overrides)}") from None


@contextmanager
def hydra_config(config: DictConfig) -> Iterator[None]:
    """Let interpolations such as ${hydra:job.name} in the block read the hydra node of the given config."""
    previous = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(config)
    try:
        yield
    finally:
        HydraConfig.instance().cfg = previous
        OmegaConf.set_readonly(config.hydra, False)  # undoes set_config


def typed_overrides(config: DictConfig) -> list[Override]:
    """Return the overrides of a sweep's command line as typed, with interpolations unresolved."""
    overrides: Any = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
    return OverridesParser.create().parse_overrides(overrides)


def varied(overrides: Sequence[str], config: DictConfig) -> list[str]:
    """Return a job's overrides except those that the sweep's command line fixes to one value, in any quoting."""
    # The last override of a key counts.
    last_by_key = {override.get_key_element(): override for override in typed_overrides(config)}
    constant = {_meaning(override) for override in last_by_key.values() if not override.is_sweep_override()}
    candidates = [text for text in overrides if text != _folder_of(config)]
    return [text for text in candidates if _meaning(text) not in constant]


def _meaning(override: Override | str) -> str:
    """Return a key and its value, independent of quoting. A word that cannot be parsed is returned unchanged."""
    if isinstance(override, str):
        try:
            (override,) = OverridesParser.create().parse_overrides([override])
        except HydraException:
            return str(override)
    return f"{override.get_key_element()}={override.value()!r}"


def choose_folder(config: DictConfig) -> None:
    """Set the sweep's folder in Hydra's config. Without sweep.folder, the same command always gets the same folder."""
    from diglot.config import config_hash, meaning_of

    if config.sweep.folder is not None:
        folder = Path(config.sweep.folder).expanduser()
    else:
        overrides = typed_overrides(config)
        counting = [o for o in overrides if meaning_of(o.get_key_element().lstrip("+~")).hashed != "never"]
        task = sorted(map(_plain_word, counting))
        sweeper = OmegaConf.to_container(config.hydra.sweeper, resolve=False)
        choices = config.hydra.runtime.choices
        name = choices.get("sweep")
        if name in (None, "default"):
            name = "optuna" if choices.get("hydra/sweeper") == "optuna" else ""
            name = name or "_".join(key_name(o.key_or_group) for o in overrides if o.is_sweep_override())
        with hydra_config(config):
            folder = Path("runs") / f"sweep_{name[:40]}_{config_hash(config, task, sweeper, length=8)}"
    with open_dict(config.hydra.sweep):
        config.hydra.sweep.dir = str(folder)


def _plain_word(override: Override) -> str:
    """Return an override as typed, but with a path to content in the spelling of `plain_path`."""
    from diglot.config import meaning_of, plain_path

    key = override.get_key_element()
    value = None if override.is_sweep_override() else override.value()
    if isinstance(value, str) and meaning_of(key.lstrip("+~")).content:
        return f"{key}={plain_path(value)}"
    return str(override.input_line)


def for_launcher(launcher: Launcher, config: DictConfig) -> list[str]:
    """Return the override of the sweep's folder for other launchers' jobs, which have to find their folder themselves.

    The list is empty for diglot's own launcher, which passes each job its folder, and if sweep.folder is given.
    """
    return [] if isinstance(launcher, DiglotLauncher) or config.sweep.folder is not None else [_folder_of(config)]


def _folder_of(config: DictConfig) -> str:
    from diglot.system.quoting import quoted

    return f"sweep.folder={quoted(config.hydra.sweep.dir)}"


def key_name(key: str) -> str:
    """Return the last part of a key or group."""
    return key.rpartition("/")[2].rpartition(".")[2]
