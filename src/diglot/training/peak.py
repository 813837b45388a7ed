"""The greatest speed of matrix products on a device, to compare the speed of training with."""

import re
import time

import torch

# Operations per second, dense, from NVIDIA's data sheets: in bfloat16 or float16 with float32 sums, and in float32
# without TF32. The first pattern that matches the device's name counts.
DATA_SHEETS: list[tuple[str, float, float | None]] = [
    (r"\bB200\b", 2250e12, None),
    (r"\b(H200|GH200)\b", 989e12, 67e12),
    (r"\bH100 NVL\b", 835e12, 60e12),
    (r"\bH100 PCIe\b", 756e12, 51e12),
    (r"\bH100\b", 989e12, 67e12),
    (r"\bA100\b", 312e12, 19.5e12),
    (r"\bA10\b", 125e12, 31.2e12),
    (r"\bL40S\b", 362e12, 91.6e12),
    (r"\bL40\b", 181e12, 90.5e12),
    (r"\bL4\b", 121e12, 30.3e12),
    (r"\bT4\b", 65e12, 8.1e12),
]
DTYPES = {"bf16": torch.bfloat16, "16": torch.float16, "32": torch.float32, "64": torch.float64}


def dtype_of_products(precision: str) -> torch.dtype | None:
    """Return the dtype of most products under a Lightning precision; None: unknown."""
    return DTYPES.get(precision.split("-")[0])


def peak(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations per second of large products on a device: from a data sheet, or measured."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return from_data_sheet(name, dtype) or measured(device, dtype)


def from_data_sheet(name: str, dtype: torch.dtype) -> float | None:
    """Return the operations per second of a GPU by its name; None: it is unknown, or a part of a GPU (MIG)."""
    for pattern, half, single in DATA_SHEETS:
        if re.search(pattern, name) and "MIG" not in name:
            return {torch.bfloat16: half, torch.float16: half, torch.float32: single}.get(dtype)
    return None


def measured(device: torch.device, dtype: torch.dtype, seconds: float = 0.1) -> float:
    """Measure products of growing size for about the given time, and return the operations per second of the best."""
    best, size, began = 0.0, 256, time.perf_counter()
    while size <= 8192:
        best = max(best, matrix_speed(device, dtype, size))
        next_takes = 5 * 2 * (2 * size) ** 3 / best
        if time.perf_counter() - began + next_takes > seconds:
            break
        size *= 2
    return best


def matrix_speed(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Return the operations per second of the fastest of five products of square matrices."""
    a, b = torch.ones(2, size, size, device=device, dtype=dtype)
    best = 0.0
    for _ in range(5):
        began = time.perf_counter()
        float((a @ b)[0, 0])  # waits for the device
        best = max(best, 2 * size**3 / max(time.perf_counter() - began, 1e-9))
    return best
