"""diglot-train: train a translation model, score it on held-out text, and say what was made."""

if __name__ == "__main__":  # before the imports, which take seconds
    from diglot.commands.start import start

    start("train")


import logging
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.loggers.logger import DummyLogger
from omegaconf import DictConfig, OmegaConf

from diglot.checkpoint import file as checkpoints
from diglot.checkpoint.atomic_io import AtomicCheckpointIO
from diglot.commands.export import export
from diglot.commands.frame import command
from diglot.config import (
    as_yaml,
    build,
    build_corpus,
    build_data,
    carrying,
    changes,
    check_tying,
    choose_precision,
    place_of,
    resolved,
    trial_build,
    trusted,
    without_secrets,
    write_carried,
)
from diglot.data.module import TranslationData
from diglot.data.text import ending_of
from diglot.data.tokenizer import Tokenizer, TokenizerSource
from diglot.errors import UserError
from diglot.evaluation.evaluate import EvaluationSet, evaluate, keep_text, remember, table
from diglot.evaluation.metrics import Scorer
from diglot.inference.translator import Translator
from diglot.model import EncoderDecoder
from diglot.runs.contents import Contents, contents, contents_now
from diglot.runs.folder import (
    CONFIG,
    LOG,
    RESULTS,
    environment,
    make_whole,
    one_at_a_time,
    resumable_folder,
    run_folder,
    write_about,
)
from diglot.runs.report import best_scores, end_report, hyper_parameters, samples, start_report, write_results
from diglot.runs.resume import AUTO, Begun, begin_again, nothing_left, outcome, refuse_other_job, take_up, unfinished
from diglot.sweeps import sweep
from diglot.system import interruption
from diglot.system.console import log_to, only_warnings, quiet
from diglot.system.glibc import keep_memory
from diglot.system.quoting import masked_words, printable, quoted, reading, resuming
from diglot.training import loggers
from diglot.training.checkpoints import Checkpoints, TakeUp
from diglot.training.ending import fail, leave
from diglot.training.largest import LargestBatch
from diglot.training.processes import Processes, check_number, end_with_first, strategy
from diglot.training.progress import progress_callbacks
from diglot.training.run import Run, StopAfterLastUpdate
from diglot.training.scores import Scores
from diglot.training.signals import LeaveFirst, Signals, Stopped, leaving_at_once
from diglot.training.speed import Speed
from diglot.training.task import TranslationTask
from diglot.training.watch import Watcher

say = logging.getLogger("diglot").info


@command("train")
def main(config: DictConfig) -> float | None:
    if HydraConfig.get().mode == RunMode.MULTIRUN:  # a launcher other than ours runs the job in a process of its own
        return sweep.run_alone(config)
    train(config)
    return None


def train(config: DictConfig) -> Path:
    """Train as a config says and return the run's folder."""
    end_with_first()
    quiet()
    keep_memory()
    interruption.outcome = interruption.nothing_to_go_on_with
    trial = trial_build(config)
    watching = build_watchers(config, trial)
    known = config.run.folder if config.resume == AUTO else config.resume
    if known is not None:
        interruption.outcome = partial(outcome, Path(known).expanduser())
    if config.resume not in (None, AUTO):
        folder = resumable_folder(config.resume)
        if config.run.folder is not None and Path(config.run.folder).expanduser().absolute() != folder.absolute():
            raise UserError(f"resume={config.resume} and run.folder={config.run.folder} are two folders: give one")
        refuse_other_job(folder, config)
        if line := nothing_left(folder, without_secrets(config), lambda: contents_now(config)):
            say(line)
            return folder
    run = build_run(config)
    corpus = build_corpus(config.data)
    Scorer(corpus.tgt_lang, tokenizer=config.bleu_tokenizer)  # what it needs is better missed before all the work
    initial = checkpoints.load(config.init_from, trusted(config)) if config.init_from is not None else None
    source: TokenizerSource = build(config.tokenizer, "tokenizer")
    tokenizer: TokenizerSource | Tokenizer = initial.tokenizer if initial else source
    check_tying(trial, tokenizer)
    data = build_data(config.data, corpus, tokenizer, source.sampling, config.seed)
    options, processes = build_trainer_options(config)
    callbacks = build_callbacks(config.callbacks, "callbacks")
    loggers.check(config.logger)
    data.check_processes(processes.world_size)
    if not processes.is_first:
        only_warnings()

    processes.meet()
    refuse_other_config(config, processes)
    with processes.first_alone():
        data.prepare_data()
    data.setup()
    torch.manual_seed(config.seed)
    model = build(config.model, "model", **data.tokenizer.vocab_sizes)
    if options["precision"] in ("64", "64-true"):  # which callbacks that copy the weights would round otherwise
        model.double()
    check_lengths(model, data, config.model)
    scorer = Scorer(corpus.tgt_lang, data.held_out["dev"].tgt, config.bleu_tokenizer)
    if initial:
        try:
            checkpoints.load_weights(model, initial.model.state_dict())
            checkpoints.refuse_other_model(resolved(config.model), initial.record["model"])
        except UserError as error:
            raise UserError(f"init_from={config.init_from}: {error}") from None
    data.n_updates, data.timeout = run.total_updates(data), config.trainer.process_timeout
    config.run.updates, config.run.passes = data.n_updates, None  # as it will be
    config.trainer.precision = options["precision"]
    plain = without_secrets(config)
    record = checkpoints.record(config, data.tokenizer, corpus.name, corpus.src_lang, corpus.tgt_lang)
    record["data"], record["bleu_tokenizer"] = data.shards.key, scorer.tokenizer
    checkpoints.check_readable(record, trusted(config))
    reads = contents(config, corpus, data.digests)
    config_yaml = as_yaml(plain)
    about_it = environment(masked_words(sys.argv[1:]), reads) if processes.is_first else {}

    resume = config.resume
    with one_at_a_time(run, processes):
        if resume == AUTO:
            resume = unfinished(config.run.folder, plain, reads) if processes.is_first else None
            if processes.is_first:
                which = f"goes on in {printable(resume)}/" if resume else "no such run is unfinished, a new one begins"
                say(f"resume=auto: {which}")
        folder = run_folder(run, f"{corpus.name}-{corpus.src_lang}-{corpus.tgt_lang}", resume, processes)
        interruption.outcome = partial(outcome, folder)
        if processes.is_first and resume is None:
            write_about(folder, config_yaml, data.tokenizer, about_it)
    goes_on = processes.shared(resume is not None)  # as the first process has decided
    begun = Begun()
    if goes_on:
        if line := nothing_left(folder, plain, lambda: reads):
            say(line)
            return folder
        begun = take_up(folder, plain, data.tokenizer, data.shards, reads)
        if begun.bleu_tokenizer not in (None, scorer.tokenizer):  # which an earlier version chose
            scorer = Scorer(corpus.tgt_lang, data.held_out["dev"].tgt, begun.bleu_tokenizer)
            record["bleu_tokenizer"] = scorer.tokenizer
        data.start, data.place = begun.update, begun.place
    if processes.is_first:
        log_to(folder / LOG)
    task = TranslationTask(
        model=model,
        tokenizer=data.tokenizer,
        search=build(config.search, "search"),
        optimizer=build(config.optimizer, "optimizer"),
        scheduler=build(config.scheduler, "scheduler"),
        total_updates=data.n_updates,
        label_smoothing=config.label_smoothing,
        seed=config.seed,
        record=record,
        read=data.decode_dev,
        skip_non_finite=run.skip_non_finite,
    )
    if run.compile:
        model.compile(dynamic=True)
    scores = Scores(data, scorer, folder / "text" / f"dev.translated.{ending_of(corpus.tgt_lang)}")
    kept, speed, largest = Checkpoints(folder, run.keep_best, run.keep_last), Speed(), LargestBatch(data)
    kept.place, kept.due_since = tuple(begun.place or ()), begun.validation_due_since
    signals = Signals(kept, run.validate_every)
    accumulation = data.updates(world_size=processes.world_size).accumulation
    resumed = loggers.Resumed(begun.update, begun.validation_due_since) if goes_on else None
    logger = make_loggers(config.logger, folder, resumed) if processes.is_first else [DummyLogger()]
    others: list[str] = []
    if processes.starts_others:
        resumes = quoted(str(folder)) if goes_on else "null"  # as is decided, whatever they find
        others = [*carrying("diglot.commands.train", HydraConfig.get(), folder), f"resume={resumes}"]
    trainer = L.Trainer(
        **options,
        strategy=strategy(config.trainer.strategy, processes.world_size, config.trainer.process_timeout, others),
        logger=logger,
        callbacks=[
            LeaveFirst(signals),
            largest,
            scores,
            *watching,
            *callbacks,
            kept,
            StopAfterLastUpdate(),
            *progress_callbacks(kept),
            speed,
            signals,  # after all that may end the run by itself
            TakeUp(kept, data.n_updates, begun.has_stopped),
        ],
        plugins=[AtomicCheckpointIO(checkpoints.read, checkpoints.check_made_of)],
        max_epochs=1,
        max_steps=data.n_updates + (begun.update >= data.n_updates),
        accumulate_grad_batches=accumulation,
        val_check_interval=run.validate_every * accumulation,
        check_val_every_n_epoch=None,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=sys.stdout.isatty() and processes.is_first,
        default_root_dir=folder,
    )
    held_out: dict[str, EvaluationSet] = {}
    if processes.is_first:
        begin_again(folder, begun, config_yaml)
        about = write_about(folder, config_yaml, data.tokenizer, about_it)
        held_out, text = keep_held_out(folder, data)
        kept.restore = partial(make_whole, folder, {file: file.read_bytes() for file in (*text, *about)})
        if processes.starts_others:
            write_carried(folder, config)
        say("\n".join([start_report(folder, data, model, trainer, options["precision"]), *scorer.notes]))
    try:
        trainer.fit(task, data, ckpt_path=begun.checkpoint)
    except Stopped as stopped:
        leave(str(stopped), folder, trainer, kept)
    except BaseException as error:
        taken_up = (begun.checkpoint, begun.update) if begun.checkpoint else None
        fail(error, folder, trainer, data, processes, kept, largest, taken_up)
        raise
    if signals.received:  # when the last validation was over
        leave(signal.Signals(signals.received).name, folder, trainer, kept)
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        say("fast_dev_run: training and validation went through; no checkpoint was kept")
        return folder
    if processes.is_first:
        try:
            with leaving_at_once():
                conclude(folder, held_out, scorer, scores, kept, speed, trainer, config, reads)
        except Stopped as stopped:
            leave(str(stopped), folder, trainer, kept)
        except UserError as error:
            rest = f"{resuming(folder)} does the rest. {kept.describe()}"
            raise UserError(f"{error}. Training is done, and {rest}") from None
    return folder


def refuse_other_config(config: DictConfig, processes: Processes) -> None:
    """Make sure that processes that were started from outside were all given one config; their paths may differ.

    Raises:
        UserError: in one whose config is not the first one's.
    """
    mine = without_secrets(config)
    others = [change for change in changes(processes.shared(mine), mine) if place_of(change.key) is None]
    if others:
        which = f"process {processes.rank + 1} of {processes.world_size}"
        raise UserError(f"{which} was given another config than the first one: {others[0]}")


def build_run(config: DictConfig) -> Run:
    """The run's budget. trainer.max_steps is another spelling of run.updates."""
    node = config.run
    if config.trainer.get("max_steps") is not None:
        node = OmegaConf.merge(node, {"updates": config.trainer.max_steps, "passes": None})
    elif node.passes is not None and OmegaConf.select(config, "run.updates") is not None:
        # run.updates has a default; passes=N on the command line means instead of it
        node = OmegaConf.merge(node, {"updates": None})
    return build(node, "run")


def build_watchers(config: DictConfig, model: EncoderDecoder) -> list[L.Callback]:
    """The callbacks that watch the model.

    Args:
        config: of the run.
        model: one like the run's, to find what they ask for and it has not.
    """
    watching = build_callbacks(config.watch, "watch")
    for watcher in watching:
        if isinstance(watcher, Watcher):
            watcher.check(model)
    return watching


def build_callbacks(nodes: DictConfig | None, path: str) -> list[L.Callback]:
    """What a mapping of callbacks by name holds; null in place of one leaves it out."""
    callbacks = []
    for name, node in (nodes or {}).items():
        if node is not None:
            here = f"{path}.{name!s}"
            callback = build(node, here)
            if not isinstance(callback, L.Callback):
                raise UserError(f"{here} is no callback: it needs a _target_")
            callbacks.append(callback)
    return callbacks


def make_loggers(nodes: DictConfig, folder: Path, resumed: loggers.Resumed | None) -> list[Logger]:
    """What a mapping of loggers by name holds; null in place of one leaves it out. One that fails stops nothing."""
    made = []
    for name, node in nodes.items():
        if node is not None:
            with loggers.beginning(f"logger.{name!s}"):
                make = build(node, f"logger.{name!s}")
                made.append(loggers.forgiving(make if isinstance(make, Logger) else make(folder, resumed)))
    return made


def build_trainer_options(config: DictConfig) -> tuple[dict[str, Any], Processes]:
    """The trainer's options that are the user's, tried on a trainer that does nothing, and the run's processes."""
    ours = ("_target_", "max_steps", "process_timeout", "strategy")
    options = {k: v for k, v in resolved(config.trainer).items() if k not in ours and v is not None}
    if config.trainer.process_timeout <= 0:
        raise UserError(f"trainer.process_timeout={config.trainer.process_timeout}: must be positive")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    wanted = options.pop("precision", "auto")

    def trial(spread: Any) -> L.Trainer:
        try:
            return L.Trainer(
                **{**options, "fast_dev_run": False},
                strategy=spread,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
            )
        except Exception as error:  # Lightning and what it looks for raise all kinds
            raise UserError(f"trainer: {error}") from None

    trainer = trial(config.trainer.strategy)
    check_number(trainer)
    for name, least in (("log_every_n_steps", 1), ("gradient_clip_val", 0)):
        if options.get(name, least) < least:
            raise UserError(f"trainer.{name}={options[name]}: must be at least {least}")
    options["precision"] = choose_precision(wanted, trainer.strategy.root_device.type)
    if options["precision"] in ("16-mixed", "16") and config.optimizer.get("fused"):
        raise UserError(
            "trainer.precision=16-mixed scales gradients, which a fused optimizer hides: optimizer.fused=false"
        )
    try:
        L.Trainer(accelerator="cpu", precision=options["precision"], logger=False, barebones=True)
    except Exception:
        raise UserError(f"trainer.precision={options['precision']}: there is no such precision here") from None
    spread = strategy(config.trainer.strategy, trainer.world_size, config.trainer.process_timeout)
    return options, Processes(trial(spread))


def check_lengths(model: EncoderDecoder, data: TranslationData, node: DictConfig) -> None:
    """Refuse sequences longer than the model's positions reach, before training meets them."""
    tgt_position = "decoder_position" if node.get("decoder_position") is not None else "position"
    dev, train = data.dev_pairs, data.batching
    sides = {
        "source": ("position", model.max_src_positions, max(train.src_lengths.max(), dev.src.lengths.max())),
        "target": (tgt_position, model.max_tgt_positions, max(train.tgt_lengths.max(), dev.tgt.lengths.max())),
    }
    for side, (name, known, longest) in sides.items():
        if known is not None and longest > known:
            raise UserError(
                f"model.{name}.max_positions={known} is too few: the longest {side} sentence has {longest} tokens"
            )


def keep_held_out(folder: Path, data: TranslationData) -> tuple[dict[str, EvaluationSet], list[Path]]:
    """Write the held-out text into the run's folder, with what a translation memory answers where that is asked for.

    Returns:
        The text by split, and the files written.
    """
    held_out: dict[str, EvaluationSet] = {}
    files: list[Path] = []
    for split, pairs in data.held_out.items():
        memory = remember(data.train_text.load(), pairs.src) if data.memory_baseline else ()
        held_out[split] = EvaluationSet(data.corpus.name, split, pairs, memory)
        files += keep_text(folder / "text", held_out[split], data.corpus.src_lang, data.corpus.tgt_lang)
    return held_out, files


def conclude(
    folder: Path,
    held_out: dict[str, EvaluationSet],
    scorer: Scorer,
    scores: Scores,
    kept: Checkpoints,
    speed: Speed,
    trainer: L.Trainer,
    config: DictConfig,
    reads: Contents,
) -> None:
    """Score the best checkpoint on test text, write what the run came to, and say it."""
    if not kept.best.exists() and kept.last.exists():
        raise UserError(f"{kept.best} has gone; {kept.last} holds the last weights")
    if not kept.best.exists():
        raise UserError(f"the run ended before its first validation: there is no checkpoint in {folder}/")
    if trainer.global_step < trainer.max_steps:
        say(f"Ended before all {trainer.max_steps:,} updates: so a callback or trainer.max_time said")
    say(end_report(folder, kept, speed, trainer.global_step, scores.latest))
    translator = Translator.load(kept.best, trust=trusted(config))
    test: dict[str, Any] | None = None
    if "test" in held_out:
        # As diglot-evaluate would: the text's writing is its own, and BLEU's tokenizer that of the dev scores.
        scorer = Scorer(scorer.tgt_lang, held_out["test"].pairs.tgt, scorer.tokenizer)
        test = evaluate(translator, held_out["test"], scorer, folder / "evaluation" / "test", is_repeated=True)
        say("\n".join(table(test)))
    shown = held_out.get("test", held_out["dev"])
    say("\n".join([f"Translations by {kept.best.name} ({shown.split}):", *samples(translator.translate, shown.pairs)]))
    best = {f"best/{name}": float(value) for name, value in best_scores(kept).items()}
    for logger in trainer.loggers:
        compared = (best,) if isinstance(logger, TensorBoardLogger) else ()
        logger.log_hyperparams(hyper_parameters(without_secrets(config)), *compared)
        logger.save()
    made = ""
    if (form := config.export) is not None:
        say("\n".join(export(checkpoints.load(kept.best, trusted(config)), form, folder / form, "export")))
        made = f"{form}/, "
    # Last: now the run is finished.
    write_results(folder, kept, speed, translator.model, trainer.global_step, test, reads)
    trust = trusted(config)
    say(
        f"Made in {printable(folder)}/: best.ckpt, last.ckpt, {made}{CONFIG}, {RESULTS}, log.txt, curves and pictures\n"
        f"Next:  {reading('evaluate', kept.best, trust)}\n"
        f"       echo 'some text' | {reading('translate', kept.best, trust)}\n"
        f"       make tensorboard"
    )
