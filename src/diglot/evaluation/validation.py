"""The records of a job's validations, with which a sweep compares its jobs while they train.

A record contains the score of the dev outputs and, for each sentence, its influence on the score. The influences are
those of the jackknife (Efron and Stein, 1981): the score changes by about the mean of w * influence if each sentence
counts 1 + w times. So the variance of a difference between two scores on the same sentences is the variance of the
mean difference of their influences, without resampling.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diglot.data.text import write_json
from diglot.errors import UserError
from diglot.evaluation.metrics import References, n_references
from diglot.evaluation.scorer import Scorer
from diglot.evaluation.significance import Value

FOLDER = "validations"  # of a job's folder
_DIGITS = 5  # significant digits of an influence, so that the files are small


@dataclass(frozen=True)
class Validation:
    """A validation of a job.

    Attributes:
        update: number of updates.
        updates: number of updates of the whole run.
        score: name of the objective, such as dev/bleu.
        value: its value.
        measure: hash of the references and the metric's settings; empty: the objective is no metric of texts.
        influences: the influence of each sentence on the value.
    """

    update: int
    updates: int
    score: str
    value: float
    measure: str = ""
    influences: tuple[float, ...] = ()

    def write(self, folder: Path) -> None:
        """Write the record into a job's folder."""
        write_json(folder / FOLDER / f"update_{self.update}.json", vars(self))


def read_validations(folder: Path, score: str) -> list[Validation]:
    """Return the validations of the job in a folder that have recorded a score, ordered by update.

    Raises:
        UserError: a record is damaged.
    """
    found = []
    for path in folder.glob(f"{FOLDER}/update_*.json"):
        try:
            record = json.loads(path.read_bytes())
            influences = tuple(map(float, record.pop("influences")))
            validation = Validation(**record, influences=influences)
            numbers: list[Any] = [validation.update, validation.updates, validation.value, *influences]
            if not np.isfinite(numbers).all():
                raise ValueError("a number is not finite")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"{path}: damaged ({error}); delete it, so that no job is compared with it") from None
        if validation.score == score:
            found.append(validation)
    return sorted(found, key=lambda each: each.update)


def measure(scorer: Scorer, name: str, references: References) -> str:
    """Return a hash of what two scores must share to be compared: the references and the metric's settings."""
    settings = [name, scorer.metrics[name].signature(n_references(references)), [list(each) for each in references]]
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]


def influences(statistics: np.ndarray, value: Value) -> tuple[float, ...]:
    """Return the influence of each sentence on a score; their mean is zero.

    Args:
        statistics: a row per sentence.
        value: function that returns the score for summed statistics.
    """
    n_sentences = len(statistics)
    sums = statistics.sum(axis=0)
    without = np.array([value(sums - row) for row in statistics]) if n_sentences > 1 else np.zeros(n_sentences)
    return tuple(float(f"{each:.{_DIGITS}g}") for each in (n_sentences - 1) * (without.mean() - without))


def variance_of_mean(influences: np.ndarray | Sequence[float]) -> float:
    """Return the variance of a score, or of a difference of scores, from its influences."""
    n_sentences = len(influences)
    return float(np.square(influences).sum()) / (n_sentences * (n_sentences - 1))
