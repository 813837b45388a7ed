"""Waiting threads spin shortly, unless the user has chosen otherwise.

The setting is made before torch is imported, wherever that is.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from diglot.system.threads import SHORT_SPIN, spin_shortly

ROOT = Path(__file__).parents[2]
COMMANDS = (
    *("prepare", "doctor", "train", "sweep", "replay", "average", "evaluate", "translate", "score", "export"),
    *("convert", "certify", "verify"),
)

# Replaces torch: prints what OpenMP's runtime would find in the environment, and ends the process.
TORCH = """
import ctypes, os
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
found = [(getenv(name.encode()) or b"-").decode() for name in ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY")]
print("found", *found, flush=True)
os._exit(0)
"""


def found_by_torch(folder: Path, *words: str, **environment: str) -> str:
    """Start Python with these words and return what torch would find when it is imported."""
    (folder / "torch").mkdir(exist_ok=True)
    (folder / "torch" / "__init__.py").write_text(TORCH)
    names = (*SHORT_SPIN, "OMP_WAIT_POLICY", "OMP_NUM_THREADS", "MAKEFLAGS", "ARGS")
    bare = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, *words]
    done = subprocess.run(
        command, env={**bare, "PYTHONPATH": str(folder), **environment}, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip() or done.stderr


@pytest.mark.reliability
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_sets_a_short_spin_before_torch_is_imported(command: str, tmp_path: Path) -> None:
    script = f"from diglot.commands.start import {command}; {command}()"
    for words in (("-m", "diglot", command), ("-c", script), ("-m", "diglot.commands.from_make", command)):
        assert found_by_torch(tmp_path, *words) == "found 10000 1 -"


def test_a_script_that_imports_diglot_first_waits_as_the_commands_do(tmp_path: Path) -> None:
    assert found_by_torch(tmp_path, "-c", "import diglot, torch") == "found 10000 1 -"


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ({"GOMP_SPINCOUNT": "7"}, "found 7 - -"),
        ({"KMP_BLOCKTIME": "7"}, "found - 7 -"),
        ({"OMP_WAIT_POLICY": "passive"}, "found - - passive"),
        ({"OMP_NUM_THREADS": "1"}, "found - - -"),
        ({"OMP_NUM_THREADS": "2"}, "found 10000 1 -"),
    ],
    ids=str,
)
def test_the_user_s_setting_of_waiting_threads_is_kept(typed: dict[str, str], found: str, tmp_path: Path) -> None:
    assert found_by_torch(tmp_path, "-m", "diglot", "train", **typed) == found


def test_a_process_passes_its_spin_setting_to_its_children() -> None:
    environment = {"PATH": "/bin"}
    spin_shortly(environment)
    assert environment == {"PATH": "/bin", "GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}
    before = dict(environment)
    spin_shortly(environment)
    assert environment == before


@pytest.mark.parametrize(
    "file", [*sorted((ROOT / "benchmarks").glob("*.py")), ROOT / "tests" / "conftest.py"], ids=lambda path: path.name
)
def test_benchmarks_and_tests_import_diglot_before_torch(file: Path) -> None:
    names = []
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names += [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(str(node.module).partition(".")[0])
    assert "torch" not in names or names.index("diglot") < names.index("torch")
