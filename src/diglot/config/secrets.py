"""Values that a config reads from the environment. Those that may be secrets are kept out of files and messages."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from diglot.choices import CONF
from diglot.config.differences import FROM_ENVIRONMENT
from diglot.config.keys import flat_keys
from diglot.config.meaning import meaning_of
from diglot.errors import UserError
from diglot.system.masking import is_secret, note


@contextmanager
def environment_reads() -> Iterator[list[str]]:
    """Collect the names of the environment variables that the block reads, through any resolver.

    Every read in Python looks up a name in `os.environ`, whether by `oc.env` or by a user's own resolver.
    """
    names: list[str] = []
    environment: Any = type(os.environ)
    original = environment.__getitem__

    def record_and_read(self: Any, name: Any) -> Any:
        names.append(name)
        return original(self, name)

    environment.__getitem__ = record_and_read
    try:
        yield names
    finally:
        environment.__getitem__ = original


class UnresolvedText(str):
    """An expression that depends on the environment, unresolved."""


def without_secrets(config: DictConfig) -> dict[str, Any]:
    """Return a config as plain data, resolved except for expressions whose values may be secrets from the environment.

    The digests under `FROM_ENVIRONMENT`, by key, show whether such a value has changed.
    """
    plain: Any = changed_texts(resolved_except_secrets(config), str)
    assert isinstance(plain, dict)
    digests = {
        key: _digest(key, json.dumps(value, sort_keys=True, default=str))
        for key, _, value, _ in _from_environment(config)
        if is_secret(value) and meaning_of(key).on_resume != "ignore" and not meaning_of(key).may_rotate
    }
    return {**plain, FROM_ENVIRONMENT: digests} if digests else plain


@cache
def _digest(key: str, text: str) -> str:
    """Return a digest that shows whether a value has changed, without revealing it.

    It is slow to compute, and so short that many values have the same digest.
    """
    return hashlib.pbkdf2_hmac("sha256", text.encode("utf-8", "surrogatepass"), key.encode(), 200_000, 4).hex()


def resolved_except_secrets(node: Any) -> Any:
    """Return a node as plain data, resolved except for values that may be secrets from the environment.

    Such a value stays an expression, as `UnresolvedText`.
    """
    if not isinstance(node, (DictConfig, ListConfig)):
        return node
    keys: Any = node.keys() if isinstance(node, DictConfig) else range(len(node))
    values = {key: _partly_resolved_value(node, key) for key in keys}
    return values if isinstance(node, DictConfig) else list(values.values())


def changed_texts(plain: Any, change: Callable[[str], str]) -> Any:
    """Return plain data with a function applied to each text in it."""
    if isinstance(plain, dict):
        return {key: changed_texts(value, change) for key, value in plain.items()}
    if isinstance(plain, list):
        return [changed_texts(value, change) for value in plain]
    return change(plain) if isinstance(plain, str) else plain


def note_secrets(config: DictConfig) -> None:
    """Mask, in all messages, the values that a config reads from the environment and that may be secrets.

    The names of keys and choices are never masked, since messages contain them.
    """
    choices = (str(file.relative_to(CONF).with_suffix("")) for file in CONF.rglob("*.yaml"))
    readable_names = "\0".join([*flat_keys(OmegaConf.to_container(config, resolve=False)), *choices])
    secrets = [
        (expression, value, names) for _, expression, value, names in _from_environment(config) if is_secret(value)
    ]
    for name in [name for _, _, names in secrets for name in names]:
        note(os.environ.get(name), f"${{oc.env:{name}}}", readable_names)
    for expression, value, names in secrets:
        if any(name in os.environ for name in names):  # otherwise the value is a default in the config itself
            note(value, expression, readable_names)


def refuse_secrets_in_checkpoints(config: DictConfig) -> None:
    """Check that no value that a checkpoint stores is a secret from the environment.

    Raises:
        UserError: a stored value may be a secret. The message names its key.
    """
    for path, expression, value, _ in _from_environment(config):
        if is_secret(value) and meaning_of(path).in_checkpoints:
            raise UserError(
                f"{path}={expression}: every checkpoint would store this value from the environment; "
                "type the value itself"
            )


def _partly_resolved_value(node: DictConfig | ListConfig, key: Any) -> Any:
    if OmegaConf.is_missing(node, key):
        return "???"
    if not OmegaConf.is_interpolation(node, key):
        return resolved_except_secrets(node[key])
    with environment_reads() as names:
        value = _resolved(node, key)
    return UnresolvedText(_expression(node, key)) if names and is_secret(value) else value


def _from_environment(node: Any, path: str = "") -> Iterator[tuple[str, str, Any, list[str]]]:
    """Yield each expression that reads the environment: its key, its text, its value, and the names of the variables.

    If the expression cannot be resolved, its value is the list of the variables' values.
    """
    if not isinstance(node, (DictConfig, ListConfig)):
        return
    keys: Any = node.keys() if isinstance(node, DictConfig) else range(len(node))
    for key in keys:
        key_path = f"{path}.{key}" if path else str(key)
        if OmegaConf.is_interpolation(node, key):
            with environment_reads() as names:
                try:
                    value = _resolved(node, key)
                except OmegaConfBaseException:
                    value = [os.environ.get(name) for name in list(names)]
            if names:
                yield key_path, _expression(node, key), value, names
        elif not OmegaConf.is_missing(node, key):
            yield from _from_environment(node[key], key_path)


def _resolved(node: DictConfig | ListConfig, key: Any) -> Any:
    value = node[key]
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _expression(node: DictConfig | ListConfig, key: Any) -> str:
    plain: Any = OmegaConf.to_container(node, resolve=False)
    return str(plain[key])
