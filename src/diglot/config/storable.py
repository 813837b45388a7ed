"""Limits on the content of a checkpoint. The same rules apply when a run starts and when a checkpoint is read.

So no run writes a checkpoint that no command can read. A class that is neither diglot's nor one of torch's
layers is created only if the user trusts its module: by naming the class in the config, by `trust`, or, in Python, by
having imported the module. A checkpoint alone never causes the import of a module.
"""

import re
import sys
import sysconfig
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from diglot.choices import CONF
from diglot.config.check import mistakes
from diglot.config.targets import targets_in, wrong_target
from diglot.decoding import Search
from diglot.errors import UserError
from diglot.model import EncoderDecoder
from diglot.system.masking import shortened

# A model of a thousand layers has about as many, with two moments and a step for each weight.
MAX_TENSORS = 100_000
MAX_TOKENIZER_BYTES = 16_000_000  # bytes; a model of 256,000 pieces has 5,000,000
MAX_LIVE_HYPOTHESES = 1_000
# The maximum of each length limit of a search: decoding up to these lengths takes minutes.
LENGTHS = {"min_len_a": 10, "min_len_b": 1_000, "max_len_a": 100, "max_len_b": 10_000}
TENSORS_PER_WEIGHT = 4  # the weight, and the optimizer's state for it: two moments and a step

# The modules of the classes that any checkpoint may name. Of torch's modules only single layers: containers such as
# TransformerEncoder copy their layers any number of times.
_NAMED = re.compile(r"(diglot\.model|diglot\.decoding|torch\.nn)(\.[a-z_]+){0,2}\.[A-Z]\w*")
_LAYERS = re.compile(r"(diglot\.|torch\.nn\.modules\.(activation|dropout|linear|normalization)$)")
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
# The classes that train a model.
_TRAINING = {
    "optimizer": re.compile(r"torch\.optim\.[A-Z]\w*"),
    "scheduler": re.compile(r"(diglot\.training\.schedule|torch\.optim\.lr_scheduler)\.[A-Z]\w*"),
}
# These cannot be trusted: they are not the user's own, and contain classes that do more than compute.
_LIBRARIES = frozenset(
    {*sys.stdlib_module_names, "diglot", "torch", "functorch", "torchgen", "lightning", "lightning_fabric"}
    | {"pytorch_lightning", "torchmetrics", "hydra", "hydra_plugins", "omegaconf", "numpy", "pip", "setuptools"}
)
_STDLIB = sysconfig.get_path("stdlib")


def check_language(name: str, code: Any) -> None:
    """Check that a language's code can be a part of file names.

    Args:
        name: the name of the code in the message.
        code: a code such as en, zh-Hant or sr@latin.

    Raises:
        UserError: the code is too long or contains other characters.
    """
    if not isinstance(code, str) or not re.fullmatch(r"\w[\w.@+-]{0,49}", code) or ".." in code:
        shown_code = shortened(code, 50) if isinstance(code, str) else code
        raise UserError(
            f"{name}={shown_code!r}: a language code is part of file names, so it has at most 50 letters, digits, "
            "and - _ @ + . between them"
        )


def check_tokenizer(name: str, n_bytes: int) -> None:
    """Check that a SentencePiece model is not too large for a checkpoint.

    Args:
        name: the name of the model in the message.
        n_bytes: its size.

    Raises:
        UserError: it is too large.
    """
    if n_bytes > MAX_TOKENIZER_BYTES:
        raise UserError(f"{name} has {n_bytes:,} bytes, and a checkpoint takes at most {MAX_TOKENIZER_BYTES:,}")


def check_search(subject: str, search: Search) -> None:
    """Check that a search has bounded time and memory.

    Args:
        subject: the name of the search in the message.
        search: the search.

    Raises:
        UserError: a limit is exceeded.
    """
    if search.n_live > MAX_LIVE_HYPOTHESES:
        raise UserError(
            f"{subject}: it extends {search.n_live:,} hypotheses at once, and in a checkpoint it may extend "
            f"at most {MAX_LIVE_HYPOTHESES:,}"
        )
    for name, maximum in LENGTHS.items():
        if not getattr(search, name) <= maximum:
            raise UserError(
                f"{subject}.{name} is {getattr(search, name):,}, and in a checkpoint it may be at most {maximum:,}"
            )


def check_number_of_weights(model: EncoderDecoder) -> None:
    """Check that a model's checkpoints do not have more tensors than a reader accepts.

    Raises:
        UserError: the model has too many weights.
    """
    n, maximum = sum(1 for _ in model.parameters()), MAX_TENSORS // TENSORS_PER_WEIGHT
    if n > maximum:
        raise UserError(f"model: it has {n:,} weights, and a checkpoint takes at most {maximum:,}")


def check_parts(record: dict[str, Any], trust: Collection[str] = ()) -> None:
    """Check the model and the search of a checkpoint, or of a run that would write one.

    Each class in them must be known or trusted, and of the kind that its key accepts. Each value must be one that the
    command line would accept.

    Args:
        record: a mapping with the nodes `model` and `search`.
        trust: modules that the user trusts; see `trusted`.

    Raises:
        UserError: a class or value is not accepted. The message names its key.
    """
    nodes = {key: record[key] for key in ("model", "search")}
    for key, node in nodes.items():
        _refuse_references(node, key)
    for path, target in [pair for key, node in nodes.items() for pair in targets_in(node, key)]:
        if not _is_built_in(target) and (problem := _distrust_reason(target, trust)):
            raise UserError(f"{path} names {target!r}, {problem}")
    if errors := [mistake for key, node in nodes.items() for mistake in mistakes(node, key)]:
        raise UserError("; ".join(errors[:3]))


def check_run_config(config: Mapping[str, Any], trust: Collection[str] = ()) -> None:
    """Check the config that a run's folder holds, before anything is built from it.

    The folder may come from somebody else. Therefore each class must be one that a file of conf/ names, a part of a
    model or search that a checkpoint may name, an optimizer or a schedule of torch, or a class of a module that the
    user trusts. No value may be an expression.

    Args:
        config: the config, as plain data.
        trust: modules that the user trusts.

    Raises:
        UserError: something is not accepted. The message names its key.
    """
    nodes = ("data", "tokenizer", "model", "search", "optimizer", "scheduler", "run", "trainer")
    if missing := [key for key in nodes if not isinstance(config.get(key), dict)]:
        raise UserError(f"the config has no {missing[0]}")
    for key, node in config.items():
        _refuse_references(node, key)
    check_parts(dict(config), trust)
    for path, target in [pair for key, node in config.items() for pair in targets_in(node, key)]:
        key = path.partition(".")[0]
        if key in ("model", "search") or target in _targets_of_conf():
            continue
        if isinstance(target, str) and key in _TRAINING and _TRAINING[key].fullmatch(target):
            continue
        module = str(target).rpartition(".")[0]
        if not any(f"{module}.".startswith(f"{name}.") for name in trust):
            advice = f"if you trust that module, type trust={module}"
            raise UserError(f"{path} names {shortened(target, 60)!r}, a class that is not part of diglot: {advice}")
    if errors := [mistake for key in _TRAINING for mistake in mistakes(config[key], key)]:
        raise UserError("; ".join(errors[:3]))


def is_tokenizer_node(node: Any) -> bool:
    """Return whether a node of a checkpoint's config describes a tokenizer as a file of conf/ does.

    All of its classes are named there, and they accept its values.
    """
    if not isinstance(node, dict) or node.get("_target_") not in _targets_of_conf():
        return False
    try:
        _refuse_references(node, "tokenizer")
    except UserError:
        return False
    return not any(mistakes(node, "tokenizer"))


@cache
def _targets_of_conf() -> frozenset[str]:
    """Return the classes that the files of conf/ name."""
    texts = (file.read_text(encoding="utf-8") for file in CONF.rglob("*.yaml"))
    return frozenset(target for text in texts for target in re.findall(r"_target_: ([\w.]+)", text))


def trusted(config: Mapping[Any, Any]) -> list[str]:
    """Return the modules that a command line trusts.

    These are the modules in its key `trust`, and the modules of the classes that its config names,
    which the check of the config has imported.

    Args:
        config: the config of any command.

    Raises:
        UserError: `trust` names something other than a module of the user's own.
    """
    plain: Any = OmegaConf.to_container(config, resolve=True) if isinstance(config, DictConfig) else config
    trust = plain.get("trust") or []
    modules = [trust] if isinstance(trust, str) else list(trust)
    check_trust(modules)
    named = {str(target).rpartition(".")[0] for _, target in targets_in(plain, "")}
    named = {name for name in named if name.partition(".")[0] not in {*_LIBRARIES, ""}}
    return list(dict.fromkeys([*modules, *sorted(named)]))


def check_trust(modules: Collection[str]) -> None:
    """Check that all modules to trust are the user's own.

    Raises:
        UserError: a module belongs to a library, or is not a dotted name. The message names it.
    """
    for module in modules:
        if not _DOTTED.fullmatch(module):
            raise UserError(f"trust={module}: must be the dotted name of a module, such as mine or mine.models")
        if module.partition(".")[0] in _LIBRARIES:
            raise UserError(f"trust={module}: only your own modules can be trusted; {module} belongs to a library")


def _refuse_references(node: Any, path: str) -> None:
    """Check that a node contains no interpolation and no positional arguments. diglot never stores either.

    Raises:
        UserError: it contains one. The message names the key.
    """
    if isinstance(node, str) and "${" in node:
        raise UserError(f"{path} contains the interpolation {shortened(node, 60)!r}: not loaded")
    if isinstance(node, dict) and "_args_" in node:
        raise UserError(f"{path}._args_ contains positional arguments: not loaded")
    if isinstance(node, (dict, list)):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            _refuse_references(value, f"{path}.{key}")


def _is_built_in(target: Any) -> bool:
    """Return whether a target is a class of diglot's parts or of torch's layers.

    Creating an object of such a class runs only the code that builds the layer.
    """
    if not isinstance(target, str) or not _NAMED.fullmatch(target):
        return False
    cls = _imported(target)  # all known classes are already imported
    is_part = isinstance(cls, type) and issubclass(cls, (torch.nn.Module, Search))
    return is_part and _LAYERS.match(cls.__module__) is not None


def _imported(target: str) -> Any:
    """Return the object that a dotted name refers to in the modules already imported, or None."""
    module, _, name = target.rpartition(".")
    return vars(sys.modules[module]).get(name) if module in sys.modules else None


def _distrust_reason(target: Any, trust: Collection[str]) -> str | None:
    """Return the reason why a class from outside diglot and torch is not created, or None if the user trusts it.

    The reason continues a sentence that starts with the class's name.
    """
    no_part = "which a checkpoint may not use in a model or search: not loaded"
    if not isinstance(target, str) or not _DOTTED.fullmatch(target) or "." not in target or len(target) > 200:
        return no_part
    if target.partition(".")[0] in _LIBRARIES or any(part.startswith("__") for part in target.split(".")):
        return no_part
    module = target.rpartition(".")[0]
    if not any(f"{module}.".startswith(f"{name}.") for name in trust):
        if not _is_the_users(sys.modules.get(module)):
            return (
                "a class that is not part of diglot, and a checkpoint alone never causes an import: "
                f"if you trust that module, type trust={module}"
            )
        if _imported(target) is None:  # get_object could import a submodule
            return f"and {module} has no such class"
    try:
        if None not in [wrong_target(target, base) for base in (torch.nn.Module, Search)]:
            return no_part
    except ImportError as error:
        reason = error.__cause__ or error
        return f"which cannot be imported ({type(reason).__name__}: {reason}): is its folder in PYTHONPATH?"
    defining_module = get_object(target).__module__  # may differ from the module in the target's name
    return no_part if defining_module.partition(".")[0] in _LIBRARIES and not _LAYERS.match(defining_module) else None


def _is_the_users(module: ModuleType | None) -> bool:
    """Return whether a module belongs to the user's program, not to an installed package or the standard library."""
    file = getattr(module, "__file__", None)
    installed = {"site-packages", "dist-packages"}
    return file is not None and not installed & set(Path(file).parts) and not Path(file).is_relative_to(_STDLIB)
