"""The first updates of a run, repeated from scratch: whether their losses come out again shows what the run was."""

import warnings
from collections.abc import Collection, Mapping
from typing import Any

import lightning as L
from omegaconf import DictConfig, OmegaConf

from diglot.checkpoint import file as checkpoints
from diglot.config import build, build_data, check_run_config, trial_build
from diglot.data.batch import Batch
from diglot.data.corpus import Corpus
from diglot.data.tokenizer import Tokenizer, TokenizerSource
from diglot.errors import UserError
from diglot.model import EncoderDecoder
from diglot.runs.plan import Plan, build_budget, build_trainer_options
from diglot.runs.session import build_task
from diglot.training.compilation import Compilation
from diglot.training.state import RunState

N_UPDATES = 20
# The trainer's keys that change losses. The others concern logs, processes and durations.
_TRAINER_KEYS = ("precision", "gradient_clip_val", "gradient_clip_algorithm", "deterministic")
# Callbacks that do not change the losses of training: one may end it later, the other averages weights beside it.
_NEUTRAL_CALLBACKS = (
    "lightning.pytorch.callbacks.EarlyStopping",
    "lightning.pytorch.callbacks.EMAWeightAveraging",
)


def first_losses(
    stored: Mapping[str, Any],
    corpus: Corpus,
    tokenizer: Tokenizer,
    cache_dir: str,
    device: str,
    trust: Collection[str] = (),
) -> list[float]:
    """Return the training losses of the first updates of a run, which one process computes again.

    Nothing is downloaded, and nothing is written except tokenised text into `cache_dir`.

    Args:
        stored: the config in the run's folder. It may come from somebody else.
        corpus: the corpus, already prepared.
        tokenizer: the run's tokenizer.
        cache_dir: folder for tokenised text.
        device: cpu or cuda.
        trust: the user's own modules whose classes the config may name.

    Raises:
        UserError: the config is not accepted, or the updates cannot be computed here.
    """
    check_run_config(stored, trust)
    for name, node in (stored.get("callbacks") or {}).items():
        if node is not None and node.get("_target_") not in _NEUTRAL_CALLBACKS:
            raise UserError(f"callbacks.{name} may change the training, and is not repeated")
    config = _settled(stored, cache_dir, device, trust)
    plan = _plan(config, corpus, tokenizer, trust)
    plan.data.setup()
    model = plan.build_model()
    plan.settle()
    return _train(plan, model)


def _settled(stored: Mapping[str, Any], cache_dir: str, device: str, trust: Collection[str]) -> DictConfig:
    """Return a run's config for a process of its own, without all that only reports or stores."""
    trainer = {key: stored["trainer"][key] for key in _TRAINER_KEYS if key in stored["trainer"]}
    of_process = {"_target_": "lightning.Trainer", "devices": 1, "num_nodes": 1, "strategy": "auto"}
    of_log = {"process_timeout": 600, "log_every_n_steps": 1, "num_sanity_val_steps": 0}
    replaced = {
        "trainer": {**of_process, **of_log, "accelerator": device, **trainer},
        "data": {
            **stored["data"],
            "cache_dir": cache_dir,
            "n_workers": 0,
            "memory_baseline": False,
            "further_dev": None,
        },
        **{"callbacks": {}, "watch": {}, "logger": {}, "resume": None, "export": None, "trust": list(trust)},
    }
    return OmegaConf.create({**stored, **replaced})


def _plan(config: DictConfig, corpus: Corpus, tokenizer: Tokenizer, trust: Collection[str]) -> Plan:
    trial_build(config)
    initial = checkpoints.load(config.init_from, trust) if config.init_from is not None else None
    source: TokenizerSource = build(config.tokenizer, "tokenizer")
    options, processes = build_trainer_options(config)
    data = build_data(config.data, corpus, tokenizer, source.sampling, config.seed)
    return Plan(config, build_budget(config), corpus, initial, data, [], [], options, processes)


def _train(plan: Plan, model: EncoderDecoder) -> list[float]:
    """Train for the first updates, and return their losses."""
    data, losses = plan.data, _Losses()
    updates = data.updates()
    compilation = [Compilation(updates.shapes)] if plan.budget.compile else []
    trainer = L.Trainer(
        **plan.options,
        logger=False,
        callbacks=[*compilation, losses],
        max_epochs=1,
        max_steps=min(N_UPDATES, data.n_updates),
        accumulate_grad_batches=updates.accumulation,
        limit_val_batches=0,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    task = build_task(plan.config, data, model, {}, RunState())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*have no `val_dataloader`.*")
        # Given the data module, Lightning would prepare the data, which may download them.
        trainer.fit(task, data.train_dataloader())
    return losses.values


class _Losses(L.Callback):
    """Callback that keeps the loss of each update."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        if batch.ends_update:
            self.values.append(float(trainer.callback_metrics["train/loss"]))
