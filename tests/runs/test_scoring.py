"""A config's metrics are built and tried, the monitored one first."""

import pytest
from omegaconf import OmegaConf

from diglot.errors import UserError
from diglot.runs.scoring import build_metrics, build_scorer

MODULE = "diglot.evaluation.metrics"
NODES = {"accuracy": {"_target_": f"{MODULE}.Accuracy"}, "off": None, "ter": {"_target_": f"{MODULE}.Ter"}}


@pytest.mark.parametrize(("monitor", "names"), [(None, ["accuracy", "ter"]), ("ter", ["ter", "accuracy"])])
def test_the_monitored_metric_is_first_and_computed_in_validations(monitor: str | None, names: list[str]) -> None:
    config = OmegaConf.create({"metric": NODES, "run": {"monitor": monitor}, "bleu_tokenizer": None})
    scorer = build_scorer(config, "en")
    assert list(scorer.metrics) == names
    assert scorer.in_validations == (["accuracy"] if monitor is None else names)  # TER is slow
    assert scorer.higher_is_better == (monitor is None)


def test_a_metric_without_meaning_in_the_language_is_left_out_unless_it_is_monitored() -> None:
    config = OmegaConf.create({"metric": NODES, "run": {"monitor": None}, "bleu_tokenizer": None})
    scorer = build_scorer(config, "th", ["วันนี้เราไปที่สวน"])
    assert list(scorer.metrics) == ["accuracy"]
    assert "TER is left out: it finds no words in Thai script" in scorer.notes
    config.run.monitor = "ter"
    with pytest.raises(UserError, match="metric=ter: TER finds no words in Thai script"):
        build_scorer(config, "th", ["วันนี้เราไปที่สวน"])


def test_a_value_that_a_metric_rejects_is_reported_with_its_key() -> None:
    nodes = OmegaConf.create({"rouge3": {"_target_": f"{MODULE}.Rouge", "kind": "rouge3"}})
    with pytest.raises(UserError, match=r"metric\.rouge3: kind \(rouge3\) must be one of rouge1, rouge2, rougeL"):
        build_metrics(nodes)
