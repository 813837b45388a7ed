"""In what two configs differ."""

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

# Where a run's config keeps digests of what it took from the environment, by key.
FROM_ENVIRONMENT = "from_environment"

LONGEST = 1_000_000  # characters of a run's config; it has a few thousand


def different_values(a: Any, b: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The keys at which two configs differ, with what stands there.

    A key that is missing stands for what its class takes where nothing is said, or else for null: a config that was
    written before there was a choice has made none.
    """
    if isinstance(a, dict) and isinstance(b, dict):
        target = a.get("_target_")
        is_same_class = target is not None and target == b.get("_target_")
        unsaid = _defaults(target) if is_same_class and a.keys() != b.keys() else {}
        for key in {**a, **b}:
            value, other = (config.get(key, unsaid.get(key)) for config in (a, b))
            yield from different_values(value, other, f"{path}.{key}" if path else str(key))
    elif a != b:
        yield path, a, b


def _defaults(target: Any) -> dict[str, Any]:
    """What a class takes where nothing is said."""
    try:
        parameters = inspect.signature(get_object(target)).parameters.values()
    except Exception:  # there is no such class any more, or no such thing as a signature of it
        return {}
    return {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty}


class Change(NamedTuple):
    """A value of a run's config that is another one now.

    Attributes:
        is_of_place: whether it says where something is whose content is the same.
    """

    key: str
    before: Any
    now: Any
    is_of_place: bool = False

    @property
    def takes_effect(self) -> bool:
        """Whether a run can go on with it; else it would be another run."""
        return self.is_of_place or meaning_of(self.key).on_resume == "take effect"

    def __str__(self) -> str:
        return f"{printable(self.key)} was {_shortened(self.before)} and is {_shortened(self.now)}"


def changes(before: Any, now: Any, same: Collection[str] = ()) -> list[Change]:
    """In what two runs' configs differ, apart from what changes nothing.

    Args:
        before: a config.
        now: another.
        same: of what both read, that whose content is the same.
    """
    noted = before.get(FROM_ENVIRONMENT, {})
    found = filter(None, (_told(*values, noted) for values in different_values(before, now)))
    return [
        Change(*values, meaning_of(values[0]).content in same)
        for values in found
        if meaning_of(values[0]).on_resume != "ignore"
    ]


def _told(key: str, before: Any, now: Any, noted: Collection[str]) -> tuple[str, Any, Any] | None:
    """A difference as it is told; None: there is none, as far as is known. Of the keys `noted` there was a digest."""
    top, _, of_key = key.partition(".")
    if top == FROM_ENVIRONMENT:  # a digest that one side lacks tells nothing; that the other has it, the key itself
        known = isinstance(before, str) and isinstance(now, str)
        return (of_key, "one text from the environment", "another one") if known else None
    # Versions that kept no digests kept as it was written, too, what is no secret.
    is_unknown = "${" in str(before) and not is_secret(now) and not any(_is_in(name, [key]) for name in noted)
    return None if is_unknown else (key, before, now)


def refuse_other_run(what: str, found: list[Change]) -> None:
    """Make sure that a run can go on with what has changed.

    Args:
        what: is refused else.
        found: all changes.

    Raises:
        UserError: naming the keys of those with which it would be another run.
    """
    if others := [str(change) for change in found if not change.takes_effect]:
        more = f", and {len(others) - 3} more" if len(others) > 3 else ""
        raise UserError(f"{what}: {', '.join(others[:3])}{more}")


def _is_in(key: str, parts: Sequence[str]) -> bool:
    return any(key == part or key.startswith(f"{part}.") for part in parts)


class _Dumper(YamlDumper):
    """OmegaConf's, which would write a line break of Unicode's (U+0085, say) as one, to be read as a blank."""


def _represent_text(dumper: yaml.Dumper, text: str) -> yaml.ScalarNode:
    node = YamlDumper.str_representer(dumper, text)
    if "".join(text.splitlines()) != text:
        node.style = '"'  # in which all that is no letter is escaped
    return node


_Dumper.add_representer(str, _represent_text)


def as_yaml(plain: Any) -> str:
    """Return plain data as a text that `read_config` and Hydra read back as they are."""
    return yaml.dump(plain, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False)


def read_config(file: Path) -> dict[str, Any]:
    """The config that a run has written.

    Raises:
        UserError: if it cannot be read.
    """
    try:
        text = file.read_text(encoding="utf-8")
        _check_yaml(text)
        before: Any = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except Exception as error:
        raise UserError(f"{file}: cannot be read ({' '.join(str(error).split())})") from None
    return before


def _check_yaml(text: str) -> None:
    """Make sure that a text is read in no more time and memory than it is long.

    Raises:
        ValueError: it is not.
    """
    depth = 0
    if len(text) > LONGEST:
        raise ValueError(f"it has over {LONGEST:,} characters")
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):  # a few of which could stand for millions
            raise ValueError("it refers to itself")
        if depth > 40:
            raise ValueError("it is nested more than 40 deep")


def _shortened(value: Any) -> str:
    return shortened("something else" if isinstance(value, dict) else printable(value), 60, "...")
