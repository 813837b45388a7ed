"""Draw the README's picture of a run from its TensorBoard events: the dev BLEU curve beside an attention map.

.venv/bin/python docs/picture.py runs/NAME docs/run.png
"""

import io
import sys

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def main(run: str, output: str) -> None:
    events = EventAccumulator(run, size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    bleu = events.Scalars("1_dev/bleu")
    tag = next(tag for tag in events.Tags()["images"] if tag.startswith("attention/cross"))
    newest = events.Images(tag)[-1]
    attention = Image.open(io.BytesIO(newest.encoded_image_string))

    height = attention.height / 100
    figure = Figure(figsize=(4.2 + attention.width / 100, height), dpi=100)
    canvas = FigureCanvasAgg(figure)
    width = figure.get_figwidth()
    curve = figure.add_axes((0.55 / width, 0.5 / height, 3.3 / width, 1 - 0.8 / height))
    curve.plot([event.step for event in bleu], [event.value for event in bleu], marker="o")
    curve.set_xlabel("updates", fontsize=8)
    curve.set_title("dev/bleu", fontsize=9)
    curve.tick_params(labelsize=8)
    curve.grid(alpha=0.3)
    shown = figure.add_axes((4.2 / width, 0, attention.width / 100 / width, 1))
    shown.imshow(attention)
    shown.axis("off")
    canvas.print_png(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
