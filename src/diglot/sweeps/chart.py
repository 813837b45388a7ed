"""The chart of a sweep's comparison: the score of each configuration with its confidence interval."""

import io
import textwrap
from collections.abc import Sequence
from typing import Any

from diglot.sweeps.comparison import Comparison, Row

# Inches.
_LINE, _WIDTH, _FRAME = 0.17, 10.0, 1.3
_LETTERS, _LINES = 52, 5  # the longest label: letters per line, and lines
_STYLES: dict[str, dict[str, Any]] = {
    "baseline": {"color": "black", "marker": "s"},
    "better": {"color": "tab:green", "marker": "^"},
    "worse": {"color": "tab:red", "marker": "v"},
    "no difference found": {"color": "tab:gray", "marker": "o"},
    "": {"color": "tab:blue", "marker": "o"},
}


def picture(comparison: Comparison) -> bytes:
    """Return a chart of the first metric, with a line for each configuration that has a score, as a PNG."""
    from matplotlib import style  # imported here, since it is slow
    from matplotlib.figure import Figure

    name, column = next(iter(comparison.metrics.items()))
    rows = [(row, score) for row in comparison.rows if (score := row.scores[name]) is not None]
    labels = [_label(row) for row, _ in rows]
    with style.context("default"):  # not the user's own style
        heights = [label.count("\n") + 1.6 for label in labels]
        figure = Figure(figsize=(_WIDTH, _FRAME + _LINE * sum(heights)), layout="constrained")
        panel = figure.subplots()
        places = _centres(heights)
        for place, (row, score) in zip(places, rows, strict=True):
            margin = row.mean.margin if row.mean is not None else 0.0
            known = panel.get_legend_handles_labels()[1]
            panel.errorbar(
                score, place, xerr=margin, linestyle="", capsize=3,
                label="_" if row.finding in known else row.finding or "_", **_STYLES[row.finding],
            )  # fmt: skip
        panel.set_yticks(places, labels, fontsize=8)
        panel.set_ylim(sum(heights), 0)
        panel.set_xlabel(f"{column}, with its 95% confidence interval" if comparison.judgement.means else column)
        panel.grid(axis="x", alpha=0.3)
        panel.ticklabel_format(axis="x", useOffset=False)
        if all(score >= 0 for _, score in rows):  # most metrics cannot be negative
            panel.set_xlim(left=max(0.0, panel.get_xlim()[0]))
        if comparison.judgement.differences:
            panel.axvline(next(score for row, score in rows if row.finding == "baseline"), color="black", lw=0.5)
            figure.legend(loc="outside upper right", ncols=len(_STYLES), fontsize=8, frameon=False)
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=120, metadata={"Software": None})
    return content.getvalue()


def _label(row: Row) -> str:
    """Return the name of a configuration, in a few lines."""
    text = f"{row.configuration.numbers}: {row.configuration.label}".replace("$", r"\$")
    return "\n".join(textwrap.wrap(text, _LETTERS, max_lines=_LINES, placeholder=" …", break_on_hyphens=False))


def _centres(heights: Sequence[float]) -> list[float]:
    """Return the centre of each of several lines below each other."""
    centres, top = [], 0.0
    for height in heights:
        centres.append(top + height / 2)
        top += height
    return centres
