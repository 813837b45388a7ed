"""The keys of a training run's config, which several commands share."""

from typing import Annotated, Any, Literal, TypedDict

from omegaconf import DictConfig

from diglot.data.language import BleuTokenizer
from diglot.data.options import DataOptions
from diglot.model.lora import Lora
from diglot.runs.plan import TrainerKeys
from diglot.sweeps.sweep import SweepKeys


class TrainKeys(TypedDict):
    """The keys of conf/train.yaml. A node with a `_target_` also has the parameters of its class."""

    seed: int
    label_smoothing: float
    init_from: str | None
    freeze: str | list[str] | None
    learning_rates: dict[str, float] | None
    lora: Annotated[dict[str, Any], Lora] | None
    resume: str | None
    bleu_tokenizer: BleuTokenizer | None
    objective: str | None
    export: Literal["ctranslate2", "huggingface", "peft", "safetensors"] | None
    trust: str | list[str]
    data: Annotated[DictConfig, DataOptions]
    tokenizer: DictConfig
    model: DictConfig
    optimizer: DictConfig
    scheduler: DictConfig
    search: DictConfig
    metric: DictConfig
    run: DictConfig
    trainer: Annotated[DictConfig, TrainerKeys]
    callbacks: DictConfig
    watch: DictConfig
    logger: DictConfig
    sweep: Annotated[DictConfig, SweepKeys]
