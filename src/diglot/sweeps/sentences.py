"""The choice of dev sentences whose outputs a sweep's report contains: those where two rows differ most."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from diglot.data.text import ParallelText
from diglot.evaluation.breakdown import unit_of
from diglot.sweeps.comparison import Comparison, Row
from diglot.sweeps.job import Job
from diglot.sweeps.job_files import ScoredOutputs, scored_outputs_of

MAX_ROWS = 30
PER_PAIR = 20  # sentences for each pair of rows
MAX_CHARACTERS = 3_000_000  # of all text
MAX_LINE = 2_000  # characters of a line; the rest of a longer one is left out


@dataclass
class Sentences:
    """The outputs of several rows for some dev sentences.

    Attributes:
        rows: numbers of the rows (see `Configuration.number`).
        jobs: numbers of the jobs that translated.
        content: plain data for the page: `metric` and `higher` (is better) of the scores; `unit` that is compared;
            `total` sentences of dev; `lines` with their number, source and references; `outputs` and `scores` by row.
        notes: which rows are left out and why, one line each.
    """

    rows: list[int] = field(default_factory=list)
    jobs: list[int] = field(default_factory=list)
    content: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def differing_sentences(comparison: Comparison) -> Sentences:
    """Return the sentences where the outputs of two rows differ most.

    Each row is represented by the job with the best score. For each pair of rows, the sentences with the greatest
    difference of scores are chosen, first one of each pair, then two, and so on, until the text is too long.
    """
    chosen = Sentences()
    found = {row.configuration.number: (job, scored) for row, job, scored in _best_outputs(comparison, chosen.notes)}
    if not found:
        return chosen
    chosen.rows, chosen.jobs = list(found), [job.number for job, _ in found.values()]
    scored = [each for _, each in found.values()]
    pairs, lines = scored[0].outputs.evaluated.pairs, [each.outputs.lines for each in scored]
    indices = choose(np.stack([each.scores for each in scored]), lines, _lengths(pairs, lines))
    chosen.content = {
        "metric": scored[0].metric,
        "higher": scored[0].higher_is_better,
        "unit": unit_of(scored[0].outputs.scorer.writing),
        "total": len(pairs),
        "lines": [
            {
                "line": i + 1,
                "source": _cut(pairs.src[i]),
                "references": [_cut(line) for side in pairs.references if (line := side[i]) is not None],
            }
            for i in indices
        ],
        "outputs": [[_cut(each[i]) for i in indices] for each in lines],
        "scores": [[float(each.scores[i]) for i in indices] for each in scored],
    }
    return chosen


def _best_outputs(comparison: Comparison, notes: list[str]) -> Iterator[tuple[Row, Job, ScoredOutputs]]:
    """Yield the rows whose outputs are shown, in the order of the rows, with the job with the best score of each."""
    metric = next(iter(comparison.metrics))
    sign = -1 if comparison.judgement.higher_is_better else 1
    ranked = sorted(
        (row for row in comparison.rows if row.scores[metric] is not None),
        key=lambda row: (row.finding != "baseline", sign * (row.scores[metric] or 0.0)),
    )
    shown = {row.configuration.number for row in ranked[:MAX_ROWS]}
    if len(ranked) > MAX_ROWS:
        notes.append(f"Outputs of the baseline and of the best rows, {MAX_ROWS} in all, of {len(ranked)} rows")
    first: ScoredOutputs | None = None
    for row in comparison.rows:
        if row.configuration.number not in shown:
            continue
        best = _best_job(row, metric, sign)
        scored = scored_outputs_of(best, f"dev/{metric}")
        if scored is None:
            notes.append(f"No dev outputs of {row.configuration.name} can be read")
        elif first is not None and not _are_comparable(first, scored):
            notes.append(f"No outputs of {row.configuration.name}: its dev text or metric is another one")
        else:
            first = first or scored
            yield row, best, scored


def _best_job(row: Row, metric: str, sign: int) -> Job:
    return min(row.configuration.finished, key=lambda job: sign * (job.value(metric) or 0.0))


def _are_comparable(one: ScoredOutputs, other: ScoredOutputs) -> bool:
    pairs, others = (each.outputs.evaluated.pairs for each in (one, other))
    return pairs.src == others.src and pairs.references == others.references and one.metric == other.metric


def choose(scores: np.ndarray, lines: Sequence[Sequence[str]], lengths: np.ndarray) -> list[int]:
    """Return the indices of the sentences to show, in order.

    Args:
        scores: the score of each row's output for each sentence (rows, sentences).
        lines: the outputs of each row.
        lengths: the length of all text for each sentence (sentences,).
    """
    texts = np.array(lines, dtype=object)
    orders = []
    for a, b in combinations(range(len(lines)), 2):
        order = np.argsort(-np.abs(scores[a] - scores[b]), kind="stable")
        orders.append(order[texts[a, order] != texts[b, order]][:PER_PAIR])
    chosen: dict[int, None] = {}
    n_characters = 0
    for rank in range(PER_PAIR):
        for order in orders:
            if rank < len(order) and int(order[rank]) not in chosen:
                n_characters += int(lengths[order[rank]])
                if n_characters > MAX_CHARACTERS:
                    return sorted(chosen)
                chosen[int(order[rank])] = None
    return sorted(chosen)


def _lengths(pairs: ParallelText, lines: Sequence[Sequence[str]]) -> np.ndarray:
    """Return the number of characters of all text that is shown for each sentence."""
    sides: list[Sequence[str | None]] = [pairs.src, *pairs.references, *lines]
    return np.sum([[min(len(line or ""), MAX_LINE) for line in side] for side in sides], axis=0)


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…"
