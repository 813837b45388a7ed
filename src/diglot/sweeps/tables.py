"""The tables of a sweep's comparison: CSV, markdown, LaTeX, and text for the terminal."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from diglot.sweeps.comparison import COSTS, Comparison, Row
from diglot.system.console import render

NARROW, WIDE = 80, 160  # columns of a terminal


def as_csv(comparison: Comparison) -> str:
    """Return all values of each configuration."""
    names = comparison.metrics
    rows = []
    for row in comparison.rows:
        each, mean, difference = row.configuration, row.mean, row.difference
        values: dict[str, Any] = {"jobs": each.numbers, "overrides": each.label, "status": each.status}
        values["seeds"] = each.seeds
        for name, column in names.items():
            values |= {column: row.scores[name], f"{column} deviation": _rounded(row.deviations[name])}
        values["margin"] = _rounded(None if mean is None else mean.margin)
        values["finding"] = row.finding
        for column, attribute in _DIFFERENCE.items():
            values[column] = _rounded(None if difference is None else getattr(difference, attribute))
        values |= row.numbers
        values |= {f"front of {name}": name in row.fronts for name in COSTS}
        rows.append(values | {"checkpoint": row.checkpoint})
    return _csv(rows)


# The columns of a difference in CSV, with the attributes of `Difference`.
_DIFFERENCE = {
    "difference": "value",
    "difference margin": "margin",
    "standard error": "error",
    "smallest difference": "smallest",
    "p bootstrap": "p_bootstrap",
    "p randomisation": "p_randomisation",
    "p": "p",
}


def jobs_as_csv(comparison: Comparison) -> str:
    """Return the values of each job."""
    return _csv(comparison.job_rows())


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["jobs"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _rounded(value: float | None) -> float | None:
    """Round a computed number, since its last digits may depend on the processor."""
    return None if value is None else round(value, 6)


def number_text(value: float | None, digits: int = 2) -> str:
    """Return a number with separators; empty if it is unknown."""
    return "" if value is None else f"{value:,.{digits}f}"


def _score(row: Row, name: str) -> str:
    score, deviation = row.scores[name], row.deviations[name]
    return number_text(score) + ("" if deviation is None else f" ± {deviation:.2f}")


def _difference(row: Row) -> str:
    found = row.difference
    return "" if found is None else f"{found.value:+.2f} ± {found.margin:.2f}"


def _p(row: Row) -> str:
    return "" if row.difference is None else f"{row.difference.p:.4f}"


def finding_text(row: Row) -> str:
    """Return what was found; if no difference was, with the smallest one that would have been."""
    is_unknown = row.difference is not None and not row.difference.is_found
    return f"{row.finding} ({row.difference.smallest:.2f})" if is_unknown and row.difference else str(row.finding)


def _cost(row: Row, name: str) -> str:
    value = row.numbers[name]
    digits = 0 if name == "parameters" else 1
    return number_text(value, digits) + ("*" if name in row.fronts else "")


def _columns(comparison: Comparison) -> dict[str, list[str]]:
    """Return the columns of the tables for readers, as text."""
    rows, metrics = comparison.rows, comparison.metrics
    columns = {
        "jobs": [row.configuration.numbers for row in rows],
        "overrides": [row.configuration.label for row in rows],
        "status": [row.configuration.status for row in rows],
    }
    for name, column in metrics.items():
        columns[column] = [_score(row, name) for row in rows]
    if comparison.judgement.differences:
        columns["difference"] = [_difference(row) for row in rows]
        columns["p"] = [_p(row) for row in rows]
        columns["finding"] = [finding_text(row) for row in rows]
    columns["perplexity"] = [number_text(row.numbers["perplexity"]) for row in rows]
    columns["parameters"] = [_cost(row, "parameters") for row in rows]
    columns["tokens/s"] = [number_text(row.numbers["tokens/s"], 0) for row in rows]
    columns["minutes"] = [_cost(row, "minutes") for row in rows]
    if any(row.numbers["sentences/s"] is not None for row in rows):
        columns["sentences/s"] = [_cost(row, "sentences/s") for row in rows]
    return columns


_TEXTS = ("jobs", "overrides", "status", "finding", "checkpoint")  # left-aligned columns


def as_markdown(comparison: Comparison) -> str:
    """Return the comparison as a markdown table with notes."""
    columns = _columns(comparison)
    columns["overrides"] = [code(text) for text in columns["overrides"]]
    columns["checkpoint"] = [row.checkpoint or "" for row in comparison.rows]
    lines = [list(columns), ["---" if name in _TEXTS else "---:" for name in columns], *zip(*columns.values())]
    table = "".join(f"| {' | '.join(value.replace('|', chr(92) + '|') for value in line)} |\n" for line in lines)
    notes = [re.sub(r"[*_`\\<]", r"\\\g<0>", note) for note in comparison.notes()]
    return table + "".join(["\n", *(f"- {note}\n" for note in notes)] if notes else [])


def code(text: str) -> str:
    """Return a text as inline code in markdown, which shows it literally."""
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def as_latex(comparison: Comparison) -> str:
    """Return the comparison as a LaTeX table of the package booktabs. Differences that were found are bold."""
    columns = _columns(comparison)
    for name in ("jobs", "status", "perplexity", "tokens/s"):
        del columns[name]
    columns["overrides"] = [rf"\texttt{{{_latex(text)}}}" for text in columns["overrides"]]
    for name in columns.keys() - {"overrides"}:
        columns[name] = [_latex(text) for text in columns[name]]
    for i, row in enumerate(comparison.rows):
        if row.difference is not None and row.difference.is_found:
            columns["difference"][i] = rf"\textbf{{{columns['difference'][i]}}}"
    alignment = "".join("l" if name in _TEXTS else "r" for name in columns)
    body = "".join(f"{' & '.join(line)} \\\\\n" for line in zip(*columns.values()))
    notes = "".join(f"% {note}\n" for note in comparison.notes())
    return (
        f"% needs \\usepackage{{booktabs}}\n{notes}\\begin{{tabular}}{{{alignment}}}\n\\toprule\n"
        f"{' & '.join(map(_latex, columns))} \\\\\n\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n"
    )


_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
    '"': r"\textquotedbl{}", "'": r"\textquotesingle{}", "*": r"$^{*}$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}  # fmt: skip


def _latex(text: str) -> str:
    """Return a text as LaTeX shows it literally; a minus before a digit is a true minus sign."""
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"^([+-])(?=\d)", r"$\1$", escaped)


def as_text(comparison: Comparison) -> str:
    """Return the comparison for the terminal, at most as wide as it is, with notes below."""
    terminal = Console()
    width = max(NARROW, min(terminal.width, WIDE)) if terminal.is_terminal else NARROW
    first, *_ = comparison.metrics
    columns = {
        "job" if not comparison.has_seeds else "jobs": [row.configuration.numbers for row in comparison.rows],
        "overrides": [row.configuration.label for row in comparison.rows],
        comparison.metrics[first]: [_score_and_status(row, first) for row in comparison.rows],
    }
    if comparison.judgement.differences:
        columns[f"minus {comparison.baseline}"] = [
            f"{_difference(row)}\np {_p(row)}" if row.difference else "" for row in comparison.rows
        ]
        columns["finding"] = [finding_text(row) for row in comparison.rows]
    columns["cost"] = [_costs(row) for row in comparison.rows]
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, overflow="fold", max_width=13 if name == "finding" else None)
    for line in zip(*columns.values()):
        table.add_row(*map(Text, line))
    notes = [line for note in comparison.notes() for line in render(Text(note), width=width)]
    return "\n".join([*render(table, width=width), *notes])


def _score_and_status(row: Row, name: str) -> str:
    """Return a score, followed by the configuration's status in the next line unless all its jobs are finished."""
    status = row.configuration.status
    return "\n".join(filter(None, [_score(row, name), status if status != "finished" else ""]))


def _costs(row: Row) -> str:
    """Return the parameters, the minutes and the speed of the search of a configuration, a line for each."""
    parameters, front = row.numbers["parameters"], "*" if "parameters" in row.fronts else ""
    lines = [] if parameters is None else [f"{parameters / 1e6:,.2f}{front} M"]
    if row.numbers["minutes"] is not None:
        lines.append(f"{_cost(row, 'minutes')} min")
    if (speed := row.numbers["sentences/s"]) is not None:
        lines.append(f"{speed:,.0f}{'*' if 'sentences/s' in row.fronts else ''} sent/s")
    return "\n".join(lines)
