"""Construction of objects from a config."""

import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from hydra.errors import HydraException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from diglot.config.check import parameters_of
from diglot.config.differences import FROM_ENVIRONMENT
from diglot.config.exportable import check_adapters, check_format
from diglot.config.fine_tuning import FineTuning
from diglot.config.meaning import meaning_of
from diglot.config.secrets import without_secrets
from diglot.config.storable import check_language, check_number_of_weights, check_parts, check_search, trusted
from diglot.data.corpus import Corpus
from diglot.data.held_out import PREFIX
from diglot.data.options import DataOptions
from diglot.data.sampling import Sampling
from diglot.data.tokenizer import Tokenizer, TokenizerSource
from diglot.errors import UserError
from diglot.model import EncoderDecoder
from diglot.model.meta import meta_device

if TYPE_CHECKING:
    from diglot.data.module import TranslationData

_TO_HYDRA = ("_partial_", "_recursive_", "_convert_")  # options of `instantiate`


def build(node: Any, path: str, **arguments: Any) -> Any:
    """Build the object that a node describes. A value that the object rejects is the user's mistake.

    Args:
        node: the config node.
        path: the node's key, for messages.
        arguments: further arguments for the target.

    Raises:
        UserError: the target rejects a value. The message names the node.
    """
    try:
        return instantiate(node, _convert_="all", **arguments)
    except HydraException as error:
        cause = error.__cause__
        if isinstance(cause, UserError):
            raise cause from None
        if isinstance(cause, Exception):
            raise UserError(f"{path}: {cause}") from cause
        raise
    except (ValueError, TypeError) as error:  # a factory rejected its arguments
        raise UserError(f"{path}: {error}") from error


def build_corpus(node: DictConfig) -> Corpus:
    """Build the corpus of a data node from all of its keys except those of `DataOptions`.

    Raises:
        UserError: a value is invalid, or the corpus has a parameter with the name of a `DataOptions` field.
    """
    shared = parameters_of(DataOptions)
    if conflicts := sorted(shared.keys() & parameters_of(get_object(node._target_)).keys()):
        raise UserError(
            f"data._target_: {node._target_} has a parameter {conflicts[0]}, but data.{conflicts[0]} is a batching "
            "option of every corpus: rename the parameter"
        )
    corpus_options = {key: value for key, value in resolved(node).items() if key not in shared and key not in _TO_HYDRA}
    corpus: Corpus = build(corpus_options, "data")
    for name in ("name", "src_lang", "tgt_lang", "notes"):
        if not hasattr(corpus, name):
            advice = "call super().__init__() in its __init__" if name == "notes" else "a corpus needs it"
            raise UserError(f"data._target_: {node._target_} has no attribute {name}: {advice}")
    for key in ("src_lang", "tgt_lang"):
        check_language(f"data.{key}", getattr(corpus, key))
    for name, code in getattr(corpus, "tgt_langs", {}).items():
        check_language(f"data.corpora.{name}.tgt_lang", code)
    return corpus


def build_data(
    node: DictConfig, corpus: Corpus, tokenizer: TokenizerSource | Tokenizer, sampling: Sampling, seed: int
) -> "TranslationData":
    """Build the data module. Its options are the keys of the data node that `DataOptions` has."""
    from diglot.data.module import TranslationData  # imports Lightning, which takes seconds

    shared = parameters_of(DataOptions)
    target = f"{DataOptions.__module__}.{DataOptions.__qualname__}"
    options = build(
        {"_target_": target} | {key: value for key, value in resolved(node).items() if key in shared}, "data"
    )
    data = TranslationData(corpus=corpus, tokenizer=tokenizer, sampling=sampling, seed=seed, options=options)
    for name, src_lang, tgt_lang in data.dev_sets[1:]:
        check_language(f"data.further_dev.{name.removeprefix(PREFIX)}.src_lang", src_lang)
        check_language(f"data.further_dev.{name.removeprefix(PREFIX)}.tgt_lang", tgt_lang)
    return data


def resolved(node: DictConfig) -> dict[str, Any]:
    """Return a node as plain data, with its interpolations resolved."""
    plain: Any = OmegaConf.to_container(node, resolve=True)
    return plain


def without_folders(node: Any) -> Any:
    """Return a config, as plain data, with each path to a file or folder reduced to its last part.

    Checkpoints are shared with others, and the folders of the machine that trained one are private.
    """
    if isinstance(node, dict):
        return {key: without_folders(value) for key, value in node.items()}
    if isinstance(node, list):
        return [without_folders(value) for value in node]
    return _without_user_path(node) if isinstance(node, str) else node


def _without_user_path(text: str) -> str:
    """Return the last part of a path. In any other text, replace the user's home folder by `~`."""
    is_elsewhere = re.match(r"/|~|\.\.?/|[A-Za-z]:[\\/]|\\\\|file:", text)
    try:
        is_path = is_elsewhere is not None or ("/" in text and Path(text).exists())
    except (OSError, ValueError):  # too long for a path, or contains a null byte
        is_path = False
    if is_path:
        return re.split(r"[\\/]", text.rstrip("\\/"))[-1]
    home_pattern = re.escape(str(Path.home()))
    return re.sub(rf"(?<!\w){home_pattern}(?![\w.-])", "~", text) if len(home_pattern) > 1 else text


def config_hash(config: Any, *extra: Any, length: int = 12) -> str:
    """Return a hash that identifies the config of a sweep's job; see `Meaning.hashed`.

    Args:
        config: the job's config.
        extra: further values to hash.
        length: the number of hexadecimal digits.
    """
    plain = without_secrets(OmegaConf.masked_copy(config, [key for key in config if key != "hydra"]))
    # A path to content may change: whether a finished job is outdated depends on the content itself.
    digests = {key: digest for key, digest in plain.pop(FROM_ENVIRONMENT, {}).items() if not meaning_of(key).content}
    plain = _as_hashed(plain) | ({FROM_ENVIRONMENT: digests} if digests else {})
    text = json.dumps([plain, *extra], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def hash_without_seed(config: Any) -> str:
    """Return a hash that the configs of jobs share if they differ by the seed alone."""
    plain = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
    OmegaConf.set_readonly(plain, False)
    plain.seed = 0
    return config_hash(plain)


def plain_path(path: str) -> str:
    """Return one spelling of a path: relative if it is below the working directory, else absolute."""
    absolute = os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - pathlib would keep the dots
    return os.path.relpath(absolute) if absolute.startswith(f"{os.getcwd()}{os.sep}") else absolute  # noqa: PTH109


def _as_hashed(node: Any, path: str = "") -> Any:
    """Return the part of a config that enters its hash. Paths to content are in the spelling of `plain_path`."""
    if isinstance(node, dict):
        entries = {key: (f"{path}.{key}" if path else str(key), value) for key, value in node.items()}
        target = node.get("_target_")
        return {
            key: _as_hashed(value, key_path)
            for key, (key_path, value) in entries.items()
            if _counts(key_path, value, target)
        }
    if isinstance(node, list):
        return [_as_hashed(value, path) for value in node]
    return plain_path(node) if isinstance(node, str) and meaning_of(path).content else node


def _counts(key: str, value: Any, target: Any) -> bool:
    """Return whether a value enters the hash of a config.

    Args:
        key: the key of the value.
        value: the value.
        target: the class of the node that has the key, if it has one.
    """
    meaning = meaning_of(key)
    formerly = meaning.value_before(target)
    if formerly is not None and value == formerly:
        return False
    return meaning.hashed == "always" or (meaning.hashed == "if given" and value is not None)


def trial_build(config: DictConfig) -> EncoderDecoder:
    """Build everything that needs no data, so that a wrong value is reported within a second.

    The model is built on the meta device.

    Returns:
        The model, without values.

    Raises:
        UserError: a value is invalid. The message names the node.
    """
    with meta_device():
        model = build(config.model, "model", src_vocab_size=300, tgt_vocab_size=300)
    fine_tuning = FineTuning.of(config)
    fine_tuning.apply(model)
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
    except Exception as error:  # parts of the model do not fit each other
        raise UserError(f"model: {str(error).splitlines()[0]}") from error
    check_parts({key: resolved(config[key]) for key in ("model", "search")}, trusted(config))
    check_number_of_weights(model)
    if config.export is not None:
        check_format(config.export, resolved(config.model), "export")
    if config.export == "peft":
        check_adapters(fine_tuning.lora, resolved(config.tokenizer), "export")
    if config.run.compile and not model.can_compile:
        raise UserError(f"run.compile: {type(model).__name__} loops over target tokens and cannot be compiled")
    if not 0 <= config.label_smoothing < 1:
        raise UserError(f"label_smoothing={config.label_smoothing}: must be at least 0 and below 1")
    if not 0 <= config.seed < 2**31:
        raise UserError(f"seed={config.seed}: must be from 0 to {2**31 - 1}")
    check_search("search", build(config.search, "search"))
    _try_optimizer(config, [1.0, *fine_tuning.learning_rates.values()])
    return model


def _try_optimizer(config: DictConfig, factors: list[float]) -> None:
    """Build the optimizer and the schedule for a group of weights by factor of the learning rate.

    Raises:
        UserError: a value is invalid, or the schedule ignores the factors.
    """
    optimizer = build(config.optimizer, "optimizer")
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": factor} for factor in factors]
    try:
        trial_optimizer = optimizer(groups, lr=1.0)
    except Exception as error:  # torch checks few arguments, so any class of error may follow
        raise UserError(f"optimizer: {error}") from error
    scheduler = build(config.scheduler, "scheduler")
    try:
        scheduler(optimizer=trial_optimizer, total_updates=1)
    except (ValueError, TypeError) as error:
        raise UserError(f"scheduler: {error}") from error
    rates = [group["lr"] for group in trial_optimizer.param_groups]
    if any(not math.isclose(rate, rates[0] * factor) for rate, factor in zip(rates, factors, strict=True)):
        raise UserError(
            f"learning_rates: {config.scheduler._target_} sets the rate of each weight itself; "
            "type scheduler=linear, or another schedule of diglot"
        )


def _memory() -> float:
    """Return the size of this machine's memory in bytes, or infinity if the system does not report it."""
    try:
        size, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return math.inf
    return size * pages if size > 0 and pages > 0 else math.inf


def check_tying(model: EncoderDecoder, tokenizer: TokenizerSource | Tokenizer) -> None:
    """Check that source and target share an embedding matrix only if they share a vocabulary.

    The model alone cannot check this, because two vocabularies may have the same size by accident.

    Raises:
        UserError: two vocabularies share a matrix. The message names the keys.
    """
    if not tokenizer.is_joint and model.src_embedding is model.tgt_embedding:
        ties_output = model.output.weight is model.tgt_embedding.weight
        tying, instead = ("all", "target") if ties_output else ("inputs", "none")
        raise UserError(
            f"model.tying={tying} needs one vocabulary for both sides, but source and target have separate ones: "
            f"type model.tying={instead}, or use one tokenizer"
        )


def settle_shapes(config: DictConfig, accelerator: str) -> None:
    """Replace `data.shapes=auto` in a config by what suits the device.

    These are buckets for a compiled model, because a graph is compiled for each shape, and fine_buckets for a GPU,
    where memory and kernels are reused if shapes return. On a CPU, new shapes cost nothing.

    Args:
        config: the run's config.
        accelerator: cpu, cuda, ...

    Raises:
        UserError: a model would be compiled for each of many shapes.
    """
    shapes = config.data.get("shapes", "free")
    if config.run.compile and shapes == "free":
        raise UserError(
            "data.shapes=free: run.compile=true compiles a graph for each shape of a batch; type data.shapes=buckets"
        )
    if shapes == "auto":
        on_device = "fine_buckets" if accelerator == "cuda" else "free"
        config.data.shapes = "buckets" if config.run.compile else on_device


def choose_precision(requested: Any, accelerator: str) -> str:
    """Return the precision to train in. `auto` selects bfloat16 if the device computes it natively, else float32.

    Args:
        requested: a Lightning precision, or auto.
        accelerator: cpu, cuda, ...

    Raises:
        UserError: the device does not support the precision.
    """
    if accelerator == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_bf16 = accelerator == "cpu" and torch.cpu._is_avx512_bf16_supported()
    if requested == "auto":
        return "bf16-mixed" if has_bf16 else "32-true"
    precision = str(requested)
    if accelerator == "cpu" and precision in ("16", "16-mixed", "16-true"):
        raise UserError(f"trainer.precision={precision}: a CPU does not compute in float16; type bf16-mixed or 32-true")
    if accelerator == "cuda" and precision.startswith("bf16") and not has_bf16:
        raise UserError(
            f"trainer.precision={precision}: this GPU does not compute in bfloat16; type 16-mixed or 32-true"
        )
    return precision
