"""A file with the composed config, for all processes that train in a folder.

The config is composed and checked once. The other processes of a run read the result, and a sweep's job may read it
hours later. So changes to the files that it was composed from have no effect on them.
"""

import re
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from diglot.choices import CONF
from diglot.config.differences import as_yaml, read_config
from diglot.config.secrets import UnresolvedText, changed_texts, resolved_except_secrets
from diglot.data.text import write_bytes

COMPOSED = "composed"  # the config name that Hydra gets
CONFIG = "config.yaml"  # the resolved config; it marks a folder as a run's

_ABOUT = "# Composed once. The processes that train in this folder read no other config file.\n"


def write_composed(folder: Path, config: DictConfig) -> None:
    """Write a config into a folder, for the processes that train there.

    Values that may be secrets stay expressions. The process that trains reads them from the environment again.
    """
    plain = changed_texts(resolved_except_secrets(config), _escaped)
    hydra_settings = (CONF / "hydra_settings.yaml").read_text(encoding="utf-8")
    write_bytes(_file(folder), (_ABOUT + hydra_settings + as_yaml(plain)).encode())


def composed_command(module: str, hydra: Any, folder: Path) -> list[str]:
    """Return the command line of a process that reads its config from a folder.

    Args:
        module: the module to run, like diglot.commands.train.
        hydra: the hydra node of this process's config. The user's overrides of Hydra's own keys are passed on.
        folder: the folder with the config; see `write_composed`.
    """
    command = [sys.executable, "-m", module, "--config-path", str(folder.absolute()), "--config-name", COMPOSED]
    of_sweep = re.compile(r"[+~]*hydra(/launcher|/sweeper|\.launcher|\.sweeper|\.mode|\.searchpath)")
    hydra_overrides: Any = OmegaConf.to_container(hydra.overrides.hydra, resolve=False)
    return command + [override for override in hydra_overrides if not of_sweep.match(override)]


def read_composed(folder: Path) -> DictConfig | None:
    """Return the config that `write_composed` wrote into a folder, or None if there is none.

    Raises:
        UserError: the file cannot be read.
    """
    if not _file(folder).exists():
        return None
    plain = read_config(_file(folder))
    return OmegaConf.create({key: value for key, value in plain.items() if key not in ("defaults", "hydra")})


def _file(folder: Path) -> Path:
    return folder / f"{COMPOSED}.yaml"


def _escaped(text: str) -> str:
    """Escape a resolved text, so that OmegaConf resolves it to the same text again."""
    return str(text) if isinstance(text, UnresolvedText) else re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
