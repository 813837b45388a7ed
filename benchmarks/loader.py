"""Speed and memory use of loading batches from far more pairs than fit into memory.

    python benchmarks/loader.py [PAIRS] [FOLDER]    # default: 5e7 pairs, 6 GB on disk, in a temporary folder

Random pairs of token ids are written directly as prepared data, with log-normal lengths: 26 tokens on average, at most
150. Then separate processes measure iteration from the start of a pass, and from its middle.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

VOCAB_SIZE, BUDGET, SECONDS = 32_000, 8192, 10.0


def generate(folder: Path, n_pairs: int) -> None:
    from diglot.data.shards import Rows, ShardWriter, write_metadata

    random = np.random.default_rng(0)
    writer = ShardWriter(folder, VOCAB_SIZE)
    for start in range(0, n_pairs, 1_000_000):
        n = min(1_000_000, n_pairs - start)
        sides = []
        for _ in range(2):
            lengths = np.clip(random.lognormal(3.1, 0.6, n), 1, 149).astype(np.int64)
            sides.append(Rows(random.integers(4, VOCAB_SIZE, int(lengths.sum()), dtype=np.uint16), lengths))
        writer.append(*sides)
    writer.position()
    writer.close()
    counts = {"read": n_pairs, "kept": n_pairs, "dropped": {}}
    write_metadata(folder, {"corpora": {"generated": counts}, "versions": 1}, VOCAB_SIZE)


def private_memory() -> float:
    """Return the private memory of this process (RssAnon) in megabytes; 0 on systems other than Linux."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def iterate(folder: Path, shapes: str, at: float) -> None:
    """Time a loader's work: order, batches and tensors. `at` is the fraction of the pass at which to start."""
    import torch

    from diglot.data.batch import Pairs
    from diglot.data.batching import Batching, StreamPosition, Updates
    from diglot.data.shards import open_shards

    torch.set_num_threads(1)
    before = private_memory()
    began = time.perf_counter()
    shards = open_shards(folder)
    batching = Batching(shards.src.lengths, shards.tgt.lengths, BUDGET, 1, shapes=shapes, longest=150)
    pairs = Pairs(shards.src, shards.tgt)
    place = StreamPosition(0, int(at * batching.n_pools), 7)
    tokens = batches = real = area = 0
    first = 0.0
    for micro_batch in Updates(batching, 10**9, 1, start=1, place=place):
        batch = pairs[micro_batch]
        if not first:
            first = time.perf_counter() - began
            began = time.perf_counter()
        n = int(batch.tgt_mask.sum())
        tokens += n
        batches += 1
        real += n + int(batch.src_mask.sum())
        area += batch.src.numel() + batch.labels.numel()
        if time.perf_counter() - began > SECONDS:
            break
    took = time.perf_counter() - began
    result = {
        "pairs": len(pairs),
        "shapes": shapes,
        "entered at": f"{at:.0%}",
        "first batch, s": round(first, 2),
        "million target tokens/s": round(tokens / took / 1e6, 2),
        "batches/s": round(batches / took),
        "padding": f"{1 - real / area:.1%}",
        "private MB": round(private_memory()),
        "of these before": round(before),
    }
    print(json.dumps(result))


def main() -> None:
    n_pairs = int(float(sys.argv[1])) if len(sys.argv) > 1 else 50_000_000
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as name:
        folder = Path(name)
        began = time.perf_counter()
        generate(folder, n_pairs)
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{n_pairs:,} pairs generated, {size / 1e9:.1f} GB, {time.perf_counter() - began:.0f} s", flush=True)
        for shapes, at in (("free", 0.0), ("free", 0.5), ("buckets", 0.5)):
            code = f"import loader; from pathlib import Path; loader.iterate(Path({name!r}), {shapes!r}, {at})"
            subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)


if __name__ == "__main__":
    main()
