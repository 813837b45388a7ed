"""Time, memory and size of checkpoints in the current format (safetensors) and the old one (pickle).

    python benchmarks/checkpoints.py [--models tiny base] [--rounds 5] [--folder FOLDER]

A checkpoint holds a model's weights and the two Adam moments of each, like those of a run. Each figure is measured in a
separate process. Times are the minimum over the rounds; memory is the peak above the process's memory beforehand.
Writing includes flushing the file to disk; files are read from the page cache.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCAB_SIZE = 32_000
OLD, NEW = "pickle", "safetensors"


def content(model: str) -> dict[str, Any]:
    """Return the weights and optimizer states in a checkpoint of a model."""
    import torch
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    from diglot.config import CONF, build

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", [f"model={model}"])
    torch.manual_seed(1)
    made = build(config.model, "model", src_vocab_size=VOCAB_SIZE, tgt_vocab_size=VOCAB_SIZE)
    weights = list(made.parameters())
    state = {
        i: {"step": torch.tensor(1.0), "exp_avg": torch.rand(weight.shape), "exp_avg_sq": torch.rand(weight.shape)}
        for i, weight in enumerate(weights)
    }
    return {
        "state_dict": {f"model.{name}": weight for name, weight in made.state_dict().items()},
        "optimizer_states": [{"state": state, "param_groups": [{"lr": 1e-3, "params": list(state)}]}],
    }


def write(form: str, path: Path, tree: dict[str, Any]) -> None:
    import torch

    from diglot.checkpoint import container, format1
    from diglot.system.atomic import atomic_file

    with atomic_file(path) as file:
        if form == NEW:
            container.write(tree, file)
            file.flush()
            container.check(path.with_name(Path(file.name).name))
        else:
            torch.save(tree, file)
            file.flush()
            with Path(file.name).open("rb") as written:
                format1.check(written, checksums=False)


def read(form: str, path: Path) -> None:
    from diglot.checkpoint import container, format1

    if form == NEW:
        container.read(path)
    else:
        with path.open("rb") as file:
            format1.read(file)


def memory(name: str) -> float:
    """Return the memory of this process (VmRSS, or the peak VmHWM) in megabytes; 0 on systems other than Linux."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def measure(act: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Return the minimum seconds over some rounds, and the peak memory above that beforehand, in megabytes."""
    seconds = []
    if os.access("/proc/self/clear_refs", os.W_OK):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets the peak
    before = memory("VmRSS")
    for _ in range(rounds):
        began = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - began)
    return min(seconds), memory("VmHWM") - before


def child(form: str, what: str, model: str, path: Path, rounds: int) -> None:
    import torch

    from diglot.checkpoint import container, format1  # noqa: F401  # before memory is measured

    torch.set_num_threads(1)
    if what == "write":
        tree = content(model)
        found = measure(lambda: write(form, path, tree), rounds)
    else:
        found = measure(lambda: read(form, path), rounds)
    print(json.dumps([*found, path.stat().st_size / 1e6]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=["tiny", "base"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--child", nargs=4)
    options = parser.parse_args()
    if options.child:
        form, what, model, path = options.child
        child(form, what, model, Path(path), options.rounds)
        return
    print("model  format       MB     write s  MB/s  more MB   read s  MB/s  more MB")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for model in options.models:
            for form in (OLD, NEW):
                told = [f"{model:6} {form:11}"]
                for what in ("write", "read"):
                    words = [f"--rounds={options.rounds}", "--child", form, what, model, f"{folder}/{form}.ckpt"]
                    done = subprocess.run(
                        [sys.executable, __file__, *words], capture_output=True, text=True, check=True
                    )
                    seconds, grown, size = json.loads(done.stdout)
                    told += [f"{size:7.1f}"] * (what == "write")
                    told.append(f"{seconds:9.3f} {size / seconds:6.0f} {grown:7.0f}")
                print(" ".join(told), flush=True)


if __name__ == "__main__":
    main()
