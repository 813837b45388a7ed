"""Check which packages each package may import, and which libraries it may use, by syntax trees.

`python tests/upkeep/test_architecture.py` redraws docs/architecture.svg. A "room" is a package (or single module) of
diglot.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import diglot

PACKAGE = Path(diglot.__file__).parent
FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
PAGE = Path(__file__).parents[2] / "docs/architecture.md"
PICTURE = PAGE.with_suffix(".svg")

# The rooms that each room may import, all of which are listed above it.
ROOMS = {
    "errors": set(),
    "choices": set(),
    "system": {"errors"},
    "model": set(),
    "data": {"errors", "system"},
    "decoding": {"errors", "model", "data"},
    "config": {"choices", "errors", "system", "model", "data", "decoding"},
    "huggingface": {"errors", "system", "model", "data", "config"},
    "checkpoint": {"errors", "system", "model", "data", "decoding", "config", "huggingface"},
    "inference": {"errors", "system", "model", "data", "decoding", "checkpoint"},
    "evaluation": {"errors", "system", "data", "inference"},
    "training": {"errors", "system", "model", "data", "decoding", "evaluation"},
    "export": {"errors", "system", "model", "data", "decoding", "config", "checkpoint", "huggingface", "evaluation"},
    "runs": {
        *("errors", "system", "model", "data", "config", "huggingface", "checkpoint", "inference", "evaluation"),
        *("training", "export"),
    },
    "sweeps": {"errors", "system", "data", "config", "evaluation", "runs"},
    "certificates": {
        *(
            "errors",
            "system",
            "data",
            "decoding",
            "config",
            "checkpoint",
            "inference",
            "evaluation",
            "training",
            "runs",
        ),
    },
}
ROOMS["commands"] = set(ROOMS)
# The package itself: `python -m diglot`, and `diglot.load`, which imports lazily.
ROOMS["__init__"], ROOMS["__main__"] = {"system", "decoding", "inference"}, {"system", "commands"}

# Rooms that may use only a few libraries, and libraries that only a few rooms may use.
OTHERS = {"model": {"torch"}, "decoding": {"torch", "sacrebleu"}}  # sacrebleu for minimum Bayes risk
HOMES = {
    "hydra": {"commands", "config", "checkpoint/file.py", "runs", "sweeps"},
    "omegaconf": {"commands", "config", "checkpoint", "runs", "sweeps", "certificates"},
    "lightning": {"training", "checkpoint/atomic_io.py", "data/module.py", "runs"},
}


def imports(source: str) -> set[str]:
    """Return the full names of everything that a source imports at any level; relative imports begin with a dot."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def names(file: str) -> set[str]:
    return imports((PACKAGE / file).read_text(encoding="utf-8"))


def room(file: str) -> str:
    return file.split("/")[0].removesuffix(".py")


def ours(file: str) -> set[str]:
    """Return the other rooms that a file imports from."""
    found = {name.split(".")[1] for name in names(file) if name.startswith("diglot.")}
    return found - {room(file), "__version__"}


def others(file: str) -> set[str]:
    """Return the third-party packages that a file imports."""
    tops = {name.split(".")[0] for name in names(file)}
    return tops - {"diglot", ""} - set(sys.stdlib_module_names)


def arrows() -> Iterator[tuple[str, str]]:
    """Yield pairs of a room and one that it imports, except rooms that it also reaches through another one."""
    direct = {name: set[str]() for name in ROOMS if not name.startswith("__")}
    for file in FILES:
        if room(file) in direct:
            direct[room(file)] |= ours(file)

    def reached(name: str) -> set[str]:
        return direct[name].union(*(reached(below) for below in direct[name]))

    for name, below in direct.items():
        for other in sorted(below - set().union(*(reached(each) for each in below))):
            yield name, other


WIDTH, HEIGHT, ACROSS, DOWN = 112, 26, 150, 48  # of a box, and between the centres of two boxes


def levels(edges: set[tuple[str, str]]) -> list[list[str]]:
    """Return the rooms by level. A room is one level below the lowest room that imports it."""
    importers: dict[str, list[str]] = {name: [a for a, b in edges if b == name] for edge in edges for name in edge}

    def level(name: str) -> int:
        return max((level(above) + 1 for above in importers[name]), default=0)

    found: dict[int, list[str]] = {}
    for name in sorted(importers):
        found.setdefault(level(name), []).append(name)
    return [found[number] for number in sorted(found)]


def drawn(edges: set[tuple[str, str]]) -> str:
    """Return the graph of imports as SVG: a box for each room, and a line down to each room that it imports."""
    rows = levels(edges)
    width, height = max(map(len, rows)) * ACROSS, len(rows) * DOWN
    centres = {
        name: (width / 2 + (i - (len(row) - 1) / 2) * ACROSS, (number + 0.5) * DOWN)
        for number, row in enumerate(rows)
        for i, name in enumerate(row)
    }
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13" text-anchor="middle">',
        '<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#888"/></marker>',
    ]
    for above, below in sorted(edges):
        (x1, y1), (x2, y2) = centres[above], centres[below]
        ends = f'x1="{x1:g}" y1="{y1 + HEIGHT / 2:g}" x2="{x2:g}" y2="{y2 - HEIGHT / 2:g}"'
        lines.append(f'<line {ends} stroke="#888" marker-end="url(#head)"/>')
    for name, (x, y) in centres.items():
        place = f'x="{x - WIDTH / 2:g}" y="{y - HEIGHT / 2:g}" width="{WIDTH}" height="{HEIGHT}"'
        lines.append(f'<rect {place} rx="4" fill="#eef3fa" stroke="#888"/>')
        lines.append(f'<text x="{x:g}" y="{y + 4.5:g}" fill="#222">{name}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def test_the_reader_of_imports_sees_all_forms_of_them() -> None:
    source = "import a.b, c\nfrom d.e import f\nfrom . import g\ndef h():\n    from i import j\n"
    assert imports(source) == {"a.b", "c", "d.e.f", "..g", "i.j"}
    assert "torch" in others("model/attention.py")
    assert "data" in ours("training/task.py")


def test_a_room_imports_only_from_rooms_below_it() -> None:
    wrong = {file: ours(file) - ROOMS[room(file)] for file in FILES}
    assert not {file: rooms for file, rooms in wrong.items() if rooms}


def test_no_room_is_below_itself() -> None:
    order = list(ROOMS)
    assert all(order.index(below) < order.index(name) for name in order for below in ROOMS[name])


def test_libraries_live_where_they_belong() -> None:
    wrong = {file: others(file) - OTHERS[room(file)] for file in FILES if room(file) in OTHERS}
    for library, homes in HOMES.items():
        strays = [file for file in FILES if library in others(file) and not homes & {file, room(file)}]
        wrong |= {file: {library} for file in strays}
    assert not {file: libraries for file, libraries in wrong.items() if libraries}


def test_pickles_are_read_in_one_file() -> None:
    reads = re.compile(r"\btorch\.(load|save|hub\.load\w*|jit\.load)\(")
    found = {file for file in FILES if reads.search((PACKAGE / file).read_text(encoding="utf-8"))}
    libraries = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    found |= {file for file in FILES if {name.split(".")[0] for name in names(file)} & libraries}
    assert found == {"checkpoint/format1.py"}


def test_imports_are_absolute_and_lightning_has_its_new_name() -> None:
    assert not [file for file in FILES if "pytorch_lightning" in others(file)]
    assert not [name for file in FILES for name in names(file) if name.startswith(".")]


def test_there_is_no_drawer_for_everything() -> None:
    assert not [file for file in FILES if Path(file).stem in ("util", "utils", "helpers", "common", "misc")]


def test_a_room_is_drawn_below_all_that_import_it() -> None:
    assert levels({("a", "b"), ("b", "c"), ("a", "d"), ("c", "e")}) == [["a"], ["b", "d"], ["c"], ["e"]]


def test_the_picture_shows_the_rooms_as_they_are() -> None:
    picture = PICTURE.read_text(encoding="utf-8")
    assert picture == drawn(set(arrows())), "python tests/upkeep/test_architecture.py draws it anew"
    rooms, page = [name for name in ROOMS if not name.startswith("__")], PAGE.read_text(encoding="utf-8")
    assert not [name for name in rooms if f">{name}</text>" not in picture or f"| `{name}` |" not in page]


if __name__ == "__main__":
    PICTURE.write_text(drawn(set(arrows())), encoding="utf-8")
