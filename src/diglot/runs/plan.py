"""The parts of a run that are built before its data are read, so that a wrong value is reported within a second."""

import logging
from dataclasses import dataclass
from typing import Any, TypedDict

import lightning as L
import torch
from omegaconf import DictConfig, OmegaConf

from diglot.checkpoint.file import Checkpoint
from diglot.checkpoint.initial import initial_weights
from diglot.checkpoint.weights import load_weights, refuse_other_model
from diglot.config import (
    FineTuning,
    build,
    build_corpus,
    build_data,
    changes,
    check_tying,
    choose_precision,
    meaning_of,
    resolved,
    settle_shapes,
    without_secrets,
)
from diglot.data.corpus import Corpus
from diglot.data.module import TranslationData
from diglot.data.tokenizer import TokenizerSource
from diglot.errors import UserError
from diglot.huggingface.stock_tokenizer import stock_tokenizer
from diglot.model import EncoderDecoder
from diglot.runs.inheritance import load_initial, tokenizer_of
from diglot.runs.scoring import build_scorer
from diglot.system.gpu import why_no_gpu
from diglot.training import loggers
from diglot.training.processes import Processes, check_number, strategy
from diglot.training.run import Budget
from diglot.training.watch import Watcher


class TrainerKeys(TypedDict):
    """Keys of the config's node `trainer` that Lightning's Trainer lacks, or that accept more values here."""

    precision: int | str  # also "auto"
    max_steps: int | None  # null: the budget decides
    process_timeout: float


@dataclass(frozen=True)
class Plan:
    """The parts of a run that need no data.

    Attributes:
        config: the run's config.
        budget: the run's length.
        corpus: the corpus that the run reads.
        initial: the checkpoint whose weights and tokenizer the run starts with; None for neither.
        data: the data, not yet read.
        watchers: callbacks that watch the model.
        callbacks: other callbacks in the config.
        options: the trainer options that the user sets.
        processes: the processes that share the run.
    """

    config: DictConfig
    budget: Budget
    corpus: Corpus
    initial: Checkpoint | None
    data: TranslationData
    watchers: list[L.Callback]
    callbacks: list[L.Callback]
    options: dict[str, Any]
    processes: Processes

    @classmethod
    def of(cls, config: DictConfig, trial_model: EncoderDecoder, watchers: list[L.Callback]) -> "Plan":
        """Build the parts of a run.

        Args:
            config: the run's config.
            trial_model: a model like the run's, on the meta device.
            watchers: see `build_watchers`.

        Raises:
            UserError: a value cannot be used.
        """
        budget = build_budget(config)
        corpus = build_corpus(config.data)
        build_scorer(config, corpus.tgt_lang)  # fails early if a package is missing
        initial = load_initial(config)
        source: TokenizerSource = build(config.tokenizer, "tokenizer")
        tokenizer = tokenizer_of(config, source, initial, corpus.tgt_lang)
        check_tying(trial_model, tokenizer)
        options, processes = build_trainer_options(config)
        settle_shapes(config, processes.strategy.root_device.type)
        data = build_data(config.data, corpus, tokenizer, source.sampling, config.seed)
        callbacks = build_callbacks(config.callbacks, "callbacks")
        loggers.check(config.logger)
        data.check_processes(processes.world_size)
        for dev_set in data.dev_sets[1:]:
            build_scorer(config, dev_set.tgt_lang)
        return cls(config, budget, corpus, initial, data, watchers, callbacks, options, processes)

    def prepare_data(self) -> None:
        """Read, tokenise and split the text, once for all processes."""
        self.processes.rendezvous()
        refuse_other_config(self.config, self.processes)
        with self.processes.main_process_first():
            self.data.prepare_data()
        self.data.setup()
        if self.config.export == "huggingface":  # fails if no class holds the tokenizer
            stock_tokenizer(self.data.tokenizer, resolved(self.config.model), "export")

    def build_model(self) -> EncoderDecoder:
        """Build the run's model with its initial weights.

        Raises:
            UserError: the model does not fit the data, or the weights do not fit the model.
        """
        torch.manual_seed(self.config.seed)
        model: EncoderDecoder = build(self.config.model, "model", **self.data.tokenizer.vocab_sizes)
        if self.options["precision"] in (
            "64",
            "64-true",
        ):  # otherwise callbacks that copy the weights would round them
            model.double()
        check_lengths(model, self.data, self.config.model)
        if self.initial:
            try:
                load_weights(model, initial_weights(self.initial, self.data.tokenizer))
                refuse_other_model(resolved(self.config.model), self.initial.record["model"])
            except UserError as error:
                raise UserError(f"init_from={self.config.init_from}: {error}") from None
        FineTuning.of(self.config).apply(model)
        return model

    def settle(self) -> None:
        """Store the run's length in the config and the data, and its precision in the config. Call it after setup."""
        n_updates = self.budget.total_updates(self.data)
        self.data.set_length(n_updates, batch_timeout=self.config.trainer.process_timeout)
        self.config.run.updates, self.config.run.passes = n_updates, None
        self.config.trainer.precision = self.options["precision"]


def refuse_other_config(config: DictConfig, processes: Processes) -> None:
    """Check that all processes started from outside were given the same config; paths may differ.

    Raises:
        UserError: in a process whose config differs from the first one's.
    """
    own = without_secrets(config)
    differences = [change for change in changes(processes.shared(own), own) if meaning_of(change.key).content is None]
    if differences:
        process = f"process {processes.rank + 1} of {processes.world_size}"
        raise UserError(f"{process} has a different config from the first one: {differences[0]}")


def build_budget(config: DictConfig) -> Budget:
    """Build the run's budget. trainer.max_steps is another spelling of run.updates."""
    node = config.run
    if config.trainer.get("max_steps") is not None:
        node = OmegaConf.merge(node, {"updates": config.trainer.max_steps, "passes": None})
    elif node.passes is not None and OmegaConf.select(config, "run.updates") is not None:
        # run.updates has a default, which passes=N on the command line replaces
        node = OmegaConf.merge(node, {"updates": None})
    return build(node, "run")


def build_watchers(config: DictConfig, model: EncoderDecoder) -> list[L.Callback]:
    """Build the callbacks that watch the model.

    Args:
        config: the run's config.
        model: a model like the run's; each watcher checks that it has what the watcher shows.
    """
    watching = build_callbacks(config.watch, "watch")
    for watcher in watching:
        if isinstance(watcher, Watcher):
            watcher.check(model)
    return watching


def build_callbacks(nodes: DictConfig | None, path: str) -> list[L.Callback]:
    """Build the callbacks of a mapping from names to nodes, except for null nodes."""
    callbacks = []
    for name, node in (nodes or {}).items():
        if node is not None:
            key = f"{path}.{name!s}"
            callback = build(node, key)
            if not isinstance(callback, L.Callback):
                raise UserError(f"{key} is no callback: it needs a _target_")
            callbacks.append(callback)
    return callbacks


def build_trainer_options(config: DictConfig) -> tuple[dict[str, Any], Processes]:
    """Return the user's trainer options, after building a trial trainer with them, and the run's processes."""
    own_keys = {"_target_", "strategy", *TrainerKeys.__annotations__}
    node = resolved(config.trainer)
    options = {key: value for key, value in node.items() if key not in own_keys and value is not None}
    if config.trainer.process_timeout <= 0:
        raise UserError(f"trainer.process_timeout={config.trainer.process_timeout}: must be positive")
    if node.get("accelerator") in ("gpu", "cuda") and (reason := why_no_gpu()):
        raise UserError(f"trainer.accelerator={node['accelerator']}: {reason}; to train on the CPU, type trainer=cpu")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    requested = "auto" if node.get("precision") is None else node["precision"]

    def trial_trainer(distribution: Any) -> L.Trainer:
        try:
            return L.Trainer(
                **{**options, "fast_dev_run": False},
                strategy=distribution,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
            )
        except Exception as error:  # Lightning and the libraries that it calls raise many types
            raise UserError(f"trainer: {error}") from None

    trainer = trial_trainer(config.trainer.strategy)
    check_number(trainer)
    for name, minimum in (("log_every_n_steps", 1), ("gradient_clip_val", 0)):
        if options.get(name, minimum) < minimum:
            raise UserError(f"trainer.{name}={options[name]}: must be at least {minimum}")
    options["precision"] = choose_precision(requested, trainer.strategy.root_device.type)
    if options["precision"] in ("16-mixed", "16") and config.optimizer.get("fused"):
        raise UserError(
            "trainer.precision=16-mixed scales gradients, and a fused optimizer unscales them only internally: "
            "type optimizer.fused=false"
        )
    try:
        L.Trainer(accelerator="cpu", precision=options["precision"], logger=False, barebones=True)
    except Exception:
        raise UserError(f"trainer.precision={options['precision']}: not supported here") from None
    distribution = strategy(config.trainer.strategy, trainer.world_size, config.trainer.process_timeout)
    return options, Processes(trial_trainer(distribution))


def check_lengths(model: EncoderDecoder, data: TranslationData, node: DictConfig) -> None:
    """Check, before training, that no sequence is longer than the model's maximum number of positions.

    Raises:
        UserError: one is longer.
    """
    tgt_position = "decoder_position" if node.get("decoder_position") is not None else "position"
    dev, train = data.validation.pairs, data.batching
    sides = {
        "source": ("position", model.max_src_positions, max(train.src_lengths.max(), dev.src.lengths.max())),
        "target": (tgt_position, model.max_tgt_positions, max(train.tgt_lengths.max(), dev.tgt.lengths.max())),
    }
    for side, (name, limit, longest) in sides.items():
        if limit is not None and longest > limit:
            raise UserError(
                f"model.{name}.max_positions={limit} is too small: the longest {side} sentence has {longest} tokens"
            )
