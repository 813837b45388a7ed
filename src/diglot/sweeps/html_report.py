"""The report of a sweep as an HTML page: tables, charts, learning curves, and outputs side by side.

The page is report.html in this folder, with the tables and the data filled in; see `diglot.system.pages`.
"""

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from diglot.data.held_out import metric_of
from diglot.sweeps.comparison import COSTS, Comparison, Row
from diglot.sweeps.configuration import label
from diglot.sweeps.differing import differing_keys
from diglot.sweeps.job import OUTPUT
from diglot.sweeps.job_files import config_of, curves_of
from diglot.sweeps.sentences import PER_PAIR, differing_sentences
from diglot.sweeps.tables import finding_text, number_text
from diglot.system.masking import masked
from diglot.system.pages import embedded, escaped, template

MAX_LABEL = 120  # characters of a row's overrides in the charts
MAX_PICTURE = 2_000_000  # bytes
NO_CURVES = {"cut"}  # dev values without a curve

Cell = tuple[str, float | str | None]  # what is shown, and the value to sort by; None: sorted last


# The classes of CSS of columns; those of all others are numbers.
_CLASSES = {"jobs": "jobs", "overrides": "label", "status": "status", "finding": "finding"}


def as_html(comparison: Comparison, folder: Path, command: str = "") -> str:
    """Return the report of a sweep.

    Args:
        comparison: the comparison of its configurations.
        folder: the sweep's folder.
        command: the line to type for the sweep; empty: unknown.
    """
    sentences = differing_sentences(comparison)
    data = {
        "rows": [_row_data(row, comparison) for row in comparison.rows],
        "score": next(iter(comparison.metrics.values())),
        "higher": comparison.judgement.higher_is_better,
        "costs": dict(COSTS),
        "curves": list(_curves(comparison)),
        "sentences": {**sentences.content, "rows": sentences.rows, "jobs": sentences.jobs, "shown": PER_PAIR},
    }
    parts = {
        "title": escaped(f"Sweep {masked(folder.name)}"),
        "summary": _summary(comparison, command),
        "rows": _rows(comparison),
        "notes": _list(comparison.notes()),
        "sentence notes": _list(sentences.notes),
        "keys": _keys(comparison),
        "jobs": _jobs(comparison),
        "pictures": "".join(_pictures(folder)),
        "data": embedded(data),
    }
    first, *rest = template(Path(__file__).with_name("report.html")).split("<!-- ")
    # Not one replacement after the other: what is filled in may contain the name of another part.
    return first + "".join(parts[name] + text for name, _, text in (part.partition(" -->") for part in rest))


def _summary(comparison: Comparison, command: str) -> str:
    """Return what was compared, and by which command."""
    jobs, rows = comparison.jobs, comparison.rows
    counts: dict[str, int] = {}
    for job in jobs:
        counts[job.status] = counts.get(job.status, 0) + 1
    statuses = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()))
    varied = dict.fromkeys(override.partition("=")[0] for job in jobs for override in job.varies)
    varied.pop("seed", None)
    names = f" that differ in {', '.join(varied)}" if varied else ""
    text = f"{len(rows):,} configurations{names}, compared by {next(iter(comparison.metrics.values()))}. "
    text += f"Jobs: {statuses or 'none'}."
    typed = f"<p class=command><code>{escaped(command)}</code></p>\n" if command else ""
    return f"{typed}<p>{escaped(masked(text))}</p>"


def _cells(row: Row, comparison: Comparison) -> dict[str, Cell]:
    """Return the cells of a row by column."""
    each, found = row.configuration, row.difference
    first, *others = comparison.metrics.items()
    cells: dict[str, Cell] = {
        "jobs": (each.numbers, each.number),
        "overrides": (each.label, each.label),
        "status": (each.status, each.status),
        first[1]: _number(row.scores[first[0]]),
    }
    if comparison.has_seeds:
        cells["deviation"] = _number(row.deviations[first[0]])
    if comparison.judgement.differences:
        cells["difference"] = ("", None) if found is None else (f"{found.value:+.2f} ± {found.margin:.2f}", found.value)
        cells["p"] = _number(None if found is None else found.p, 4)
        cells["finding"] = (finding_text(row), row.finding or None)
    cells |= {column: _number(row.scores[name]) for name, column in others}
    digits = {"perplexity": 2, "parameters": 0, "minutes": 1, "updates": 0, "tokens/s": 0, "sentences/s": 1}
    return cells | {name: _cost(row, name, n_digits) for name, n_digits in digits.items()}


def _number(value: float | None, digits: int = 2) -> Cell:
    return number_text(value, digits), value


def _cost(row: Row, name: str, digits: int) -> Cell:
    text, value = _number(row.numbers[name], digits)
    return text + ("*" if name in row.fronts else ""), value


def _rows(comparison: Comparison) -> str:
    """Return the table of rows as HTML."""
    lines = [_cells(row, comparison) for row in comparison.rows]
    columns = [name for name in (lines[0] if lines else {}) if any(line[name][0] for line in lines)]
    return _table(columns, [[_cell(name, *line[name]) for name in columns] for line in lines], "sortable")


def _cell(column: str, text: str, value: float | str | None) -> str:
    sorted_by = "" if value is None else f' data-value="{escaped(masked(str(value)))}"'
    return f'<td class="{_CLASSES.get(column, "number")}"{sorted_by}>{_isolated(text)}</td>'


def _isolated(text: str) -> str:
    """Return a text as HTML, so that its direction does not affect the text beside it."""
    return f"<bdi>{escaped(masked(text))}</bdi>"


def _table(headings: Sequence[str], lines: Sequence[Sequence[str]], css_class: str = "") -> str:
    head = "".join(f'<th scope="col">{_isolated(heading)}</th>' for heading in headings)
    body = "".join(f"<tr>{''.join(line)}</tr>\n" for line in lines)
    return f'<table class="{css_class}">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>'


def _list(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{_isolated(line)}</li>\n" for line in lines)
    return f"<ul class=notes>\n{items}</ul>" if items else ""


def _row_data(row: Row, comparison: Comparison) -> dict[str, Any]:
    """Return what the charts need of a row."""
    each = row.configuration
    name = masked(each.label)
    return {
        "number": each.number,
        "jobs": each.numbers,
        "label": name if len(name) <= MAX_LABEL else f"{name[:MAX_LABEL]}…",
        "score": _rounded(row.scores[next(iter(comparison.metrics))]),
        "margin": _rounded(None if row.mean is None else row.mean.margin),
        "finding": row.finding,
        "costs": {cost: _rounded(row.numbers[cost]) for cost in COSTS},
        "fronts": [cost for cost in COSTS if cost in row.fronts],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _curves(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Yield the curves of each job that has any, with the number of its row."""
    for row in comparison.rows:
        for job in row.configuration.jobs:
            curves = None if job.status == "outdated" else curves_of(job)
            if curves is not None:
                values = {name: each for name, each in curves.values.items() if metric_of(name) not in NO_CURVES}
                yield {"job": job.number, "row": row.configuration.number, **curves._asdict(), "values": values}


def _keys(comparison: Comparison) -> str:
    """Return the table of the keys in which the configurations differ."""
    found = [(row, config) for row in comparison.rows if (config := config_of(row.configuration.jobs[0])) is not None]
    differing = differing_keys([config for _, config in found]) if found else {}
    if not differing:
        return "<p>The configurations do not differ in any key, or there is only one.</p>"
    lines = [
        [
            f'<td class="jobs">{_isolated(row.configuration.numbers)}</td>',
            *(f"<td>{_isolated(values[i])}</td>" for values in differing.values()),
        ]
        for i, (row, _) in enumerate(found)
    ]
    return _table(["jobs", *differing], lines, "sortable keys")


def _jobs(comparison: Comparison) -> str:
    """Return the table of the jobs without results, with the reasons."""
    lines = [
        [
            f'<td class="jobs">{job.number}</td>',
            f'<td class="label">{_isolated(label(job, comparison.jobs))}</td>',
            f"<td>{_isolated(job.status)}</td>",
            f'<td class="reason">{_isolated(job.message)}</td>',
            f'<td class="label">{_isolated(str(job.folder / OUTPUT))}</td>',
        ]
        for job in comparison.jobs
        if job.status != "finished"
    ]
    if not lines:
        return "<p>All jobs are finished.</p>"
    return _table(["job", "overrides", "status", "reason", "log"], lines)


def _pictures(folder: Path) -> Iterator[str]:
    """Yield the pictures of a hyperparameter search (search_*.png) as HTML."""
    for file in sorted(folder.glob("search_*.png")):
        if file.is_symlink() or not file.is_file() or file.stat().st_size > MAX_PICTURE:
            continue
        content = file.read_bytes()
        if content.startswith(b"\x89PNG\r\n\x1a\n"):
            name, encoded = escaped(file.name), base64.b64encode(content).decode()
            source = f"data:image/png;base64,{encoded}"
            yield f'<figure><img src="{source}" alt="{name}"><figcaption>{name}</figcaption></figure>\n'
