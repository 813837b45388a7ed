"""Cost of watching: updates per second outside validations, with watch=default and Throughput, and without both.

    python benchmarks/watching.py [--threads 2] [--rounds 7] [--updates 60] [override ...]

Short runs of the default model on the sample corpus alternate, so that other load on the machine slows both kinds
equally. The figures are medians over the updates, and for each callback the median seconds of one look.
"""

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

from diglot.system.glibc import keep_freed_memory  # before torch: see diglot.threads

# isort: split
import lightning as L
import torch
from hydra import compose, initialize_config_dir
from lightning.pytorch.loggers import TensorBoardLogger
from omegaconf import DictConfig

from diglot.config import CONF, build, build_corpus, build_data
from diglot.data.module import TranslationData
from diglot.evaluation.scorer import Scorer
from diglot.training.dev_scores import DevScores
from diglot.training.task import TranslationTask
from diglot.training.throughput import Throughput
from diglot.training.watch import Watcher

N_VALIDATIONS = 4  # per run


class Clock(L.Callback):
    """Callback that times each update that follows another one without a validation in between.

    It records wall time and processor time; other programs on the machine disturb the latter less.
    """

    def __init__(self) -> None:
        self.seconds: list[tuple[float, float]] = []
        self._before: tuple[float, float] | None = None

    def on_train_batch_end(self, *_: Any) -> None:
        now = time.perf_counter(), time.process_time()
        if self._before is not None:
            self.seconds.append((now[0] - self._before[0], now[1] - self._before[1]))
        self._before = now

    def on_validation_start(self, *_: Any) -> None:
        self._before = None


def run(
    config: DictConfig, data: TranslationData, scorer: Scorer, watch: bool, looks: dict[str, list[float]]
) -> list[tuple[float, float]]:
    """Train and return the seconds of each update; append those of each callback's looks to `looks`."""
    torch.manual_seed(1)
    size = data.tokenizer.src_vocab_size
    task = TranslationTask(
        model=build(config.model, "model", src_vocab_size=size, tgt_vocab_size=size),
        tokenizer=data.tokenizer,
        search=build(config.search, "search"),
        optimizer=build(config.optimizer, "optimizer"),
        scheduler=build(config.scheduler, "scheduler"),
        total_updates=data.n_updates,
        label_smoothing=0.1,
        seed=1,
        record={},
    )
    watchers = [build(node, f"watch.{name}") for name, node in config.watch.items()] if watch else []
    for watcher in watchers:
        if isinstance(watcher, Watcher):
            watcher.look = timed(watcher.look, looks[type(watcher).__name__])  # type: ignore[method-assign]
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator="cpu",
            logger=TensorBoardLogger(folder, name="", version=""),
            callbacks=[DevScores(data, scorer), *watchers, *([Throughput()] if watch else []), clock],
            max_epochs=1,
            max_steps=data.n_updates,
            val_check_interval=data.n_updates // N_VALIDATIONS,
            check_val_every_n_epoch=None,
            limit_val_batches=1,
            num_sanity_val_steps=0,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            use_distributed_sampler=False,
            default_root_dir=Path(folder),
        )
        trainer.fit(task, data)
    return clock.seconds


def timed(look: Any, seconds: list[float]) -> Any:
    def timing(*arguments: Any) -> None:
        start = time.perf_counter()
        look(*arguments)
        seconds.append(time.perf_counter() - start)

    return timing


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--updates", type=int, default=60)
    arguments.add_argument("overrides", nargs="*", help="keys of the config, such as model=tiny")
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as cache:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            words = ["data=sample", "data.tokens_per_batch=512", f"data.cache_dir={cache}", *options.overrides]
            config = compose("train", words)
        corpus = build_corpus(config.data)
        tokenizer = build(config.tokenizer, "tokenizer")
        data = build_data(config.data, corpus, tokenizer, tokenizer.sampling, config.seed)
        data.prepare_data()
        data.setup()
    data.set_length(options.updates)
    scorer = Scorer(corpus.tgt_lang)
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    looks: dict[str, list[float]] = defaultdict(list)
    run(config, data, scorer, True, defaultdict(list))  # warm-up
    for i in range(options.rounds):
        for watch in (False, True) if i % 2 else (True, False):
            found[watch] += run(config, data, scorer, watch, looks)
    print(f"{options.threads} threads, {options.rounds} runs each of {options.updates} updates")
    for i, clock in enumerate(("wall", "processor")):
        without, having = (statistics.median(seconds[i] for seconds in found[watch]) for watch in (False, True))
        print(
            f"updates per second by the {clock}: watch=none {1 / without:.2f}, watch=default {1 / having:.2f}, "
            f"{without / having:.3f} times that"
        )
    for name, seconds in looks.items():
        print(f"{name:20} {statistics.median(seconds):.2f} s a look, {len(seconds) / options.rounds:.0f} looks a run")


if __name__ == "__main__":
    main()
