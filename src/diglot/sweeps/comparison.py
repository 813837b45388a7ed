"""The comparison of a sweep's jobs: as a table for the terminal, as CSV and Markdown files, and as a chart."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from diglot.evaluation.scorer import label as metric_label
from diglot.sweeps.job import Job
from diglot.system.masking import masked


def label(job: Job, jobs: Sequence[Job]) -> str:
    """Return the overrides that distinguish a job: those that were varied, or that not all jobs have."""
    common = set(job.overrides).intersection(*(other.overrides for other in jobs))
    overrides = [override for override in job.overrides if not re.match(r"[+~]*(objective|sweep\.|sweep=)", override)]
    text = (
        " ".join(override for override in overrides if override in job.varies or override not in common)
        or "(nothing changed)"
    )
    # The same overrides give another config if a file in conf/ was edited between two sweeps.
    has_twin = any(other.overrides == job.overrides and other.hash != job.hash for other in jobs)
    return f"{text} (config {job.hash[:6]})" if has_twin else text


OPENED = "test opened"  # the column with how often a job's checkpoints were scored on a test set
TEXTS = ("job", "overrides", "status", "checkpoint")  # the columns of text; all others have numbers


def metric_columns(jobs: Sequence[Job]) -> dict[str, str]:
    """Return the names of the metrics that the jobs computed on dev, the monitored one first, with their columns."""
    computed = dict.fromkeys(name for job in jobs for name in job.results.get("best", {}))
    names = [name for name in computed if name not in {"loss", "perplexity", "cut", "update"}] or ["bleu", "chrf"]
    return {name: f"dev {metric_label(name)}" if name == names[0] else metric_label(name) for name in names}


def columns(jobs: Sequence[Job]) -> list[str]:
    """Return the columns of the comparison, without the checkpoint, which is the last."""
    numbers = ("perplexity", "parameters", "tokens/s", "minutes", OPENED)
    return [*TEXTS[:3], *metric_columns(jobs).values(), *numbers]


def rows(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Return the comparison as a mapping for each job, with unrounded numbers."""
    table = []
    metrics, names = metric_columns(jobs), columns(jobs)
    for job in jobs:
        results = job.results
        values = [results.get("best", {}).get(name) for name in (*metrics, "perplexity")]
        values += [results.get(name) for name in ("parameters", "tokens_per_second", "minutes")]
        values.append(len(job.openings))
        row: dict[str, Any] = dict(zip(names, (job.number, label(job, jobs), job.status, *values), strict=True))
        row["checkpoint"] = masked(str(job.folder / results["checkpoint"])) if "checkpoint" in results else None
        table.append(row)
    return table


def shown(row: Mapping[str, Any]) -> list[str]:
    """Return a row's values as text, rounded for reading."""
    digits = {"parameters": 0, "tokens/s": 0, "minutes": 1, OPENED: 0}
    return [
        "" if value is None else str(value) if name in TEXTS else f"{value:,.{digits.get(name, 2)}f}"
        for name, value in row.items()
    ]


def as_csv(jobs: Sequence[Job]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*columns(jobs), "checkpoint"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(jobs))
    return text.getvalue()


def as_markdown(jobs: Sequence[Job]) -> str:
    names = [*columns(jobs), "checkpoint"]
    lines = [names, ["---" if name in TEXTS else "---:" for name in names]]
    for row in rows(jobs):
        values = shown(row)
        values[1] = code(values[1])
        lines.append(values)
    return "".join(f"| {' | '.join(value.replace('|', chr(92) + '|') for value in line)} |\n" for line in lines)


def code(text: str) -> str:
    """Return a text as inline code in markdown, which shows it literally."""
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def as_text(jobs: Sequence[Job], folder: Path) -> str:
    """Return the comparison for a terminal. Checkpoints are relative to the sweep's folder."""
    terminal = Console()
    width = terminal.width if terminal.is_terminal else 160
    names = [*columns(jobs), "checkpoint"]
    _, *others = metric_columns(jobs).values()
    left_out = {*others, "parameters", "tokens/s", "checkpoint"} if width < 110 else set()
    table = Table()
    for name in names:
        if name not in left_out:
            table.add_column(name, justify="left" if name in TEXTS else "right", overflow="fold")
    for row in rows(jobs):
        *values, checkpoint = shown(row)
        cells = zip(names, (*values, checkpoint.removeprefix(f"{folder}/")), strict=True)
        table.add_row(*(Text(value) for name, value in cells if name not in left_out))
    text = io.StringIO()
    Console(file=text, width=width).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def picture(jobs: Sequence[Job]) -> bytes:
    """Return a chart of the first metric against parameters and against minutes, as a PNG."""
    from matplotlib.figure import Figure  # imported here, since it is slow

    metric = next(iter(metric_columns(jobs).values()))
    scored = [row for row in rows(jobs) if row[metric] is not None]
    figure = Figure(figsize=(11, 4.5 + 0.2 * len(scored)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, name, unit in zip(panels, ("parameters", "minutes"), (1e6, 1.0), strict=True):
        for i, row in enumerate(scored):
            if row[name] is None:
                continue
            point = (row[name] / unit, row[metric])
            panel.plot(*point, "o", color=f"C{i % 10}", label=f"{row['job']}: {row['overrides']}".replace("$", r"\$"))
            panel.annotate(str(row["job"]), point, xytext=(4, 4), textcoords="offset points", fontsize=9)
        panel.set_xlabel("parameters (millions)" if name == "parameters" else "minutes of training")
        panel.grid(alpha=0.3)
        panel.ticklabel_format(useOffset=False)
    panels[0].set_ylabel(metric)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", fontsize=8, frameon=False)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    return content.getvalue()


def openings(jobs: Sequence[Job]) -> str:
    """Return how often the jobs' checkpoints were scored on a test set, as a line; each text counts separately."""
    numbers = [(opening.text, job.number) for job in jobs for opening in job.openings]
    if not numbers:
        return "Test opened by no run of this sweep"
    counts = []
    texts = list(dict.fromkeys(text for text, _ in numbers))
    for text in texts:
        jobs_of_text = [number for other, number in numbers if other == text]
        n_times, n_runs = len(jobs_of_text), len({*jobs_of_text})
        count = f"{n_times:,} time{'s' * (n_times > 1)} by {n_runs:,} run{'s' * (n_runs > 1)} of this sweep"
        counts.append(count if len(texts) == 1 else f"{count} (text {text[:12] if text else 'unknown'})")
    return f"Test opened {'; '.join(counts)}"


def outcome(job: Job) -> str:
    """Return how a job ended, with its score."""
    if job.status != "finished":
        return job.message or job.status
    row = dict(zip(rows([job])[0], shown(rows([job])[0]), strict=True))
    metric = next(iter(metric_columns([job]).values()))
    return f"{metric} {row[metric]}, {row['minutes']} minutes"
