"""Check that docs/choices.md matches the comments in conf/.

`python tests/upkeep/test_choices_page.py` rewrites the page.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from diglot.choices import Entry, choices, command, groups_of, rows
from diglot.commands.start import COMMANDS

PAGE = Path(__file__).parents[2] / "docs/choices.md"
ABOUT = """\
# Choices

The commands, their keys, and the groups of choices. `python tests/upkeep/test_choices_page.py` generates this page from
the comments in `conf/`: correct mistakes there. `--help` shows the same: `make train ARGS=--help` for a command, and
`make train ARGS='--help model'` for a group.

`KEY=VALUE` sets a key, and `GROUP=CHOICE` selects a choice. If only some choices of a group have a key, their names
precede its meaning, in parentheses; choices based on them have the key, too. `null` means no value."""


def page() -> str:
    """Return the complete page."""
    parts = [ABOUT, "## Commands"]
    for name in COMMANDS:
        parts += list(about_command(name))
    parts.append("## Groups")
    for group, entry in groups_of("train").items():
        if "@" not in group:
            parts += list(about_group(group, entry))
    return "\n\n".join(parts) + "\n"


def about_command(name: str) -> Iterator[str]:
    about = command(name)
    yield f"### make {name}"
    yield text(f"{about.meaning}.")
    yield code(about.examples)
    if name == "sweep":
        yield "It has the keys and groups of [make train](#make-train)."
        return
    groups = [f"[{group}](#{anchor(group)})" for group in groups_of(name) if "@" not in group]
    if name == "doctor":
        groups = ["those of [make train](#make-train)"]
    if groups:
        yield f"Groups: {', '.join(groups)}."
    own = about.keys.values()
    if name == "doctor":
        own = [key for key in own if key.name not in command("train").keys]
    if own:
        yield table(("key", "default", "meaning"), ((f"`{k.name}`", default(k), text(k.meaning)) for k in own))


def about_group(group: str, entry: Entry) -> Iterator[str]:
    found = choices(group)
    yield f"### {group}"
    yield text(f"{entry.meaning[0].upper()}{entry.meaning[1:]}. Default: `{entry.default}`.")
    if others := [name for name in groups_of("train") if name.startswith(f"{group}@")]:
        yield f"For the decoder only: `{others[0]}=CHOICE`."
    yield table(("choice", "description"), ((f"`{c.name}`", text(with_bases(group, c.name))) for c in found.values()))
    if examples := [example for choice in found.values() for example in choice.examples]:
        yield code(examples)
    keys = [(f"`{row.key}`", row.default(lambda value: f"`{value}`"), text(row.explained)) for row in rows(group)]
    if keys:
        yield table(("key", "default", "meaning"), keys)


def with_bases(group: str, name: str) -> str:
    choice = choices(group)[name]
    bases = [base for base in choice.bases if base in choices(group)][:1]
    return choice.meaning + "".join(f" (based on {base})" for base in bases)


def default(key: Entry) -> str:
    if key.is_required:
        return "required"
    return f"`{key.default}`" if key.default else ""


def anchor(group: str) -> str:
    return re.sub(r"[^\w-]", "", group.lower().replace(" ", "-"))


def text(words: str) -> str:
    """Escape plain text for Markdown, so that nothing in it is markup."""
    words = words.replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*")
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", words)


def code(lines: Iterable[str]) -> str:
    return "\n".join(["```", *lines, "```"])


def table(head: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ("---",) * len(head), *lines]).replace("|  |", "| |")


def test_the_page_is_what_the_comments_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python tests/upkeep/test_choices_page.py writes it anew"


def test_every_link_leads_to_a_heading() -> None:
    headings = [anchor(line) for line in re.findall(r"^#+ (.*)$", page(), flags=re.MULTILINE)]
    assert len(set(headings)) == len(headings)
    assert set(re.findall(r"\]\(#([^)]*)\)", page())) <= set(headings)


def test_rows_of_a_table_have_as_many_cells() -> None:
    for block in re.findall(r"(?:^\|.*\n)+", page(), flags=re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1, block


def test_plain_text_is_no_markup() -> None:
    assert text("</s> of n_heads, *.gz | _target_") == "&lt;/s> of n_heads, \\*.gz \\| \\_target\\_"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
