"""The curves of a run are read from either logger's files, and damaged files do no harm."""

from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from diglot.runs.curves import MAX_POINTS, read_curves

TABLE = """dev/bleu,dev/loss,speed/updates_per_second,step,train/loss
1.5,4.0,,100,
,,2.0,50,9.0
,,4.0,100,8.0
2.5,inf,,210,
"""


def test_metrics_csv_gives_the_dev_scores_and_the_training_time(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(TABLE)
    curves = read_curves(tmp_path)
    assert curves is not None
    assert curves.updates == [100, 210]
    assert curves.values == {"bleu": [1.5, 2.5], "loss": [4.0, None]}
    seconds = 50 / 2 + 50 / 4
    assert curves.minutes == pytest.approx([seconds / 60, (seconds + 110 / 4) / 60], abs=0.006)


def test_further_dev_sets_have_curves_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("dev/bleu,dev_old/bleu,heads/x,step\n1.5,7.0,1.0,100\n2.5,,1.0,200\n")
    curves = read_curves(tmp_path)
    assert curves is not None
    assert curves.values == {"bleu": [1.5, 2.5], "dev_old/bleu": [7.0, None]}


def test_event_files_give_the_same_without_what_a_resumed_run_replaced(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        for update, bleu in ((100, 1.5), (200, 9.0)):
            writer.add_scalar("dev/bleu", bleu, update)
            writer.add_scalar("speed/updates_per_second", 2.0, update)
            writer.add_scalar("train/loss", 2.0, update)
    with SummaryWriter(str(tmp_path), purge_step=150, filename_suffix=".later") as writer:
        writer.add_scalar("dev/bleu", 2.5, 210)
    curves = read_curves(tmp_path)
    assert curves is not None
    assert (curves.updates, curves.values) == ([100, 210], {"bleu": [1.5, 2.5]})
    assert curves.minutes == pytest.approx([100 / 2 / 60, 210 / 2 / 60], abs=0.006)


def test_without_dev_scores_or_with_damaged_files_there_are_no_curves(tmp_path: Path) -> None:
    assert read_curves(tmp_path) is None
    (tmp_path / "events.out.tfevents.1.x").write_bytes(b"\x18\0\0\0damaged" * 9)
    assert read_curves(tmp_path) is None
    (tmp_path / "metrics.csv").write_text("dev/bleu,step\nx,1\n")
    assert read_curves(tmp_path) is None
    (tmp_path / "metrics.csv").write_bytes(b"\xff\xfe\0")
    assert read_curves(tmp_path) is None
    (tmp_path / "metrics.csv").write_text("step,train/loss\n1,2.0\n")
    assert read_curves(tmp_path) is None


def test_long_curves_are_thinned_and_keep_their_ends(tmp_path: Path) -> None:
    rows = "".join(f"{update},{update}\n" for update in range(1, 10_001))
    (tmp_path / "metrics.csv").write_text(f"step,dev/bleu\n{rows}")
    curves = read_curves(tmp_path)
    assert curves is not None
    assert (len(curves.updates), curves.updates[0], curves.updates[-1]) == (MAX_POINTS, 1, 10_000)
    assert curves.minutes is None
    assert curves.values["bleu"] == [float(update) for update in curves.updates]
