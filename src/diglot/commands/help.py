"""The output of --help: a page about a command, or about a group of choices. No slow library is imported."""

import difflib
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from diglot.choices import CONF, Entry, choices, command, groups_of, rows
from diglot.commands.start import HELP
from diglot.system.quoting import printable

IN_CHECKOUT = (CONF.parent / "Makefile").is_file()  # otherwise installed: the commands are diglot-train, ...


def print_help(name: str, args: Sequence[str]) -> int:
    """Print the requested page.

    Args:
        name: the command.
        args: its arguments. Those that follow --help name groups of choices.

    Returns:
        The exit status.
    """
    following = args[min(args.index(arg) for arg in HELP if arg in args) + 1 :]
    topics = list(takewhile(lambda arg: not arg.startswith("-") and "=" not in arg, following))
    available = [group for group in groups_of(name) if "@" not in group]
    for topic in topics:
        if topic not in available:
            nearest = difflib.get_close_matches(topic, available, 1)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            reason = f"the groups are {', '.join(available)}" if available else "this command has no groups"
            print(f"diglot-{name}: --help {printable(topic)}: no such group; {reason}{hint}", file=sys.stderr)
            return 2
    width = page_width()
    pages = [group_page(name, topic, width) for topic in topics] or [command_page(name, width)]
    print("\n\n".join("\n".join(page) for page in pages))
    return 0


def page_width() -> int:
    """Return the maximum number of characters in a line."""
    return min(max(shutil.get_terminal_size((100, 24)).columns - 1, 20), 119)


def command_page(name: str, width: int) -> Iterator[str]:
    """Yield the lines about a command: its description, its keys, and its groups with their choices."""
    info, groups = command(name), groups_of(name)
    yield from textwrap.wrap(info.meaning, width)
    yield from ("", f"Usage: {line(name, '[KEY=VALUE ...]', *['[GROUP=CHOICE ...]'] * bool(groups))}", "")
    yield from (f"  {typed(example)}" for example in info.examples)
    if info.keys:
        yield from ("", "Keys, with their defaults:")
        yield from table(map(_key, info.keys.values()), width)
    if groups:
        yield from ("", "Groups of choices, with their defaults:")
    for group, entry in groups.items():
        yield from table([(f"{group}={entry.default}", entry.meaning)], width)
        if "@" not in group:
            yield from table(((f"  {choice.name}", choice.summary) for choice in choices(group).values()), width)
    lines = [(line(name, f"--help {group}"), f"the keys of a group, here {group}") for group in list(groups)[:1]]
    composed = "train" if name == "sweep" else name  # Hydra cannot show the config of a multirun
    lines.append((line(composed, "--cfg job", "..."), "print the complete config of this command line, and exit"))
    lines.append((line(name, "--hydra-help"), "Hydra's own options"))
    yield from ("", "More:")
    yield from table(lines, width)


def _key(key: Entry) -> tuple[str, str]:
    if key.is_required:
        return f"{key.name}=...", f"required: {key.meaning}"
    return f"{key.name}={key.default}" if key.default else key.name, key.meaning


def group_page(name: str, group: str, width: int) -> Iterator[str]:
    """Yield the lines about a group of a command: its choices, and their keys."""
    entry = groups_of(name)[group]
    yield from textwrap.wrap(f"{group}={entry.default}: {entry.meaning}", width)
    yield from ("", "Choices:")
    for choice in choices(group).values():
        yield from table([(choice.name, choice.meaning)], width)
        yield from (f"      {typed(example)}" for example in choice.examples)
    if keys := rows(group):
        yield from ("", "Keys, with their defaults in brackets:")
        yield from table(((row.key, f"{row.explained} [{row.default()}]".removesuffix(" []")) for row in keys), width)


def overview(commands: Iterable[str]) -> Iterator[str]:
    """Yield the lines about all commands."""
    width = page_width()
    yield from ("Usage: python -m diglot COMMAND [KEY=VALUE ...] [GROUP=CHOICE ...]", "")
    yield from table([(name, command(name).summary) for name in commands], width)
    yield from ("", "More about a command: python -m diglot COMMAND --help")


def line(name: str, *args: str) -> str:
    """Return a command line to type. For make, options are put into ARGS."""
    if not IN_CHECKOUT:
        return " ".join([f"diglot-{name}", *args])
    return " ".join([f"make {name}", *(f"ARGS='{arg}'" if arg.startswith("-") else arg for arg in args)])


def typed(example: str) -> str:
    """Return an example in the form to type here: with make in a checkout, else with diglot-COMMAND."""
    return example if IN_CHECKOUT else re.sub(r"\bmake (?=[a-z])", "diglot-", example)


def table(lines: Iterable[tuple[str, str]], width: int) -> Iterator[str]:
    """Yield the lines of a table with two columns. In a narrow terminal, the second column is below the first."""
    indent = 30 if width >= 70 else 8
    wrapper = textwrap.TextWrapper(
        width, initial_indent=" " * indent, subsequent_indent=" " * indent, break_on_hyphens=False
    )
    for left, right in lines:
        head, wrapped = f"  {left}", wrapper.wrap(right)
        if wrapped and len(head) < indent:
            wrapped[0] = head.ljust(indent) + wrapped[0][indent:]
        else:
            yield head
        yield from wrapped
