"""The chart of a sweep's comparison is the same for the same jobs, and readable for many and long overrides."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from diglot.evaluation.repeated import Difference, Mean
from diglot.sweeps.chart import picture
from diglot.sweeps.comparison import Comparison
from diglot.sweeps.judgement import Judgement
from support.jobs import make_job


def compared(folder: Path, n_rows: int, length: int, scale: float = 1.0) -> Comparison:
    """Return a comparison of rows with overrides of about a number of letters."""
    jobs = []
    words = "model.n_encoder_layers=2 scheduler.lr=0.001 $x " * 9
    for number in range(1, n_rows + 1):
        override = f"{words[:length]}model.n_heads={number}"
        jobs.append(make_job(folder, number, override, 1, {"bleu": scale * (1 + number % 5)}))
    means = {job.number: Mean(0.0, None, 2.0) for job in jobs}
    p_values = (0.001, 0.2)
    differences = {
        number: Difference((-1) ** number, 0.1, 0.2, 0.3, 0.1, 0.1, p_values[number % 3 == 0])
        for number in range(2, n_rows + 1)
    }
    return Comparison(jobs, Judgement(1, "bleu", True, 1000, means, differences))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Return the list of all figures that are saved, with everything placed for their own resolution."""
    figures: list[Figure] = []

    def keep(self: Figure, *args: Any, **options: Any) -> None:
        self.draw_without_rendering()
        figures.append(self)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


@pytest.mark.parametrize(("n_rows", "length"), [(4, 0), (12, 200)])
def test_no_label_overprints_another_one(tmp_path: Path, drawn: list[Figure], n_rows: int, length: int) -> None:
    picture(compared(tmp_path, n_rows, length))
    (figure,) = drawn
    (panel,) = figure.axes
    boxes = [label.get_window_extent() for label in panel.get_yticklabels()]
    assert len(boxes) == n_rows
    whole = figure.bbox
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.y1 <= whole.y1 for box in boxes)
    assert not [1 for above, below in pairwise(boxes) if above.y0 < below.y1]
    assert not [1 for box in boxes if box.overlaps(panel.get_window_extent())]


def test_the_axis_is_not_below_zero_unless_scores_are(tmp_path: Path, drawn: list[Figure]) -> None:
    picture(compared(tmp_path / "a", 4, 0))
    picture(compared(tmp_path / "b", 4, 0, scale=-1.0))
    assert [figure.axes[0].get_xlim()[0] >= 0 for figure in drawn] == [True, False]


def test_the_same_jobs_give_the_same_bytes_whatever_the_users_style(tmp_path: Path) -> None:
    comparison = compared(tmp_path, 4, 40)
    first = picture(comparison)
    with mpl.rc_context({"font.size": 20, "axes.facecolor": "red"}):
        assert picture(comparison) == first
    assert first.startswith(b"\x89PNG")
