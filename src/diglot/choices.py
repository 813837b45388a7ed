"""What conf/ says of itself: its groups of choices, their keys with defaults, and the comments that explain them.

The files are read as text, so that --help waits for no library that takes seconds to import. Their form:

- The comment at the top of a file says what a command does, or what a choice is. Lines of it that are indented by three
  blanks and more are examples.
- A comment after a key, or on the lines above it, says what the key means; an entry of a defaults list likewise.
- A key that several choices of a group have needs to be explained in one of them.
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
SHARED = "shared"  # the name of folders whose files are parts of choices, and none themselves

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is ten times as fast


@dataclass(frozen=True)
class Entry:
    """A key of a file with its default, or a group in its defaults list with the choice there.

    Attributes:
        name: dotted, from the top of the file; of a group as it is typed.
        default: as it is written; empty: it has keys below it.
        meaning: what its comment says; empty: it has none.
    """

    name: str
    default: str
    meaning: str

    @property
    def is_required(self) -> bool:
        """Whether it has no default and must be given."""
        return self.default == "???"


@dataclass
class Choice:
    """A file of conf/, with what it takes from other files: of a group a choice, at the top a command's config.

    Attributes:
        name: of the choice.
        bases: of its group, the choices that it takes in and changes.
        meaning: what the comment at its top says.
        examples: lines to type.
        keys: by name, those of the files that it takes in first.
        groups: that its defaults list chooses of, by name.
    """

    name: str
    bases: list[str] = field(default_factory=list)
    meaning: str = ""
    examples: list[str] = field(default_factory=list)
    keys: dict[str, Entry] = field(default_factory=dict)
    groups: dict[str, Entry] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The first sentence of the meaning."""
        return re.split(r"\.\s", self.meaning, maxsplit=1)[0].rstrip(".")


def groups() -> list[str]:
    """Return the groups of choices that there are: the folders of conf/ that hold files, by their paths."""
    folders = {file.parent for file in CONF.rglob("*.yaml")} - {CONF}
    return sorted(folder.relative_to(CONF).as_posix() for folder in folders if folder.name != SHARED)


@cache
def choices(group: str) -> dict[str, Choice]:
    """Return the choices of a group by name; of "" the configs of the commands."""
    found = {file.stem: _read(file) for file in sorted((CONF / group).glob("*.yaml"))}
    explained: dict[str, set[str]] = {}
    for choice in found.values():
        for key in choice.keys.values():
            explained.setdefault(key.name, set()).add(key.meaning)
    for choice in found.values():
        for name, key in choice.keys.items():
            others = explained[name] - {""}
            if not key.meaning and len(others) == 1:
                choice.keys[name] = Entry(name, key.default, *others)
    return found


@dataclass(frozen=True)
class Row:
    """A key of a group's choices, as a table lists it.

    Attributes:
        key: as it is typed.
        meaning: what it means.
        defaults: the values that it has in choices, the most frequent one first, with their names.
        only: the choices that have it, without those that take it from another one; none: all have it.
    """

    key: str
    meaning: str
    defaults: list[tuple[str, list[str]]]
    only: list[str]

    @property
    def explained(self) -> str:
        """The meaning, behind the choices that it holds for where it does not for all."""
        return f"({', '.join(self.only)}) {self.meaning}" if self.only else self.meaning

    def default(self, quote: Callable[[str], str] = str) -> str:
        """Return the default in each choice, in a line; the most frequent one stands first and without names.

        Args:
            quote: what a value is written with.
        """
        (value, names), *others = self.defaults
        if not value:
            return ""
        first = [quote(value)] if len(names) > 1 or not others else [f"{names[0]}: {quote(value)}"]
        return "; ".join(first + [f"{', '.join(names)}: {quote(value)}" for value, names in others])


def rows(group: str) -> list[Row]:
    """Return the keys of all choices of a group. One that means other things in other choices has several rows."""
    found = choices(group)
    values: dict[tuple[str, str], dict[str, str]] = {}  # by key and meaning: the default of each choice
    for choice in found.values():
        for key in choice.keys.values():
            values.setdefault((key.name, key.meaning), {})[choice.name] = key.default
    order = list(dict.fromkeys(name for name, _ in values))
    table = []
    for (name, meaning), having in sorted(values.items(), key=lambda item: order.index(item[0][0])):
        counts = Counter(having.values())
        defaults = [(value, [n for n in having if having[n] == value]) for value, _ in counts.most_common()]
        own = [n for n in having if not set(found[n].bases) & set(having)]
        typed = f"{group.replace('/', '.')}.{name}"
        table.append(Row(typed, meaning, defaults, own if len(having) < len(found) else []))
    return table


def command(name: str) -> Choice:
    """Return what a command does and which keys it has: those of its config."""
    if name != "sweep":
        return choices("")[name]
    sweep = choices("sweep")["default"]  # its config is that of train
    return replace(choices("")["train"], name=name, meaning=sweep.meaning, examples=sweep.examples)


def groups_of(name: str) -> dict[str, Entry]:
    """Return the groups that a command's config chooses of, those of its default choices included."""
    found: dict[str, Entry] = {}

    def add(entries: dict[str, Entry]) -> None:
        for group, entry in entries.items():
            found[group] = entry
            if chosen := choices(group).get(entry.default):
                add(chosen.groups)

    add(command(name).groups)
    return found


def _read(path: Path) -> Choice:
    """Read a file, and the files that its defaults list takes in."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    top = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    comment = [line for line in lines[:top] if not line.startswith("# @package")]
    choice = Choice(path.stem)
    choice.meaning = " ".join(line.removeprefix("#").strip() for line in comment if not line.startswith("#   "))
    choice.examples = _joined(line.removeprefix("#").strip() for line in comment if line.startswith("#   "))
    is_recipe = len(comment) < top  # what it holds are keys of other groups
    root = yaml.compose(text, Loader=_LOADER)
    assert isinstance(root, yaml.MappingNode)
    comments = _Comments(text, top)
    folder = path.parent.relative_to(CONF).as_posix().removeprefix(".")
    own = Choice(path.stem)  # what it says itself
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
    for mine, theirs in ((own.keys, choice.keys), (own.groups, choice.groups)):
        for name, entry in mine.items():
            inherited = theirs[name].meaning if name in theirs else ""
            theirs[name] = Entry(name, entry.default, entry.meaning or inherited)
    return choice


def _joined(lines: Iterator[str]) -> list[str]:
    """Join the lines of examples that end with a backslash to the next ones."""
    return re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()


class _Comments:
    """The comments of a file.

    Args:
        text: of the file.
        top: how many of its lines are the comment at its top.
    """

    def __init__(self, text: str, top: int) -> None:
        self.text, self.lines, self.top = text, text.splitlines(), top

    def of(self, key: Any, last: Any) -> str:
        """Return what is said of a key: on the lines above it, and behind the node that ends its line."""
        found: list[str] = []
        line = key.start_mark.line - 1
        while line >= self.top and re.match(rf" {{{key.start_mark.column}}}#", self.lines[line]):
            found.insert(0, self.lines[line].strip(" #"))
            line -= 1
        rest = self.text[last.end_mark.index :].partition("\n")[0]
        if match := re.match(r":?\s*#\s*(.*)", rest):
            found.append(match[1].strip())
        return " ".join(found)

    def written(self, node: Any) -> str:
        """Return a value as it is written."""
        return " ".join(self.text[node.start_mark.index : node.end_mark.index].split())


def _keys(key: Any, value: Any, path: str, comments: _Comments) -> Iterator[Entry]:
    """Yield a key and those below it."""
    if key.value.startswith("_"):
        return
    name = f"{path}{key.value}"
    if isinstance(value, yaml.MappingNode) and not value.flow_style:
        if meaning := comments.of(key, key):
            yield Entry(name, "", meaning)
        for inner, inner_value in value.value:
            yield from _keys(inner, inner_value, f"{name}.", comments)
    else:
        yield Entry(name, comments.written(value), comments.of(key, value))


def _group(item: Any, folder: str, comments: _Comments) -> Entry | None:
    """Return the group that an entry of a defaults list chooses of; None: it is Hydra's alone."""
    key, value = item.value[0]
    group, _, package = key.value.removeprefix("override ").partition("@")
    group = f"{folder}/{group}" if folder else group
    if not (CONF / group).is_dir():
        return None
    typed = f"{group}@{folder.replace('/', '.')}.{package}" if package else group
    return Entry(typed, comments.written(value), comments.of(key, value))
