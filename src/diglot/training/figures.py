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
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

# Fonts for characters that matplotlib's own font lacks. Each character is taken from the first font that has it.
MORE_FONTS = (
    *("Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans JP", "Noto Sans SC", "Noto Sans KR", "Source Han Sans"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "IPAexGothic", "NanumGothic"),
    *("PingFang SC", "Hiragino Sans", "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic"),
    *("Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Sans Thai", "Arial Unicode MS"),
)
# All sizes are in inches, except LONGEST_LABEL.
CELL = 0.16  # height of a token's row and width of its column
LEAST_SIDE, MOST_SIDE = 0.9, 5.0  # shortest and longest side of a panel
LEAST_STEP = 0.12  # between two labels; if there are too many tokens, some have no label
GAP = 0.15
TITLE = 0.25
LETTER = 0.06  # width of a label's character
LONGEST_LABEL = 18  # characters


class Panel(NamedTuple):
    """One heat map: values (rows, columns), NaN where there is nothing to show."""

    title: str
    values: np.ndarray


def draw(
    panels: Sequence[Panel],
    title: str,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> Figure:
    """Draw heat maps of one size side by side, labelled at the outer edges.

    With labels, values are shares from 0 to 1, with one cell per label. Without labels, values may have both signs:
    colours range from minus to plus the largest magnitude, and the axes are numbered.
    """
    width, height = (2.2 if labels is None else _side(len(labels)) for labels in (columns, rows))
    left, bottom = (0.5 if labels is None else LETTER * max(map(_letters, labels)) + 0.2 for labels in (rows, columns))
    across = min(4, len(panels))
    down = -(-len(panels) // across)
    total_width = max(left + across * (width + GAP), LETTER * 1.4 * len(title))
    total_height = TITLE + down * (TITLE + height) + bottom
    figure = Figure(figsize=(total_width, total_height), dpi=100)
    figure.text(0.1 / total_width, 1 - 0.05 / total_height, title, fontsize=9, va="top")
    for i, (name, values) in enumerate(panels):
        row, column = divmod(i, across)
        x, y = left + column * (width + GAP), total_height - TITLE - row * (TITLE + height) - TITLE - height
        axes = figure.add_axes((x / total_width, y / total_height, width / total_width, height / total_height))
        most = np.nanmax(np.abs(values)) if rows is None and not np.isnan(values).all() else 1.0
        axes.imshow(
            values,
            cmap="RdBu_r" if rows is None else "viridis",
            vmin=-most if rows is None else 0,
            vmax=most,
            aspect="auto",
            interpolation="nearest",
        )
        axes.set_title(name, fontsize=7, pad=2)
        axes.tick_params(length=2, pad=1, labelsize=7)
        # Drawing text takes most of the time, so each row or column of panels is labelled only once.
        for axis, labels, side, is_outer, rotation in (
            (axes.yaxis, rows, height, column == 0, 0),
            (axes.xaxis, columns, width, i + across >= len(panels), 90),
        ):
            if not is_outer:
                axis.set_ticks([])
            elif labels is not None:
                ticks = range(0, len(labels), math.ceil(LEAST_STEP * len(labels) / side))
                texts = [_shortened(labels[i]) for i in ticks]
                axis.set_ticks(ticks, texts, fontfamily=_fonts(), rotation=rotation, parse_math=False)
    return figure


def pixels(figure: Figure) -> np.ndarray:
    """Return a figure as an image of bytes (height, width, 3)."""
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        canvas.draw()
    for warning in caught:
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
    logging.getLogger("diglot").info(line)


@cache
def _fonts() -> list[str]:
    installed = set(fontManager.get_font_names())
    return ["DejaVu Sans", *(font for font in MORE_FONTS if font in installed)]


def _side(n_cells: int) -> float:
    return min(max(n_cells * CELL, LEAST_SIDE), MOST_SIDE)


def _letters(label: str) -> int:
    """Return the width of a label in characters; a wide one, such as a Chinese character, counts twice."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in _shortened(label))


def _shortened(label: str) -> str:
    return label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…"
