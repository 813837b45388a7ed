"""A signal that asks a run to end: a checkpoint follows within one update, and the exit status allows resuming."""

import re
import signal
from pathlib import Path

import lives
import pytest
from lives import SMALL, Fault, Whole

from diglot.checkpoint import container
from diglot.system.interruption import STOP_SIGNALS
from diglot.system.quoting import command_line

pytestmark = pytest.mark.reliability

# 12 updates of three micro-batches; validations after 5, 10 and 12
WORDS = ["run.passes=null", "run.updates=12", "run.validate_every=5", "data.batches_per_update=3"]
MOMENTS = [
    ("update", 3),
    ("update", 5),  # followed by a validation
    ("accumulation", 3),
    ("accumulation", 5),
    ("validation", 5),
    ("validation", 12),  # the last one
    ("end", 0),
]
# Each moment is tested with two of the signals, which are all handled alike.
CASES = [
    (number, *moment)
    for i, number in enumerate(STOP_SIGNALS)
    for j, moment in enumerate(MOMENTS)
    if moment[0] == "update" or (i + j) % 2 == 0
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("text")
    return lives.whole([*lives.write_text(folder), *SMALL, *WORDS], folder / "whole")


def last(folder: Path) -> int:
    return container.read(folder / "run" / "last.ckpt")["global_step"]


@pytest.mark.promise(
    "After SIGTERM, SIGINT, SIGUSR1 or SIGHUP, a run finishes its update, writes a checkpoint and exits with status 75"
)
@pytest.mark.parametrize(
    ("number", "within", "update"), CASES, ids=[f"{number.name}-{within}{update}" for number, within, update in CASES]
)
def test_a_signal_saves_the_run(
    tmp_path: Path, reference: Whole, number: signal.Signals, within: str, update: int
) -> None:
    folder = tmp_path / "it"
    folder.mkdir()
    words = [*reference.words, "run.folder=run"]
    life = lives.run(words, folder, Fault(number, update=update, within=within))
    assert life.status == 75, life.said
    assert (life.orphans, "Traceback" in life.said) == ([], False)
    done = {"update": update + 1, "accumulation": update + 1, "validation": update, "end": 12}[within]
    assert re.search(rf"Stopped by {number.name} at update {done}\. The last checkpoint is run/last\.ckpt\.", life.said)
    assert last(folder) == done
    life = lives.run([*reference.words, "resume=run"], folder)
    assert life.status == 0, life.said
    assert lives.differences(reference.left, lives.left(folder)) == []


@pytest.mark.promise("A second signal ends the process immediately, and no existing file is lost")
@pytest.mark.parametrize("within", ["update", "validation"])
def test_a_second_signal_ends_it_at_once(tmp_path: Path, reference: Whole, within: str) -> None:
    folder = tmp_path / "it"
    fault = Fault(signal.SIGTERM, update=5, within=within, again=0.0)
    story = lives.told(reference, folder, [fault])
    assert story.differences == []
    # During a validation, already the first signal may end the run.
    at_once = (128 + signal.SIGTERM, -signal.SIGTERM)
    assert story.lives[0].status in (at_once if within == "update" else (75, *at_once))


@pytest.mark.promise("If a signal arrives before there is anything to save, the run ends with a nonzero exit status")
@pytest.mark.parametrize("number", STOP_SIGNALS, ids=[number.name for number in STOP_SIGNALS])
def test_a_signal_before_training_ends_it(tmp_path: Path, reference: Whole, number: signal.Signals) -> None:
    for seconds in (0.05, 0.4):
        folder = tmp_path / str(seconds)
        folder.mkdir()
        fault = Fault(number, seconds, at_once=True)
        life = lives.run([*reference.words, "run.folder=run"], folder, fault)
        assert life.status in (75, 128 + number), life.said
        assert (life.orphans, "Traceback" in life.said) == ([], False)


@pytest.mark.promise("A signal at any time after the imports is reported, with the command to type next")
@pytest.mark.parametrize("number", STOP_SIGNALS, ids=[number.name for number in STOP_SIGNALS])
def test_a_signal_around_training_says_how_to_go_on(tmp_path: Path, reference: Whole, number: signal.Signals) -> None:
    folder, began = tmp_path / "it", [*reference.words, "run.folder=run"]
    folder.mkdir()

    def said(words: list[str], within: str, status: int, update: int = 0) -> str:
        life = lives.run(words, folder, Fault(number, update=update, within=within))
        assert (life.status, "Traceback" in life.said) == (status, False), life.said
        (line,) = [line for line in life.said.splitlines() if re.search("[Ss]topped by|interrupted", line)]
        return line

    name, goes_on = number.name, f"{resuming(reference.words)} resumes the run from its last checkpoint."
    line = f"Stopped by {name}. There is no checkpoint yet. {resuming(reference.words)} resumes the run from the start."
    assert said(began, "setup", 128 + number) == line
    resumed = [*reference.words, "resume=run"]
    assert said(resumed, "update", 75, update=3).startswith(f"Stopped by {name} at update 4. ")
    how = "interrupted" if number == signal.SIGINT else f"stopped by {name}"
    assert said(resumed, "preparation", 75) == f"diglot-train: {how}. {goes_on}"
    for within in ("setup", "teardown"):
        assert said(resumed, within, 75) == f"Stopped by {name}. {goes_on}"
    # A run that has just started loses nothing, and cannot be resumed.
    assert said([*reference.words, "run.folder=other"], "preparation", 128 + number) == f"diglot-train: {how}"
    assert lives.run(resumed, folder).status == 0
    assert lives.differences(reference.left, lives.left(folder)) == []


def resuming(words: list[str]) -> str:
    """Return the command line that resumes a run with these arguments."""
    return command_line("train", words, resume="run")
