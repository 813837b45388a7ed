"""A run resumes exactly from checkpoints of either format, with any callbacks and precision."""

import signal
from pathlib import Path

import lives
import pytest
from lives import SMALL, Fault

from diglot.checkpoint import conversion
from diglot.checkpoint import file as checkpoint
from support.made import write_old_checkpoint

pytestmark = pytest.mark.reliability

SHORT = ["run.passes=null", "run.updates=10", "run.validate_every=3", "run.keep_best=2", "run.keep_last=2"]
OWN = "+callbacks.own._target_=faults.Stateful"
STOPPING = [
    "callbacks=[early_stopping]",
    "callbacks.early_stopping.patience=1",
    "callbacks.early_stopping.min_delta=99",
]
CASES = {
    **{
        precision: [f"trainer.precision={precision}"] for precision in ("32-true", "64-true", "bf16-mixed", "bf16-true")
    },
    "average": ["callbacks=[ema]"],
    "early stopping": [*STOPPING, "run.validate_every=5"],  # stops at update 10, by its state from update 5
    "own": [OWN],
    "all": ["callbacks=[ema,early_stopping]", OWN, "trainer.precision=64-true"],
    "workers": ["data.n_workers=2", "data.batches_per_update=3"],
}


@pytest.mark.promise("A run resumes bit for bit from a checkpoint of either format, with any callbacks and precision")
@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_a_run_goes_on_from_either_format(tmp_path: Path, words: list[str]) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    words = [*lives.write_text(corpus), *SMALL, *SHORT, *words]
    whole = lives.whole(words, tmp_path / "whole")
    for is_old in (False, True):
        folder = tmp_path / ("old" if is_old else "new")
        folder.mkdir()
        died = lives.run([*words, "run.folder=run"], folder, Fault(signal.SIGKILL, update=8))
        assert died.status == -signal.SIGKILL, died.said
        for file in (folder / "run").glob("*.ckpt") if is_old else ():
            write_old_checkpoint(file, checkpoint.read(file))
        life = lives.run([*words, "resume=run"], folder, None)
        assert life.status == 0, life.said
        assert ("is in the old format 1" in life.said) == is_old
        for file in (folder / "run").glob("*.ckpt"):  # converts those that the resumed run did not rewrite
            conversion.convert([file])
        assert lives.differences(whole.left, lives.left(folder)) == []
