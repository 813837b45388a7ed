"""A command shows the jobs that another launcher runs, and does not start them a second time."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diglot.errors import UserError
from diglot.sweeps import elsewhere
from diglot.sweeps import job as one
from diglot.sweeps.elsewhere import Following
from diglot.sweeps.job import Job, is_running, run
from diglot.sweeps.sweep import Objective, Sweep

# A job that reports a validation, waits for the file `go`, and finishes.
SCRIPT = """
import json, sys, time
from pathlib import Path

folder = Path(sys.argv[1])
print("update 50 of 100, pass 1.0, 0:01: dev BLEU 12.30", flush=True)
(folder / "began").touch()
while not (folder / "go").exists():
    time.sleep(0.02)
print("a line of its log", flush=True)
best = {"bleu": 12.3, "chrf": 20.0, "loss": 1.5, "perplexity": 4.5, "update": 50}
(folder / "results.json").write_text(json.dumps({"finished": True, "best": best, "minutes": 0.1, "updates": 100}))
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Return the only job of a sweep in a folder `all`, that this process runs as a job of a SLURM cluster."""
    monkeypatch.setattr(one, "PATIENCE", 0.5)
    monkeypatch.setattr(elsewhere, "INTERVAL", 0.02)
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    folder = tmp_path / "all" / "01_seed-1"
    folder.mkdir(parents=True)
    made = Job(folder, 1, ("seed=1",), ("seed=1",), "hash", "configuration")
    made.write()
    return made


@pytest.fixture
def elsewhere_running(job: Job) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Return a function that lets another process run the job, as another launcher does."""
    processes = []
    code = (
        "import sys; from pathlib import Path; from diglot.sweeps.job import Job, run\n"
        "run(Job.read(Path(sys.argv[1])), [sys.executable, '-c', sys.argv[2], sys.argv[1]], is_shown=False)"
    )

    def begin() -> subprocess.Popen[bytes]:
        processes.append(subprocess.Popen([sys.executable, "-c", code, str(job.folder), SCRIPT]))
        wait_for(lambda: Job.read(job.folder).status == "running" and (job.folder / "began").exists())
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.wait()


def wait_for(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def the_sweep(job: Job) -> Sweep:
    return Sweep(job.folder.parent, Objective("dev/bleu"))


def test_starts_validations_and_ends_are_printed(
    job: Job, elsewhere_running: Callable, capsys: pytest.CaptureFixture
) -> None:
    printed: list[str] = []

    def said(line: str) -> bool:
        printed.extend(capsys.readouterr().out.splitlines())
        return any(each.startswith(line) for each in printed)

    with Following(the_sweep(job), is_slurm=True):
        process = elsewhere_running()
        wait_for(lambda: said("job 1 of 1: seed=1, SLURM job 7_0 on "))
        with (job.folder / "output.txt").open("ab") as log:
            log.write(b"update 100 of 100, pass 2.0, 0:02: dev BLEU 12.40\n")
        wait_for(lambda: said("job 1:  update 100 of 100, pass 2.0, 0:02: dev BLEU 12.40"))
        (job.folder / "go").touch()
        process.wait()
    assert said("job 1 of 1: dev BLEU 12.30")
    assert printed[0] == "1 job is submitted to SLURM; squeue lists it. Ctrl-C ends this command and not the job"
    assert not any("a line of its log" in line or "SLURM keeps" in line for line in printed)


def test_the_end_of_the_command_says_what_becomes_of_the_jobs(job: Job, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(KeyboardInterrupt), Following(the_sweep(job), is_slurm=True):
        raise KeyboardInterrupt
    assert "SLURM keeps the jobs" in capsys.readouterr().out.splitlines()[-1]
    with pytest.raises(KeyboardInterrupt), Following(the_sweep(job)):
        raise KeyboardInterrupt
    assert capsys.readouterr().out == ""


def test_a_job_that_runs_is_not_started_again(job: Job, elsewhere_running: Callable) -> None:
    process = elsewhere_running()
    with pytest.raises(UserError, match=r"^job 1, seed=1, is running: SLURM job 7_0 on \S+; .*\(scancel 7_0\)"):
        the_sweep(job).refuse_running()
    before = (job.folder / "job.json").read_bytes()
    with pytest.raises(UserError, match="01_seed-1: another process runs this job: SLURM job 7_0 on"):
        run(Job.read(job.folder), [sys.executable, "-c", ""])
    assert (job.folder / "job.json").read_bytes() == before
    (job.folder / "go").touch()
    assert process.wait(120) == 0
    assert Job.read(job.folder).status == "finished"


def test_a_job_whose_process_was_killed_is_interrupted(job: Job, elsewhere_running: Callable) -> None:
    process = elsewhere_running()
    assert is_running(job.folder)
    process.kill()
    process.wait()
    the_sweep(job).refuse_running()
    assert Job.read(job.folder).status == "interrupted"


def test_a_record_of_an_earlier_version_has_no_place(job: Job) -> None:
    record = json.loads((job.folder / "job.json").read_text())
    del record["place"]
    (job.folder / "job.json").write_text(json.dumps(record))
    assert Job.read(job.folder).place == ""
