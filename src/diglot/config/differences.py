"""In what two configs differ."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from diglot.errors import UserError

# What a run may change when it goes on: where it is, what is watched, and what it is compared by change no weight.
MAY_CHANGE = ("resume", "run.folder", "objective", "sweep", "watch", "logger")


def different_values(a: Any, b: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The keys at which two configs differ, with what stands there; a key that is missing stands for null."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in {**a, **b}:
            yield from different_values(a.get(key), b.get(key), f"{path}.{key}" if path else str(key))
    elif a != b:
        yield path, a, b


def refuse_other_config(file: Path, config: dict[str, Any]) -> None:
    """Make sure that a run goes on as it began.

    Args:
        file: what the run wrote when it began; where it is not there, there is nothing to go on with.
        config: as it is now.

    Raises:
        UserError: naming the keys that are others now.
    """
    found = other_values(file, config) if file.exists() else []
    if found:
        more = f", and {len(found) - 3} more" if len(found) > 3 else ""
        raise UserError(f"resume={file.parent}: the run would go on as another one: {', '.join(found[:3])}{more}")


def other_values(file: Path, config: dict[str, Any]) -> list[str]:
    """In words, what a run's config file has otherwise than a config, apart from what may change.

    Raises:
        UserError: if the file cannot be read.
    """
    try:
        text = file.read_text(encoding="utf-8")
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):  # a few could stand for millions
            raise ValueError("it refers to itself")
        before = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except Exception as error:
        raise UserError(f"{file}: cannot be read ({' '.join(str(error).split())})") from None
    return changes(before, config)


def changes(before: Any, now: Any) -> list[str]:
    """In words, in what two runs' configs differ, apart from what may change."""
    return [
        f"{key} was {_shortened(old)} and is {_shortened(new)}"
        for key, old, new in different_values(before, now)
        if not any(key == free or key.startswith(f"{free}.") for free in MAY_CHANGE)
    ]


def _shortened(value: Any) -> str:
    text = "something else" if isinstance(value, dict) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
