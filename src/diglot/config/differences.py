"""Differences between two configs."""

import inspect
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra.utils import get_object
from omegaconf import OmegaConf

from diglot.config.hydra_seams import YamlDumper
from diglot.config.meaning import meaning_of
from diglot.errors import UserError
from diglot.system.masking import is_secret, shortened
from diglot.system.quoting import printable

# The key of a run's config that holds digests of the values from the environment, by key.
FROM_ENVIRONMENT = "from_environment"

MAX_LENGTH = 1_000_000  # characters in a run's config; a typical one has a few thousand


def different_values(a: Any, b: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each key at which two configs differ, with both values.

    A missing key counts as what it formerly was (`Meaning.formerly`), or as the default of its class's parameter, or as
    null if there is none. So a config that is older than an option has the default of that option.
    """
    if isinstance(a, dict) and isinstance(b, dict):
        target = a.get("_target_")
        is_same_class = target is not None and target == b.get("_target_")
        defaults = _defaults(target) if is_same_class and a.keys() != b.keys() else {}
        for key in {**a, **b}:
            here = f"{path}.{key}" if path else str(key)
            formerly = meaning_of(here).value_before(target)
            missing = defaults.get(key) if formerly is None else formerly
            value, other = (config.get(key, missing) for config in (a, b))
            yield from different_values(value, other, here)
    elif a != b:
        yield path, a, b


def _defaults(target: Any) -> dict[str, Any]:
    """Return the defaults of the parameters of a class."""
    try:
        parameters = inspect.signature(get_object(target)).parameters.values()
    except Exception:  # the class no longer exists, or has no signature
        return {}
    return {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty}


class Change(NamedTuple):
    """A value in a run's config that has changed.

    Attributes:
        key: its key.
        stored: the run's value.
        current: the new value.
        is_path_only: whether only the path of the content changed, and not the content itself.
    """

    key: str
    stored: Any
    current: Any
    is_path_only: bool = False

    @property
    def takes_effect(self) -> bool:
        """Return whether a run can resume with the new value; otherwise it would be another run."""
        return self.is_path_only or meaning_of(self.key).on_resume == "take effect"

    def __str__(self) -> str:
        return f"{printable(self.key)} was {_shortened(self.stored)} and is {_shortened(self.current)}"


def changes(stored: Any, current: Any, unchanged: Collection[str] = ()) -> list[Change]:
    """Return the differences between two configs of runs, except those without effect on training.

    Args:
        stored: the run's config.
        current: the new config.
        unchanged: the names of content that both configs read and that has not changed.
    """
    digested = stored.get(FROM_ENVIRONMENT, {})
    differences = filter(None, (_reported(*values, digested) for values in different_values(stored, current)))
    return [
        Change(*values, meaning_of(values[0]).content in unchanged)
        for values in differences
        if meaning_of(values[0]).on_resume != "ignore"
    ]


def _reported(key: str, stored: Any, current: Any, digested: Collection[str]) -> tuple[str, Any, Any] | None:
    """Return a difference in the form to report, or None if it is unknown whether the values differ.

    Args:
        key: the key that differs.
        stored: the run's value.
        current: the new value.
        digested: the keys for which the run has a digest.
    """
    root, _, of_key = key.partition(".")
    # If only one config has a digest, digests cannot be compared. A difference is then reported under the key itself.
    if root == FROM_ENVIRONMENT:
        are_comparable = isinstance(stored, str) and isinstance(current, str)
        return (of_key, "one text from the environment", "another one") if are_comparable else None
    # Versions without digests stored every expression that reads the environment unresolved, secret or not.
    is_unknown = "${" in str(stored) and not is_secret(current) and not any(_is_in(name, [key]) for name in digested)
    return None if is_unknown else (key, stored, current)


def refuse_other_run(subject: str, differences: list[Change]) -> None:
    """Check that a run can resume with changed values.

    Args:
        subject: the start of the message.
        differences: all changes.

    Raises:
        UserError: a change would make it another run. The message names the keys of such changes.
    """
    if refused := [str(change) for change in differences if not change.takes_effect]:
        remainder = f", and {len(refused) - 3} more" if len(refused) > 3 else ""
        raise UserError(f"{subject}: {', '.join(refused[:3])}{remainder}")


def _is_in(key: str, parts: Sequence[str]) -> bool:
    return any(key == part or key.startswith(f"{part}.") for part in parts)


class _Dumper(YamlDumper):
    """OmegaConf's YAML dumper, with all line breaks escaped.

    OmegaConf's own dumper writes a Unicode line break such as U+0085 as it is, and YAML reads it back as a space.
    """


def _represent_text(dumper: yaml.Dumper, text: str) -> yaml.ScalarNode:
    node = YamlDumper.str_representer(dumper, text)
    if "".join(text.splitlines()) != text:
        node.style = '"'  # the style that escapes such characters
    return node


_Dumper.add_representer(str, _represent_text)


def as_yaml(plain: Any) -> str:
    """Return plain data as YAML that `read_config` and Hydra read back unchanged."""
    return yaml.dump(plain, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False)


def read_config(file: Path) -> dict[str, Any]:
    """Return the config in a run's file.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        text = file.read_text(encoding="utf-8")
        _check_yaml(text)
        config: Any = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except Exception as error:
        raise UserError(f"{file}: cannot be read ({' '.join(str(error).split())})") from None
    return config


def _check_yaml(text: str) -> None:
    """Check that the time and memory to parse a text are proportional to its length.

    Raises:
        ValueError: the text is too long, is nested too deeply, or contains an alias.
    """
    depth = 0
    if len(text) > MAX_LENGTH:
        raise ValueError(f"it has over {MAX_LENGTH:,} characters")
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):  # a few aliases can expand to millions of nodes
            raise ValueError("it contains a YAML alias")
        if depth > 40:
            raise ValueError("it is nested more than 40 levels deep")


def _shortened(value: Any) -> str:
    return shortened("a mapping" if isinstance(value, dict) else printable(value), 60, "...")
