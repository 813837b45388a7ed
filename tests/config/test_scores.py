"""The scores that a config names: the monitored metric, a sweep's objective, and their directions."""

from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from diglot.config import CONF, changes, config_hash, higher_is_better, monitored, objective, without_secrets
from diglot.config.keys import plain_config
from diglot.config.meaning import meaning_of
from diglot.config.scores import check_scores
from diglot.errors import UserError
from diglot.evaluation.metrics import Bleu
from diglot.evaluation.scorer import with_first


def composed(*words: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", [*words])


def test_the_default_metrics_are_those_from_before_the_choice() -> None:
    """Check that hashes of sweeps, and configs of runs from before there was a choice, stay those of the default."""
    assert plain_config("train")["metric"] == meaning_of("metric").formerly
    config = composed()
    assert monitored(config) == meaning_of("run.monitor").formerly
    before = OmegaConf.masked_copy(config, [key for key in config if key != "metric"])
    assert config_hash(before) == config_hash(config) != config_hash(composed("metric=accuracy"))
    config.run.monitor = monitored(config)  # as a run does
    old: Any = without_secrets(before)
    del old["run"]["monitor"]
    assert changes(old, without_secrets(config)) == []


def test_another_metric_takes_effect_and_another_monitor_is_refused() -> None:
    before, after = composed("metric=[accuracy,per]"), composed("metric=[per,cer]")
    for config in (before, after):
        config.run.monitor = monitored(config)
    found = {change.key: change.takes_effect for change in changes(without_secrets(before), without_secrets(after))}
    assert found == {"metric.accuracy": True, "metric.cer": True, "run.monitor": False}


@pytest.mark.parametrize(
    ("words", "monitor", "mode"),
    [
        ((), "bleu", "max"),
        (("metric=[per,accuracy]",), "per", "min"),
        (("metric=[per,accuracy]", "run.monitor=accuracy"), "accuracy", "max"),
        (("metric=rouge",), "rouge1", "max"),
        (("metric=[]", "+metric.mine._target_=diglot.evaluation.metrics.Ter"), "mine", "min"),
    ],
)
def test_the_monitored_metric_sets_early_stopping_the_objective_and_their_directions(
    words: tuple[str, ...], monitor: str, mode: str
) -> None:
    config = composed(*words, "callbacks=early_stopping")
    check_scores(config)
    stopping = config.callbacks.early_stopping
    assert (stopping.monitor, stopping.mode) == (f"dev/{monitor}", mode)
    assert objective(config) == f"dev/{monitor}"
    assert higher_is_better(config, objective(config)) == (mode == "max")
    direction = OmegaConf.create({**OmegaConf.to_container(config), "direction": "${diglot.direction:}"})  # type: ignore[dict-item]
    assert direction.direction == ("maximize" if mode == "max" else "minimize")


FURTHER = "data.further_dev={old: {src: old.de, tgt: old.en}}"


def test_a_score_of_a_further_dev_set_chooses_the_checkpoint_but_no_job() -> None:
    config = composed(FURTHER, "metric=[accuracy,per]", "run.monitor=dev_old/per", "callbacks=early_stopping")
    check_scores(config)
    assert monitored(config) == "dev_old/per"
    stopping = config.callbacks.early_stopping
    assert (stopping.monitor, stopping.mode) == ("dev_old/per", "min")
    assert objective(config) == "dev/per"
    assert list(with_first({"accuracy": Bleu(), "per": Bleu()}, monitored(config))) == ["per", "accuracy"]


@pytest.mark.parametrize("score", ["dev/loss", "dev/perplexity", "dev/cut"])
def test_other_scores_are_better_if_lower(score: str) -> None:
    config = composed(f"objective={score}", "callbacks=early_stopping", f"callbacks.early_stopping.monitor={score}")
    check_scores(config)
    assert config.callbacks.early_stopping.mode == "min"
    assert not higher_is_better(config, objective(config))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run.monitor=acuracy", "metric=[per,accuracy]"], "run.monitor=acuracy: .* did you mean accuracy?"),
        (["run.monitor=per"], r"run.monitor=per: this run does not compute it; it computes bleu, chrf, ter"),
        (["metric=[]"], "metric=.*: choose at least one metric"),
        (["metric=per", "objective=dev/bleu"], r"objective=dev/bleu: .* it computes dev/per, dev/loss"),
        (["objective=chrf"], r"objective=chrf: .* did you mean dev/chrf\?"),
        (["callbacks=early_stopping", "callbacks.early_stopping.monitor=dev/los"], r"monitor=dev/los: .*dev/loss\?"),
        (
            ["objective=test/bleu"],
            r"objective=test/bleu: nothing may be chosen by test scores; type objective=dev/bleu",
        ),
        (["objective=test", "metric=[per,bleu]"], r"objective=test: .* type objective=dev/per"),
        (["run.monitor=test/chrf"], r"run\.monitor=test/chrf: nothing .* type run\.monitor=chrf$"),
        (
            ["callbacks=early_stopping", "callbacks.early_stopping.monitor=test/loss"],
            r"callbacks\.early_stopping\.monitor=test/loss: nothing .*\.monitor=dev/loss$",
        ),
        ([FURTHER, "run.monitor=dev_new/bleu"], r"run\.monitor=dev_new/bleu: .* did you mean dev_old/bleu\?"),
        ([FURTHER, "objective=dev_old/bleu"], r"objective=dev_old/bleu: this run does not compute it"),
        (
            [FURTHER, "callbacks=early_stopping", "callbacks.early_stopping.monitor=dev_old/los"],
            r"monitor=dev_old/los: .* did you mean dev_old/loss\?",
        ),
        (["run.monitor=dev_old/bleu"], r"run\.monitor=dev_old/bleu: this run does not compute it"),
        (["+metric.loss._target_=diglot.evaluation.metrics.Per"], r"metric\.loss: this name is taken"),
        (["+metric.my-own._target_=diglot.evaluation.metrics.Per"], r"metric\.my-own: this name"),
    ],
)
def test_a_score_that_is_not_computed_is_answered_with_the_nearest(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_scores(composed(*words))


def test_the_direction_of_a_class_that_is_no_metric_is_not_looked_up() -> None:
    config = composed("metric=[]", "+metric.mine._target_=antigravity.Metric")
    assert higher_is_better(config, "dev/mine")
