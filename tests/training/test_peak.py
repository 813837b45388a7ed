"""The greatest speed of a device: by its name, or measured."""

import time

import pytest
import torch

from diglot.training import peak as module
from diglot.training.peak import dtype_of_products, from_data_sheet, matrix_speed, measured, peak

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "dtype", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, 989),
        ("NVIDIA H100 PCIe", torch.bfloat16, 756),
        ("NVIDIA H100 NVL", torch.float16, 835),
        ("NVIDIA H200", torch.float32, 67),
        ("NVIDIA A100-SXM4-80GB", torch.bfloat16, 312),
        ("NVIDIA A100 80GB PCIe", torch.float32, 19.5),
        ("NVIDIA A10", torch.bfloat16, 125),
        ("NVIDIA A10G", torch.bfloat16, None),
        ("NVIDIA L40S", torch.bfloat16, 362),
        ("NVIDIA L4", torch.bfloat16, 121),
        ("Tesla T4", torch.float16, 65),
        ("NVIDIA B200", torch.float32, None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", torch.bfloat16, None),
        ("NVIDIA H100 80GB HBM3", torch.float64, None),
        ("", torch.float32, None),
    ],
)
def test_a_gpu_is_known_by_its_name(name: str, dtype: torch.dtype, teraflops: float | None) -> None:
    found = from_data_sheet(name, dtype)
    assert found is None if teraflops is None else found == pytest.approx(teraflops * 1e12)


def test_precisions_have_a_dtype() -> None:
    found = [dtype_of_products(each) for each in ("bf16-mixed", "bf16-true", "16-mixed", "32-true", "32", "64-true")]
    assert found == [torch.bfloat16, torch.bfloat16, torch.float16, torch.float32, torch.float32, torch.float64]
    assert dtype_of_products("transformer-engine") is None


class Speed:
    """A device that computes a fixed number of operations per second, with a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, speed: float) -> None:
        self.now, self.speed, self.sizes = 0.0, speed, list[int]()
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(module, "matrix_speed", self.compute)

    def compute(self, device: torch.device, dtype: torch.dtype, size: int) -> float:
        self.sizes.append(size)
        self.now += 5 * 2 * size**3 / self.speed
        return self.speed * size / 8192


@pytest.mark.parametrize(("speed", "largest"), [(1e9, 256), (5e10, 512), (1e15, 8192)])
def test_products_grow_as_long_as_the_time_allows(monkeypatch: pytest.MonkeyPatch, speed: float, largest: int) -> None:
    device = Speed(monkeypatch, speed)
    assert measured(CPU, torch.float32) == pytest.approx(speed * device.sizes[-1] / 8192)
    assert device.sizes[0] == 256
    assert device.sizes[-1] <= largest
    assert device.now < 0.2


def test_a_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measured", lambda device, dtype: 5.0)
    assert peak(CPU, torch.float32) == 5.0


def test_a_speed_is_that_of_the_fastest_of_five_products(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 4.0, 4.0, 5.0, 5.0, 7.0, 7.0, 9.0, 9.0, 19.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    assert matrix_speed(CPU, torch.float32, 10) == 2000
