"""A job of a sweep records its validations, and ends after one if its rule says so."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diglot.data.text import ParallelText
from diglot.evaluation.scorer import Scorer
from diglot.evaluation.validation import read_validations
from diglot.training.early_end import EarlyEnd, EndedEarly, ValidationRecords

REFERENCES = ["a b c d e", "f g h i j", "k l m n o"]
OUTPUTS = ["a b c d e", "f g h i x", "k l m n o"]


def trainer(**changed: Any) -> Any:
    attributes = {"global_step": 4, "max_steps": 8, "should_stop": False, "sanity_checking": False}
    attributes |= {"fast_dev_run": False, "is_global_zero": True}
    attributes |= {"callback_metrics": {"dev/bleu": torch.tensor(50.0), "dev/loss": torch.tensor(2.0)}}
    strategy = SimpleNamespace(broadcast=lambda value: value)
    return SimpleNamespace(**attributes | changed, strategy=strategy)


def records(folder: Path, objective: str) -> ValidationRecords:
    dev = ParallelText(REFERENCES, REFERENCES)
    data = SimpleNamespace(held_out={"dev": dev})
    scores: Any = SimpleNamespace(scorer=Scorer("en", REFERENCES), translations=dict(enumerate(OUTPUTS)), data=data)
    return ValidationRecords(scores, objective, folder)


def test_a_validation_is_recorded_with_the_influence_of_each_sentence(tmp_path):
    records(tmp_path, "dev/bleu").on_validation_end(trainer(), None)
    (found,) = read_validations(tmp_path, "dev/bleu")
    assert (found.update, found.updates, found.value) == (4, 8, 50.0)
    assert found.measure
    assert found.influences[1] < 0 < found.influences[0]


def test_of_a_score_that_is_no_metric_of_texts_the_value_is_recorded(tmp_path):
    records(tmp_path, "dev/loss").on_validation_end(trainer(), None)
    (found,) = read_validations(tmp_path, "dev/loss")
    assert (found.value, found.measure, found.influences) == (2.0, "", ())


@pytest.mark.parametrize("changed", [{"sanity_checking": True}, {"fast_dev_run": True}, {"is_global_zero": False}])
def test_only_the_first_process_records_and_only_true_validations(tmp_path, changed):
    records(tmp_path, "dev/bleu").on_validation_end(trainer(**changed), None)
    assert not list(tmp_path.iterdir())


def test_a_rule_ends_the_job():
    with pytest.raises(EndedEarly, match="because"):
        EarlyEnd(lambda: "because").on_validation_end(trainer(), None)
    EarlyEnd(lambda: None).on_validation_end(trainer(), None)


@pytest.mark.parametrize(
    "changed", [{"sanity_checking": True}, {"fast_dev_run": True}, {"should_stop": True}, {"global_step": 8}]
)
def test_a_job_that_ends_anyway_is_not_ended_early(changed):
    EarlyEnd(lambda: "because").on_validation_end(trainer(**changed), None)


def test_all_processes_follow_the_first():
    other = trainer(is_global_zero=False)
    other.strategy.broadcast = lambda value: "because"
    with pytest.raises(EndedEarly):
        EarlyEnd(lambda: pytest.fail("only the first process asks")).on_validation_end(other, None)
