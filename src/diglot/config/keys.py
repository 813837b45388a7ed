"""The keys of a command's config, and suggestions for unknown keys."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from diglot.choices import CONF, groups, groups_of
from diglot.config.meaning import foreign, meaning_of


@cache
def plain_config(config_name: str) -> dict[str, Any]:
    """Return a command's config as composed from conf/, as plain data. Callers must not modify it."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config: Any = OmegaConf.to_container(compose(config_name))
    return config


def known_keys(config_name: str) -> list[str]:
    """Return all keys of a command's config, and all groups of choices."""
    return sorted({*flat_keys(plain_config(config_name)), *groups()})


def flat_keys(node: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted path of every node of a config."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            key_path = f"{path}.{key}" if path else str(key)
            yield key_path
            yield from flat_keys(value, key_path)


def unknown_key(key: str, valid_keys: Sequence[str], command: str = "train", value: str | None = None) -> str:
    """Return a message that a key does not exist, with the key that was probably meant.

    Args:
        key: the key.
        valid_keys: the keys to suggest.
        command: the command that it was typed for.
        value: the value that was typed for it.
    """
    key = key.lstrip("+~").split("@")[0]
    if instead := meaning_of(key).instead:
        return f"{key} is not supported; {instead}"
    if match := re.fullmatch(r"model[./](decoder_(\w+))", key):
        part, group = match.group(1), f"model/{match.group(2)}"
        if (CONF / group).is_dir():
            return f"there is no key {key}; did you mean {group}@model.{part}?"
    if valid_keys and (instead := foreign(key, value, _key_exists_in(command))):
        return f"there is no key {key}; {instead}"
    nearest = _nearest(key, [k for k in valid_keys if k != key])
    return f"there is no key {key}" + (f"; did you mean {nearest}?" if nearest else "")


def unknown_choice(group: str, choice: str, options: Sequence[str], command: str = "train") -> str:
    """Return a message that a group has no such choice, with the choice that was probably meant.

    Args:
        group: the group.
        choice: the choice.
        options: the choices of the group.
        command: the command that it was typed for.
    """
    message = f"{group}={choice}: there is no such choice; there are {', '.join(options)}"
    if instead := foreign(f"{group}={choice}", None, _key_exists_in(command)):
        return f"{message}; {instead}"
    if "." in choice:
        if meaning_of(f"{group}.mine").kind:
            return f"{message}; for a class of your own, type +{group}.mine._target_={choice}"
        return f"{message}; for a class of your own, type {group.replace('/', '.')}._target_={choice}"
    nearest = difflib.get_close_matches(choice, options, 1)
    return message + (f"; did you mean {group}={nearest[0]}?" if nearest else "")


def _key_exists_in(command: str) -> Callable[[str], bool]:
    """Return a function that tests whether a command has a key or group."""
    return {*flat_keys(plain_config(command)), *groups_of(command)}.__contains__


def _nearest(key: str, valid_keys: Sequence[str]) -> str | None:
    """Return the valid key that is most like a key. Keys with the same parent come first."""
    parent, _, leaf = key.rpartition(".")
    siblings = {k.rpartition(".")[2]: k for k in valid_keys if parent and k.rpartition(".")[0] == parent}
    # The right name with a wrong parent or without one.
    same_leaf = [k for k in valid_keys if k.rpartition(".")[2] == leaf]
    if siblings:
        matches = difflib.get_close_matches(leaf, siblings, 1)
        return siblings[matches[0]] if matches else next(iter(same_leaf), None)
    leaves = {k.rpartition(".")[2]: k for k in valid_keys}
    matches = [*difflib.get_close_matches(key, valid_keys, 1, cutoff=0.75), *same_leaf]
    matches += [leaves[name] for name in difflib.get_close_matches(leaf, leaves, 1, cutoff=0.75)]
    return next(iter(matches), None)
