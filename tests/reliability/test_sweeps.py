"""A failed job of a sweep is always reported, and the other jobs are trained."""

import csv
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from runs import FAULT, TINY, Run, text

pytestmark = [pytest.mark.reliability, pytest.mark.end_to_end]

JOBS = ("seed=1,2,3", "run.updates=3", "run.validate_every=2", "sweep.folder=all")
SWEEP = ("-m",)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "jobs.csv").open() as file:
        return list(csv.DictReader(file))


def begin(cwd: Path, *words: str, **environment: str) -> Run:
    kept = [word for word in (*text(cwd), *TINY) if not word.startswith("run.folder")]
    return Run(cwd, *SWEEP, *kept, *words, **environment)


@pytest.mark.promise(
    "If a job of a sweep fails in any way, the failure is reported and shown in the table, the other jobs run, and the"
    " exit status is 2."
)
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("memory", "failed with exit status 2: diglot-train: out of memory in a batch ("),
        ("exit", "ended without results"),
        pytest.param("raise", "failed with exit status 1: ", marks=pytest.mark.exhaustive),
        pytest.param("kill", "was killed by SIGKILL", marks=pytest.mark.exhaustive),
        pytest.param("SIGTERM", "", marks=pytest.mark.exhaustive),
    ],
)
def test_a_job_that_breaks_down(tmp_path: Path, kind: str, says: str) -> None:
    # Only the first job fails: a file marks that the fault has happened.
    begun = begin(tmp_path, *JOBS, FAULT, FAULT=f"{kind if kind.islower() else 'hang'}:0:1")
    if kind == "SIGTERM":
        deadline = time.monotonic() + 100
        while not (tmp_path / "broken").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        (record,) = (tmp_path / "all").glob("01*/job.json")
        job = json.loads(record.read_text())["process"]
        os.kill(job, signal.SIGTERM)
        # The hanging job does not react to the first signal; the second ends it at once.
        threading.Timer(2, os.kill, (job, signal.SIGTERM)).start()
    ended = begun.end(300)
    assert not ended.orphans, ended.said
    assert ended.code == 2, ended.said
    assert [row["status"] for row in rows(tmp_path / "all")] == ["failed", "finished", "finished"]
    (line,) = ended.lines("1 of 3 jobs failed: seed=1 ")
    assert says in line
    assert "01_seed-1/output.txt" in line
    # Repeating the command completes the sweep.
    again = begin(tmp_path, *JOBS, FAULT).end(300)
    assert again.code == 0, again.said
    assert [row["status"] for row in rows(tmp_path / "all")] == ["finished"] * 3


@pytest.mark.promise(
    "A sweep trains each job of several processes exactly once; a job whose process dies does not hide the others."
)
@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", ["none:0:never", "kill:1:2", "kill:0:2", "stop:1:2"])
def test_jobs_of_two_processes(tmp_path: Path, fault: str) -> None:
    two = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "trainer.process_timeout=30")
    begun = begin(tmp_path, *JOBS, *two, FAULT, FAULT=fault)
    ended = begun.end(400)
    assert not ended.orphans, ended.said
    broken = fault[0] != "n"
    assert ended.code == (2 if broken else 0), ended.said
    first = "failed" if broken else "finished"
    assert [row["status"] for row in rows(tmp_path / "all")] == [first, "finished", "finished"]
    for rank in (0, 1):
        updates = [json.loads(line)[0] for line in (tmp_path / f"updates.{rank}").read_text().splitlines()]
        whole = [1, 2, 3] * 2
        assert updates[-6:] == whole
        assert updates[:-6] == ([1, 2] if broken else [1, 2, 3])
