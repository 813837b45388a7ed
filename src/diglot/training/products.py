"""Float32 products in training on a CPU: by PyTorch's default library, or by oneDNN where it is faster and as exact."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import lightning as L
import torch

DEFAULT, BY_ONEDNN = "highest", "medium"  # values of torch.set_float32_matmul_precision


class OneDnnProducts(L.Callback):
    """Callback that lets oneDNN compute the float32 products of each training step.

    Validations are not affected, so that a dev score equals that of evaluating the checkpoint.
    """

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        torch.set_float32_matmul_precision(BY_ONEDNN)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        torch.set_float32_matmul_precision(DEFAULT)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        torch.set_float32_matmul_precision(DEFAULT)  # a run that is stopped may validate in place of a step

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        torch.set_float32_matmul_precision(DEFAULT)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        torch.set_float32_matmul_precision(DEFAULT)


def has_onednn(trainer: L.Trainer) -> bool:
    """Return whether oneDNN computes the float32 products of a run's steps."""
    return any(isinstance(callback, OneDnnProducts) for callback in trainer.callbacks)  # type: ignore[attr-defined]


@contextmanager
def as_in_a_step(trainer: L.Trainer) -> Iterator[None]:
    """Compute products inside this context by the library that the steps of a run use."""
    torch.set_float32_matmul_precision(BY_ONEDNN if has_onednn(trainer) else DEFAULT)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(DEFAULT)


def onednn_products(precision: str, device: torch.device, is_compiled: bool) -> list[L.Callback]:
    """Return the callback that a run needs for its float32 products, or none.

    A compiled run keeps the default, because torch would compile again after each change of the setting.

    Args:
        precision: a Lightning precision.
        device: the device of the run.
        is_compiled: whether the layers are compiled.
    """
    is_float32 = precision in ("32", "32-true") and device.type == "cpu" and not is_compiled
    capabilities = getattr(torch.cpu, "get_capabilities", dict)  # newer than the oldest torch that diglot accepts
    return [OneDnnProducts()] if is_float32 and is_faster(capabilities()) and is_exact() else []


def is_faster(capabilities: Mapping[str, Any]) -> bool:
    """Return whether oneDNN is known to be faster than MKL: on AMD's processors, MKL does not use AVX-512.

    The answer depends on the processor alone, so that a run that resumes on the same machine computes the same bits. A
    processor with AMX is excluded: there, the setting would round to bfloat16.

    Args:
        capabilities: those of `torch.cpu.get_capabilities`.
    """
    has_amx = any(value for name, value in capabilities.items() if name.startswith("amx"))
    is_amd = str(capabilities.get("cpu_name", "")).startswith("AMD")
    has_libraries = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return is_amd and bool(capabilities.get("avx512_f")) and not has_amx and has_libraries


@cache
def is_exact() -> bool:
    """Return whether the products by oneDNN keep all bits of float32.

    A product with the identity returns the other matrix unchanged, unless the product rounds its inputs. The inputs
    have 24 significant bits; bfloat16 keeps 8.
    """
    torch.set_float32_matmul_precision(BY_ONEDNN)
    try:
        return all(_keeps_bits(rows, columns) for rows, columns in ((64, 256), (1024, 192), (17, 48)))
    finally:
        torch.set_float32_matmul_precision(DEFAULT)


def _keeps_bits(rows: int, columns: int) -> bool:
    x = torch.linspace(1, 2, rows * columns).view(rows, columns)
    right, left = torch.eye(columns), torch.eye(rows)
    bias = torch.zeros(columns)
    products = [x @ right, left @ x, torch.addmm(bias, x, right), torch.bmm(x[None], right[None])[0], (x.T @ left).T]
    return all(torch.equal(product, x) for product in products)
