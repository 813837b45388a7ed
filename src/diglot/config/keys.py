"""The keys of a command's config, and suggestions for unknown keys."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from diglot.choices import CONF, groups
from diglot.config.meaning import meaning_of


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
            here = f"{path}.{key}" if path else str(key)
            yield here
            yield from flat_keys(value, here)


def unknown_key(key: str, known: Sequence[str]) -> str:
    """Return a message that a key does not exist, with the key that was probably meant."""
    key = key.lstrip("+~").split("@")[0]
    if instead := meaning_of(key).instead:
        return f"{key} is not supported; {instead}"
    if match := re.fullmatch(r"model[./](decoder_(\w+))", key):
        part, group = match.group(1), f"model/{match.group(2)}"
        if (CONF / group).is_dir():
            return f"there is no key {key}; did you mean {group}@model.{part}?"
    known = [k for k in known if k != key]
    nearest = difflib.get_close_matches(key, known, 1, cutoff=0.75)
    if not nearest:  # the right name without its parent, like n_heads for model.n_heads
        leaf = key.rpartition(".")[2]
        nearest = [k for k in known if k.rpartition(".")[2] == leaf]
        leaves = {k.rpartition(".")[2]: k for k in known}
        nearest = nearest or [leaves[n] for n in difflib.get_close_matches(leaf, leaves, 1, cutoff=0.75)]
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"there is no key {key}{hint}"
