"""Kill runs at random points, and compare each with an uninterrupted run: `make soak kills=3000`.

Each run is drawn from a seed, which is printed if there is a difference; `make soak only=SEED.NUMBER` repeats it.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import lives
from flips import flips
from strings import strings

from diglot.commands.from_make import overrides
from diglot.system.children import n_cores

RUNS_OF_A_KIND = 6  # interrupted runs that are compared with the same uninterrupted run


@dataclass
class Count:
    """The result of a soak test.

    Attributes:
        runs: number of interrupted runs.
        faults: numbers of faults, by signal, and by whether they came during a file operation.
        statuses: exit statuses of all lives.
        wrong: differences by seed.
    """

    runs: int = 0
    faults: Counter = field(default_factory=Counter)
    statuses: Counter = field(default_factory=Counter)
    wrong: dict[str, list[str]] = field(default_factory=dict)

    @property
    def n_faults(self) -> int:
        return sum(n for name, n in self.faults.items() if name.startswith("SIG"))

    def add(self, name: str, story: lives.Story) -> None:
        self.runs += 1
        for fault in story.faults:
            self.faults[str(fault).partition("@")[0]] += 1
            self.faults["in the middle of an operation on files"] += fault.operation is not None
        self.statuses.update(life.status for life in story.lives)
        if story.differences:
            self.wrong[name] = story.differences


def soak_kind(seed: int, text: list[str], folder: Path, count: Count, lock: threading.Lock, only: int | None) -> None:
    """Test runs of one kind, whose settings and faults are drawn from a seed."""
    draw = random.Random(seed)
    words = [*text, *lives.SMALL, *lives.draw_words(draw)]
    reference = lives.whole(words, folder / f"{seed}")
    for i in range(RUNS_OF_A_KIND):
        faults = [lives.draw_fault(draw, reference.seconds, reference.n_operations) for _ in range(draw.randint(1, 6))]
        if only is not None and i != only:
            continue
        here = folder / f"{seed}.{i}"
        story = lives.told(reference, here, faults)
        with lock:
            count.add(f"{seed}.{i}", story)
            if story.differences:
                kind = " ".join(words[len(text) + len(lives.SMALL) :])
                print(f"\n{seed}.{i}: {kind}\n  {', '.join(map(str, faults))}", flush=True)
                print("\n".join(f"  {line}" for line in story.differences[:8]), flush=True)
            elif only is None:
                shutil.rmtree(here)
    if only is None:
        shutil.rmtree(folder / f"{seed}")


def soak(kills: int, minutes: float, seed: int, jobs: int, only: str | None) -> Count:
    """Test runs until the number of faults or the time limit is reached."""
    folder = Path(tempfile.mkdtemp(prefix="soak."))
    text = lives.write_text(folder)
    count, lock = Count(), threading.Lock()
    deadline = time.monotonic() + 60 * minutes
    if only:
        kind, _, number = only.partition(".")
        soak_kind(int(kind), text, folder, count, lock, int(number or 0))
        print(f"left in {folder}")
        return count
    with ThreadPoolExecutor(jobs) as pool:
        waiting = set()
        next_seed = seed
        while True:
            while len(waiting) < jobs and count.n_faults < kills and time.monotonic() < deadline:
                waiting.add(pool.submit(soak_kind, next_seed, text, folder, count, lock, None))
                next_seed += 1
            if not waiting:
                break
            done = next(as_completed(waiting))
            waiting.remove(done)
            done.result()
            print(f"{count.n_faults:,} kills in {count.runs:,} runs, {len(count.wrong)} wrong", flush=True)
    if not count.wrong:
        shutil.rmtree(folder)
    return count


# The options with their defaults.
OPTIONS: dict[str, Any] = {
    "kills": 3000,
    "flips": 20_000,
    "strings": 100_000,
    "minutes": float("inf"),  # time limit of the kills
    "jobs": None,  # number of parallel jobs; None: one per core
    "seed": None,  # None: random
    "only": "",  # SEED.NUMBER of a run to repeat
}


def options(words: list[str]) -> argparse.Namespace:
    """Parse the options given as name=value after `make soak` or this file's name."""
    found = dict(OPTIONS)
    for word in words:
        name, _, value = word.partition("=")
        if name not in found:
            sys.exit(f"soak: there is no {name}; there are {', '.join(OPTIONS)}")
        kind = str if name == "only" else float if name == "minutes" else int
        try:
            found[name] = kind(value)
        except ValueError:
            sys.exit(f"soak: {word}: not a number")
    found["jobs"] = found["jobs"] or n_cores()
    found["seed"] = random.SystemRandom().randrange(10**6) if found["seed"] is None else found["seed"]
    return argparse.Namespace(**found)


def main() -> None:
    words = options(sys.argv[1:] or overrides(os.environ.get("MAKEFLAGS", "")))
    began = time.monotonic()
    print(f"seed {words.seed}", flush=True)
    count = soak(words.kills, words.minutes, words.seed, words.jobs, words.only)
    print(f"\nfaults: {dict(count.faults)}\nexit statuses of all lives: {dict(count.statuses)}")
    print(
        f"soak: {count.runs:,} runs, {count.n_faults:,} kills, {count.runs - len(count.wrong):,} runs bit-identical, "
        f"seed {words.seed}, {(time.monotonic() - began) / 60:.1f} minutes",
        flush=True,
    )
    if not words.only:
        print(f"soak: {words.flips:,} bit flips, none loaded as something else: {flips(words.flips, words.seed)}")
        strings(words.strings, words.seed)
        print(f"soak: {words.strings:,} strings came back as they went in")
    sys.exit(bool(count.wrong))


if __name__ == "__main__":
    main()
