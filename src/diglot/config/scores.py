"""The scores that a run computes, by their names in its config: metrics, the monitored one, a sweep's objective."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from diglot.config.targets import kind_of, wrong_target
from diglot.data.held_out import PREFIX, metric_of, score_of, split_of
from diglot.errors import UserError

# What validations log besides the metrics, as dev/NAME. Lower is better for all of them.
OTHERS = ("loss", "perplexity", "cut")
_TAKEN = {*OTHERS, "rank", "update"}  # further keys beside those of the metrics in checkpoints and results


def metric_names(config: Mapping[Any, Any]) -> list[str]:
    """Return the names of a run's metrics, in the order of its config."""
    return [str(name) for name, node in (config.get("metric") or {}).items() if node is not None]


def monitored(config: Mapping[Any, Any]) -> str:
    """Return what ranks a run's validations: run.monitor, or else the first metric.

    This is the name of a metric of dev, such as bleu, or that of a further dev set with a metric, such as dev_old/bleu.
    """
    return str(config["run"].get("monitor") or next(iter(metric_names(config)), "bleu"))


def objective(config: Mapping[Any, Any]) -> str:
    """Return the score by which a sweep compares its jobs, such as dev/bleu. It is always one of dev."""
    return str(config.get("objective") or f"dev/{metric_of(monitored(config))}")


def higher_is_better(config: Mapping[Any, Any], score: str) -> bool:
    """Return whether a higher value of a score such as dev/bleu is better.

    This reads a class that the config names, but only after a check that it is a metric.
    """
    name = metric_of(score)
    node = (config.get("metric") or {}).get(name)
    try:
        target = str(node["_target_"]) if node is not None else ""
        is_metric = bool(target) and wrong_target(target, kind_of("metric.mine")) is None
    except (ImportError, KeyError, TypeError):
        is_metric = False  # the check of the config reports it
    return bool(get_object(target).higher_is_better) if is_metric else name not in OTHERS


def check_scores(config: DictConfig) -> None:
    """Check the names of a run's metrics, and that each score that the config names is computed.

    Raises:
        UserError: a name is invalid. The message names its key and the nearest valid name.
    """
    names = metric_names(config)
    if not names:
        raise UserError("metric=[]: choose at least one metric, such as metric=bleu")
    for name in names:
        if name in _TAKEN or not re.fullmatch(r"[A-Za-z]\w*", name):
            raise UserError(f"metric.{name}: this name is taken or is no identifier; choose another one")
    refuse_test(config)
    further = [split_of(str(name)) for name in config.data.get("further_dev") or ()]
    monitors = [*names, *(f"{dev_set}/{name}" for dev_set in further for name in names)]
    if (monitor := config.run.get("monitor")) is not None and monitor not in monitors:
        raise UserError(_not_computed("run.monitor", monitor, monitors))
    scores = [f"dev/{name}" for name in (*names, *OTHERS)]
    if config.objective is not None and config.objective not in scores:
        raise UserError(_not_computed("objective", config.objective, scores))
    scores += [f"{dev_set}/{name}" for dev_set in further for name in (*names, *OTHERS)]
    for name, node in (config.callbacks or {}).items():
        score = node.get("monitor") if isinstance(node, DictConfig) else None
        if isinstance(score, str) and score.startswith(("dev/", PREFIX)) and score not in scores:
            raise UserError(_not_computed(f"callbacks.{name}.monitor", score, scores))


def refuse_test(config: DictConfig) -> None:
    """Check that nothing is chosen by test scores: no checkpoint, no end of training, and no job of a sweep.

    Raises:
        UserError: a key names a score on the test set. The message names the key.
    """
    named = {"objective": config.objective, "run.monitor": config.run.get("monitor")}
    for name, node in (config.callbacks or {}).items():
        named[f"callbacks.{name}.monitor"] = node.get("monitor") if isinstance(node, DictConfig) else None
    for key, score in named.items():
        if isinstance(score, str) and re.match(r"test(/|$)", score):
            name = score.partition("/")[2] or metric_names(config)[0]
            dev = name if key == "run.monitor" else f"dev/{name}"
            raise UserError(f"{key}={score}: nothing may be chosen by test scores; type {key}={dev}")


def _not_computed(key: str, value: str, known: Sequence[str]) -> str:
    """Return a message that a score is not computed, with the one that was probably meant."""
    nearest = difflib.get_close_matches(value, known, 1) or [name for name in known if name == f"dev/{value}"]
    meant = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"{key}={value}: this run does not compute it; it computes {', '.join(known)} (see metric){meant}"


def _plain(root: DictConfig) -> dict[str, Any]:
    """Return the nodes of a config that determine its scores, unresolved."""
    keys = [key for key in ("metric", "run", "objective") if key in root]
    plain: Any = OmegaConf.to_container(OmegaConf.masked_copy(root, keys))
    return plain  # type: ignore[no-any-return]


def _monitor(*, _root_: DictConfig) -> str:
    return score_of(monitored(_plain(_root_)))


def _mode(score: Any, *, _root_: DictConfig) -> str:
    return "max" if higher_is_better(_plain(_root_), str(score)) else "min"


def _direction(*, _root_: DictConfig) -> str:
    plain = _plain(_root_)
    return "maximize" if higher_is_better(plain, objective(plain)) else "minimize"


# For values in conf/: the monitored score, Lightning's mode for a score, and Optuna's direction for the objective.
for _name, _function in (("monitor", _monitor), ("mode", _mode), ("direction", _direction)):
    OmegaConf.register_new_resolver(f"diglot.{_name}", _function, replace=True)
