"""diglot-train: train a translation model, score it on held-out text, and report the output."""

if __name__ == "__main__":  # before the imports, which take seconds
    from diglot.commands.start import start

    start("train")


from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from diglot.commands.frame import command
from diglot.commands.schema import TrainKeys
from diglot.config import monitored, trial_build
from diglot.config.fine_tuning import n_weights
from diglot.runs.inheritance import inherit
from diglot.runs.open_run import OpenRun, finished_folder
from diglot.runs.plan import Plan, build_watchers
from diglot.runs.session import build_session
from diglot.sweeps import sweep
from diglot.sweeps.stopping import rule_of
from diglot.system import interruption
from diglot.system.console import only_warnings, quiet, say
from diglot.system.glibc import keep_freed_memory
from diglot.system.gpu import exclude_cudnn_attention
from diglot.system.quoting import printable
from diglot.training.processes import end_with_first


@command("train", TrainKeys)
def main(config: DictConfig) -> float | None:
    inherit(config)
    if HydraConfig.get().mode == RunMode.MULTIRUN:  # started by a launcher other than diglot's
        return sweep.run_in_subprocess(config)
    train(config)
    return None


def train(config: DictConfig) -> Path:
    """Train according to a config, and return the run's folder."""
    end_with_first()
    quiet()
    keep_freed_memory()
    exclude_cudnn_attention()
    interruption.set_outcome()
    trial_model = trial_build(config)
    config.run.monitor = monitored(config)  # the run keeps it, even if it resumes with other metrics
    watchers = build_watchers(config, trial_model)
    if finished := finished_folder(config):
        return finished
    plan = Plan.of(config, trial_model, watchers)
    if not plan.processes.is_first:
        only_warnings()
    plan.prepare_data()
    model = plan.build_model()
    if plan.initial:
        n_adapters = n_weights(model, adapters=True)
        beside = f", and {n_adapters:,} weights of adapters" if n_adapters else ""
        say(f"model: from {printable(plan.initial.path)}, {n_weights(model):,} weights{beside}")
    plan.settle()
    run = OpenRun.begin(plan)
    if run.finished_line:
        say(run.finished_line)
        return run.folder
    session = build_session(plan, run, model, rule_of(config, run.folder))
    session.announce()
    if session.fit():
        session.conclude()
    return run.folder
