"""Checks of a config before anything is built: names, types and missing values."""

import inspect
import math
import os
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from diglot.choices import choices, groups
from diglot.config.composed import COMPOSED
from diglot.config.keys import known_keys, unknown_key
from diglot.config.meaning import MEANINGS, meaning_of
from diglot.config.scores import check_scores
from diglot.config.secrets import note_secrets, refuse_secrets_in_checkpoints
from diglot.config.targets import kind_of, missing_target, names_of, wrong_target
from diglot.errors import UserError
from diglot.system.quoting import spelled

EXTENSION = "diglot.data.extension.TokenizerExtension"  # the tokenizer that needs init_from


def check(config: DictConfig, schema: Any) -> None:
    """Reject a config that the objects in it would not accept: unknown names, wrong types, missing values.

    Args:
        config: the composed config.
        schema: the keys of the config and their types; see `keys_of`.

    Raises:
        UserError: the config has mistakes. The message names each key, its problem, and the nearest valid name.
    """
    if HydraConfig.initialized():
        started_by_lightning = "LOCAL_RANK" in os.environ  # Lightning sets hydra.run.dir itself, without harm
        for override in overrides_as_typed("hydra") if not started_by_lightning else ():
            match = re.match(r"\+*hydra\.(run|sweep)\.(dir|subdir)=", override)
            if match and not re.search(r"=\.$", override):
                raise UserError(unknown_key(f"hydra.{match.group(1)}.dir", []))
        _refuse_two_spellings()
    note_secrets(config)
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{getattr(error, 'full_key', '')}: {str(error).splitlines()[0]}") from None
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise UserError(f"{missing[0]} must be given: {missing[0]}=VALUE")
    assert isinstance(plain, dict)
    types = keys_of(schema)
    errors = [] if is_composed() else _wrong_keys(plain, types)
    for key, value in plain.items():
        annotation = types.get(str(key), Any)
        if key in types and value == "":
            errors.append(f"{key!s}= is empty: leave it out")
        elif not fits(value, annotation):
            reason = wrong_entry(value, annotation)
            errors.append(
                f"{key!s}={spelled(value)}: must be {describe(annotation)}" + (f"; {reason}" if reason else "")
            )
        errors += mistakes(value, str(key), extra_keys=_keys_within(annotation))
    if errors:
        raise UserError("; ".join(errors))
    refuse_secrets_in_checkpoints(config)
    _refuse_two_tokenizers(config)
    if "metric" in config and "objective" in config:  # a training run
        check_scores(config)


def is_composed() -> bool:
    """Return whether the config was read from the file composed.yaml of a folder.

    Its top-level keys were checked when it was composed, perhaps by an earlier version with other keys.
    """
    return HydraConfig.initialized() and HydraConfig.get().job.config_name == COMPOSED


def _wrong_keys(plain: Mapping[Any, Any], types: Mapping[str, Any]) -> list[str]:
    """Return the mistakes in the top-level keys of a config.

    Args:
        plain: the config, as plain data.
        types: the annotation of each key. A key may be missing only if it accepts both a node and null, as a group
            without a choice does.
    """
    errors = [_unknown_key(str(key), value, sorted(types)) for key, value in plain.items() if key not in types]
    missing = [
        key
        for key, annotation in types.items()
        if key not in plain and not (fits({}, annotation) and fits(None, annotation))
    ]
    return errors + [f"{key} is needed and must not be removed" for key in missing]


def _unknown_key(key: str, value: Any, valid_keys: Sequence[str]) -> str:
    """Return a message that a key does not exist in this command's config."""
    command = HydraConfig.get().job.config_name if HydraConfig.initialized() else ""
    value_text = (
        {None: "null", True: "true", False: "false"}.get(value) if value is None or isinstance(value, bool) else None
    )
    return unknown_key(key, valid_keys, command if command in choices("") else "train", value_text or str(value))


def _refuse_two_spellings() -> None:
    typed_keys = overridden_keys()
    for first, second in combinations(
        [key for key, meaning in MEANINGS.items() if meaning.determines and key in typed_keys], 2
    ):
        if MEANINGS[first].determines == MEANINGS[second].determines:
            raise UserError(f"{first} and {second} both set {MEANINGS[first].determines}: give only one")


def _refuse_two_tokenizers(config: DictConfig) -> None:
    if config.get("init_from") is None:
        return
    typed = {key for key in overridden_keys() if meaning_of(key).of_vocabulary}
    if OmegaConf.select(config, "tokenizer._target_") == EXTENSION:
        typed = {key for key in typed if key.partition(".")[0] != "tokenizer"}
    if typed:
        raise UserError(
            "init_from also loads a tokenizer: remove the tokenizer's options from the command line, or type "
            "tokenizer=extend to add pieces to it"
        )


def settle_must_fit(config: DictConfig) -> None:
    """Store in a config whether a tokenizer's vocabulary size must fit the text: it must if the user typed it.

    The config holds the result, because a sweep's job reads the config without the command line.
    """
    typed = overridden_keys()
    for path in ("tokenizer", "tokenizer.src", "tokenizer.tgt"):
        node = OmegaConf.select(config, path)
        if isinstance(node, DictConfig) and node.get("must_fit", False) is None:
            sizes = {"data.vocab_size", f"{path}.vocab_size", f"{path}.tgt_vocab_size"}
            node.must_fit = not sizes.isdisjoint(typed)


def overridden_keys() -> set[str]:
    """Return the keys that the command line sets to a value other than null."""
    return {key for key, value in _typed_values().items() if value != "null"}


def typed_nodes() -> set[str]:
    """Return the keys and the nodes of groups that the command line sets, as dotted keys of the config."""
    names = (key.partition("@") for key in _typed_values())
    return {package or key.replace("/", ".") for key, _, package in names}


def _typed_values() -> dict[str, str]:
    """Return what the command line sets: the value as typed of each key or group."""
    overrides = overrides_as_typed("task")
    return {override.lstrip("+~").partition("=")[0]: override.partition("=")[2] for override in overrides}


def overrides_as_typed(group: Literal["task", "hydra"]) -> list[str]:
    """Return the overrides as typed. Their interpolations stay unresolved, since they may refer to missing keys."""
    if not HydraConfig.initialized():
        return []
    overrides: Any = OmegaConf.to_container(getattr(HydraConfig.get().overrides, group), resolve=False)
    return overrides


def keys_of(schema: Any) -> dict[str, Any]:
    """Return the names and annotations of the keys that a schema describes.

    Args:
        schema: a function whose parameters are the keys, or a TypedDict or dataclass whose fields are the keys. The
            annotation `Annotated[DictConfig, SCHEMA]` describes a node that has the keys of SCHEMA in addition to the
            parameters of its class.
    """
    return typing.get_type_hints(schema, include_extras=True) if inspect.isclass(schema) else parameters_of(schema)


def _keys_within(annotation: Any) -> dict[str, Any]:
    """Return the keys that an annotation adds to a node, in addition to the parameters of its class."""
    annotated = [part for part in (annotation, *typing.get_args(annotation)) if typing.get_origin(part) is Annotated]
    return keys_of(annotated[0].__metadata__[0]) if annotated else {}


def mistakes(
    node: Any, path: str, annotation: Any = None, extra_keys: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[str]:
    """Yield what the targets in a node would reject, and each target of the wrong kind for its key.

    Args:
        node: plain data.
        path: the node's key in the config.
        annotation: the annotation that the node's target has to match; None: derive it from the path.
        extra_keys: names and annotations of keys in addition to the parameters of the node's class. They take
            precedence over parameters of the same name.
    """
    if isinstance(node, list):
        for i, item in enumerate(node):
            yield from mistakes(item, f"{path}[{i}]")
    if not isinstance(node, dict):
        return
    parameters: dict[str, Any] = {}
    target = node.get("_target_")
    if "_target_" in node:
        if reason := _wrong_target(target, path, annotation):
            yield reason
            return
        parameters = parameters_of(get_object(str(target)))
    for key, value in node.items():
        if key not in ("_target_", "_partial_", "_recursive_", "_convert_"):
            yield from _mistakes_of(key, value, path, target, {**parameters, **extra_keys})


def _wrong_target(target: Any, path: str, annotation: Any) -> str | None:
    """Return the problem with a node's `_target_`, or None."""
    if path == "logger":
        return f"{path}._target_: each logger needs a name: {path}.NAME._target_={target}"
    if not isinstance(target, str):
        return f"{path}._target_={spelled(target)}: must name a class or a function"
    try:
        reason = wrong_target(target, annotation or kind_of(path))
    except ImportError:
        return f"{path}._target_: {missing_target(target)}"
    return f"{path}._target_: {target} {reason}" if reason else None


def _mistakes_of(key: str, value: Any, path: str, target: str | None, parameters: dict[str, Any]) -> Iterator[str]:
    """Yield the mistakes in one key of a node and in the nodes below it."""
    key_path = f"{path}.{key}"
    if key == "_args_":
        yield f"{key_path}: positional arguments are not supported; give arguments by name"
    elif meaning_of(key_path).given_by_code and target is not None:
        yield f"{key_path} is not supported: diglot sets it"
    elif meaning_of(key_path).instead:
        if value is not None:
            yield unknown_key(key_path, [])
    elif value is not None and not isinstance(value, dict) and (cls := kind_of(key_path)):
        if instead := _instead_of_text(key_path, value):
            yield f"{key_path}={value}: {instead}"
            return
        prefix = "" if key_path in known_keys("train") else "+"
        example = value if isinstance(value, str) else "CLASS"
        yield f"{key_path}={value}: a {names_of(cls)} needs a _target_; type {prefix}{key_path}._target_={example}"
    elif (target is not None or parameters) and key not in parameters:
        if "**" in parameters:
            yield from mistakes(value, key_path)
        else:
            valid_keys = [k for k in (f"{path}.{name}" for name in parameters) if not _is_reserved(k)]
            is_train_key = path == "model" and key_path in known_keys("train")
            yield (
                f"{str(target).rpartition('.')[2]} has no {key_path}"
                if is_train_key
                else _unknown_key(key_path, value, valid_keys)
            )
    else:
        annotation = parameters.get(key, Any)
        if fits(value, annotation):
            yield from mistakes(value, key_path, annotation if target is not None else None)
        else:
            reason = _instead_of_text(key_path, value) or wrong_entry(value, annotation)
            yield f"{key_path}={spelled(value)}: must be {describe(annotation)}" + (f"; {reason}" if reason else "")


def _instead_of_text(key: str, value: Any) -> str | None:
    """Return what to type instead of a text for a key that needs a node; None if it is not known."""
    group = key.replace(".", "/")
    if isinstance(value, str) and group in groups() and value in choices(group):
        return f"did you mean {group}={value}?"
    return f"did you mean {key}.file={value}?" if f"{key}.file" in MEANINGS else None


def _is_reserved(key: str) -> bool:
    """Return whether a key is a parameter of a class that a config must not set, because code sets it."""
    return meaning_of(key).given_by_code or meaning_of(key).instead is not None


def parameters_of(target: Any) -> dict[str, Any]:
    """Return the names and annotations of the parameters of a class or function. "**" stands for any other name."""
    try:
        try:
            signature = inspect.signature(target, eval_str=True)
        except (NameError, TypeError, AttributeError, SyntaxError):  # an annotation cannot be evaluated
            signature = inspect.signature(target)
    except ValueError:
        return {"**": Any}
    kinds = inspect.Parameter
    annotations: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is kinds.VAR_KEYWORD:
            annotations["**"] = Any
        elif parameter.kind is not kinds.VAR_POSITIONAL:
            annotations[name] = Any if parameter.annotation is kinds.empty else parameter.annotation
    return annotations


def fits(value: Any, annotation: Any) -> bool:
    """Return whether a config value matches an annotation. Types that a config cannot express are accepted."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return True
    if origin is Annotated:
        return fits(value, arguments[0])
    if annotation is None or annotation is type(None):
        return value is None
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, a) for a in arguments)
    if origin is typing.Literal:
        return value in arguments
    if annotation in _PLAIN:
        return _PLAIN[annotation](value)
    return _is_a(value, origin or annotation, arguments)


# Checks for plain types. In Python, True is an int.
_PLAIN: dict[Any, Callable[[Any], bool]] = {
    bool: lambda value: isinstance(value, bool),
    int: lambda value: isinstance(value, int) and not isinstance(value, bool),
    float: lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value),
    str: lambda value: isinstance(value, str),
    Path: lambda value: isinstance(value, str),
}


def _is_a(value: Any, cls: Any, arguments: tuple[Any, ...]) -> bool:
    """Return whether a config value can represent an object of a class, which may have type arguments."""
    if typing.is_typeddict(cls):
        keys = typing.get_type_hints(cls)
        return isinstance(value, dict) and value.keys() == keys.keys() and all(fits(value[k], keys[k]) for k in keys)
    if inspect.isclass(cls) and cls is not object:
        if issubclass(cls, Mapping):
            return isinstance(value, dict)
        if cls is Callable or cls.__name__ == "Callable":
            return isinstance(value, dict) and "_target_" in value
        if issubclass(cls, (list, tuple, set)) or cls in (Sequence, typing.Iterable):
            return isinstance(value, list) and all(fits(v, arguments[0]) for v in value if arguments)
        return isinstance(value, dict) and "_target_" in value
    return True


def wrong_entry(value: Any, annotation: Any) -> str | None:
    """Return the mistakes inside a mapping whose annotation is a TypedDict, or what to type for a list of texts.

    None is returned for any other annotation or value.
    """
    if isinstance(value, list) and fits([str(entry) for entry in value], annotation):
        entries = ",".join(f'"{entry}"' for entry in value)
        return f"to make a number a text, type [{entries}]"
    for cls in (annotation, *typing.get_args(annotation)):
        if isinstance(value, dict) and typing.is_typeddict(cls):
            keys = typing.get_type_hints(cls)
            errors = [f"there is no {key}" for key in value if key not in keys]
            errors += [f"{key} is missing" for key in keys if key not in value]
            errors += [
                f"{key} is {spelled(value[key])} and must be {describe(keys[key])}"
                for key in keys
                if key in value and not fits(value[key], keys[key])
            ]
            return ", ".join(errors)
    return None


def describe(annotation: Any) -> str:
    """Return a description of an annotation in the terms of a config."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(a) for a in arguments)
    if origin is typing.Literal:
        return " or ".join(str(a) for a in arguments)
    if origin is Annotated:
        return describe(arguments[0])
    names = {int: "an integer", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    if annotation in names:
        return names[annotation]
    if typing.is_typeddict(annotation):
        return f"a mapping of {', '.join(typing.get_type_hints(annotation))}"
    if inspect.isclass(origin or annotation) and issubclass(origin or annotation, (list, tuple, Sequence)):
        if arguments and arguments[0] is str:
            return "a list of texts"
        named = arguments and typing.get_origin(arguments[0]) is typing.Literal
        return f"a list of {describe(arguments[0])}" if named else "a list"
    if inspect.isclass(origin or annotation) and issubclass(origin or annotation, Mapping):
        return "a mapping"
    return "a node with a _target_"
