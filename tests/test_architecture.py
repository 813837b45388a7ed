"""Imports go one way, and each library lives where it belongs: read from the syntax trees."""

import ast
import sys
from pathlib import Path

import pytest

import diglot

PACKAGE = Path(diglot.__file__).parent
ENTRY_POINTS = {
    "prepare.py",
    "doctor.py",
    "train.py",
    "sweep.py",
    "average.py",
    "evaluate.py",
    "translate.py",
    "score.py",
    "export.py",
}
FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))

# What of diglot a folder may import, and, where it is restricted, what of others.
OURS = {
    "model": {"model"},
    "decoding": {"decoding", "language", "model"},
    "data": {"data", "errors", "language", "masking", "whole"},
    "training": {
        *("training", "decoding", "model", "data"),
        *("errors", "interruption", "language", "masking", "suggestion", "whole"),
    },
}
OTHERS = {"model": {"torch"}, "decoding": {"torch", "sacrebleu"}}  # in which minimum Bayes risk is measured


def imports(source: str) -> set[str]:
    """The full names of all that a source imports, wherever in it; relative imports begin with a dot."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def ours(file: str) -> set[str]:
    """The parts of diglot that a file imports: `model`, `data`, `errors` ..."""
    names = imports((PACKAGE / file).read_text(encoding="utf-8"))
    return {name.split(".")[1] for name in names if name.startswith("diglot.")}


def others(file: str) -> set[str]:
    """The third-party packages that a file imports."""
    tops = {name.split(".")[0] for name in imports((PACKAGE / file).read_text(encoding="utf-8"))}
    return tops - {"diglot", ""} - set(sys.stdlib_module_names)


def test_the_reader_of_imports_sees_all_forms_of_them() -> None:
    source = "import a.b, c\nfrom d.e import f\nfrom . import g\ndef h():\n    from i import j\n"
    assert imports(source) == {"a.b", "c", "d.e.f", "..g", "i.j"}
    assert "torch" in others("model/attention.py")
    assert "data" in ours("training/task.py")


@pytest.mark.parametrize("file", FILES)
def test_a_part_imports_only_the_parts_below_it(file: str) -> None:
    part = file.split("/")[0]
    if part in OURS:
        assert ours(file) <= OURS[part]
    elif file not in ENTRY_POINTS:
        assert not ours(file) & {Path(name).stem for name in ENTRY_POINTS}


@pytest.mark.parametrize("file", FILES)
def test_model_and_decoding_know_hardly_a_library_but_torch(file: str) -> None:
    part = file.split("/")[0]
    assert others(file) <= OTHERS.get(part, others(file))


@pytest.mark.parametrize("file", FILES)
def test_libraries_live_where_they_belong(file: str) -> None:
    composes = file in ENTRY_POINTS | {"checkpoint.py"} or file.startswith("config/")
    assert composes or not others(file) & {"hydra", "omegaconf"}
    trains = file in {"data/module.py", "train.py"} or file.startswith("training/")
    assert trains or "lightning" not in others(file)


@pytest.mark.parametrize("file", FILES)
def test_imports_are_absolute_and_lightning_has_its_new_name(file: str) -> None:
    names = imports((PACKAGE / file).read_text(encoding="utf-8"))
    assert not [name for name in names if name.startswith(".")]
    assert "pytorch_lightning" not in others(file)


def test_there_is_no_drawer_for_everything() -> None:
    assert FILES
    assert not [file for file in FILES if Path(file).stem in ("util", "utils", "helpers", "common", "misc")]
