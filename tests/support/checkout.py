"""Run shell lines in a fake checkout, and return the arguments that the commands receive."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Stands in for Python in the checkout: prints the arguments that the real Makefile passes to a command.
PYTHON = f"""\
#!{sys.executable} -IS
import json, os, sys
sys.path.insert(0, {str(ROOT / "src")!r})
from diglot.commands import from_make
print(json.dumps(from_make.arguments(os.environ)))
"""


def typed(line: str, folder: Path, **variables: str) -> list[str]:
    """Return the arguments that the command receives when sh runs this line in a checkout."""
    if not (folder / "Makefile").exists():
        shutil.copy(ROOT / "Makefile", folder)
        for name in ("pyproject.toml", "constraints.txt"):
            (folder / name).touch()
        (folder / ".venv/bin").mkdir(parents=True)
        (folder / ".venv/bin/python").write_text(PYTHON)
        (folder / ".venv/bin/python").chmod(0o755)
        (folder / ".venv/.ready").touch()
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "ARGS"))}
    done = subprocess.run(
        ["sh", "-c", line], cwd=folder, env=bare | variables, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
