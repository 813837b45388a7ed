"""A run's folder: whole, and of one run alone."""

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from diglot.data.text import write_bytes
from diglot.training.run import Run

PACKAGES = ("torch", "lightning", "hydra-core", "sentencepiece", "datasets", "sacrebleu", "numpy")


def run_folder(run: Run, name: str) -> Path:
    """The run's folder, made by the first process; processes that it starts find it in their environment."""
    if "LOCAL_RANK" in os.environ and "DIGLOT_RUN_FOLDER" in os.environ:
        return Path(os.environ["DIGLOT_RUN_FOLDER"])
    folder = run.new_folder(name)
    os.environ["DIGLOT_RUN_FOLDER"] = str(folder.absolute())
    return folder


def environment() -> dict[str, Any]:
    """What a run's numbers may depend on beside its config."""
    return {
        "diglot": version("diglot"),
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": {name: version(name) for name in PACKAGES},
        "command": sys.argv[1:],
    }


def write_about(folder: Path, config_yaml: str, tokenizer_model: bytes) -> None:
    """Write what the run is into its folder."""
    write_bytes(folder / "config.yaml", config_yaml.encode())
    write_bytes(folder / "environment.json", (json.dumps(environment(), indent=2) + "\n").encode())
    write_bytes(folder / "tokenizer.model", tokenizer_model)


def commit() -> str | None:
    """The checkout's commit, with a + where files have been changed since; None where diglot is in no checkout."""
    source = Path(__file__).parent
    git = ["git", "-C", str(source)]
    try:
        tracked = subprocess.run([*git, "ls-files", "--error-unmatch", __file__], capture_output=True, check=True)
        name = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return name.stdout.strip() + ("+" if changed.stdout.strip() else "") if tracked.stdout else None
