"""Time and memory from a large text to the first update of a run.

    python benchmarks/first_update.py [PAIRS] [FOLDER]    # default: 30e6 pairs, a temporary folder

The text is generated: each line joins two of several thousand phrases of invented words, whose frequencies follow
Zipf's law; no two lines are equal. `diglot-train` trains a tokenizer on a sample of it, tokenises all of it, and makes
one update of a tiny model on a CPU. The output of the run is printed, then the times of its steps and the greatest
private memory (RssAnon) of the run and of all its processes together. The folder needs about 250 bytes per pair.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from preparation import private

SHORT = ["search=greedy", "search.max_len_a=0", "search.max_len_b=4"]  # the validation is not of interest here
SIZE: list[str] = []  # overrides for a smaller run
N_WORDS = 200_000
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in ("a", "e", "i", "o", "u", "ei", "an")]
SECONDS = 0.2  # between two looks at the memory


def phrases(n: int, seed: int) -> list[str]:
    """Return `n` phrases of 2 to 10 invented words each."""
    random = np.random.default_rng(seed)
    n_syllables = random.integers(1, 5, N_WORDS)
    words = ["".join(SYLLABLES[i] for i in random.integers(0, len(SYLLABLES), size)) for size in n_syllables]
    shares = 1 / np.arange(1, N_WORDS + 1)
    drawn = iter(random.choice(N_WORDS, 11 * n, p=shares / shares.sum()).tolist())
    return [" ".join(words[next(drawn)] for _ in range(size)) for size in random.integers(2, 11, n)]


def write_text(folder: Path, n_pairs: int) -> None:
    """Write train.src and train.tgt, and 50 pairs for each of dev and test."""
    n = int(np.ceil(np.sqrt(n_pairs + 100)))
    for seed, side in enumerate(("src", "tgt")):
        firsts, seconds = phrases(n, 2 * seed), phrases(n, 2 * seed + 1)
        lines = (f"{first} {second}\n" for first in firsts for second in seconds)
        for split, size in (("dev", 50), ("test", 50), ("train", n_pairs)):
            with (folder / f"{split}.{side}").open("w", encoding="utf-8") as file:
                file.writelines(line for line, _ in zip(lines, range(size)))


def with_children(process: int) -> list[int]:
    """Return the ids of a process and of all its descendants."""
    found = [process]
    for each in found:
        for file in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += map(int, file.read_text().split())
            except OSError:  # the process has ended
                continue
    return found


def main() -> None:
    n_pairs = int(float(sys.argv[1])) if len(sys.argv) > 1 else 30_000_000
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as name:
        folder = Path(name)
        start = time.perf_counter()
        write_text(folder, n_pairs)
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{n_pairs:,} pairs, {size / 1e9:.2f} GB, written in {time.perf_counter() - start:.0f} s", flush=True)
        command = [sys.executable, "-m", "diglot", "train", "data=files", "trainer=cpu", "run.updates=1", *SHORT]
        command += [
            f"data.{split}.{side}={folder}/{split}.{side}"
            for split in ("train", "dev", "test")
            for side in ("src", "tgt")
        ]
        command += [
            "data.src_lang=en",
            "data.tgt_lang=de",
            f"data.cache_dir={folder}/cache",
            f"run.folder={folder}/run",
        ]
        start, cpu = time.perf_counter(), os.times()
        run = subprocess.Popen([*command, *SIZE], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        most = {"run": 0.0, "all": 0.0}  # MB

        def watch() -> None:
            while run.poll() is None:
                sizes = [private(str(process)) for process in with_children(run.pid)]
                most["run"], most["all"] = max(most["run"], sizes[0]), max(most["all"], sum(sizes))
                time.sleep(SECONDS)

        watcher = threading.Thread(target=watch)
        watcher.start()
        assert run.stdout
        for line in run.stdout:
            print(f"{time.perf_counter() - start:7.0f} s  {line}", end="", flush=True)
        watcher.join()
        if run.wait():
            sys.exit(run.returncode)
        whole, spent = time.perf_counter() - start, os.times()
        used = sum(spent[2:4]) - sum(cpu[2:4])
        print(
            f"{n_pairs:,} pairs: the whole run in {whole / 60:.1f} minutes, {used / 60:.1f} CPU minutes; "
            f"private memory at most {most['run']:.0f} MB, with all its processes {most['all']:.0f} MB"
        )


if __name__ == "__main__":
    main()
