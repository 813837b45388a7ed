"""What diglot uses of Hydra and OmegaConf beside their public interfaces. A test of each fails where they have changed
it."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

from hydra._internal import hydra as hydra_application
from hydra._internal.config_loader_impl import ConfigLoaderImpl as ConfigLoader
from hydra._internal.config_repository import CachingConfigRepository
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.config_source import ConfigResult
from omegaconf._utils import OmegaConfDumper as YamlDumper

__all__ = [
    "CORE_PLUGINS",
    "ConfigLoader",
    "YamlDumper",
    "config_loader",
    "forget_stored",
    "read_once",
    "returned_value",
]

# The package of Hydra's own launcher and sweeper, which a config may name.
CORE_PLUGINS = "hydra._internal.core_plugins"


@contextmanager
def config_loader(kind: type[ConfigLoader]) -> Iterator[None]:
    """Let Hydra's commands that begin in the block compose their configs by a loader of a class of ours."""
    before = hydra_application.ConfigLoaderImpl
    hydra_application.ConfigLoaderImpl = kind  # type: ignore[misc]
    try:
        yield
    finally:
        hydra_application.ConfigLoaderImpl = before  # type: ignore[misc]


class _ReadOnce(CachingConfigRepository):
    """Config files as they were when they were first read."""

    def load_config(self, config_path: str) -> ConfigResult | None:
        return copy.deepcopy(super().load_config(config_path))  # the composition changes it

    def __deepcopy__(self, memo: Any) -> "_ReadOnce":  # each composition copies the repository
        return self


def read_once(loader: Any) -> None:
    """Let all that a loader composes from now on read each config file once."""
    if not isinstance(loader.repository, _ReadOnce):
        loader.repository = _ReadOnce(loader.repository)


def forget_stored(file: PurePath) -> None:
    """Remove a config that a plugin has brought.

    Args:
        file: which would stand for it, relative to a folder of configs.
    """
    node: Any = ConfigStore.instance().repo
    for part in file.parent.parts:
        node = node.get(part, {})
    node.pop(file.name, None)


def returned_value(job: JobReturn) -> Any:
    """Return a job's value, or the error that it failed with. `JobReturn.return_value` raises that error and prints
    lines of its own."""
    return job._return_value
