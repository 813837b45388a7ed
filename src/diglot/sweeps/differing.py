"""The keys of the config in which the configurations of a sweep differ, with their values."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diglot.config import meaning_of
from diglot.system.masking import shortened

MAX_VALUE = 200  # characters


def differing_keys(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the keys at which configs differ, with the values of all configs as text; empty where a key is missing.

    The seed and keys that do not enter the hash of a job, such as its folder, are left out. Nothing is imported to find
    the default of a missing key.
    """
    flat = [dict(_leaves(config)) for config in configs]
    keys = dict.fromkeys(key for values in flat for key in values)
    texts = {key: [_text(values[key]) if key in values else "" for values in flat] for key in keys if _counts(key)}
    return {key: values for key, values in texts.items() if len({*values}) > 1}


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of everything in a config that is no mapping, or an empty one."""
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _counts(key: str) -> bool:
    return key != "seed" and meaning_of(key).hashed not in ("never", "as typed")


def _text(value: Any) -> str:
    return shortened(value if isinstance(value, str) else json.dumps(value, default=str), MAX_VALUE, "…")
