"""A run in progress: its trainer, its callbacks, and how it ends."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
from hydra.core.hydra_config import HydraConfig
from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.logger import DummyLogger
from omegaconf import DictConfig

from diglot.checkpoint import file as checkpoints
from diglot.checkpoint.atomic_io import AtomicCheckpointIO
from diglot.config import FineTuning, build, composed_command, objective, without_secrets, write_composed
from diglot.data.module import TranslationData
from diglot.data.text import write_json
from diglot.errors import UserError
from diglot.evaluation.evaluate import EvaluationSet, look_up, write_evaluation_set
from diglot.evaluation.scorer import Scorer
from diglot.model import EncoderDecoder
from diglot.runs.conclusion import conclude, why_closed
from diglot.runs.folder import JOB, STOPPED, dev_outputs, write_description
from diglot.runs.open_run import OpenRun
from diglot.runs.plan import Plan
from diglot.runs.report import hyper_parameters, start_report
from diglot.runs.resume import mark_unfinished
from diglot.runs.scoring import build_scorer
from diglot.system.console import say
from diglot.system.quoting import quoted, resuming
from diglot.training import loggers
from diglot.training.checkpoint_writer import CheckpointWriter
from diglot.training.compilation import Compilation
from diglot.training.dev_scores import DevScores, Scoring
from diglot.training.early_end import EarlyEnd, EndedEarly, Rule, ValidationRecords
from diglot.training.ending import fail, leave
from diglot.training.hyper_parameters import HyperParameters
from diglot.training.memory_probe import OutOfMemoryProbe
from diglot.training.order import in_order
from diglot.training.processes import strategy
from diglot.training.products import has_onednn, onednn_products
from diglot.training.progress import progress_callbacks
from diglot.training.signals import Signals, Stopped, leaving_at_once
from diglot.training.state import RunState
from diglot.training.task import TranslationTask
from diglot.training.throughput import Throughput


@dataclass
class Session:
    """The parts of a run in progress.

    Attributes:
        plan: the parts that were built before the data were read.
        run: the run's folder.
        task: the LightningModule.
        scores: scores validations.
        writer: writes checkpoints.
        throughput: measures speed.
        probe: tries the largest batch.
        signals: ends the run if a signal asks for it.
        trainer: Lightning's trainer.
        held_out: text that is not trained on, set by `announce` in the first process.
    """

    plan: Plan
    run: OpenRun
    task: TranslationTask
    scores: DevScores
    writer: CheckpointWriter
    throughput: Throughput
    probe: OutOfMemoryProbe
    signals: Signals
    trainer: L.Trainer
    held_out: dict[str, EvaluationSet] = field(default_factory=dict)

    def announce(self) -> None:
        """Write the run's description into its folder and report it, in the first process."""
        plan, run = self.plan, self.run
        if not plan.processes.is_first:
            return
        folder, data = run.folder, plan.data
        mark_unfinished(folder, run.resume_point, run.config_yaml)
        run.keep(write_description(folder, run.config_yaml, data.tokenizer, run.environment))
        self.held_out, text = keep_held_out(folder, data)
        run.keep(text)
        if plan.processes.starts_others:
            write_composed(folder, plan.config)
        precision = str(plan.options["precision"])
        if has_onednn(self.trainer):
            precision += ", products by oneDNN"
        model = self.task.model
        trained = FineTuning.of(plan.config).describe(model)
        report = start_report(folder, data, model, self.trainer, precision, trained)
        say("\n".join([report, *run.scorer.notes]))

    def fit(self) -> bool:
        """Train to the end of the run, and return whether that was reached: a sweep's rule may end a job early.

        Raises:
            SystemExit: a signal asks the run to end.
        """
        resume_point = self.run.resume_point
        try:
            self.trainer.fit(self.task, self.plan.data, ckpt_path=resume_point.checkpoint)
        except Stopped as stopped:
            self.leave(stopped)
        except EndedEarly as ended:
            self._end_early(str(ended))
            return False
        except BaseException as error:
            resumed_from = (resume_point.checkpoint, resume_point.state.update) if resume_point.checkpoint else None
            fail(
                error,
                self.run.folder,
                self.trainer,
                self.plan.data,
                self.plan.processes,
                self.writer,
                self.probe,
                resumed_from,
            )
            raise
        if self.signals.received:  # arrived after the last validation
            self.leave(Stopped(self.signals.received))
        return True

    def _end_early(self, reason: str) -> None:
        """Record and report that the sweep's rule has ended this job."""
        if self.plan.processes.is_first:
            write_json(self.run.folder / STOPPED, {"reason": reason, "update": self.trainer.global_step})
            advice = "With sweep.stop=null, the sweep's command resumes the job."
            say(f"Ended early, {reason}. {self.writer.describe()} {advice}")

    def conclude(self) -> None:
        """Write the results, in the first process; see the function `conclude`.

        Raises:
            SystemExit: a signal asks the run to end.
            UserError: something cannot be written.
        """
        if self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            say("fast_dev_run: training and validation succeeded; no checkpoint was saved")
            return
        if not self.plan.processes.is_first:
            return
        run, writer = self.run, self.writer
        try:
            with leaving_at_once():
                conclude(
                    run.folder,
                    self.held_out,
                    run.scorer,
                    self.scores,
                    writer,
                    self.throughput,
                    self.trainer,
                    self.plan.config,
                    run.contents,
                    why_closed(run.folder, self.plan.budget),
                )
        except Stopped as stopped:
            self.leave(stopped)
        except UserError as error:
            advice = f"{resuming(run.folder)} completes the run. {writer.describe()}"
            raise UserError(f"{error}. Training is done, and {advice}") from None

    def leave(self, stopped: Stopped) -> None:
        """Report that a signal has stopped the run, and exit."""
        leave(str(stopped), self.run.folder, self.trainer, self.writer)


def build_session(plan: Plan, run: OpenRun, model: EncoderDecoder, rule: Rule | None = None) -> Session:
    """Build the trainer of a run, its LightningModule, its loggers and its callbacks.

    Args:
        plan: the parts that were built before the data were read.
        run: the run's folder.
        model: the model.
        rule: the rule that may end the run after a validation, if it is a job of a sweep with such a rule.
    """
    config, data, budget, processes, point = plan.config, plan.data, plan.budget, plan.processes, run.resume_point
    task = build_task(config, data, model, run.record, point.state)
    outputs = {each.name: dev_outputs(run.folder, each.tgt_lang, each.name) for each in data.dev_sets}
    scorers = further_scorers(config, data)
    scorings = {name: Scoring(scorer, outputs[name].newest) for name, scorer in scorers.items()}
    scores = DevScores(data, run.scorer, outputs["dev"].newest, scorings)
    writer = CheckpointWriter(
        run.folder,
        budget.keep_best,
        budget.keep_last,
        config.run.monitor,
        run.scorer.higher_is_better,
        state=point.state,
        restore=run.restore_files,
        outputs=list(outputs.values()),
    )
    throughput, probe = Throughput(str(plan.options["precision"])), OutOfMemoryProbe(data)
    signals = Signals(writer, budget.validate_every)
    resumed = loggers.Resumed(point.state.update, point.state.validation_due_since) if run.is_resumed else None
    updates = data.updates(world_size=processes.world_size)
    is_job = (run.folder / JOB).exists()
    command: list[str] = []
    if processes.starts_others:
        resumes = quoted(str(run.folder)) if run.is_resumed else "null"  # this process decides for the others
        command = [*composed_command("diglot.commands.train", HydraConfig.get(), run.folder), f"resume={resumes}"]
    compilation = [Compilation(updates.shapes)] if budget.compile else []
    products = onednn_products(str(plan.options["precision"]), processes.strategy.root_device, budget.compile)
    trainer = L.Trainer(
        **plan.options,
        strategy=strategy(config.trainer.strategy, processes.world_size, config.trainer.process_timeout, command),
        logger=make_loggers(config.logger, run.folder, resumed) if processes.is_first else [DummyLogger()],
        callbacks=in_order(
            kernels=[*compilation, *products],
            probe=probe,
            scores=scores,
            users=[*plan.watchers, *plan.callbacks],
            records=[ValidationRecords(scores, objective(config), run.folder)] if is_job else [],
            writer=writer,
            reports=[
                HyperParameters(hyper_parameters(without_secrets(config)), run.scorer.in_validations),
                *progress_callbacks(writer, {"dev": run.scorer, **scorers}),
            ],
            throughput=throughput,
            early_end=[EarlyEnd(rule)] if rule is not None else [],
            signals=signals,
            n_updates=data.n_updates,
        ),
        plugins=[AtomicCheckpointIO(checkpoints.read)],
        max_epochs=1,
        max_steps=data.n_updates + (point.state.update >= data.n_updates),
        accumulate_grad_batches=updates.accumulation,
        val_check_interval=budget.validate_every * updates.accumulation,
        check_val_every_n_epoch=None,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=sys.stdout.isatty() and processes.is_first,
        default_root_dir=run.folder,
    )
    return Session(plan, run, task, scores, writer, throughput, probe, signals, trainer)


def further_scorers(config: DictConfig, data: TranslationData) -> dict[str, Scorer]:
    """Return a scorer for each further dev set, by its name; see `build_scorer`."""
    return {
        each.name: build_scorer(config, each.tgt_lang, data.held_out[each.name].reference_lines)
        for each in data.dev_sets[1:]
    }


def build_task(
    config: DictConfig, data: TranslationData, model: EncoderDecoder, record: dict[str, Any], state: RunState
) -> TranslationTask:
    """Build the LightningModule of a run.

    Args:
        config: the run's config.
        data: the run's data, with the length of the run.
        model: the model.
        record: the data that every checkpoint holds.
        state: the state of the run.
    """
    return TranslationTask(
        model=model,
        tokenizer=data.tokenizer,
        search=build(config.search, "search"),
        optimizer=build(config.optimizer, "optimizer"),
        scheduler=build(config.scheduler, "scheduler"),
        total_updates=data.n_updates,
        label_smoothing=config.label_smoothing,
        seed=config.seed,
        record=record,
        state=state,
        decode_pair=data.decode_dev,
        skip_non_finite=config.run.skip_non_finite,
        factors=FineTuning.of(config).factors(model),
    )


def make_loggers(nodes: DictConfig, folder: Path, resumed: loggers.Resumed | None) -> list[Logger]:
    """Build the loggers of a mapping from names to nodes, except for null nodes. A failing logger stops no run."""
    built = []
    for name, node in nodes.items():
        if node is not None:
            with loggers.beginning(f"logger.{name!s}"):
                logger = build(node, f"logger.{name!s}")
                built.append(loggers.forgiving(logger if isinstance(logger, Logger) else logger(folder, resumed)))
    return built


def keep_held_out(folder: Path, data: TranslationData) -> tuple[dict[str, EvaluationSet], list[Path]]:
    """Write the held-out text into the run's folder, with a translation memory's answers if the config asks for them.

    Returns:
        The text by split, and the written files.
    """
    held_out: dict[str, EvaluationSet] = {}
    files: list[Path] = []
    languages = {each.name: (each.src_lang, each.tgt_lang) for each in data.dev_sets}
    for split, pairs in data.held_out.items():
        src_lang, tgt_lang = languages.get(split, languages["dev"])
        memory = look_up(data.train_text.load(), pairs.src) if data.options.memory_baseline else ()
        held_out[split] = EvaluationSet(data.corpus.name, split, pairs, memory)
        files += write_evaluation_set(folder / "text", held_out[split], src_lang, tgt_lang)
    return held_out, files
