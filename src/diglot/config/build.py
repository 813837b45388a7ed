"""From config to objects."""

import hashlib
import json
import math
import os
import re
import sys
from typing import Any

import torch
from hydra.errors import HydraException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from diglot.config.check import parameters_of
from diglot.config.secrets import without_secrets
from diglot.data.corpus import Corpus
from diglot.data.module import TranslationData
from diglot.data.sampling import Sampling
from diglot.data.tokenizer import Tokenizer, TokenizerSource
from diglot.decoding import Search
from diglot.errors import UserError
from diglot.formats import check_format
from diglot.model import EncoderDecoder


def build(node: Any, path: str, **given: Any) -> Any:
    """Build what a node names; a value it refuses is the user's mistake.

    Raises:
        UserError: naming the node.
    """
    try:
        return instantiate(node, _convert_="all", **given)
    except HydraException as error:
        cause = error.__cause__
        if isinstance(cause, UserError):
            raise cause from None
        if isinstance(cause, Exception):
            raise UserError(f"{path}: {cause}") from cause
        raise
    except (ValueError, TypeError) as error:  # a factory refused what it was called with
        raise UserError(f"{path}: {error}") from error


def build_corpus(node: DictConfig) -> Corpus:
    """The corpus that a data node names, from the keys that are its own."""
    own = parameters_of(get_object(node._target_))
    return build({k: v for k, v in resolved(node).items() if k in own or k == "_target_"}, "data")


def build_data(
    node: DictConfig, corpus: Corpus, tokenizer: TokenizerSource | Tokenizer, sampling: Sampling, seed: int
) -> TranslationData:
    """The data module, from the keys of a data node that are not the corpus's."""
    own = parameters_of(TranslationData)
    options = {k: v for k, v in resolved(node).items() if k in own}
    target = f"{TranslationData.__module__}.{TranslationData.__qualname__}"
    given = {"corpus": corpus, "tokenizer": tokenizer, "sampling": sampling, "seed": seed}
    return build({"_target_": target, **options}, "data", **given)


def resolved(node: DictConfig) -> dict[str, Any]:
    """A node as plain data with its interpolations filled in."""
    plain: Any = OmegaConf.to_container(node, resolve=True)
    return plain


def config_hash(config: Any, *more: Any, length: int = 12) -> str:
    """What tells a run's config from others, apart from where its files go and what sweep it is part of."""
    plain = without_secrets(OmegaConf.masked_copy(config, [key for key in config if key != "hydra"]))
    for key in ("resume", "objective", "export", "sweep"):
        plain.pop(key, None)
    plain.get("run", {}).pop("folder", None)
    text = json.dumps([plain, *more], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


# Where the classes live that a checkpoint's config may name. Of torch's layers those that are one layer: others copy
# what they are made of as often as they are told.
CHECKPOINT_CLASSES = re.compile(r"(diglot\.model|diglot\.decoding|torch\.nn)(\.[a-z_]+){0,2}\.[A-Z]\w*")
LAYERS = re.compile(r"(diglot\.|torch\.nn\.modules\.(activation|dropout|linear|normalization)$)")


def refuse_foreign_targets(node: Any) -> None:
    """Make sure that a config from a checkpoint names nothing but our models' and searches' classes and torch's layers,
    and reads nothing from elsewhere.

    Raises:
        UserError: naming the first other target.
    """
    if isinstance(node, list):
        for item in node:
            refuse_foreign_targets(item)
    elif isinstance(node, dict):
        if "_target_" in node and not _is_part(node["_target_"]):
            raise UserError(f"it names {node['_target_']!r}, which is no part of a model or search: not loaded")
        if "_args_" in node:
            raise UserError("it names arguments of a part by no name: not loaded")
        for value in node.values():
            refuse_foreign_targets(value)
    elif isinstance(node, str) and "${" in node:  # what was stored has its interpolations filled in
        raise UserError(f"it refers to {node[:60]!r}: not loaded")


def _is_part(target: Any) -> bool:
    """Whether a target is a class of layers or of searches: making one runs no code but that of building it."""
    if not isinstance(target, str) or not CHECKPOINT_CLASSES.fullmatch(target):
        return False
    module, _, name = target.rpartition(".")
    found = getattr(sys.modules.get(module), name, None)  # all of them are imported already
    is_part = isinstance(found, type) and issubclass(found, (torch.nn.Module, Search))
    return is_part and LAYERS.match(found.__module__) is not None


def trial_build(config: DictConfig) -> EncoderDecoder:
    """Build what needs no data on a device without memory, so that a wrong value shows in a second.

    Returns:
        The model, without values.

    Raises:
        UserError: naming the node.
    """
    with torch.device("meta"):
        model = build(config.model, "model", src_vocab_size=300, tgt_vocab_size=300)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    memory = _memory()
    if 4 * n_parameters > memory:
        raise UserError(
            f"model: its {n_parameters:,} parameters take {4 * n_parameters / 1e9:,.0f} GB, "
            f"and this machine has {memory / 1e9:,.0f} GB"
        )
    src, tgt = (torch.zeros(2, length, dtype=torch.long, device="meta") for length in (3, 2))
    try:
        model(src, tgt, torch.ones_like(src, dtype=torch.bool))
    except Exception as error:  # of parts that do not fit each other
        raise UserError(f"model: {str(error).splitlines()[0]}") from error
    if config.export is not None:
        check_format(config.export, resolved(config.model), "export")
    if config.run.compile and not model.captures_whole:
        raise UserError(f"run.compile: {type(model).__name__} is a loop over target tokens, which is not compiled")
    if not 0 <= config.label_smoothing < 1:
        raise UserError(f"label_smoothing={config.label_smoothing}: must be at least 0 and below 1")
    if not 0 <= config.seed < 2**31:
        raise UserError(f"seed={config.seed}: must be from 0 to {2**31 - 1}")
    build(config.search, "search")
    optimizer = build(config.optimizer, "optimizer")
    try:
        trial = optimizer([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    except Exception as error:  # torch checks little of what it is given
        raise UserError(f"optimizer: {error}") from error
    scheduler = build(config.scheduler, "scheduler")
    try:
        scheduler(optimizer=trial, total_updates=1)
    except (ValueError, TypeError) as error:
        raise UserError(f"scheduler: {error}") from error
    return model


def _memory() -> float:
    """Return the memory of this machine in bytes; infinity where the system does not say."""
    try:
        size, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return math.inf
    return size * pages if size > 0 and pages > 0 else math.inf


def check_tying(model: EncoderDecoder, tokenizer: TokenizerSource | Tokenizer) -> None:
    """Refuse one embedding matrix for two vocabularies, which may be equally large by accident.

    Raises:
        UserError: naming the keys.
    """
    if not tokenizer.is_joint and model.src_embedding is model.tgt_embedding:
        raise UserError(
            "model.tying=all needs one vocabulary for both sides, and here each has its own: "
            "take model.tying=target, or one tokenizer"
        )


def choose_precision(wanted: Any, accelerator: str) -> str:
    """The precision to train in: what was asked for, or for `auto` bfloat16 where the device computes it natively.

    Args:
        wanted: a Lightning precision, or auto.
        accelerator: cpu, cuda, ...

    Raises:
        UserError: if the device lacks it.
    """
    if accelerator == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_bf16 = accelerator == "cpu" and torch.cpu._is_avx512_bf16_supported()
    if wanted == "auto":
        return "bf16-mixed" if has_bf16 else "32-true"
    precision = str(wanted)
    if accelerator == "cpu" and precision in ("16", "16-mixed", "16-true"):
        raise UserError(f"trainer.precision={precision}: a CPU does not compute in float16; take bf16-mixed or 32-true")
    if accelerator == "cuda" and precision.startswith("bf16") and not has_bf16:
        raise UserError(
            f"trainer.precision={precision}: this GPU does not compute in bfloat16; take 16-mixed or 32-true"
        )
    return precision
