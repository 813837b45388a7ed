"""A loader worker that fails ends the run with one line, and the run resumes as if nothing had happened."""

import os
import signal
import time
from pathlib import Path

import pytest

from runs import TINY, Run, after_the_fault, is_whole, run, same_weights, text

pytestmark = [
    pytest.mark.reliability,
    pytest.mark.end_to_end,
    pytest.mark.promise(
        "If a loader worker dies, raises an error or hangs, the run ends within trainer.process_timeout, with one "
        "line, and can be resumed."
    ),
]

WORKER = ("+callbacks.worker._target_=faults.Worker", "data.n_workers=2", "run.updates=30", "run.validate_every=4")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder, *text(folder), *TINY, *WORKER, "trainer.process_timeout=60")
    assert list(folder.glob("worker.*")), "no worker was at work"
    return folder / "run"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("kill", "was killed by SIGKILL"),
        ("stop", "does not answer"),
        ("status", "failed with exit status 3"),
        pytest.param("exit", "ended too early", marks=pytest.mark.exhaustive),
        ("raise", "failed with ZeroDivisionError: injected"),
        pytest.param("hang", "does not answer", marks=pytest.mark.exhaustive),
        pytest.param("memory", "failed with torch.OutOfMemoryError: CUDA", marks=pytest.mark.exhaustive),
    ],
)
def test_it_ends_the_run_in_one_line_and_the_run_goes_on(tmp_path: Path, whole: Path, kind: str, said: str) -> None:
    words = (*text(tmp_path), *TINY, *WORKER, "trainer.process_timeout=6")
    begun = Run(tmp_path, *words, FAULT=f"{kind}:21")
    ended = begun.end()
    assert ended.code == 2, ended.said
    assert not ended.orphans
    assert after_the_fault(ended, tmp_path, begun) < 6 + 30  # trainer.process_timeout, and 30 s for a busy machine
    (line,) = ended.lines("diglot-train")
    assert f"one of the data.n_workers=2 processes {said}" in line
    assert "resume=run resumes the run. The last checkpoint is run/last.ckpt." in line
    assert "Traceback" not in ended.said
    assert is_whole(tmp_path / "run")
    words = tuple(word for word in words if not word.startswith("run.folder"))
    run(tmp_path, *words, "resume=run")
    assert same_weights(tmp_path / "run", whole)


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)])
def test_no_worker_outlives_its_run(tmp_path: Path, number: int) -> None:
    begun = Run(tmp_path, *text(tmp_path), *TINY, *WORKER[:2], "run.updates=1000000")
    deadline = time.monotonic() + 100
    while len(begun.processes()) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(1)
    os.kill(begun.process.pid, number)
    ended = begun.end(linger=15)
    assert ended.code == (-9 if number == signal.SIGKILL else 75), ended.said
    assert not ended.orphans
