"""Pictures with one value for each attention head: a heat map of layers and heads for each kind of attention."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

# Sizes in inches.
CELL = 0.42
LEFT, BAR, BOTTOM, TITLE, GAP = 0.55, 0.6, 0.45, 0.3, 0.3
NUMBERED = 160  # maps with more heads have no numbers in their cells


def draw_heads(
    maps: Mapping[str, np.ndarray],
    title: str,
    maximum: float | None = 1.0,
    marked: Mapping[str, np.ndarray] | None = None,
) -> Figure:
    """Draw a heat map of layers and heads for each kind of attention, one below the other.

    Args:
        maps: values by kind of attention (layers, heads), with NaN where there is no head.
        title: title of the figure, of one or more lines.
        maximum: value at the end of the colour scale; None: the greatest value.
        marked: boolean masks of heads to frame in red, by kind.
    """
    n_heads = max(values.shape[1] for values in maps.values())
    n_layers = [len(values) for values in maps.values()]
    greatest = max((float(np.nanmax(values)) for values in maps.values() if np.isfinite(values).any()), default=0.0)
    top = maximum if maximum is not None else max(greatest, 1e-9)
    lines = title.split("\n")
    width = max(LEFT + n_heads * CELL + BAR, 0.075 * max(map(len, lines)) + 0.2)
    height = TITLE + 0.16 * (len(lines) - 1) + sum(n * CELL + TITLE + GAP for n in n_layers) + BOTTOM - GAP
    figure = Figure(figsize=(width, height), dpi=100)
    figure.text(0.1 / width, 1 - 0.06 / height, title, fontsize=9, va="top")
    y = height - TITLE - 0.16 * (len(lines) - 1)
    for number, (kind, values) in enumerate(maps.items()):
        y -= TITLE + len(values) * CELL
        box = (LEFT, y, values.shape[1] * CELL, len(values) * CELL)
        axes = figure.add_axes((box[0] / width, box[1] / height, box[2] / width, box[3] / height))
        image = axes.imshow(values, cmap="viridis", vmin=0, vmax=top, aspect="auto", interpolation="nearest")
        axes.set_title(kind, fontsize=8, pad=3)
        axes.set_yticks(*_numbers(len(values)), fontsize=8)
        axes.set_xticks(*_numbers(values.shape[1]), fontsize=8)
        axes.tick_params(length=0, pad=2)
        axes.set_ylabel("layer", fontsize=8, labelpad=2)
        if number == len(maps) - 1:
            axes.set_xlabel("head", fontsize=8, labelpad=1)
        bar = figure.add_axes(((LEFT + box[2] + 0.08) / width, box[1] / height, 0.08 / width, box[3] / height))
        figure.colorbar(image, cax=bar).ax.tick_params(length=2, pad=1, labelsize=7)
        framed = None if marked is None else marked[kind]
        for (layer, head), value in np.ndenumerate(values):
            if framed is not None and framed[layer, head]:
                frame = Rectangle((head - 0.46, layer - 0.44), 0.92, 0.88, fill=False, edgecolor="red", linewidth=2)
                axes.add_patch(frame)
            if np.isfinite(value) and values.size <= NUMBERED:
                colour = "black" if value > 0.6 * top else "white"
                axes.text(head, layer, _short(value), color=colour, fontsize=7, ha="center", va="center")
        y -= GAP
    return figure


def _numbers(n: int) -> tuple[Sequence[int], list[str]]:
    """Return the ticks and labels of an axis that counts from 1, with at most 16 labels."""
    ticks = range(0, n, -(-n // 16))
    return ticks, [str(tick + 1) for tick in ticks]


def _short(value: float) -> str:
    """Return a value in at most four characters."""
    text = f"{value:.2f}" if value < 10 else f"{value:.0f}"
    return text.removeprefix("0") if text.startswith("0.") else text
