"""Significance tests of the difference between two systems, as implemented by sacreBLEU."""

from collections.abc import Sequence
from typing import Any

from sacrebleu.significance import PairedTest

from diglot.evaluation.metrics import Score, Scorer

TESTS = {"paired_bootstrap": "bs", "paired_approximate_randomisation": "ar"}  # sacreBLEU's names


# Resampling needs enough sentences: all resamples of a single sentence are equal, so any difference would be
# "significant". Thirty is a rule of thumb for a meaningful bootstrap distribution.
MIN_SENTENCES = 30


def compare(
    scorer: Scorer, hypotheses: Sequence[str], baseline: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """Run paired bootstrap resampling (Koehn, 2004) and approximate randomisation (Riezler and Maxwell, 2005).

    The results equal those of `sacrebleu --paired-bs` and `--paired-ar` with the baseline first: 1,000 resamples and
    10,000 trials, with a fixed seed (12345, or the environment variable SACREBLEU_SEED).

    Args:
        scorer: scorer of the target language.
        hypotheses: output of the system.
        baseline: output of the baseline for the same sources.
        references: one or more lists of references, each with one line per source.

    Returns:
        For each test, the number of samples, and for each metric: the scores of both systems, their means and the half
        widths of their 95% confidence intervals (bootstrap only), the p-value of the null hypothesis that both outputs
        come from the same system, and the signature. With fewer than 30 sentences, the number of samples is 0, and
        means, intervals and p-values are None.
    """
    if len(hypotheses) < MIN_SENTENCES:
        scores = zip(scorer(baseline, *references), scorer(hypotheses, *references), strict=True)
        few = [_untested(one, other) for one, other in scores]
        return {name: {"n": 0, "metrics": few} for name in TESTS}
    systems: list[tuple[str, Sequence[str]]] = [("baseline", list(baseline)), ("system", list(hypotheses))]
    found: dict[str, Any] = {}
    for name, kind in TESTS.items():
        test = PairedTest(systems, scorer.metrics, [list(lines) for lines in references], test_type=kind)
        signatures, results = test()
        metrics = []
        for ours, theirs in zip(scorer.metrics, test.metrics, strict=True):
            one, other = ({k: _plain(v) for k, v in vars(result).items()} for result in results[theirs])  # type: ignore[arg-type]
            p_value = other.pop("p_value")
            one.pop("p_value")
            signature = str(signatures[theirs])
            metrics.append({"name": ours, "baseline": one, "system": other, "p_value": p_value, "signature": signature})
        found[name] = {"n": test.n_samples, "metrics": metrics}
    return found


def _untested(one: Score, other: Score) -> dict[str, Any]:
    """Return a metric's entry in the results for too few sentences: scores without tests."""
    sides = {
        side: {"score": score.value, "mean": None, "ci": None} for side, score in (("baseline", one), ("system", other))
    }
    return {"name": one.name, **sides, "p_value": None, "signature": one.signature}


def _plain(value: Any) -> float | None:
    return None if value is None else float(value)
