"""The private parts of Hydra and OmegaConf that diglot uses. Each has a test that fails if a new version changes it."""

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

# The package of Hydra's own launchers and sweepers. A config may name them.
CORE_PLUGINS = "hydra._internal.core_plugins"


@contextmanager
def config_loader(loader_class: type[ConfigLoader]) -> Iterator[None]:
    """Let Hydra commands that start in the block compose their configs with a loader of the given class."""
    previous_class = hydra_application.ConfigLoaderImpl
    hydra_application.ConfigLoaderImpl = loader_class  # type: ignore[misc]
    try:
        yield
    finally:
        hydra_application.ConfigLoaderImpl = previous_class  # type: ignore[misc]


class _ReadOnce(CachingConfigRepository):
    """A repository of config files that reads each file once."""

    def load_config(self, config_path: str) -> ConfigResult | None:
        return copy.deepcopy(super().load_config(config_path))  # the composition modifies the result

    def __deepcopy__(self, memo: Any) -> "_ReadOnce":  # each composition copies the repository
        return self


def read_once(loader: Any) -> None:
    """Make a loader read each config file only once from now on."""
    if not isinstance(loader.repository, _ReadOnce):
        loader.repository = _ReadOnce(loader.repository)


def forget_stored(file: PurePath) -> None:
    """Remove a config that a plugin has registered in Hydra's config store.

    Args:
        file: the path that the config would have as a file, relative to a folder of configs.
    """
    node: Any = ConfigStore.instance().repo
    for part in file.parent.parts:
        node = node.get(part, {})
    node.pop(file.name, None)


def returned_value(job: JobReturn) -> Any:
    """Return a job's value, or the error that it failed with.

    `JobReturn.return_value` would raise that error and print lines of its own.
    """
    return job._return_value
