"""Repeating a recorded update of a run. A record may come from a stranger, so each value in it is checked first."""

import os
import warnings
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import torch
from omegaconf import DictConfig, OmegaConf
from torch.utils.data import DataLoader

from diglot import __version__
from diglot.checkpoint import file as checkpoints
from diglot.checkpoint.atomic_io import AtomicCheckpointIO
from diglot.checkpoint.initial import initial_weights
from diglot.checkpoint.training_state import check_training_state
from diglot.checkpoint.weights import load_weights
from diglot.config import (
    FineTuning,
    build,
    check_run_config,
    check_tokenizer,
    check_trust,
    read_config,
    trial_build,
)
from diglot.data.batch import Batch, Pairs
from diglot.data.batching import WIDTH_STEP, Updates
from diglot.data.options import DataOptions
from diglot.data.placeholders import check_placeholder
from diglot.data.shards import Shards, open_shards
from diglot.data.stream import batching_of, mixture_of
from diglot.data.tokenizer import Tokenizer
from diglot.errors import UserError
from diglot.model import EncoderDecoder
from diglot.system.gpu import why_no_gpu
from diglot.system.masking import in_one_line
from diglot.training.records import Machine, Record
from diglot.training.state import RunState
from diglot.training.task import TranslationTask
from diglot.training.tracing import Trace, norms_by_module

_BATCHING = ("tokens_per_batch", "batches_per_update", "max_rows", "shapes", "max_len")
_FINE_TUNING = ("init_from", "freeze", "learning_rates", "lora")
_BUILT = ("model", "search", "optimizer", "scheduler", "label_smoothing", "seed", "run", "export", "trust")
_TRAINER = ("precision", "gradient_clip_val", "gradient_clip_algorithm", "deterministic")


@dataclass
class Replay:
    """A recorded update, ready to be repeated.

    Attributes:
        file: the record's file.
        record: the record.
        config: the run's config, as plain data.
        shards: the prepared training text.
        tokenizer: the run's tokenizer.
        checkpoint: content of the checkpoint to start from; None: the weights are the initial ones.
    """

    file: Path
    record: Record
    config: dict[str, Any]
    shards: Shards
    tokenizer: Tokenizer
    checkpoint: dict[str, Any] | None

    @classmethod
    def of(cls, path: str, trust: Collection[str] = (), data: str | None = None) -> "Replay":
        """Read a record and everything that is needed to repeat its update.

        Args:
            path: the record's file.
            trust: the user's own modules whose classes the run's config may name.
            data: folder of the prepared training text; None: the one that the record names.

        Raises:
            UserError: the update cannot be repeated. The message says why.
        """
        check_trust(trust)
        file = Path(path).expanduser()
        record = Record.read(file)
        _refuse_other_machine(file, record)
        config = _read_config(file, trust)
        shards = _open_shards(file, record, data)
        checkpoint = _read_checkpoint(file, record) if record.start else None
        if checkpoint is None:
            tokenizer = _tokenizer_of(file.parent.parent, config)
        else:
            tokenizer = checkpoints.tokenizer_of(checkpoint["diglot"])
        return cls(file, record, config, shards, tokenizer, checkpoint)

    def run(self) -> "Repeated":
        """Repeat the updates from the checkpoint to the recorded one."""
        config, record = self.config, self.record
        torch.set_num_threads(min(record.machine.threads, os.cpu_count() or 1))
        updates = self._updates()
        examination = Examination(record, Repeated())
        try:
            trainer = L.Trainer(
                accelerator="gpu" if record.machine.device == "cuda" else "cpu",
                devices=1,
                **{name: value for name in _TRAINER if (value := config["trainer"].get(name)) is not None},
                max_epochs=1,
                max_steps=record.update,
                accumulate_grad_batches=updates.accumulation,
                limit_val_batches=0,
                num_sanity_val_steps=0,
                use_distributed_sampler=False,
                logger=False,
                enable_checkpointing=False,
                enable_model_summary=False,
                enable_progress_bar=False,
                callbacks=[examination],
                plugins=[AtomicCheckpointIO(lambda _: self.checkpoint or {})],
            )
        except Exception as error:  # Lightning raises many types
            raise UserError(f"{self.file.with_suffix('.yaml')}: trainer: {error}") from None
        task = self._task()
        pairs = Pairs(self.shards.src, self.shards.tgt, WIDTH_STEP, bos=self.tokenizer.bos_id)
        loader = DataLoader(pairs, sampler=updates, batch_size=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                trainer.fit(task, loader, ckpt_path=None if self.checkpoint is None else str(self.file))
            except UserError:
                raise
            except Exception as error:  # a checkpoint of another model can make anything fail
                reason = f"{type(error).__name__}: {in_one_line(error)}"
                raise UserError(f"record {self.file}: its update cannot be repeated ({reason})") from error
        if examination.found.trace is None:
            raise UserError(f"record {self.file}: update {record.update:,} is not reached from its checkpoint")
        return examination.found

    def _updates(self) -> Updates:
        """Return the micro-batches from the checkpoint to the recorded update."""
        node = self.config["data"]
        options = build(
            {"_target_": f"{DataOptions.__module__}.DataOptions"} | {k: node[k] for k in _BATCHING if k in node}, "data"
        )
        mixture = mixture_of(self.shards, _weights(node))
        batching = batching_of(self.shards, options, self.record.seed, mixture)
        state = self._state()
        per_update = options.batches_per_update
        return Updates(batching, self.record.update, per_update, start=self.record.start, place=state.position)

    def _state(self) -> RunState:
        record = {} if self.checkpoint is None else self.checkpoint["diglot"]
        return RunState.from_record(record, self.record.start)

    def _task(self) -> TranslationTask:
        config = OmegaConf.create(self.config)
        model = self._model(config)
        return TranslationTask(
            model=model,
            tokenizer=self.tokenizer,
            search=build(config.search, "search"),
            optimizer=build(config.optimizer, "optimizer"),
            scheduler=build(config.scheduler, "scheduler"),
            total_updates=config.run.updates,
            label_smoothing=config.label_smoothing,
            seed=self.record.seed,
            record={},
            state=self._state(),
            skip_non_finite=self.record.update,  # never end before the recorded update
            factors=FineTuning.of(config).factors(model),
        )

    def _model(self, config: DictConfig) -> EncoderDecoder:
        """Return the model with the run's initial weights; those of a checkpoint are loaded later."""
        initial = None
        if self.checkpoint is None and config.get("init_from") is not None:
            initial = checkpoints.load(config.init_from, list(config.trust))
        torch.manual_seed(self.record.seed)  # after all that draws random numbers
        model: EncoderDecoder = build(config.model, "model", **self.tokenizer.vocab_sizes)
        if str(config.trainer.precision) in ("64", "64-true"):
            model.double()
        if initial is not None:
            load_weights(model, initial_weights(initial, self.tokenizer))
        FineTuning.of(config).apply(model)
        return model


@dataclass
class Repeated:
    """A repeated update.

    Attributes:
        loss: its loss.
        gradient_norm: norm of its gradient, before clipping.
        trace: trace of its passes.
        norms: gradient norm of each module.
        broken_weights: names of the weights that were not finite before the update.
    """

    loss: float = 0.0
    gradient_norm: float = 0.0
    trace: Trace | None = None
    norms: dict[str, float] = field(default_factory=dict)
    broken_weights: list[str] = field(default_factory=list)


class Examination(L.Callback):
    """Callback that examines the recorded update.

    Args:
        record: the record.
        found: receives what is found.
    """

    def __init__(self, record: Record, found: Repeated) -> None:
        self.record, self.found = record, found

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        if trainer.global_step != self.record.update - 1:
            return
        assert isinstance(pl_module, TranslationTask)
        if self.found.trace is None:
            weights = pl_module.model.named_parameters()
            self.found.broken_weights = [name for name, weight in weights if not weight.isfinite().all()]
            self.found.trace = Trace(pl_module.model)
        if batch.position not in self.record.positions or not set(batch.pairs.tolist()) <= set(self.record.pairs):
            raise UserError(
                f"update {self.record.update:,} has other pairs than the record: the data or the config differs"
            )
        self.found.trace.follow(batch)

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        if trainer.global_step == self.record.update - 1:
            assert isinstance(pl_module, TranslationTask)
            self.found.norms = norms_by_module(pl_module.model)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        if batch.ends_update and trainer.global_step == self.record.update:
            assert isinstance(pl_module, TranslationTask)
            sums, norm = pl_module.figures()
            self.found.loss, self.found.gradient_norm = float(sums[0] / sums[2]), float(norm)


def _refuse_other_machine(file: Path, record: Record) -> None:
    """Check that the update can be repeated by this version, on this machine.

    Raises:
        UserError: it cannot.
    """
    machine = record.machine
    if machine.diglot != __version__:
        raise UserError(
            f"record {file}: written by diglot {machine.diglot}; this is {__version__}, whose updates may differ"
        )
    if machine.processes > 1:
        raise UserError(
            f"record {file}: written by {machine.processes} processes; only a run of one process is repeated"
        )
    if machine.device == "cuda" and (reason := why_no_gpu()):
        raise UserError(f"record {file}: written on a GPU, and {reason}")


def differences(record: Record) -> list[str]:
    """Return how this machine differs from the one that wrote a record."""
    here = Machine.here(record.machine.device)
    pairs = [(name, getattr(record.machine, name), getattr(here, name)) for name in ("torch", "processor", "threads")]
    return [f"{name} was {before} and is {now}" for name, before, now in pairs if before != now]


def _read_config(file: Path, trust: Collection[str]) -> dict[str, Any]:
    """Return the parts of the run's config that determine its updates, after a check of all classes in it."""
    path = file.with_suffix(".yaml")
    if not path.is_file():
        raise UserError(f"record {file}: {path.name}, the run's config, is gone")
    config = read_config(path)
    nodes = ("model", "search", "optimizer", "scheduler", "trainer", "data", "tokenizer", "run")
    if missing := [name for name in nodes if not isinstance(config.get(name), dict)]:
        raise UserError(f"{path}: {missing[0]} is missing")
    used = {name: config[name] for name in nodes}
    used |= {"label_smoothing": config.get("label_smoothing"), "export": None}
    used |= {name: config.get(name) for name in _FINE_TUNING}
    used |= {"seed": config.get("seed"), "trust": list(trust)}
    callbacks = config.get("callbacks")
    used["callbacks"] = [str(name) for name in callbacks] if isinstance(callbacks, dict) else []
    used["run"] = {"updates": config["run"].get("updates"), "compile": False, "compiled": config["run"].get("compile")}
    if type(used["run"]["updates"]) is not int or type(used["seed"]) is not int:
        raise UserError(f"{path}: run.updates and seed must be whole numbers")
    if type(used["label_smoothing"]) not in (int, float) or not isinstance(used["init_from"], (str, type(None))):
        raise UserError(f"{path}: label_smoothing must be a number, and init_from a file")
    try:
        check_run_config({**used, "data": {}}, trust)  # the update is built from prepared text
        trial_build(OmegaConf.create({key: used[key] for key in (*_BUILT, *_FINE_TUNING)}))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return used


def _open_shards(file: Path, record: Record, data: str | None) -> Shards:
    """Open the prepared training text that the run read."""
    folder = Path(data if data is not None else record.data).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"record {file}: the prepared training text {folder} is gone; make prepare, with the arguments of the run, "
            "makes it again, and data=FOLDER names another place"
        )
    shards = open_shards(folder)
    if shards.key != record.data_key:
        raise UserError(f"record {file}: the training text in {folder} is not the one of the run")
    if max(record.pairs) >= len(shards.src):
        raise UserError(
            f"record {file}: pair {max(record.pairs)} is not in {folder}, which has {len(shards.src):,} pairs"
        )
    return shards


def _read_checkpoint(file: Path, record: Record) -> dict[str, Any]:
    """Return the content of the checkpoint from which the updates are repeated."""
    path = file.with_suffix(".ckpt")
    if not path.is_file():
        raise UserError(f"record {file}: its checkpoint {path.name} is gone")
    content = checkpoints.read(path)
    check_training_state(content, path, may_have_failed=True)
    if content["global_step"] != record.start:
        raise UserError(f"record {file}: {path.name} is of update {content['global_step']}, not of {record.start}")
    if content["diglot"].get("data", record.data_key) != record.data_key:
        raise UserError(f"record {file}: {path.name} belongs to a run on another training text")
    if "current_model_state" in content:  # a weight average was stored in the place of the weights
        content["state_dict"] = content.pop("current_model_state")
    content["callbacks"] = {}
    return content


def _weights(data: dict[str, Any]) -> dict[str, float]:
    """Return the weights of the corpora of a data node, by name."""
    corpora = data.get("corpora") or {}
    if not isinstance(corpora, dict) or not all(isinstance(paths, dict) for paths in corpora.values()):
        raise UserError("data.corpora: must name corpora with their files")
    weights = {name: paths.get("weight", 1.0) for name, paths in corpora.items()}
    for name, weight in weights.items():
        if type(weight) not in (int, float) or not 0 < weight < 1e6:
            raise UserError(f"data.corpora.{name}.weight={weight!r:.40}: must be a positive number")
    return weights


def _tokenizer_of(folder: Path, config: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer in a run's folder."""
    paths = [folder / "tokenizer.model", folder / "tokenizer.tgt.model"]
    if not paths[0].is_file():
        raise UserError(f"{paths[0]}, the tokenizer of the run, is gone")
    models = [path.read_bytes() for path in paths if path.is_file()]
    for path, model in zip(paths, models):
        check_tokenizer(str(path), len(model))
    placeholder = config["tokenizer"].get("placeholder")
    try:
        if not isinstance(placeholder, (str, type(None))):
            raise UserError("tokenizer.placeholder must be text or null")
        check_placeholder(placeholder)
        return Tokenizer(models[0], placeholder, models[1] if len(models) > 1 else None)
    except (UserError, ValueError) as error:
        raise UserError(f"{paths[0]}: {error}") from None
