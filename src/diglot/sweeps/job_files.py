"""What the folder of a finished or running job contains: its config, curves, and dev outputs.

A sweep writes its report after each job. So what was read is kept, until a file of the folder changes.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from omegaconf import OmegaConf

from diglot.config import read_composed
from diglot.errors import UserError
from diglot.evaluation.metrics import Chrf, Metric, statistics_of, value_of
from diglot.evaluation.scorer import label as metric_label
from diglot.runs.curves import Curves, read_curves
from diglot.sweeps.job import Job
from diglot.sweeps.judgement import Outputs, read_outputs

Stamp = tuple[tuple[str, int, int], ...]  # name, time and size of each file


class ScoredOutputs(NamedTuple):
    """The dev outputs of a job's best checkpoint, with a score for each sentence.

    Attributes:
        outputs: the outputs, with their text and their scorer.
        metric: name of the metric of the sentences' scores, such as chrF++.
        higher_is_better: whether a higher value of it is better.
        scores: its value for each sentence, rounded.
    """

    outputs: Outputs
    metric: str
    higher_is_better: bool
    scores: np.ndarray


def config_of(job: Job) -> dict[str, Any] | None:
    """Return the config of a job as plain data, with secrets as expressions; None if it cannot be read."""
    return _config(job.folder, _stamp(job.folder, "composed.yaml"))


def curves_of(job: Job) -> Curves | None:
    """Return the curves of a job; None if it has none yet, or they cannot be read."""
    return _curves(job.folder, _stamp(job.folder, "metrics.csv", "events.out.tfevents.*"))


def scored_outputs_of(job: Job, objective: str) -> ScoredOutputs | None:
    """Return the dev outputs of a finished job; None if there are none, or they cannot be scored."""
    stamp = _stamp(job.folder, "composed.yaml", "results.json", "text/dev*")
    return _scored_outputs(job.folder, stamp, objective) if job.results else None


def _stamp(folder: Path, *patterns: str) -> Stamp:
    files = sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)


@lru_cache(maxsize=1_000)
def _config(folder: Path, stamp: Stamp) -> dict[str, Any] | None:
    try:
        config = read_composed(folder)
    except UserError:
        return None
    plain: Any = None if config is None else OmegaConf.to_container(config, resolve=False)
    return plain


@lru_cache(maxsize=1_000)
def _curves(folder: Path, stamp: Stamp) -> Curves | None:
    return read_curves(folder)


@lru_cache(maxsize=100)
def _scored_outputs(folder: Path, stamp: Stamp, objective: str) -> ScoredOutputs | None:
    try:
        outputs = read_outputs(Job.read(folder), objective)
        if outputs is None:
            return None
        name, metric = _sentence_metric(outputs)
        rows = statistics_of(name, metric, outputs.lines, outputs.evaluated.pairs.references)
        scores = np.round([value_of(name, metric, row) for row in rows], 2)
    except UserError:  # the comparison names damaged outputs and metrics that fail
        return None
    return ScoredOutputs(outputs, metric_label(name), metric.higher_is_better, scores)


def _sentence_metric(outputs: Outputs) -> tuple[str, Metric]:
    """Return the metric of single sentences: the compared one, but chrF++ for BLEU.

    BLEU is 0 for each sentence without a matching sequence of four words.
    """
    if outputs.metric == "bleu":
        return "chrf", Chrf()
    return outputs.metric, outputs.scorer.metrics[outputs.metric]
