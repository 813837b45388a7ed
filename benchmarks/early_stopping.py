"""Simulate sweeps with sweep.stop=evidence: how often a job is ended that could have won, and what is saved.

`python benchmarks/early_stopping.py [SWEEPS [CATCH_UP ...]]` simulates so many sweeps (850) of each of twelve kinds,
for each value of sweep.catch_up (2.0).

A job's score grows as A (1 - exp(-(t / tau)^b)) towards the configuration's level A. The configurations differ in A, in
speed (tau) and in shape (b), so that curves cross; `crossing` is the standard deviation of log(tau) and of 2 log(b). A
tenth of the configurations starts late, by up to a quarter of the run. To this are added: an effect of the seed (0.4),
fluctuations from one validation to the next (0.35, with a correlation of 0.5), and the chance of the sentences. The
standard error of a difference between two outputs is 0.75, of which a part remains the same through the run.
"""

import sys
from dataclasses import dataclass

import numpy as np

from diglot.sweeps.evidence import Point, Run, deficit

SCORE, SEED, FLUCTUATION, CORRELATION, LATE = 30.0, 0.4, 0.35, 0.5, 0.25
SENTENCES = 60  # with standard deviations as if there were a thousand
PERSISTENT, FLEETING = 0.45 * SENTENCES**0.5, 0.28 * SENTENCES**0.5


@dataclass(frozen=True)
class Kind:
    """A kind of sweep.

    Attributes:
        spread: standard deviation of the configurations' levels.
        crossing: see the module.
        seeds: number of seeds. The seeds of a configuration are trained one after another.
        rows: number of configurations.
        validations: number of validations of a job.
    """

    spread: float
    crossing: float
    seeds: int = 1
    rows: int = 8
    validations: int = 6


@dataclass(frozen=True)
class Outcome:
    """The outcome of a sweep, compared with the same sweep without early ends.

    Attributes:
        keeps_winner: whether the best configuration was trained to its end.
        is_false: whether a configuration was ended that would have been at least as good as the best of the others.
        saved: the share of updates that was saved.
    """

    keeps_winner: bool
    is_false: bool
    saved: float


def curves(kind: Kind, random: np.random.Generator) -> np.ndarray:
    """Return the best score up to each validation (validations, rows, seeds)."""
    level = SCORE + kind.spread * random.standard_normal(kind.rows)
    tau = 0.25 * np.exp(kind.crossing * random.standard_normal(kind.rows))
    shape = np.exp(kind.crossing / 2 * random.standard_normal(kind.rows))
    late = np.where(random.random(kind.rows) < 0.1, random.uniform(0, LATE, kind.rows), 0.0)
    time = np.arange(1, kind.validations + 1)[:, None] / kind.validations
    share = (1 - np.exp(-((np.maximum(0.0, time - late) / tau) ** shape)))[:, :, None]
    noise = FLUCTUATION * random.standard_normal((kind.validations, kind.rows, kind.seeds))
    for i in range(1, kind.validations):
        noise[i] = CORRELATION * noise[i - 1] + (1 - CORRELATION**2) ** 0.5 * noise[i]
    seeds = SEED * random.standard_normal((kind.rows, kind.seeds))
    scores = share * (level[:, None] + seeds) + noise
    return np.maximum.accumulate(np.maximum(0.0, scores), axis=0)


def sweep(kind: Kind, random: np.random.Generator, catch_up: float = 2.0) -> Outcome:
    """Simulate a sweep."""
    best = curves(kind, random)
    persistent = PERSISTENT * random.standard_normal((kind.rows, SENTENCES))
    trained: list[list[Run]] = [[] for _ in range(kind.rows)]
    stopped: set[int] = set()
    spent = 0
    for row in range(kind.rows):
        for seed in range(kind.seeds):
            if row in stopped:
                continue
            points: dict[int, Point] = {}
            for i in range(kind.validations):
                spent += 1
                influences = persistent[row] + FLEETING * random.standard_normal(SENTENCES)
                is_best = i == 0 or best[i, row, seed] > best[i - 1, row, seed]
                points[i] = Point(float(best[i, row, seed]), influences) if is_best else points[i - 1]
                if i + 1 < kind.validations and cannot_win(kind, trained, row, Run(points, False), i, catch_up):
                    stopped.add(row)
                    break
            trained[row].append(Run(points, row not in stopped))
    ends = best[-1].mean(axis=1)
    kept = max(ends[row] for row in range(kind.rows) if row not in stopped)
    return Outcome(
        keeps_winner=int(ends.argmax()) not in stopped,
        is_false=any(ends[row] >= kept for row in stopped),
        saved=1 - spent / best.size,
    )


def cannot_win(kind: Kind, trained: list[list[Run]], row: int, run: Run, update: int, catch_up: float) -> bool:
    """Return whether the rule ends a run after a validation."""
    reached = [[each for each in runs if update in each.points] for runs in trained]
    others = reached[:row] + reached[row + 1 :]
    n_tests = (kind.rows * kind.seeds - 1) * (kind.validations - 1)
    found = deficit([*reached[row], run], others, update, n_tests, kind.seeds > 1, catch_up)
    return found is not None and found.is_final


def simulate(kind: Kind, n_sweeps: int, catch_up: float = 2.0, seed: int = 1) -> Outcome:
    """Return the means of the outcomes of sweeps of a kind."""
    random = np.random.default_rng(seed)
    outcomes = [sweep(kind, random, catch_up) for _ in range(n_sweeps)]
    names = ("keeps_winner", "is_false", "saved")
    return Outcome(*(float(np.mean([getattr(outcome, name) for outcome in outcomes])) for name in names))


KINDS = [
    Kind(0.0, 0.0), Kind(0.0, 0.5), Kind(1.0, 0.2), Kind(3.0, 0.2), Kind(3.0, 0.5), Kind(8.0, 0.2), Kind(8.0, 0.5),
    Kind(3.0, 0.2, validations=20), Kind(8.0, 0.2, validations=20), Kind(3.0, 0.2, seeds=3), Kind(8.0, 0.2, seeds=3),
    Kind(8.0, 0.5, seeds=3),
]  # fmt: skip


def main() -> None:
    """Print a row for each kind of sweep and each value of sweep.catch_up."""
    n_sweeps = int(sys.argv[1]) if len(sys.argv) > 1 else 850
    factors = [float(word) for word in sys.argv[2:]] or [2.0]
    print("| spread | crossing | seeds | validations | catch_up | false alarms | winner kept | updates saved |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in KINDS:
        for catch_up in factors:
            found = simulate(kind, n_sweeps, catch_up)
            print(
                f"| {kind.spread} | {kind.crossing} | {kind.seeds} | {kind.validations} | {catch_up} | "
                f"{found.is_false:.2%} | {found.keeps_winner:.2%} | {found.saved:.1%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
