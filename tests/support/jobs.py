"""Folders of jobs of a sweep, as a sweep and its runs leave them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from diglot.config import write_composed
from diglot.data.text import ParallelText, write_lines
from diglot.evaluation.evaluate import EvaluationSet, write_evaluation_set
from diglot.runs.folder import dev_outputs
from diglot.sweeps.job import Job

REFERENCES = [f"reference {i}" for i in range(60)]


def make_job(
    folder: Path,
    number: int,
    override: str = "",
    seed: int = 1,
    best: Mapping[str, float] | None = None,
    status: str = "finished",
    **results: Any,
) -> Job:
    """Write the folder of a job, and return the job.

    Args:
        folder: the folder of the sweep.
        number: number of the job.
        override: the override that makes its configuration.
        seed: its seed.
        best: the scores of its best checkpoint; None: the job has no results.
        status: its status.
        results: further results.
    """
    path = folder / f"{number:02d}"
    path.mkdir(parents=True)
    overrides = tuple(filter(None, [override, f"seed={seed}"]))
    job = Job(path, number, overrides, overrides, f"{override} {seed}", override, status)
    job.write()
    if best is not None:
        content = {"finished": True, "best": best, "checkpoint": "best.ckpt", **results}
        (path / "results.json").write_text(json.dumps(content))
    return job


def keep_outputs(job: Job, config: DictConfig, lines: Sequence[str], references: Sequence[str] = REFERENCES) -> None:
    """Write the config, the dev text and the dev outputs of the best checkpoint into a job's folder.

    Args:
        job: the job.
        config: its config, with data=sample.
        lines: the outputs.
        references: the references.
    """
    write_composed(job.folder, config)
    pairs = ParallelText([f"source {i}" for i in range(len(references))], list(references))
    write_evaluation_set(job.folder / "text", EvaluationSet("few", "dev", pairs), "avi", "bol")
    write_lines(dev_outputs(job.folder, "bol").best, lines)


def outputs(n_correct: int, first: int = 0) -> list[str]:
    """Return outputs for `REFERENCES` of which a number are correct, from a given one on."""
    n = len(REFERENCES)
    correct = {(first + i) % n for i in range(n_correct)}
    return [line if i in correct else "something else" for i, line in enumerate(REFERENCES)]
