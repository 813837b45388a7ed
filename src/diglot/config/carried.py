"""The config that a job of a sweep carries in its folder: composed and checked once, and trained as it is hours later,
whatever has become of the files that it was composed from."""

import re
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from diglot.config.differences import as_yaml, read_config
from diglot.config.secrets import AsWritten, changed_texts, partly_resolved
from diglot.data.text import write_bytes

CARRIED = "composed"  # the name that Hydra knows it by

# What conf/train.yaml says to Hydra itself, for a run.
_TO_HYDRA = """\
# Composed by a sweep; its job trains this, and reads no other file of choices.
defaults:
- override hydra/job_logging: none
- override hydra/hydra_logging: none
- _self_
hydra:
  run:
    dir: .
  output_subdir: null
"""


def write_carried(folder: Path, config: DictConfig) -> None:
    """Write a job's config into its folder. What may be a secret is read from the environment
    again in the job."""
    plain = changed_texts(partly_resolved(config), _escaped)
    write_bytes(_file(folder), (_TO_HYDRA + as_yaml(plain)).encode())


def read_carried(folder: Path) -> DictConfig | None:
    """Return the config that the job in a folder carries; None where there is none.

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
