"""A run that is killed at any time and resumed gives the same results as an uninterrupted one."""

import json
import os
import random
import signal
from collections import Counter
from itertools import pairwise
from pathlib import Path

import lightning as L
import lives
import pytest
from lives import SMALL, Fault

from diglot.checkpoint import container
from diglot.training.checkpoint_writer import CheckpointWriter

pytestmark = pytest.mark.reliability

SEED = 20  # fixed here; `make soak` uses a random one
KINDS = 10
RUNS_OF_A_KIND = 3


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return lives.write_text(tmp_path_factory.mktemp("text"))


def batches(folder: Path) -> list[list]:
    """Return position, passes, pairs, loss and learning rate of each micro-batch once, in order."""
    lines = {line for line in (folder / "recorded.jsonl.0").read_text().splitlines() if "began" not in line}
    return sorted(map(json.loads, lines))


@pytest.mark.promise(
    "A run that is killed at any moment, any number of times, has the same result, bit for bit, as a run that was "
    "never killed"
)
@pytest.mark.parametrize("kind", range(SEED, SEED + KINDS))
def test_a_run_of_several_lives_is_the_run_of_one(tmp_path: Path, text: list[str], kind: int) -> None:
    draw = random.Random(kind)
    reference = lives.whole([*text, *SMALL, *lives.draw_words(draw)], tmp_path / "whole")
    for i in range(RUNS_OF_A_KIND):
        n = draw.randint(3, 7)
        faults = [lives.draw_fault(draw, reference.seconds, reference.n_operations) for _ in range(n)]
        story = lives.told(reference, tmp_path / str(i), faults)
        assert not story.differences, f"{kind}.{i}: {reference.words}\n{list(map(str, story.faults))}"


@pytest.mark.promise(
    "A run that is killed at any moment, any number of times, has the same result, bit for bit, as a run that was "
    "never killed"
)
def test_averaged_weights_are_as_exact_as_the_weights(tmp_path: Path, text: list[str]) -> None:
    words = [*text, *SMALL, "callbacks=[ema]", "trainer.precision=64-true", "run.validate_every=5", "run.passes=1"]
    reference = lives.whole(words, tmp_path / "whole")
    content = container.read(tmp_path / "whole" / "run" / "last.ckpt")
    dtypes = {value.dtype for name in ("state_dict", "current_model_state") for value in content[name].values()}
    assert dtypes == {lives.torch.float64}
    for update in (0, 6):  # updates without a validation
        story = lives.told(reference, tmp_path / str(update), [Fault(signal.SIGTERM, update=update)])
        assert story.differences == []


@pytest.mark.promise(
    "A run that is killed at any moment, any number of times, has the same result, bit for bit, as a run that was "
    "never killed"
)
@pytest.mark.parametrize("logger", ["csv", "tensorboard"])
def test_a_validation_that_is_killed_again_and_again_is_logged_once(
    tmp_path: Path, text: list[str], logger: str
) -> None:
    """Kill the run each time after the validation has been logged, while its checkpoint is being written."""
    reference = lives.whole([*text, *SMALL, f"logger={logger}", "run.validate_every=26"], tmp_path / "whole")
    story = lives.told(
        reference, tmp_path / "killed", 3 * [Fault(signal.SIGKILL, operation=0, update=2, within="save")]
    )
    assert [life.status for life in story.lives] == [*3 * [-signal.SIGKILL], 0]
    assert story.differences == []


@pytest.mark.promise(
    "A run that is killed at any moment, any number of times, has the same result, bit for bit, as a run that was "
    "never killed"
)
def test_validations_of_several_dev_sets_that_are_killed_are_made_again(tmp_path: Path, text: list[str]) -> None:
    src, tgt = (next(word.partition("=")[2] for word in text if f"data.test.{side}" in word) for side in ("src", "tgt"))
    further = f"data.further_dev={{old: {{src: {src}, tgt: {tgt}}}}}"
    words = [*text, *SMALL, further, "run.monitor=dev_old/chrf", "run.validate_every=9", "run.passes=1"]
    reference = lives.whole(words, tmp_path / "whole")
    results = json.loads((tmp_path / "whole" / "run" / "results.json").read_text())
    assert "dev_old/chrf" in results["best"]
    faults = [Fault(signal.SIGKILL, update=9, within="validation"), Fault(signal.SIGTERM, update=12)]
    story = lives.told(reference, tmp_path / "killed", faults)
    assert story.differences == []


def die_when_it_has_saved() -> None:
    save = CheckpointWriter.save

    def struck(self: CheckpointWriter, trainer: L.Trainer) -> None:
        save(self, trainer)
        if trainer.training:  # the checkpoint is not due to a validation
            os.kill(os.getpid(), signal.SIGKILL)

    CheckpointWriter.save = struck  # type: ignore[method-assign]


@pytest.mark.promise(
    "A run that is killed at any moment, any number of times, has the same result, bit for bit, as a run that was "
    "never killed"
)
@pytest.mark.parametrize("kind", ["logger=csv", "logger=tensorboard", "data.batches_per_update=3"])
def test_what_a_signal_saves_has_been_logged(tmp_path: Path, text: list[str], kind: str) -> None:
    words = [*text, *SMALL, "run.validate_every=9", kind]
    reference = lives.whole(words, tmp_path / "whole")
    folder = tmp_path / "killed"
    folder.mkdir()
    for update, more in ((4, "run.folder=run"), (6, "resume=run"), (12, "resume=run")):
        life = lives.run([*words, more], folder, Fault(signal.SIGTERM, update=update), die_when_it_has_saved)
        assert life.status == -signal.SIGKILL, life.said
        assert container.read(folder / "run" / "last.ckpt")["global_step"] == update + 1
    life = lives.run([*words, "resume=run"], folder)
    assert life.status == 0, life.said
    assert lives.differences(reference.left, lives.left(folder)) == []


@pytest.mark.promise("However often a run is interrupted, each pass contains every sentence pair exactly once")
def test_each_pass_holds_each_pair_once_wherever_it_is_cut(tmp_path: Path, text: list[str]) -> None:
    words = [*text, *SMALL, "run.passes=2", "run.validate_every=1", "data.batches_per_update=1"]
    reference = lives.whole(words, tmp_path / "whole")
    whole = batches(tmp_path / "whole")
    passes: dict[int, Counter[int]] = {}
    for _, seen, pairs, *_ in whole:
        # For the last batch of a pass, `seen` is a multiple of 10^9, so subtract 1.
        passes.setdefault((seen - 1) // 10**9, Counter()).update(pairs)
    assert len(passes) >= 2
    assert all(passes[n] == Counter(range(203)) for n in (0, 1))
    # One life per update of the pass, each killed as soon as the update's checkpoint exists.
    folder = tmp_path / "cut"
    folder.mkdir()
    n_updates = next(i for i, batch in enumerate(whole, start=1) if batch[1] >= 10**9)
    for update in range(1, n_updates + 2):
        more = ["run.folder=run"] if update == 1 else ["resume=run"]
        life = lives.run([*words, *more], folder, Fault(signal.SIGKILL, update=update))
        assert life.status == -signal.SIGKILL, life.said
    life = lives.run([*words, "resume=run"], folder)
    assert life.status == 0, life.said
    assert lives.differences(reference.left, lives.left(folder)) == []


@pytest.mark.promise("The last checkpoint is complete at every moment, and its number of updates never decreases")
@pytest.mark.parametrize("elsewhere", [False, True], ids=["", "TMPDIR elsewhere"])
def test_a_kill_while_checkpoints_are_written_leaves_a_whole_one(tmp_path: Path, elsewhere: bool) -> None:
    assert lives.kill_savers(tmp_path, 60, SEED, "/dev/shm" if elsewhere else None) == []


@pytest.mark.promise("A run makes the same updates with any number of loader workers")
def test_workers_change_nothing(tmp_path: Path, text: list[str]) -> None:
    words = [*text, *SMALL, "run.passes=1"]
    found = [lives.whole([*words, f"data.n_workers={n}"], tmp_path / str(n)).left for n in (0, 1, 3)]
    for a, b in pairwise(found):
        assert [line for line in lives.differences(a, b) if "n_workers" not in line] == []
