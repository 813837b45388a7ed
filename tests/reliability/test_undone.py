"""Mutation tests of the reliability tests: with a mechanism disabled, they must find a fault."""

import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import lives
import mutations
import pytest
from flips import GOLDEN, OLD_GOLDEN, flips
from lives import SMALL, Fault, Whole

from diglot.checkpoint import container, format1

pytestmark = pytest.mark.reliability

WORDS = ["run.validate_every=7", "data.batches_per_update=3", "run.passes=null", "run.updates=20", "logger=tensorboard"]
KILLED = Fault(signal.SIGKILL, update=17)  # between two validations, so that three updates after a checkpoint are lost
IN_ACCUMULATION = Fault(signal.SIGTERM, update=16, within="accumulation")
# In the middle of writing the second checkpoint, after the first validation
IN_THE_SECOND = Fault(signal.SIGKILL, operation=0, update=2, within="save")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("text")
    return lives.whole([*lives.write_text(folder), *SMALL, *WORDS], folder / "whole")


@pytest.mark.parametrize(
    ("change", "fault", "found"),
    [
        # With so few batches left, Lightning takes each for the last one, and updates in the middle of accumulation.
        (mutations.the_stream_begins_anew, KILLED, "stands twice"),
        (mutations.the_stream_stands_one_batch_off, KILLED, "micro-batch"),
        (mutations.dropout_goes_its_own_way, KILLED, "micro-batch"),
        (mutations.the_moments_are_forgotten, KILLED, "micro-batch"),
        (mutations.the_schedule_begins_anew, KILLED, "micro-batch"),
        (mutations.signals_are_saved_within_an_update, IN_ACCUMULATION, "stands twice"),
        (
            mutations.validations_that_were_cut_short_are_left_out,
            Fault(signal.SIGTERM, update=14, within="validation"),
            "curve dev/bleu",
        ),
        (mutations.validations_are_logged_twice, IN_THE_SECOND, "stands twice"),
        (mutations.results_come_first, Fault(signal.SIGKILL, update=0, within="end"), "results.json"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_run_without_it_is_another_one(
    tmp_path: Path, reference: Whole, change: Callable[[], None], fault: Fault, found: str
) -> None:
    # With the mechanism enabled, nothing is found.
    assert lives.told(reference, tmp_path / "with", [fault]).differences == []
    story = lives.told(reference, tmp_path / "without", [fault], change)
    assert [line for line in story.differences if found in line], story.differences


def test_without_its_state_the_best_checkpoint_is_another_one(tmp_path: Path) -> None:
    words = [*lives.write_text(tmp_path), *SMALL, *WORDS, "scheduler.lr=1e-30"]  # the scores never improve
    reference = lives.whole(words, tmp_path / "whole")
    assert lives.told(reference, tmp_path / "with", [KILLED]).differences == []
    story = lives.told(reference, tmp_path / "without", [KILLED], mutations.the_best_is_forgotten)
    assert [line for line in story.differences if "best.ckpt" in line], story.differences


def test_without_whole_files_some_are_torn(tmp_path: Path) -> None:
    assert lives.kill_savers(tmp_path, 40, 1, None, mutations.checkpoints_are_written_where_they_stand)


def test_without_checksums_a_wrong_bit_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [sum(flips(50, 1, file).values()) for file in (GOLDEN, OLD_GOLDEN)] == [50, 50]
    monkeypatch.setattr(format1, "check", lambda file: 10**9)
    monkeypatch.setattr(container, "hashlib", SimpleNamespace(sha256=AnySum))
    for file in (GOLDEN, OLD_GOLDEN):
        with pytest.raises(AssertionError, match="loaded as something else"):
            flips(50, 1, file)


class AnySum:
    """Fake hash whose digest equals every other digest."""

    def __init__(self, content: object = None) -> None:
        pass

    def update(self, content: object) -> None:
        pass

    def hexdigest(self) -> object:
        return mock.ANY


def test_without_handlers_a_signal_loses_updates(tmp_path: Path, reference: Whole) -> None:
    fault = Fault(signal.SIGUSR1, update=3)
    statuses = []
    for name, change in (("with", None), ("without", mutations.signals_are_not_heeded)):
        (tmp_path / name).mkdir()
        statuses.append(lives.run([*reference.words, "run.folder=run"], tmp_path / name, fault, change).status)
    assert statuses == [75, 128 + signal.SIGUSR1]


def test_without_a_look_at_gradients_what_is_no_number_is_kept(tmp_path: Path, reference: Whole) -> None:
    words = [*reference.words, "run.folder=run", "scheduler.lr=1e30", "trainer.precision=32-true"]
    finite = []
    for name, change in (("with", None), ("without", mutations.what_is_not_finite_is_trained_on)):
        (tmp_path / name).mkdir()
        life = lives.run(words, tmp_path / name, change=change)
        weights = [container.read(file)["state_dict"] for file in tmp_path.glob(f"{name}/run/*.ckpt")]
        finite.append((life.status == 76, all(w.isfinite().all() for state in weights for w in state.values())))
    assert finite == [(True, True), (False, False)]


def test_a_logger_that_is_not_forgiven_stops_training(tmp_path: Path, reference: Whole) -> None:
    statuses = []
    for change in (mutations.the_logger_fails, mutations.the_logger_fails_and_stops_training):
        folder = tmp_path / change.__name__
        folder.mkdir()
        statuses.append(lives.run([*reference.words, "run.folder=run"], folder, change=change).status)
    assert statuses[0] == 0
    assert statuses[1] != 0
