"""Reading logged metrics back."""

from contextlib import closing, nullcontext

import pytest
from torch.utils.tensorboard import SummaryWriter

from diglot.errors import UserError
from diglot.training.event_file import EventWriter
from diglot.training.logged import all_logged, logged


def test_metrics_are_read_from_the_table_or_from_the_events(tmp_path) -> None:
    assert logged(tmp_path, "dev/loss") == {}
    with SummaryWriter(str(tmp_path)) as writer:
        for step in (1, 2):
            writer.add_scalar("dev/loss", 0.1 * step, step)
    assert logged(tmp_path, "dev/loss") == pytest.approx({1: 0.1, 2: 0.2}, rel=1e-6)
    assert logged(tmp_path, "dev/bleu") == {}
    table = "step,dev/loss,train/loss\n4,0.4,\n3,0.30000000000000004,\n3,,1.5\n"
    (tmp_path / "metrics.csv").write_text(table)
    found = logged(tmp_path, "dev/loss")
    assert (found, list(found)) == ({3: 0.30000000000000004, 4: 0.4}, [3, 4])


def test_tags_of_diglots_own_logger_and_of_earlier_versions_are_read_alike(tmp_path) -> None:
    with SummaryWriter(str(tmp_path), filename_suffix=".earlier") as earlier:
        for step in (1, 2):
            earlier.add_scalar("dev/loss", float(step), step)
            earlier.add_scalar("other/loss", 7.0, step)
    with closing(EventWriter(str(tmp_path), nullcontext, filename_suffix=".now")) as now:
        for step in (2, 3):
            now.add_scalar("dev/loss", 10.0 * step, step)
            now.add_scalar("heads/entropy", 8.0, step)
    assert logged(tmp_path, "dev/loss") == {1: 1.0, 2: 20.0, 3: 30.0}
    assert sorted(all_logged(tmp_path)) == ["dev/loss", "heads/entropy", "other/loss"]


def test_a_damaged_table_is_named(tmp_path) -> None:
    (tmp_path / "metrics.csv").write_text("step,dev/loss\n4,much\n")
    with pytest.raises(UserError, match="its logged metrics cannot be read"):
        logged(tmp_path, "dev/loss")
