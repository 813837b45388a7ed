"""The keys of the config in which the configurations of a sweep differ, with their values."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diglot.config import different_values, meaning_of
from diglot.system.masking import shortened

MAX_VALUE = 200  # characters

Config = Mapping[str, Any]


def differing_keys(configs: Sequence[Config]) -> dict[str, list[str]]:
    """Return the keys at which any config differs from the first one, with the values of all configs as text.

    The seed and keys that do not enter the hash of a job, such as its folder, are left out. A missing value is empty.
    """
    keys: dict[str, None] = {}
    for other in configs[1:]:
        keys |= dict.fromkeys(_leaves(configs[0], other))
    # If one config has a mapping where another has none, the keys below it are listed, and not the mapping.
    leaves = [key for key in keys if not any(other.startswith(f"{key}.") for other in keys)]
    return {key: [_text(_value(config, key)) for config in configs] for key in leaves}


def _leaves(a: Config, b: Config) -> Iterator[str]:
    for key, *values in different_values(a, b):
        if key == "seed" or meaning_of(key).hashed in ("never", "as typed"):
            continue
        below = [f"{key}.{name}" for value in values for name in _names(value)]
        yield from below or [key]


def _names(value: Any, path: str = "") -> Iterator[str]:
    """Yield the keys below a value, dotted; none if it is not a mapping."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from list(_names(below, f"{path}{key}.")) or [f"{path}{key}"]


def _value(config: Any, key: str) -> Any:
    for name in key.split("."):
        if not isinstance(config, dict) or name not in config:
            return ""
        config = config[name]
    return config


def _text(value: Any) -> str:
    return shortened(value if isinstance(value, str) else json.dumps(value, default=str), MAX_VALUE, "…")
