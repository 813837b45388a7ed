"""Training speed on a GPU: by the shapes of batches, compiled or not, beside torch.nn.Transformer.

    python benchmarks/gpu.py [--model base] [--tokens 32768] [--seconds 8]

Each variant trains on the same random pairs, whose lengths are distributed as in WMT's training data, with Adam and
bfloat16 autocast, and waits for the device only at the end. The table gives target tokens per second without padding,
the share of real tokens in the batches, and the share of the speed of a large matrix product that the operations on
real and padded tokens reach. The last row is a whole run of diglot-train, with its loader and its logs. On a GPU, all
of this takes about four minutes.
"""

import argparse
import itertools
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from diglot.system.gpu import exclude_cudnn_attention  # before torch: see diglot.threads

# isort: split
import torch
from hydra import compose, initialize_config_dir
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from diglot.config import CONF, build
from diglot.data.batch import Batch, Pairs
from diglot.data.batching import Batching, MicroBatch
from diglot.data.flat import FlatIds
from diglot.model import EncoderDecoder
from diglot.training.loss import token_loss
from diglot.training.peak import matrix_speed

N_PAIRS = 200_000
MATRIX = 8192  # size of the matrices whose product is the limit
UPDATES = 300  # of the whole run
BACKEND = "inductor"  # of torch.compile


def lengths(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of tokens of sources and targets; they are about log-normal in WMT's training data."""
    draw = np.random.default_rng(seed)
    src = np.clip(np.exp(draw.normal(3.15, 0.6, n)), 2, 150)
    tgt = np.clip(src * np.exp(draw.normal(0.03, 0.2, n)), 2, 150)
    return np.ceil(src).astype(np.int32), np.ceil(tgt).astype(np.int32)


def random_sentences(each: np.ndarray, vocab_size: int) -> FlatIds:
    """Return random sentences of the given lengths, which count </s>."""
    ids = np.random.default_rng(1).integers(4, vocab_size, int((each - 1).sum()), dtype=np.uint16)
    return FlatIds(ids, np.concatenate(([0], np.cumsum(each - 1))))


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with embeddings and output as the base model has them."""

    def __init__(self, vocab_size: int, d_model: int, n_heads: int, d_ff: int, n_layers: int) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(vocab_size, d_model), nn.Embedding(512, d_model)
        self.layers = nn.Transformer(d_model, n_heads, n_layers, n_layers, d_ff, 0.1, batch_first=True)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor) -> Tensor:
        """Map source and target tokens to logits (B, T, V)."""
        places = [self.positions(torch.arange(side.size(1), device=side.device)) for side in (src, tgt)]
        causal = nn.Transformer.generate_square_subsequent_mask(tgt.size(1), device=src.device)
        x = self.layers(
            self.embedding(src) + places[0],
            self.embedding(tgt) + places[1],
            tgt_mask=causal,
            src_key_padding_mask=~src_mask,
            memory_key_padding_mask=~src_mask,
            tgt_is_causal=True,
        )
        return x @ self.embedding.weight.T  # type: ignore[no-any-return]


def batches(pairs: Pairs, shapes: str, tokens: int) -> Iterator[Batch]:
    """Yield training batches without end."""
    src, tgt = pairs.src.lengths, pairs.tgt.lengths
    made = Batching(src, tgt, tokens, seed=1, shapes=shapes, longest=int(max(src.max(), tgt.max())))  # type: ignore[arg-type]
    for each in made.stream():
        count = int(tgt[each.pairs].sum())
        yield pairs[MicroBatch(each.pairs, each.pass_number, each.progress, 0, count, shape=each.shape)]


def measure(
    model: nn.Module, stream: Iterator[Batch], device: torch.device, seconds: float, warm: int
) -> tuple[float, float, float]:
    """Train for some seconds.

    Returns:
        Target tokens per second, the share of real tokens in the batches, and TFLOP/s.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    operations: dict[tuple[int, ...], int] = {}  # by the shape of a batch

    def update(batch: Batch) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(batch.src, batch.tgt_in, batch.src_mask)
            sums = token_loss(logits, batch.labels, batch.tgt_mask, 0.1)
        (sums.smoothed / batch.update_target_tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for batch in itertools.islice(stream, warm):
        update(batch.on(device))
    wait()
    done: list[Batch] = []
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for batch in itertools.islice(stream, 4):
            update(batch.on(device))
            done.append(batch)
        wait()
    passed = time.perf_counter() - began
    total = 0
    for batch in done:
        shape = (*batch.src.shape, *batch.labels.shape)
        if shape not in operations:
            model.eval()  # a compiled model computes without its graphs, whose operations are not counted
            with FlopCounterMode(display=False) as counter:
                update(batch.on(device))
            model.train()
            operations[shape] = counter.get_total_flops()
        total += operations[shape]
    real = sum(int(batch.src_mask.sum() + batch.tgt_mask.sum()) for batch in done)
    area = sum(batch.src_mask.numel() + batch.tgt_mask.numel() for batch in done)
    tokens = sum(batch.update_target_tokens for batch in done)
    return tokens / passed, real / area, total / passed / 1e12


def whole_run(folder: Path, words: list[str]) -> str:
    """Train with diglot-train on generated text, and return the line with its speed."""
    draw = np.random.default_rng(2)
    names = np.array([f"w{i}" for i in range(20_000)])
    src, _ = lengths(30_000)
    lines = [" ".join(names[draw.zipf(1.3, n) % len(names)]) for n in src]
    for name, text in (("train.a", lines), ("train.b", [line[::-1] for line in lines])):
        (folder / name).write_text("".join(f"{line}\n" for line in text))
    command = [sys.executable, "-m", "diglot", "train", "data=files", "data.train.src=train.a"]
    command += ["data.train.tgt=train.b", "data.dev_size=20", "data.test_size=20", "data.vocab_size=4000"]
    command += [f"run.validate_every={UPDATES}", f"run.updates={UPDATES}"]
    done = subprocess.run([*command, "watch=none", *words], cwd=folder, capture_output=True, text=True, check=False)
    found = re.search(r"Trained .*?GB of memory", done.stdout + done.stderr)
    return found[0] if found else f"diglot-train failed: {(done.stderr.splitlines() or ['?'])[-1]}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="base")
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("overrides", nargs="*", help="of diglot-train, such as model.d_model=256")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no GPU: --device cpu tries the benchmark out")
    exclude_cudnn_attention()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", [f"model={options.model}", *options.overrides]).model
    sizes = {"src_vocab_size": options.vocabulary, "tgt_vocab_size": options.vocabulary}
    src, tgt = lengths(N_PAIRS)
    pairs = Pairs(random_sentences(src, options.vocabulary), random_sentences(tgt, options.vocabulary), 4)

    def ours() -> EncoderDecoder:
        torch.manual_seed(1)
        return build(config, "model", **sizes).train().to(device)  # type: ignore[no-any-return]

    def compiled() -> EncoderDecoder:
        model = ours()
        model.compile_layers(BACKEND)
        torch._dynamo.config.recompile_limit = 200  # type: ignore[attr-defined]
        return model

    def theirs() -> nn.Module:
        plain = TorchTransformer(
            options.vocabulary, config.d_model, config.n_heads, config.d_ff, config.n_encoder_layers
        )
        return plain.to(device)

    limit = matrix_speed(device, torch.bfloat16, MATRIX) / 1e12
    print(f"{torch.cuda.get_device_name() if device.type == 'cuda' else 'CPU'}, matrix product {limit:.3g} TFLOP/s")
    print(f"{'':34}{'tokens/s':>10}{'fill':>7}{'TFLOP/s':>9}{'of limit':>9}", flush=True)
    variants: list[tuple[str, Callable[[], nn.Module], str, int]] = [
        ("torch.nn.Transformer, free", theirs, "free", 4),
        ("torch.nn.Transformer, fine_buckets", theirs, "fine_buckets", 40),
        ("diglot, free", ours, "free", 4),
        ("diglot, buckets", ours, "buckets", 10),
        ("diglot, fine_buckets", ours, "fine_buckets", 40),
        ("diglot, buckets, compiled", compiled, "buckets", 60),
    ]
    for name, make, shapes, warm in variants:
        began = time.perf_counter()
        speed, fill, flops = measure(make(), batches(pairs, shapes, options.tokens), device, options.seconds, warm)
        took = time.perf_counter() - began
        print(f"{name:34}{speed:10,.0f}{fill:7.0%}{flops:9.1f}{flops / limit:9.1%}   {took:.0f} s in all", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        trainer = ["trainer=gpu"] if device.type == "cuda" else ["trainer=cpu"]
        words = [f"model={options.model}", f"data.tokens_per_batch={options.tokens}", "data.n_workers=2"]
        print("whole run:", whole_run(Path(folder), [*trainer, *words, *options.overrides]))


if __name__ == "__main__":
    main()
