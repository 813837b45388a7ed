"""Which configurations of a sweep differ from the baseline, by significance tests of the jobs' dev outputs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from diglot.config import build_corpus, monitored, read_composed
from diglot.data.held_out import metric_of
from diglot.data.text import read_lines
from diglot.errors import UserError
from diglot.evaluation.evaluate import EvaluationSet, read_evaluation_set
from diglot.evaluation.repeated import Difference, Mean, Systems
from diglot.evaluation.scorer import Scorer
from diglot.evaluation.scorer import label as metric_label
from diglot.evaluation.significance import MIN_SENTENCES
from diglot.runs.folder import dev_outputs
from diglot.runs.scoring import build_scorer
from diglot.sweeps.configuration import Configuration
from diglot.sweeps.job import Job

Finding = Literal["baseline", "better", "worse", "no difference found", ""]


@dataclass
class Judgement:
    """What the tests found.

    Attributes:
        baseline: the number of the configuration that the others are compared with; None: there is none.
        metric: name of the metric that is compared; None: nothing is compared.
        higher_is_better: whether a higher value of it is better.
        n_sentences: the number of dev sentences.
        means: mean scores by number of the configuration.
        differences: differences from the baseline by number of the configuration.
        notes: why something was not compared, one line each.
    """

    baseline: int | None = None
    metric: str | None = None
    higher_is_better: bool = True
    n_sentences: int = 0
    means: dict[int, Mean] = field(default_factory=dict)
    differences: dict[int, Difference] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def finding(self, number: int) -> Finding:
        """Return what was found for a configuration; empty if it was not compared."""
        if number == self.baseline and self.metric is not None:
            return "baseline"
        if number not in self.differences:
            return ""
        found = self.differences[number]
        if not found.is_found:
            return "no difference found"
        return "better" if (found.value > 0) == self.higher_is_better else "worse"


class Outputs(NamedTuple):
    """The dev outputs of a job's best checkpoint, with statistics of the compared metric: a row per sentence."""

    lines: list[str]
    statistics: np.ndarray
    evaluated: EvaluationSet
    scorer: Scorer
    metric: str

    @property
    def measure(self) -> tuple[str, str]:
        """The metric with its settings. Only values with the same settings can be compared."""
        return self.metric, self.scorer.metrics[self.metric].signature(1)


def judge(rows: Sequence[Configuration], baseline: int | None, objective: str) -> Judgement:
    """Compare all configurations with a baseline.

    Args:
        rows: the configurations.
        baseline: the number of one of the baseline's jobs; None: the first configuration is the baseline.
        objective: the sweep's objective. If it is no metric of texts, such as dev/loss, the metric that `run.monitor`
            names is compared.
    """
    first = next((row for row in rows if baseline is None or baseline in (job.number for job in row.jobs)), None)
    if first is None:
        return Judgement(notes=[f"not compared: sweep.baseline={baseline}: there is no job {baseline}"] if rows else [])
    judgement = Judgement(first.number)
    outputs = _outputs_of(rows, objective, judgement.notes)
    if first.number not in outputs:
        judgement.notes.append(f"not compared: there are no dev outputs of the baseline ({first.name})")
        return judgement
    _, statistics, _, scorer, metric = outputs[first.number][0]
    judgement.n_sentences = len(statistics)
    if judgement.n_sentences < MIN_SENTENCES:
        judgement.notes.append(
            f"not compared: dev has {judgement.n_sentences} sentences; at least {MIN_SENTENCES} are needed to resample"
        )
        return judgement
    judgement.metric, judgement.higher_is_better = metric, scorer.metrics[metric].higher_is_better
    systems = _systems(rows, outputs, outputs[first.number][0], judgement.notes)
    numbers = list(systems)
    compared = Systems(list(systems.values()), lambda sums: scorer.value(metric, sums))
    others = [i for i, number in enumerate(numbers) if number != first.number]
    judgement.means = {number: compared.mean(i) for i, number in enumerate(numbers)}
    if first.number in systems:
        found = compared.differences(numbers.index(first.number), others)
        judgement.differences = {numbers[i]: each for i, each in zip(others, found, strict=True)}
    return judgement


def _outputs_of(rows: Sequence[Configuration], objective: str, notes: list[str]) -> dict[int, list[Outputs]]:
    """Return the dev outputs of each configuration's jobs, and note which jobs have none."""
    outputs: dict[int, list[Outputs]] = {}
    without: list[Job] = []
    for row in rows:
        for job in row.finished:
            try:
                found = read_outputs(job, objective)
            except UserError as error:
                notes.append(f"job {job.number} is not compared: {error}")
                continue
            if found is None:
                without.append(job)
            else:
                outputs.setdefault(row.number, []).append(found)
    if without:
        some = f"job{'s' if len(without) > 1 else ''} {', '.join(str(job.number) for job in without)}"
        notes.append(f"{some} not compared: the folders contain no dev outputs of best.ckpt (of an earlier version?)")
    return outputs


def read_outputs(job: Job, objective: str) -> Outputs | None:
    """Return the dev outputs of a job's best checkpoint; None if its folder does not contain them.

    Raises:
        UserError: they are damaged, or they do not have the score that the job has recorded.
    """
    config = read_composed(job.folder)
    if config is None:
        return None
    corpus = build_corpus(config.data)
    evaluated = read_evaluation_set(job.folder / "text", "dev", corpus.src_lang, corpus.tgt_lang)
    path = dev_outputs(job.folder, corpus.tgt_lang).best
    if evaluated is None or not path.is_file():
        return None
    scorer = build_scorer(config, corpus.tgt_lang, evaluated.pairs.reference_lines)
    name = objective.removeprefix("dev/")
    metric = name if name in scorer.metrics else metric_of(monitored(config))
    lines = read_lines(path)
    if len(lines) != len(evaluated.pairs):
        raise UserError(f"{path} has {len(lines)} lines, but dev has {len(evaluated.pairs)} sentences")
    statistics = scorer.statistics(metric, lines, evaluated.pairs.references)
    recorded, score = job.value(metric), scorer.value(metric, statistics.sum(axis=0))
    if recorded is not None and abs(score - recorded) > 1e-6:
        told = f"{path} has {metric_label(metric)} {score:.2f}, but results.json has {recorded:.2f}"
        raise UserError(f"{told}; the outputs are not those of best.ckpt")
    return Outputs(lines, statistics, evaluated, scorer, metric)


def _systems(
    rows: Sequence[Configuration], outputs: dict[int, list[Outputs]], baseline: Outputs, notes: list[str]
) -> dict[int, list[np.ndarray]]:
    """Return the sentences' statistics of each configuration's jobs, and note which ones cannot be compared."""
    systems: dict[int, list[np.ndarray]] = {}
    for row in rows:
        found = outputs.get(row.number, [])
        if any(each.evaluated.pairs.references != baseline.evaluated.pairs.references for each in found):
            notes.append(f"{row.name} not compared: the dev text is not that of the baseline")
        elif any(each.measure != baseline.measure for each in found):
            notes.append(f"{row.name} not compared: the metric or its settings are not those of the baseline")
        elif found:
            systems[row.number] = [each.statistics for each in found]
    return systems
