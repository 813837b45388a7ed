"""diglot-train: train a translation model, score it on held-out text, and say what was made."""

import contextlib
import ctypes
import json
import logging
import os
import platform
import subprocess
import sys
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning as L
import sentencepiece
import torch
from omegaconf import DictConfig, OmegaConf

from diglot import __version__
from diglot import checkpoint as checkpoints
from diglot.config import (
    build,
    build_corpus,
    build_data,
    choose_precision,
    command,
    resolved,
    trial_build,
    without_secrets,
)
from diglot.data.module import TranslationData
from diglot.data.text import write_bytes
from diglot.data.tokenizer import Tokenizer, TokenizerTrainer
from diglot.errors import UserError
from diglot.evaluation import EvaluationSet, evaluate, keep_text, remember, show
from diglot.training.checkpoints import AtomicCheckpointIO, Checkpoints
from diglot.training.metrics import Scorer
from diglot.training.progress import progress_callbacks
from diglot.training.run import Run
from diglot.training.scores import Scores
from diglot.training.task import TranslationTask
from diglot.translator import Translator

say = logging.getLogger("diglot").info


@command("train")
def main(config: DictConfig) -> None:
    train(config)


def train(config: DictConfig) -> Path:
    """Train as a config says and return the run's folder."""
    start = time.monotonic()
    quiet()
    keep_memory()
    trial_build(config)
    run = build_run(config)
    corpus = build_corpus(config.data)
    scorer = Scorer(corpus.tgt_lang)
    initial = checkpoints.load(config.init_from) if config.init_from is not None else None
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
        checkpoints.load_weights(model, initial.model.state_dict(), f"init_from={config.init_from}")
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
    trainer = L.Trainer(
        **options,
        logger=build(config.logger, "logger")(save_dir=folder, name="", version=""),
        callbacks=[Scores(data, scorer), *callbacks, kept, StopAfterLastUpdate(), *progress_callbacks()],
        plugins=[AtomicCheckpointIO()],
        max_epochs=1,
        max_steps=data.n_updates,
        accumulate_grad_batches=data.updates(0, world_size).accumulation,
        val_check_interval=run.validate_every * data.updates(0, world_size).accumulation,
        check_val_every_n_epoch=None,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=sys.stdout.isatty(),
        default_root_dir=folder,
    )
    if trainer.is_global_zero:
        write_about(folder, config, data)
        introduce(folder, data, model, trainer, options["precision"])
    trainer.fit(task, data)
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        say("fast_dev_run: one update and one validation went through; nothing was kept")
        return folder
    trained = time.monotonic() - start
    if trainer.is_global_zero:
        conclude(folder, data, scorer, kept, trainer, trained)
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
    except (ValueError, TypeError, RuntimeError, L.fabric.utilities.exceptions.MisconfigurationException) as error:
        raise UserError(f"trainer: {error}") from None
    options["precision"] = choose_precision(wanted, trial.strategy.root_device.type)
    options["world_size"] = trial.world_size
    if options["precision"] in ("16-mixed", "16") and config.optimizer.get("fused"):
        raise UserError(
            "trainer.precision=16-mixed scales gradients, which a fused optimizer hides: optimizer.fused=false"
        )
    try:
        L.Trainer(accelerator="cpu", precision=options["precision"], logger=False, barebones=True)
    except ValueError:
        raise UserError(f"trainer.precision={options['precision']}: there is no such precision") from None
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


class StopAfterLastUpdate(L.Callback):
    """Lets a validation follow the last update even where it falls between two."""

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step >= trainer.max_steps:
            trainer.should_stop = True


def run_folder(run: Run, name: str) -> Path:
    """The run's folder, made by the first process; processes that it starts find it in their environment."""
    if "LOCAL_RANK" in os.environ and "DIGLOT_RUN_FOLDER" in os.environ:
        return Path(os.environ["DIGLOT_RUN_FOLDER"])
    folder = run.new_folder(name)
    os.environ["DIGLOT_RUN_FOLDER"] = str(folder.absolute())
    return folder


def write_about(folder: Path, config: DictConfig, data: TranslationData) -> None:
    """Write the run's config, environment and held-out text into its folder."""
    write_bytes(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(without_secrets(config))).encode())
    packages = ("torch", "lightning", "hydra-core", "sentencepiece", "datasets", "sacrebleu", "numpy")
    about = {
        "diglot": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": {name: version(name) for name in packages},
        "command": sys.argv[1:],
    }
    write_bytes(folder / "environment.json", (json.dumps(about, indent=2) + "\n").encode())
    write_bytes(folder / "tokenizer.model", data.tokenizer.model)
    for split in ("dev", "test"):
        if split in data.text:
            pairs = data.text[split]
            memory = remember(data.text["train"], pairs.src) if data.memory_baseline and split == "test" else ()
            keep_text(
                folder / "text",
                EvaluationSet(data.corpus.name, split, pairs, memory),
                data.corpus.src_lang,
                data.corpus.tgt_lang,
            )


def commit() -> str | None:
    """The checkout's commit, with a + where files have been changed since; None where it is no checkout."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        name = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return name.stdout.strip() + ("+" if changed.stdout.strip() else "")


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


def conclude(
    folder: Path, data: TranslationData, scorer: Scorer, kept: Checkpoints, trainer: L.Trainer, seconds: float
) -> None:
    """Score the best checkpoint on test text and say what was made."""
    if not kept.best.exists():
        raise UserError("the run ended before its first validation: there is no checkpoint")
    say(f"Trained {trainer.global_step:,} updates; best dev BLEU {kept.best_score:.2f} at update {kept.best_update:,}.")
    if "test" in data.text:
        translator = Translator.load(kept.best)
        pairs = data.text["test"]
        from diglot.evaluation import kept_text

        evaluated = kept_text(folder / "text", "test", data.corpus.src_lang, data.corpus.tgt_lang)
        results = evaluate(
            translator,
            evaluated or EvaluationSet(data.corpus.name, "test", pairs),
            scorer,
            folder / "evaluation" / "test",
        )
        show(results)
    path = kept.best
    say(
        f"Made in {seconds / 60:.1f} minutes, in {folder}/: "
        "best.ckpt, last.ckpt, config.yaml, log.txt, events for TensorBoard\n"
        f"Next:  make evaluate checkpoint={path}\n"
        f"       echo 'some text' | make translate checkpoint={path}\n"
        f"       make tensorboard"
    )


class PrintHandler(logging.Handler):
    """Prints to whatever standard output is now: a progress bar puts itself in between."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), flush=True)


def quiet() -> None:
    """Show our own messages, and of the libraries' only what a user can act on."""
    logger = logging.getLogger("diglot")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.handlers = [PrintHandler()]
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    sentencepiece.set_min_log_level(2)
    for message in (
        ".*does not have many workers.*",  # batches are collated from memory in microseconds
        ".*The `srun` command is available.*",
        ".*Checkpoint directory .* exists.*",
        ".*isinstance\\(treespec, LeafSpec\\).*",
        ".*You defined a `validation_step`.*",
        ".*`training_step` returned `None`.*",
        ".*Trying to infer the `batch_size`.*",
        ".*The number of training batches.*smaller than the logging interval.*",
        ".*tensorboard.*",
    ):
        warnings.filterwarnings("ignore", message=message)


def keep_memory() -> None:
    """Let glibc keep freed memory for the next batch. It gives large blocks back to the system at once, and on a CPU
    fetching them again page by page costs a tenth of the training time (benchmarks/training.py)."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no block has pages of its own
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: nothing is given back


def log_to(file: Path) -> None:
    """Keep our messages in a file too."""
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.getLogger("diglot").addHandler(handler)


if __name__ == "__main__":
    main()
