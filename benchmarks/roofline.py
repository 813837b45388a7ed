"""Operations and memory traffic of a training step, counted without computing it, beside a GPU's limits.

    python benchmarks/roofline.py [--models base big] [--rows 1024] [--length 32]

Runs anywhere, on the meta device. The traffic is that of a step without any fusion: each operation reads its inputs and
writes its outputs. A compiled step needs less. The limits are those of NVIDIA's data sheet for an H100 SXM5: 989
TFLOP/s for dense bfloat16 products, and 3.35 TB/s.
"""

import argparse
from collections import Counter
from typing import Any

from diglot.model.meta import meta_device  # before torch: see diglot.threads

# isort: split
import torch
from hydra import compose, initialize_config_dir
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from diglot.config import CONF, build
from diglot.training.loss import token_loss
from diglot.training.operations import count_operations

VOCAB_SIZE = 32_000
OPERATIONS, BYTES = 989e12, 3.35e12  # per second
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "scaled_dot_product")


class Traffic(TorchDispatchMode):
    """Mode that sums the bytes that operations read and write, by kind of operation."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not func.is_view:
            kind = "products" if any(part in name for part in PRODUCTS) else "others"
            tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
            self.bytes[kind] += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return result


def step(model: nn.Module, rows: int, length: int) -> None:
    """Compute a training step in bfloat16, without the optimizer."""
    src = torch.zeros(rows, length, dtype=torch.long, device="meta")
    mask = torch.ones_like(src, dtype=torch.bool)
    token_loss(model(src, src, mask), src, mask, 0.1).smoothed.backward()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=["base", "big"])
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--length", type=int, default=32)
    options = parser.parse_args()
    tokens = options.rows * options.length
    print(f"{'':8}{'parameters':>12}{'TFLOP':>8}{'GB':>8}{'of products':>12}", end="")
    print(f"{'ms, operations':>16}{'ms, memory':>12}{'target tokens/s at most':>26}")
    for name in options.models:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("train", [f"model={name}"]).model
        with meta_device():
            model = build(config, "model", src_vocab_size=VOCAB_SIZE, tgt_vocab_size=VOCAB_SIZE).bfloat16().train()
        with Traffic() as traffic:
            step(model, options.rows, options.length)
        operations = count_operations(model, options.rows, options.length, options.length)
        size = traffic.bytes.total()
        seconds = operations / OPERATIONS, size / BYTES
        n_parameters = sum(parameter.numel() for parameter in model.parameters())
        print(
            f"{name:8}{n_parameters:12,}{operations / 1e12:8.2f}{size / 1e9:8.1f}"
            f"{traffic.bytes['products'] / size:12.0%}{1e3 * seconds[0]:16.1f}{1e3 * seconds[1]:12.1f}"
            f"{tokens / seconds[0]:26,.0f}"
        )


if __name__ == "__main__":
    main()
