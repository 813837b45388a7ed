"""Models without values: on the meta device, to learn their shapes before memory is allocated."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


@contextmanager
def meta_device() -> Iterator[None]:
    """Build models on the meta device inside this context.

    Random initialisation is skipped: there is nothing to fill, and torch would import its compiler for it, which takes
    longer than importing torch itself.
    """
    with torch.device("meta"), _SkipRandom():
        yield


class _SkipRandom(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        # While this function runs, nested calls do not come here: torch.nn.init must be skipped, too.
        if func in _RANDOM or getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


# Methods that fill a tensor with random numbers.
_RANDOM = {
    Tensor.bernoulli_,
    Tensor.cauchy_,
    Tensor.exponential_,
    Tensor.geometric_,
    Tensor.log_normal_,
    Tensor.normal_,
    Tensor.random_,
    Tensor.uniform_,
}
