"""A record of a validation holds what two jobs are compared by: a score and the influence of each sentence on it."""

import numpy as np
import pytest

from diglot.errors import UserError
from diglot.evaluation.metrics import Accuracy
from diglot.evaluation.scorer import Scorer
from diglot.evaluation.validation import Validation, influences, measure, read_validations, variance_of_mean

REFERENCES = [f"the {i} small words of line {i % 7} are here" for i in range(200)]
OUTPUTS = [line if i % 3 else line.replace("small", "few") for i, line in enumerate(REFERENCES)]


def test_of_a_mean_the_influences_are_the_deviations_from_it():
    scores = np.random.default_rng(1).random(50)
    found = influences(np.c_[scores, np.ones(50)], lambda sums: float(sums[0] / sums[1]))
    assert np.allclose(found, scores - scores.mean(), atol=1e-4)


def test_the_variance_of_bleu_is_that_of_the_bootstrap():
    scorer = Scorer("en", REFERENCES)
    statistics = scorer.statistics("bleu", OUTPUTS, [REFERENCES])
    random = np.random.default_rng(1)
    draws = random.multinomial(len(OUTPUTS), np.full(len(OUTPUTS), 1 / len(OUTPUTS)), size=2000) @ statistics
    resampled = np.var([scorer.value("bleu", sums) for sums in draws])
    found = influences(statistics, lambda sums: scorer.value("bleu", sums))
    assert variance_of_mean(found) == pytest.approx(resampled, rel=0.15)


def test_a_record_is_read_back_in_the_order_of_updates(tmp_path):
    for update in (1000, 500):
        Validation(update, 2000, "dev/bleu", update / 100, "abc", (0.5, -0.5)).write(tmp_path)
    Validation(700, 2000, "dev/loss", 1.0).write(tmp_path)
    found = read_validations(tmp_path, "dev/bleu")
    assert [(each.update, each.value, each.influences) for each in found] == [
        (500, 5.0, (0.5, -0.5)), (1000, 10.0, (0.5, -0.5))
    ]  # fmt: skip
    assert read_validations(tmp_path / "none", "dev/bleu") == []


@pytest.mark.parametrize("content", ["{", "[]", '{"update": 1}', '{"influences": [1e999]}'])
def test_a_damaged_record_is_named(tmp_path, content):
    (tmp_path / "validations").mkdir()
    (tmp_path / "validations" / "update_5.json").write_text(content)
    with pytest.raises(UserError, match=r"validations/update_5\.json: damaged .*delete it"):
        read_validations(tmp_path, "dev/bleu")


def test_scores_of_other_references_or_settings_have_another_measure():
    one, other = (Scorer("en", REFERENCES, tokenizer) for tokenizer in ("13a", "intl"))
    first = measure(one, "bleu", [REFERENCES])
    assert first == measure(Scorer("en", REFERENCES, "13a"), "bleu", [list(REFERENCES)])
    assert first != measure(other, "bleu", [REFERENCES])
    assert first != measure(one, "bleu", [REFERENCES[1:]])
    assert first != measure(Scorer("en", REFERENCES, metrics={"accuracy": Accuracy()}), "accuracy", [REFERENCES])
