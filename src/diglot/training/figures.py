"""Heat maps of a run, and their conversion to images."""

import logging
import math
import re
import unicodedata
import warnings
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.ticker import MaxNLocator

# Fonts for characters that matplotlib's own font lacks. Each character is taken from the first font that has it.
MORE_FONTS = (
    *("Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans JP", "Noto Sans SC", "Noto Sans KR", "Source Han Sans"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "IPAexGothic", "NanumGothic"),
    *("PingFang SC", "Hiragino Sans", "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic"),
    *("Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Sans Thai", "Arial Unicode MS"),
)
# Sizes are in inches unless another unit is given.
CELL = 0.16  # height of a token's row and width of its column
MIN_SIDE, MAX_SIDE = 0.9, 5.0  # shortest and longest side of a panel
MIN_STEP = 0.12  # between two labels; if there are too many tokens, some have no label
GAP = 0.15
TITLE = 0.25
LINE = 0.15  # height of an axis name, and of each further line of the title
BAR = 0.45  # width of a colour bar with its labels
ACROSS = 2  # panels per row; with more, text would be unreadable in a TensorBoard card
TEXT = 8  # points
LETTER = 0.065  # width of a label's character
MAX_LABEL_LENGTH = 12  # characters


class Panel(NamedTuple):
    """One heat map: its title, values (rows, columns) with NaN for empty cells, and the names of both axes."""

    title: str
    values: np.ndarray
    row_name: str = ""
    column_name: str = ""


def draw(
    panels: Sequence[Panel],
    title: str,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> Figure:
    """Draw heat maps of one size in rows of two, labelled at the outer edges, with colour bars.

    With labels, values are shares from 0 to 1, with one cell per label and one colour bar for all. Without labels,
    values may have both signs: colours range from minus to plus a panel's largest magnitude, and the axes are numbered.

    Args:
        panels: the heat maps.
        title: title of the figure, of one or more lines.
        rows: labels of the rows; None: no labels.
        columns: labels of the columns; None: no labels.
    """
    # Without labels, a column of values has at least two pixels.
    width = min(max(1.9, 0.02 * panels[0].values.shape[1]), MAX_SIDE) if columns is None else _side(len(columns))
    height = 1.9 if rows is None else _side(len(rows))
    left, bottom = (
        LINE + (0.35 if labels is None else LETTER * max(map(_letters, labels)) + 0.2) for labels in (rows, columns)
    )
    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    step = width + GAP + (BAR if rows is None else 0)
    lines = title.split("\n")
    top = TITLE + LINE * (len(lines) - 1)
    total_width = max(left + across * step + (0 if rows is None else BAR), LETTER * 1.4 * max(map(len, lines)))
    total_height = top + down * (TITLE + height) + bottom
    figure = Figure(figsize=(total_width, total_height), dpi=100)
    figure.text(0.1 / total_width, 1 - 0.05 / total_height, title, fontsize=9, va="top")

    def add_axes(x: float, y: float, axes_width: float) -> Axes:
        return figure.add_axes((x / total_width, y / total_height, axes_width / total_width, height / total_height))

    for i, (name, values, row_name, column_name) in enumerate(panels):
        row, column = divmod(i, across)
        x, y = left + column * step, total_height - top - row * (TITLE + height) - TITLE - height
        axes = add_axes(x, y, width)
        magnitude = np.nanmax(np.abs(values)) if rows is None and not np.isnan(values).all() else 1.0
        image = axes.imshow(
            values,
            cmap="RdBu_r" if rows is None else "viridis",
            vmin=-magnitude if rows is None else 0,
            vmax=magnitude,
            aspect="auto",
            interpolation="nearest",
        )
        axes.set_title(name, fontsize=TEXT, pad=2)
        axes.tick_params(length=2, pad=1, labelsize=TEXT)
        if rows is None or i == across - 1:
            bar = figure.colorbar(image, cax=add_axes(x + width + 0.05, y, 0.08), ticks=MaxNLocator(4))
            bar.ax.tick_params(length=2, pad=1, labelsize=TEXT)
        # Drawing text takes most of the time, so each row or column of panels is labelled only once.
        for axis, labels, side, is_outer, rotation, axis_name in (
            (axes.yaxis, rows, height, column == 0, 0, row_name),
            (axes.xaxis, columns, width, i + across >= len(panels), 90, column_name),
        ):
            if not is_outer:
                axis.set_ticks([])
                continue
            axis.set_label_text(axis_name, fontsize=TEXT)
            axis.labelpad = 1
            if labels is not None:
                ticks = range(0, len(labels), math.ceil(MIN_STEP * len(labels) / side))
                texts = [_shortened(labels[i]) for i in ticks]
                axis.set_ticks(ticks, texts, fontfamily=_fonts(), rotation=rotation, parse_math=False)
    return figure


def pixels(figure: Figure) -> np.ndarray:
    """Return a figure as an image of bytes (height, width, 3)."""
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        canvas.draw()
    for warning in caught_warnings:
        if re.match(r"Glyph .* missing from", str(warning.message)):
            say_once(
                "figures: some characters are in no installed font and are drawn as boxes; "
                "fonts-noto-cjk, for example, has Chinese, Japanese and Korean"
            )
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])


@cache
def say_once(line: str) -> None:
    """Print a message once in this process."""
    logging.getLogger("diglot").info(line)


@cache
def _fonts() -> list[str]:
    installed = set(fontManager.get_font_names())
    return ["DejaVu Sans", *(font for font in MORE_FONTS if font in installed)]


def _side(n_cells: int) -> float:
    return min(max(n_cells * CELL, MIN_SIDE), MAX_SIDE)


def _letters(label: str) -> int:
    """Return the width of a label in characters; a wide one, such as a Chinese character, counts twice."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in _shortened(label))


def _shortened(label: str) -> str:
    return label if len(label) <= MAX_LABEL_LENGTH else label[: MAX_LABEL_LENGTH - 1] + "…"
