"""Check where private names of other libraries are used, by syntax trees and classes.

Those of Hydra, OmegaConf and Lightning are allowed only in the two files of seams, where each has a test; those of
torch and sacreBLEU only in the places listed here.
"""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import diglot

SRC = Path(diglot.__file__).parents[1]
FILES = {path.relative_to(SRC).as_posix(): path for path in sorted(SRC.rglob("*.py"))}
SEAMS = {"diglot/config/hydra_seams.py", "diglot/training/lightning_seams.py"}

LIBRARIES = {"hydra", "omegaconf", "lightning", "torch"}

# Documented names with an underscore: methods of named tuples, os._exit, and keys of Hydra's configs.
DOCUMENTED = {"_replace", "_asdict", "_fields", "_exit", "_target_", "_partial_"}

# Private names of torch, by file.
TORCH = {
    ("diglot/config/build.py", "_is_avx512_bf16_supported"),  # of torch.cpu
    ("diglot/data/module.py", "torch.utils.data._utils.signal_handling"),
    ("diglot/data/module.py", "_remove_worker_pids"),  # of signal_handling
    ("diglot/data/module.py", "_iterator"),  # of DataLoader
    ("diglot/data/module.py", "_shutdown"),  # of its iterator
    ("diglot/data/module.py", "_worker_pids_set"),
    ("diglot/decoding/kernels.py", "_int_mm"),
    ("diglot/decoding/kernels.py", "_linear_pointwise"),  # of torch.ops.mkldnn
    ("diglot/decoding/kernels.py", "_reorder_linear_weight"),
    ("diglot/model/cpu_attention.py", "_softmax_backward_data"),  # the backward pass of torch.softmax
    ("diglot/training/compilation.py", "_dynamo"),  # its config has the limit on graphs
    ("diglot/training/gradients.py", "_foreach_norm"),
    ("diglot/training/gradients.py", "_step_supports_amp_scaling"),  # of fused optimizers, see torch.amp.GradScaler
    ("diglot/training/event_file.py", "_get_file_writer"),  # of SummaryWriter
}

# Private names of sacreBLEU, by file: the statistics of each sentence, which its own significance tests use. The
# comparison with its command in tests/evaluation/test_evaluate.py tests them.
SACREBLEU = {
    ("diglot/evaluation/metrics.py", "_extract_corpus_statistics"),
    ("diglot/evaluation/metrics.py", "_compute_score_from_stats"),
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name.strip("_") != ""


def defined(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a source file defines."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            yield node.attr


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the full names of everything that a source file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def used(tree: ast.AST) -> Iterator[str]:
    """Yield the private names that a source file imports, or accesses as attributes."""
    names = list(imported(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
            names += [
                each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)
            ]
    yield from (name for name in names if any(map(is_private, name.split("."))))


TREES = {file: ast.parse(path.read_text(encoding="utf-8")) for file, path in FILES.items()}
OWN = {name for tree in TREES.values() for name in defined(tree)}


def foreign(file: str) -> set[str]:
    """Return the private names of other libraries that a file uses."""
    return {name for name in used(TREES[file]) if name not in OWN | DOCUMENTED}


def module_of(file: str) -> ModuleType:
    return importlib.import_module(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))


def overridden(module: ModuleType) -> set[str]:
    """Return the private methods of libraries that a module's classes override."""
    found = set()
    for _, kind in inspect.getmembers(module, inspect.isclass):
        if kind.__module__ == module.__name__:
            bases = [base for base in kind.__mro__ if base.__module__.split(".")[0] in LIBRARIES]
            names = [name for name, value in vars(kind).items() if is_private(name) and inspect.isfunction(value)]
            found |= {name for name in names if any(name in vars(base) for base in bases)}
    return found


def test_the_reader_sees_all_forms_of_a_use() -> None:
    tree = ast.parse(
        "import a._b\nfrom c import _d\nfrom _e.f import g\nx._h.i = self._j\ngetattr(x, '_k')\n"
        "def _l(): self._m = x.__n__ = _"
    )
    assert set(used(tree)) == {"a._b", "c._d", "_e.f.g", "_h", "_j", "_k", "_m"}
    assert {name for name in defined(tree) if is_private(name)} == {"_l", "_m"}
    assert {"_checkpoint_connector", "_experiment"} <= foreign("diglot/training/lightning_seams.py")
    assert "_configure_launcher" in overridden(module_of("diglot/training/lightning_seams.py"))


def test_private_names_of_libraries_are_used_in_the_seams_alone() -> None:
    found = {(file, name) for file in FILES if file not in SEAMS for name in foreign(file)}
    assert found <= TORCH | SACREBLEU, (
        "move what is used of Hydra, OmegaConf or Lightning into its file of seams, with a test"
    )


def test_private_methods_of_libraries_are_overridden_in_the_seams_alone() -> None:
    files = [file for file in FILES if file not in SEAMS and not file.endswith("__main__.py")]
    found = {(file, name) for file in files for name in overridden(module_of(file))}
    assert found <= TORCH | SACREBLEU, (
        "move what overrides methods of Hydra or Lightning into its file of seams, with a test"
    )


def test_no_entry_for_torch_has_outlived_its_use() -> None:
    used = {(file, name) for file, _ in TORCH for name in foreign(file) | overridden(module_of(file))}
    assert not TORCH - used


def test_nothing_is_patched_by_unittest() -> None:
    modules = {(file, name.split(".")[0]) for file, tree in TREES.items() for name in imported(tree)}
    assert ("diglot/commands/frame.py", "hydra") in modules
    assert not [file for file, name in modules if name == "unittest"]
