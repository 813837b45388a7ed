"""What a job's folder contains is read once, and again after a file has changed."""

import os
from pathlib import Path

import pytest

from diglot.sweeps import job_files
from diglot.sweeps.job_files import config_of, curves_of, scored_outputs_of
from support.jobs import REFERENCES, keep_outputs, make_job, outputs

N = len(REFERENCES)


def test_files_are_read_again_only_after_a_change(
    tmp_path: Path, compose_train, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(tmp_path, 1, "a=1", 1, {"accuracy": 100 * 10 / N})
    config = compose_train("data=sample", "metric=[accuracy,cer]")
    keep_outputs(job, config, outputs(10))
    (job.folder / "metrics.csv").write_text("step,dev/accuracy\n1,2.0\n")
    first = (config_of(job), curves_of(job), scored_outputs_of(job, "dev/accuracy"))
    assert first[0] is not None
    assert first[0]["seed"] == 1
    assert first[1] is not None
    assert first[2] is not None
    assert first[2].scores.sum() == 100 * 10
    assert all(a is b for a, b in zip(first, (config_of(job), curves_of(job), scored_outputs_of(job, "dev/accuracy"))))

    (job.folder / "metrics.csv").write_text("step,dev/accuracy\n1,3.0\n")
    os.utime(job.folder / "metrics.csv", (1, 1))
    curves = curves_of(job)
    assert curves is not None
    assert curves.values == {"accuracy": [3.0]}
    keep_outputs(job, config, outputs(10, first=5))
    for file in (job.folder / "text").iterdir():
        os.utime(file, (1, 1))
    scored = scored_outputs_of(job, "dev/accuracy")
    assert scored is not None
    assert scored.outputs.lines == outputs(10, first=5)

    keep_outputs(job, config, outputs(11))  # not the outputs that results.json has the score of
    assert scored_outputs_of(job, "dev/accuracy") is None
    (job.folder / "composed.yaml").write_text("a: [")
    assert config_of(job) is None
    monkeypatch.setattr(job_files, "read_outputs", lambda *_: pytest.fail("a job without results has none"))
    assert scored_outputs_of(make_job(tmp_path, 2, "a=2"), "dev/accuracy") is None
