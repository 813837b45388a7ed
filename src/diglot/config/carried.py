"""The config that a folder carries for the processes that train in it: composed and checked once, and trained as it is
by a job of a sweep hours later, and by the other processes of a run, whatever has become of the files that it was
composed from."""

import re
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from diglot.choices import CONF
from diglot.config.differences import as_yaml, read_config
from diglot.config.secrets import AsWritten, changed_texts, partly_resolved
from diglot.data.text import write_bytes

CARRIED = "composed"  # the name that Hydra knows it by
CONFIG = "config.yaml"  # the resolved one, which says that a folder is a run's

_ABOUT = "# Composed once; a process that was started to train this reads no other file of choices.\n"


def write_carried(folder: Path, config: DictConfig) -> None:
    """Write a config into the folder that carries it. What may be a secret is read from the environment again by
    whoever trains it."""
    plain = changed_texts(partly_resolved(config), _escaped)
    to_hydra = (CONF / "hydra_settings.yaml").read_text(encoding="utf-8")
    write_bytes(_file(folder), (_ABOUT + to_hydra + as_yaml(plain)).encode())


def carrying(module: str, hydra: Any, folder: Path) -> list[str]:
    """Return the command line of a process that reads the config that a folder carries.

    Args:
        module: what is run, like diglot.commands.train.
        hydra: the hydra node of this process's config, for what the user said to Hydra itself.
        folder: which carries it.
    """
    words = [sys.executable, "-m", module, "--config-path", str(folder.absolute()), "--config-name", CARRIED]
    of_sweep = re.compile(r"[+~]*hydra(/launcher|/sweeper|\.launcher|\.sweeper|\.mode|\.searchpath)")
    typed: Any = OmegaConf.to_container(hydra.overrides.hydra, resolve=False)
    return words + [word for word in typed if not of_sweep.match(word)]


def read_carried(folder: Path) -> DictConfig | None:
    """Return the config that a folder carries; None where there is none.

    Raises:
        UserError: if it cannot be read.
    """
    if not _file(folder).exists():
        return None
    plain = read_config(_file(folder))
    return OmegaConf.create({key: value for key, value in plain.items() if key not in ("defaults", "hydra")})


def _file(folder: Path) -> Path:
    return folder / f"{CARRIED}.yaml"


def _escaped(text: str) -> str:
    """A resolved text as one that OmegaConf resolves to it again."""
    return str(text) if isinstance(text, AsWritten) else re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
