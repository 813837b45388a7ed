"""The documentation in conf/: its groups of choices, their keys with defaults, and the comments that explain them.

The files are read as text, so that --help need not import slow libraries. Their form:

- The comment at the top of a file describes a command or a choice. Its lines with an indent of three or more blanks are
  examples.
- A comment after a key, or on the lines above it, explains the key. The same holds for entries of a defaults list.
- A key that several choices of a group share needs an explanation in only one of them.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

# The checkout's conf/, or, in a wheel, the copy inside the package.
CONF = next(
    p for p in (Path(__file__).parents[2] / "conf", Path(__file__).parent / "conf") if (p / "train.yaml").is_file()
)
SHARED = "shared"  # the name of folders whose files are parts of choices, not choices

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's loader is ten times faster


@dataclass(frozen=True)
class Entry:
    """A key of a file with its default, or a group in its defaults list with the default choice.

    Attributes:
        name: the dotted key from the top of the file; for a group, the name to type.
        default: the default as written; empty if the key has keys below it.
        meaning: the text of its comment; empty if it has none.
    """

    name: str
    default: str
    meaning: str

    @property
    def is_required(self) -> bool:
        """Return whether the key has no default, so that the user must give a value."""
        return self.default == "???"


@dataclass
class Choice:
    """A choice of a group or, at the top of conf/, a command's config, including the files that it is based on.

    Attributes:
        name: the name of the choice.
        bases: the choices of the same group that it is based on.
        meaning: the comment at its top.
        examples: lines to type.
        keys: the keys by name, those of its bases first.
        groups: the groups in its defaults list, by name.
    """

    name: str
    bases: list[str] = field(default_factory=list)
    meaning: str = ""
    examples: list[str] = field(default_factory=list)
    keys: dict[str, Entry] = field(default_factory=dict)
    groups: dict[str, Entry] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """Return the first sentence of the meaning, without its period."""
        return re.split(r"\.\s", self.meaning, maxsplit=1)[0].rstrip(".")


def groups() -> list[str]:
    """Return the groups of choices: the folders of conf/ that contain files, as paths."""
    folders = {file.parent for file in CONF.rglob("*.yaml")} - {CONF}
    return sorted(folder.relative_to(CONF).as_posix() for folder in folders if folder.name != SHARED)


@cache
def choices(group: str) -> dict[str, Choice]:
    """Return the choices of a group by name. The group "" has the configs of the commands."""
    by_name = {file.stem: _read(file) for file in sorted((CONF / group).glob("*.yaml"))}
    explained: dict[str, set[str]] = {}
    for choice in by_name.values():
        for key in choice.keys.values():
            explained.setdefault(key.name, set()).add(key.meaning)
    for choice in by_name.values():
        for name, key in choice.keys.items():
            meanings = explained[name] - {""}
            if not key.meaning and len(meanings) == 1:
                choice.keys[name] = Entry(name, key.default, *meanings)
    return by_name


@dataclass(frozen=True)
class Row:
    """A key of a group's choices, as a row of a table.

    Attributes:
        key: the key to type.
        meaning: its explanation.
        defaults: its defaults, the most frequent first, each with the names of its choices.
        only: the choices that have the key, without those that inherit it; empty if all choices have it.
    """

    key: str
    meaning: str
    defaults: list[tuple[str, list[str]]]
    only: list[str]

    @property
    def explained(self) -> str:
        """Return the meaning, preceded by the choices that have the key unless all do."""
        return f"({', '.join(self.only)}) {self.meaning}" if self.only else self.meaning

    def default(self, quote: Callable[[str], str] = str) -> str:
        """Return the default in each choice, in one line. The most frequent default comes first, without names.

        Args:
            quote: formats a value.
        """
        (value, names), *others = self.defaults
        if not value:
            return ""
        first = [quote(value)] if len(names) > 1 or not others else [f"{names[0]}: {quote(value)}"]
        return "; ".join(first + [f"{', '.join(names)}: {quote(value)}" for value, names in others])


def rows(group: str) -> list[Row]:
    """Return the keys of all choices of a group. A key whose meaning differs between choices has several rows."""
    group_choices = choices(group)
    values: dict[tuple[str, str], dict[str, str]] = {}  # the default in each choice, by key and meaning
    for choice in group_choices.values():
        for key in choice.keys.values():
            values.setdefault((key.name, key.meaning), {})[choice.name] = key.default
    order = list(dict.fromkeys(name for name, _ in values))
    table = []
    for (name, meaning), having in sorted(values.items(), key=lambda item: order.index(item[0][0])):
        counts = Counter(having.values())
        defaults = [(value, [n for n in having if having[n] == value]) for value, _ in counts.most_common()]
        defining = [n for n in having if not set(group_choices[n].bases) & set(having)]
        full_key = f"{group.replace('/', '.')}.{name}"
        table.append(Row(full_key, meaning, defaults, defining if len(having) < len(group_choices) else []))
    return table


def command(name: str) -> Choice:
    """Return the description and the keys of a command, from its config."""
    if name != "sweep":
        return choices("")[name]
    sweep = choices("sweep")["default"]  # the sweep command has the config of train
    return replace(choices("")["train"], name=name, meaning=sweep.meaning, examples=sweep.examples)


def groups_of(name: str) -> dict[str, Entry]:
    """Return the groups that a command's config selects from, including those below its groups.

    Which groups another choice selects for a part of its own (`GROUP@KEY`) is not included.
    """
    entries_by_group: dict[str, Entry] = {}

    def add(entries: dict[str, Entry]) -> None:
        for group, entry in entries.items():
            entries_by_group[group] = entry
            if choice := choices(group).get(entry.default):
                add(choice.groups)
                for other in choices(group).values():
                    below = {name: each for name, each in other.groups.items() if name.startswith(f"{group}/")}
                    add({n: each for n, each in below.items() if "@" not in n and n not in entries_by_group})

    add(command(name).groups)
    return entries_by_group


def _read(path: Path) -> Choice:
    """Read a file, and the files that its defaults list includes."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    top = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    comment = [line for line in lines[:top] if not line.startswith("# @package")]
    choice = Choice(path.stem)
    choice.meaning = " ".join(line.removeprefix("#").strip() for line in comment if not line.startswith("#   "))
    choice.examples = _joined(line.removeprefix("#").strip() for line in comment if line.startswith("#   "))
    is_recipe = len(comment) < top  # its keys belong to other groups
    root = yaml.compose(text, Loader=_LOADER)
    assert isinstance(root, yaml.MappingNode)
    comments = _Comments(text, top)
    folder = path.parent.relative_to(CONF).as_posix().removeprefix(".")
    own = Choice(path.stem)  # the file's own entries, without those of its bases
    for key, value in root.value:
        if key.value == "defaults":
            for item in value.value:
                if isinstance(item, yaml.ScalarNode):
                    if item.value != "_self_":
                        parent = _read(CONF / folder / f"{item.value.partition('@')[0]}.yaml")
                        choice.bases += [parent.name, *parent.bases]
                        choice.keys |= parent.keys
                        choice.groups |= parent.groups
                elif not is_recipe and (entry := _group(item, folder, comments)):
                    own.groups[entry.name] = entry
        elif key.value != "hydra" and not is_recipe:
            own.keys |= {entry.name: entry for entry in _keys(key, value, "", comments)}
    for own_entries, base_entries in ((own.keys, choice.keys), (own.groups, choice.groups)):
        for name, entry in own_entries.items():
            inherited = base_entries[name].meaning if name in base_entries else ""
            base_entries[name] = Entry(name, entry.default, entry.meaning or inherited)
    return choice


def _joined(lines: Iterator[str]) -> list[str]:
    """Join each example line that ends with a backslash to the next line."""
    return re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()


class _Comments:
    """The comments of a file.

    Args:
        text: the file's content.
        top: the number of lines in the comment at its top.
    """

    def __init__(self, text: str, top: int) -> None:
        self.text, self.lines, self.top = text, text.splitlines(), top

    def of(self, key: Any, last: Any) -> str:
        """Return the comments on the lines above a key and at the end of its line.

        Args:
            key: the key's node.
            last: the last node on the line.
        """
        comments: list[str] = []
        line = key.start_mark.line - 1
        while line >= self.top and re.match(rf" {{{key.start_mark.column}}}#", self.lines[line]):
            comments.insert(0, self.lines[line].strip(" #"))
            line -= 1
        remainder = self.text[last.end_mark.index :].partition("\n")[0]
        if match := re.match(r":?\s*#\s*(.*)", remainder):
            comments.append(match[1].strip())
        return " ".join(comments)

    def written(self, node: Any) -> str:
        """Return a value as written in the file."""
        return " ".join(self.text[node.start_mark.index : node.end_mark.index].split())


def _keys(key: Any, value: Any, path: str, comments: _Comments) -> Iterator[Entry]:
    """Yield a key and the keys below it."""
    if key.value.startswith("_"):
        return
    name = f"{path}{key.value}"
    if isinstance(value, yaml.MappingNode) and not value.flow_style:
        if meaning := comments.of(key, key):
            yield Entry(name, "", meaning)
        for inner_key, inner_value in value.value:
            yield from _keys(inner_key, inner_value, f"{name}.", comments)
    else:
        yield Entry(name, comments.written(value), comments.of(key, value))


def _group(item: Any, folder: str, comments: _Comments) -> Entry | None:
    """Return the group that an entry of a defaults list selects from, or None if the group is Hydra's own."""
    key, value = item.value[0]
    group, _, package = key.value.removeprefix("override ").partition("@")
    if group.startswith("/"):
        group = group[1:]
        if group.endswith(f"/{package}"):  # the place that the group has anyway
            package = ""
    elif folder:
        group = f"{folder}/{group}"
    if not (CONF / group).is_dir():
        return None
    full_name = f"{group}@{folder.replace('/', '.')}.{package}" if package else group
    return Entry(full_name, comments.written(value), comments.of(key, value))
