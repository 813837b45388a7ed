"""Hydra's Optuna sweeper, followed by diglot's comparison. It exists only if the extra diglot[optuna] is installed."""

import contextlib
import logging

from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from hydra_plugins.diglot_launcher.launcher import choose_folder, for_launcher

with contextlib.suppress(ImportError):
    from hydra_plugins.hydra_optuna_sweeper.optuna_sweeper import OptunaSweeper

    class DiglotOptunaSweeper(OptunaSweeper):
        """Hydra's Optuna sweeper, followed by diglot's comparison of the jobs."""

        def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
            from diglot.config.hydra_seams import read_once

            self.config = config
            read_once(hydra_context.config_loader)
            choose_folder(config)
            super().setup(hydra_context=hydra_context, task_function=task_function, config=config)

        def sweep(self, arguments: list[str]) -> None:
            """Run all trials.

            Raises:
                UserError: some trials failed. The others have run, unless sweep.stop_at_first_failure is set.
            """
            import optuna

            from diglot.sweeps.sweep import Sweep, failed, some_failed

            optuna.logging.set_verbosity(optuna.logging.WARNING)
            # The launcher already reports each job.
            logging.getLogger("hydra_plugins.hydra_optuna_sweeper").setLevel(logging.CRITICAL)
            sweep = Sweep.of(self.config)
            try:
                super().sweep([*arguments, *for_launcher(self.sweeper.launcher, self.config)])
            except ValueError:  # raised if there is no best trial
                if any(job.results for job in sweep.jobs) or not sweep.jobs:
                    raise
            jobs = sweep.jobs
            sweep.conclude()
            broken: list[Exception] = [failed(job, jobs) for job in jobs if job.status not in ("finished", "tried")]
            broken += getattr(self.sweeper.launcher, "refused", [])
            if broken:
                raise some_failed(broken, self.sweeper.job_idx)
