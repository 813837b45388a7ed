"""Values that come from the environment: followed through interpolations, and kept out of files and messages."""

import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any
from unittest import mock

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from diglot.errors import UserError

SHORTEST = 4  # characters of a value that is looked for in messages: a shorter one is no secret
LONG = 6  # from which on it is looked for within words, too

# What a checkpoint holds resolved, or results name.
IN_CHECKPOINTS = ("model", "search", "tokenizer.placeholder", "data.name", "data.src_lang", "data.tgt_lang")

_written: dict[str, str] = {}  # by values that this process took from the environment: how the config names them


@contextmanager
def environment_reads() -> Iterator[list[str]]:
    """The names of the environment variables that the block reads, by whatever resolver."""
    names: list[str] = []
    read = type(os.environ).__getitem__

    def noting(environment: Any, name: Any) -> Any:
        names.append(name)
        return read(environment, name)

    with mock.patch.object(type(os.environ), "__getitem__", noting):
        yield names


class AsWritten(str):
    """An expression that depends on the environment, not its value."""


def without_secrets(config: DictConfig) -> dict[str, Any]:
    """Return a whole config as plain data, resolved but for what depends on the environment, which stays as written."""
    plain: Any = changed_texts(partly_resolved(config), str)
    assert isinstance(plain, dict)
    return plain


def partly_resolved(node: Any) -> Any:
    """Return a node as plain data, resolved but for what depends on the environment: that is `AsWritten`."""
    if not isinstance(node, (DictConfig, ListConfig)):
        return node
    if node._is_none():
        return None
    keys: Any = node.keys() if isinstance(node, DictConfig) else range(len(node))
    values = {key: _partly_resolved_value(node, key) for key in keys}
    return values if isinstance(node, DictConfig) else list(values.values())


def changed_texts(plain: Any, change: Callable[[str], str]) -> Any:
    """Return plain data with each text in it changed."""
    if isinstance(plain, dict):
        return {key: changed_texts(value, change) for key, value in plain.items()}
    if isinstance(plain, list):
        return [changed_texts(value, change) for value in plain]
    return change(plain) if isinstance(plain, str) else plain


def note_secrets(config: DictConfig) -> None:
    """Remember for `masked` which values a config takes from the environment."""
    for _, written, value, names in _from_environment(config):
        _note(value, written)
        for name in names:
            _note(os.environ.get(name), f"${{oc.env:{name}}}")
    if _written:
        sys.excepthook = print_masked


def print_masked(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback as Python does, without the values that the config took from the environment."""
    print(masked("".join(traceback.format_exception(kind, error, trace))), end="", file=sys.stderr)


def refuse_secrets_in_checkpoints(config: DictConfig) -> None:
    """Make sure that no text from the environment stands where a checkpoint has to hold the value itself.

    Raises:
        UserError: naming the key.
    """
    for path, written, value, _ in _from_environment(config):
        if isinstance(value, str) and any(path == key or path.startswith(f"{key}.") for key in IN_CHECKPOINTS):
            raise UserError(f"{path}={written}: every checkpoint would hold what the environment says; type the value")


def mask_record(record: logging.LogRecord) -> bool:
    """Mask a message of a logger; to be used as its filter."""
    record.msg, record.args = masked(record.getMessage()), None
    return True


def masked(text: str) -> str:
    """Return a text with the config's expressions in place of the values that they took from the environment."""
    for value in sorted(_written, key=len, reverse=True):
        if len(value) >= SHORTEST and value in text:
            pattern = re.escape(value) if len(value) >= LONG else rf"(?<!\w){re.escape(value)}(?!\w)"
            text = _written[value].join(re.split(pattern, text))
    return text


def _note(value: Any, written: str) -> None:
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _note(item, written)
    elif value not in (None, True, False, ""):
        text = str(value)
        for form in {text, repr(text)[1:-1], " ".join(text.split())} - {""}:
            _written.setdefault(form, written)


def _partly_resolved_value(node: DictConfig | ListConfig, key: Any) -> Any:
    if OmegaConf.is_missing(node, key):
        return "???"
    if not OmegaConf.is_interpolation(node, key):
        return partly_resolved(node[key])
    with environment_reads() as names:
        value = _resolved(node, key)
    return AsWritten(_as_written(node, key)) if names else value


def _from_environment(node: Any, path: str = "") -> Iterator[tuple[str, str, Any, list[str]]]:
    """Each expression that reads the environment: its key, itself, its value (None: it has none), and what it reads."""
    if not isinstance(node, (DictConfig, ListConfig)) or node._is_none():
        return
    keys: Any = node.keys() if isinstance(node, DictConfig) else range(len(node))
    for key in keys:
        here = f"{path}.{key}" if path else str(key)
        if OmegaConf.is_interpolation(node, key):
            value = None
            with environment_reads() as names, suppress(OmegaConfBaseException):
                value = _resolved(node, key)
            if names:
                yield here, _as_written(node, key), value, names
        elif not OmegaConf.is_missing(node, key):
            yield from _from_environment(node[key], here)


def _resolved(node: DictConfig | ListConfig, key: Any) -> Any:
    value = node[key]
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _as_written(node: DictConfig | ListConfig, key: Any) -> str:
    child: Any = node._get_node(key)
    return str(child._value())
