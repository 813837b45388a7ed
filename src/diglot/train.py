"""diglot-train: train a translation model, score it on held-out text, and say what was made."""

import contextlib
import ctypes
import logging
import resource
import sys
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from omegaconf import DictConfig, OmegaConf

from diglot import checkpoint as checkpoints
from diglot.config import (
    build,
    build_corpus,
    build_data,
    choose_precision,
    command,
    resolved,
    trial_build,
    typed_overrides,
    without_secrets,
)
from diglot.data.module import TranslationData
from diglot.data.tokenizer import Tokenizer, TokenizerTrainer
from diglot.errors import UserError
from diglot.evaluation import EvaluationSet, evaluate, keep_text, remember, table
from diglot.training.checkpoints import AtomicCheckpointIO, Checkpoints
from diglot.training.console import log_to, quiet
from diglot.training.folder import run_folder, write_about
from diglot.training.metrics import Scorer
from diglot.training.progress import progress_callbacks
from diglot.training.run import Run, StopAfterLastUpdate
from diglot.training.scores import Scores
from diglot.training.task import TranslationTask
from diglot.translator import Translator

say = logging.getLogger("diglot").info


@command("train")
def main(config: DictConfig) -> None:
    train(config)


def train(config: DictConfig) -> Path:
    """Train as a config says and return the run's folder."""
    quiet()
    keep_memory()
    trial_build(config)
    run = build_run(config)
    corpus = build_corpus(config.data)
    scorer = Scorer(corpus.tgt_lang)
    initial = checkpoints.load(config.init_from) if config.init_from is not None else None
    if initial and any(word.startswith("tokenizer") or word == "data.vocab_size" for word in typed_overrides()):
        raise UserError("init_from brings its tokenizer along: leave out what the command line says of one")
    tokenizer: TokenizerTrainer | Tokenizer = initial.tokenizer if initial else build(config.tokenizer, "tokenizer")
    data = build_data(config.data, corpus, tokenizer, config.seed)
    options, callbacks = build_trainer_options(config)
    world_size = options.pop("world_size")
    data.check_processes(world_size)

    data.prepare_data()
    data.setup()
    torch.manual_seed(config.seed)
    size = data.tokenizer.vocab_size
    model = build(config.model, "model", src_vocab_size=size, tgt_vocab_size=size)
    check_lengths(model.max_positions, data)
    if initial:
        try:
            checkpoints.load_weights(model, initial.model.state_dict())
            checkpoints.refuse_other_model(resolved(config.model), initial.record["model"])
        except UserError as error:
            raise UserError(f"init_from={config.init_from}: {error}") from None
    data.n_updates = run.total_updates(data)
    config.run.updates, config.run.passes = data.n_updates, None  # as it will be
    config.trainer.precision = options["precision"]

    folder = run_folder(run, f"{corpus.name}-{corpus.src_lang}-{corpus.tgt_lang}")
    log_to(folder / "log.txt")
    record = checkpoints.record(config, data.tokenizer, corpus.name, corpus.src_lang, corpus.tgt_lang)
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
    )
    if run.compile:
        model.compile(dynamic=True)
    kept = Checkpoints(folder)
    accumulation = data.updates(world_size=world_size).accumulation
    trainer = L.Trainer(
        **options,
        logger=build(config.logger, "logger")(save_dir=folder, name="", version=""),
        callbacks=[Scores(data, scorer), *callbacks, kept, StopAfterLastUpdate(), *progress_callbacks()],
        plugins=[AtomicCheckpointIO()],
        max_epochs=1,
        max_steps=data.n_updates,
        accumulate_grad_batches=accumulation,
        val_check_interval=run.validate_every * accumulation,
        check_val_every_n_epoch=None,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=sys.stdout.isatty(),
        default_root_dir=folder,
    )
    if trainer.is_global_zero:
        write_about(folder, OmegaConf.to_yaml(OmegaConf.create(without_secrets(config))), data.tokenizer.model)
        held_out = keep_held_out(folder, data)
        introduce(folder, data, model, trainer, options["precision"])
    started = time.monotonic()
    try:
        trainer.fit(task, data)
    except SystemExit:  # how Lightning leaves after a signal: with 1 after Ctrl-C, with 0 after SIGTERM
        say(f"Stopped by a signal at update {trainer.global_step:,}. {kept.describe()}")
        sys.exit(143 if trainer.received_sigterm else 130)
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        say("fast_dev_run: training and validation went through; no checkpoint was kept")
        return folder
    trained = time.monotonic() - started
    if trainer.is_global_zero:
        conclude(folder, held_out.get("test"), scorer, kept, trainer, trained)
    return folder


def build_run(config: DictConfig) -> Run:
    """The run's budget. trainer.max_steps is another spelling of run.updates."""
    node = config.run
    if config.trainer.get("max_steps") is not None:
        node = OmegaConf.merge(node, {"updates": config.trainer.max_steps, "passes": None})
    elif node.passes is not None and OmegaConf.select(config, "run.updates") is not None:
        # run.updates has a default; passes=N on the command line means instead of it
        node = OmegaConf.merge(node, {"updates": None})
    return build(node, "run")


def build_trainer_options(config: DictConfig) -> tuple[dict[str, Any], list[L.Callback]]:
    """The trainer's options that are the user's, tried on a trainer that does nothing, and the user's callbacks."""
    options = {
        k: v for k, v in resolved(config.trainer).items() if k not in ("_target_", "max_steps") and v is not None
    }
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    wanted = options.pop("precision", "auto")
    try:
        trial = L.Trainer(
            **{**options, "fast_dev_run": False}, logger=False, enable_checkpointing=False, enable_progress_bar=False
        )
    except Exception as error:  # Lightning and what it looks for raise all kinds
        raise UserError(f"trainer: {error}") from None
    for name, least in (("log_every_n_steps", 1), ("gradient_clip_val", 0)):
        if options.get(name, least) < least:
            raise UserError(f"trainer.{name}={options[name]}: must be at least {least}")
    options["precision"] = choose_precision(wanted, trial.strategy.root_device.type)
    options["world_size"] = trial.world_size
    if options["precision"] in ("16-mixed", "16") and config.optimizer.get("fused"):
        raise UserError(
            "trainer.precision=16-mixed scales gradients, which a fused optimizer hides: optimizer.fused=false"
        )
    try:
        L.Trainer(accelerator="cpu", precision=options["precision"], logger=False, barebones=True)
    except Exception:
        raise UserError(f"trainer.precision={options['precision']}: there is no such precision here") from None
    callbacks = [build(node, f"callbacks.{name}") for name, node in (config.callbacks or {}).items()]
    return options, callbacks


def check_lengths(max_positions: int | None, data: TranslationData) -> None:
    """Refuse sequences longer than the model's positions reach, before training meets them."""
    if max_positions is None:
        return
    dev = data.dev_pairs
    longest = max(
        data.batching.src_lengths.max(), data.batching.tgt_lengths.max(), dev.src.lengths.max(), dev.tgt.lengths.max()
    )
    if longest > max_positions:
        raise UserError(
            f"model.position.max_positions={max_positions} is too few: the longest sentence has {longest} tokens"
        )


def introduce(folder: Path, data: TranslationData, model: torch.nn.Module, trainer: L.Trainer, precision: str) -> None:
    """Say what is about to happen."""
    say(data.corpus.describe())
    for note in data.notes:
        say(f"  {note}")
    n_parameters = sum(p.numel() for p in model.parameters())
    device = (
        torch.cuda.get_device_name()
        if trainer.strategy.root_device.type == "cuda"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    say(f"Model: {n_parameters:,} parameters. Device: {device}, {precision}.")
    say(f"Run: {trainer.max_steps:,} updates, in {folder}/")


def keep_held_out(folder: Path, data: TranslationData) -> dict[str, EvaluationSet]:
    """Write the held-out text into the run's folder, with what a translation memory answers where that is asked for."""
    held_out: dict[str, EvaluationSet] = {}
    for split in ("dev", "test"):
        if split in data.text:
            pairs = data.text[split]
            memory = remember(data.text["train"], pairs.src) if data.memory_baseline else ()
            held_out[split] = EvaluationSet(data.corpus.name, split, pairs, memory)
            keep_text(folder / "text", held_out[split], data.corpus.src_lang, data.corpus.tgt_lang)
    return held_out


def conclude(
    folder: Path,
    test: EvaluationSet | None,
    scorer: Scorer,
    kept: Checkpoints,
    trainer: L.Trainer,
    seconds: float,
) -> None:
    """Score the best checkpoint on test text and say what was made."""
    if not kept.best.exists():
        raise UserError(f"the run ended before its first validation: there is no checkpoint in {folder}/")
    say(
        f"Trained {trainer.global_step:,} updates in {seconds / 60:.1f} minutes with {peak_memory():.1f} GB of memory; "
        f"best dev BLEU {kept.best_score:.2f} at update {kept.best_update:,}."
    )
    if test is not None:
        results = evaluate(Translator.load(kept.best), test, scorer, folder / "evaluation" / "test")
        for line in table(results):
            say(line)
    say(
        f"Made in {folder}/: best.ckpt, last.ckpt, config.yaml, log.txt, events for TensorBoard\n"
        f"Next:  make evaluate checkpoint={kept.best}\n"
        f"       echo 'some text' | make translate checkpoint={kept.best}\n"
        f"       make tensorboard"
    )


def peak_memory() -> float:
    """The most memory that this process had at once, in GB."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / (1e9 if sys.platform == "darwin" else 1e6)  # macOS counts bytes


def keep_memory() -> None:
    """Let glibc keep freed memory for the next batch. It gives large blocks back to the system at once, and on a CPU
    fetching them again page by page costs a tenth of the training time (benchmarks/training.py)."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no block has pages of its own
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: nothing is given back


if __name__ == "__main__":
    main()
