"""Float32 products by oneDNN: where they are chosen, that they lose no bits, and that only training has them."""

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import lightning as L
import pytest
import torch
from torch import nn

from diglot.training import products
from diglot.training.products import OneDnnProducts, is_exact, is_faster, onednn_products

ZEN_5 = {"cpu_name": "AMD EPYC 9555", "avx512_f": True, "avx512_bf16": True, "amx_tile": False, "amx_bf16": False}
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def the_setting_is_restored() -> Iterator[None]:
    is_exact.cache_clear()
    yield
    assert torch.get_float32_matmul_precision() == "highest"
    is_exact.cache_clear()


def test_only_a_processor_on_which_it_is_known_to_be_faster_and_exact_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in (torch.backends.mkl, torch.backends.mkldnn):
        monkeypatch.setattr(library, "is_available", lambda: True)
    assert is_faster(ZEN_5)
    changes: list[dict[str, Any]] = [{"avx512_f": False}, {"amx_tile": True}, {"amx_bf16": True}, {"cpu_name": "Intel"}]
    for change in changes:
        assert not is_faster(ZEN_5 | change), change
    assert not is_faster({"architecture": "aarch64"})
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert not is_faster(ZEN_5)


def test_only_float32_on_a_cpu_without_compilation_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "is_faster", lambda capabilities: True)
    monkeypatch.setattr(products, "is_exact", lambda: True)
    for precision in ("32", "32-true"):
        assert len(onednn_products(precision, CPU, is_compiled=False)) == 1
    assert not onednn_products("32-true", CPU, is_compiled=True)
    assert not onednn_products("32-true", torch.device("cuda"), is_compiled=False)
    for precision in ("bf16-mixed", "64-true"):
        assert not onednn_products(precision, CPU, is_compiled=False)
    monkeypatch.setattr(products, "is_exact", lambda: False)
    assert not onednn_products("32-true", CPU, is_compiled=False)


@pytest.mark.parametrize("wrong", ["matmul", "addmm", "bmm"])
def test_a_product_that_rounds_to_bfloat16_is_noticed(wrong: str) -> None:
    def rounded(compute: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda *args: compute(*(x.bfloat16() for x in args)).float()

    owner, name = (torch.Tensor, "__matmul__") if wrong == "matmul" else (torch, wrong)
    with mock.patch.object(owner, name, rounded(getattr(torch, wrong))):
        assert not is_exact()


def errors(setting: str) -> list[float]:
    """Return the errors of a linear layer's output and gradients, and of a batched product, as shares of their norm."""
    generator = torch.Generator().manual_seed(1)
    x, w, g = (torch.randn(*shape, generator=generator) for shape in ((130, 192), (512, 192), (130, 512)))

    def compute(*given: torch.Tensor) -> list[torch.Tensor]:
        x, w, g = (tensor.clone().requires_grad_() for tensor in given)
        y = nn.functional.linear(x, w)
        batched = torch.bmm(x.unflatten(1, (4, 48)).transpose(0, 1), w[:130].unflatten(1, (4, 48)).permute(1, 2, 0))
        return [y, batched, *torch.autograd.grad(y, (x, w), g)]

    torch.set_float32_matmul_precision(setting)
    found = compute(x, w, g)
    torch.set_float32_matmul_precision("highest")
    expected = compute(x.double(), w.double(), g.double())
    return [((a - b).norm() / b.norm()).item() for a, b in zip(found, expected, strict=True)]


def test_no_product_that_a_run_computes_is_less_exact_than_float32() -> None:
    """Check the default on every machine, and products by oneDNN on machines where a run may choose them."""
    for setting in ["highest", *(["medium"] if is_exact() else [])]:
        assert max(errors(setting)) < 1e-6, setting


class Task(L.LightningModule):
    """Task that records the setting in each step and validation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.settings = nn.Linear(1, 1), []

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.settings.append(torch.get_float32_matmul_precision())
        return self.layer(batch).sum()

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.settings.append(torch.get_float32_matmul_precision())

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.settings.append(torch.get_float32_matmul_precision())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore")
def test_a_step_and_its_backward_pass_have_it_but_no_validation() -> None:
    task = Task()
    loader = torch.utils.data.DataLoader(torch.zeros(2, 1))
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=2,
        val_check_interval=1,
        num_sanity_val_steps=0,
        limit_val_batches=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[OneDnnProducts()],
    )
    trainer.fit(task, loader, loader)
    assert task.settings == ["medium", "medium", "highest"] * 2
