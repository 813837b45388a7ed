"""Checks that a `_target_` is a class of the kind that its key accepts, or a function that returns an object of it.

A config may come from a stranger. So no other target is called, and none is called before the whole config has been
checked.
"""

import difflib
import inspect
import logging
import re
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

import torch
from hydra.utils import get_class, get_object
from omegaconf import DictConfig, OmegaConf

from diglot.config.hydra_seams import CORE_PLUGINS
from diglot.config.meaning import meaning_of
from diglot.errors import UserError

# Hydra logs an error, in lines of its own, before it raises it.
logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)

NAMES = {"EncoderDecoder": "model", "TokenizerSource": "tokenizer"}


def kind_of(path: str) -> Any:
    """Return the class that a node's target must be or return, or None if a config may not choose one there."""
    class_name = meaning_of(path).kind
    return get_class(class_name) if class_name is not None else None


def wrong_target(target: str, annotation: Any) -> str | None:
    """Return the reason why a target is not accepted, or None if it is.

    The reason continues a sentence that starts with the target's name. A module is imported only to inspect its
    content, and never a module of Python's standard library.

    Args:
        target: a dotted name.
        annotation: the annotation that the target has to match.

    Raises:
        ImportError: the target does not exist.
    """
    classes = _classes(annotation)
    named = names_of(annotation)
    if not classes:
        return "is not accepted here: the parameter is not annotated with a class"
    package = target.partition(".")[0]
    if package in sys.stdlib_module_names or any(part.startswith("__") for part in target.split(".")):
        return f"is no {named}"
    try:
        target_object: Any = get_object(target)
    except Exception as error:
        raise ImportError(target) from error
    returned = target_object
    if inspect.isfunction(target_object):  # judge it by its return annotation
        try:
            returned = typing.get_type_hints(target_object).get("return")
        except Exception:  # an annotation cannot be evaluated
            returned = None
        if any(issubclass(cls, torch.nn.Module) for cls in classes):
            returned = None
    if not inspect.isclass(returned) or not any(cls in returned.__mro__ for cls in classes):
        return f"is no {named}"
    return None


def names_of(annotation: Any) -> str:
    """Return the names of the classes that an annotation accepts, in the terms of a config."""
    return " or ".join(NAMES.get(cls.__name__, cls.__name__) for cls in _classes(annotation))


def missing_target(target: str) -> str:
    """Return a message that a target does not exist, with the reason, or the name that was probably meant."""
    message = f"there is no {target}"
    module, _, name = target.rpartition(".")
    try:
        nearest = difflib.get_close_matches(name, vars(get_object(module)), 1)
        return f"{message}; did you mean {module}.{nearest[0]}?" if nearest else message
    except Exception as error:
        reason = error.__cause__ or error
    package = target.partition(".")[0]
    if isinstance(reason, ModuleNotFoundError) and reason.name == package:
        return f"{message}: no module {package} was found; is its folder in PYTHONPATH?"
    if isinstance(reason, ModuleNotFoundError) and f"{module}.".startswith(f"{reason.name}."):
        return message
    return f"{message}: {type(reason).__name__}: {' '.join(str(reason).split())}"


def _classes(annotation: Any) -> list[type]:
    """Return the classes of the objects that an annotation accepts, except those that a config writes as plain data."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return [cls for argument in arguments for cls in _classes(argument)]
    if origin is not None and inspect.isclass(origin) and issubclass(origin, Callable):  # type: ignore[arg-type]
        return _classes(arguments[-1]) if arguments else []
    if (
        inspect.isclass(annotation)
        and annotation.__module__ not in ("builtins", "typing")
        and not typing.is_typeddict(annotation)
    ):
        return [annotation]
    return []


def refuse_foreign_hydra(node: DictConfig) -> None:
    """Check that a config's hydra node cannot make Hydra or another library call foreign code.

    Raises:
        UserError: a key could. The message names it.
    """
    plain: Any = OmegaConf.to_container(node, resolve=False)
    if plain.get("callbacks"):
        raise UserError("hydra.callbacks: not supported; for callbacks during training, use the key callbacks")
    for key in ("job_logging", "hydra_logging"):
        logging_config = plain.get(key) or {}
        if logging_config.get("root") or logging_config.keys() - {"version", "root", "disable_existing_loggers"}:
            raise UserError(f"hydra.{key}: not supported; a run writes log.txt")
    if plain.get("job", {}).get("env_set"):
        raise UserError("hydra.job.env_set: not supported; set environment variables in the shell")
    for path, target in targets_in(plain, "hydra"):
        if path in ("hydra.sweeper._target_", "hydra.launcher._target_"):  # Hydra itself accepts only plugins here
            allowed = rf"(hydra_plugins|{re.escape(CORE_PLUGINS)})(\.\w+)+"
        else:
            allowed = r"optuna\.samplers\.(TPE|Random|GP)Sampler"
        if not isinstance(target, str) or not re.fullmatch(allowed, target):
            raise UserError(f"{path}: {target} is not a class that a sweep may use")


def targets_in(node: Any, path: str) -> typing.Iterator[tuple[str, Any]]:
    """Yield the key and the value of each `_target_` in a node of plain data."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield f"{path}._target_", node["_target_"]
        for key, value in node.items():
            yield from targets_in(value, f"{path}.{key}")
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from targets_in(value, f"{path}[{i}]")
