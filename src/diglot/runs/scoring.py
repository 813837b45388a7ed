"""Building the metrics of a config, and the scorer that computes them."""

from collections.abc import Sequence

from omegaconf import DictConfig

from diglot.config import build, monitored
from diglot.evaluation.metrics import Metric, check_metric
from diglot.evaluation.scorer import Scorer, with_first


def build_metrics(nodes: DictConfig) -> dict[str, Metric]:
    """Build the metrics of a mapping from names to nodes, except for null nodes, and try each of them.

    Raises:
        UserError: a metric rejects a value, or fails.
    """
    metrics = {str(name): build(node, f"metric.{name!s}") for name, node in nodes.items() if node is not None}
    for name, metric in metrics.items():
        check_metric(name, metric)
    return metrics


def build_scorer(
    config: DictConfig, tgt_lang: str, references: Sequence[str] = (), tokenizer: str | None = None
) -> Scorer:
    """Build the scorer of a training run, with the monitored metric first.

    Args:
        config: the run's config.
        tgt_lang: code of the target language.
        references: the references; see `Scorer`.
        tokenizer: BLEU's tokenizer; None: the config's.
    """
    metrics = with_first(build_metrics(config.metric), monitored(config))
    return Scorer(tgt_lang, references, tokenizer or config.bleu_tokenizer, metrics)
