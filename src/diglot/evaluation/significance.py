"""Whether one system is better than another or has been lucky: sacreBLEU's own tests."""

from collections.abc import Sequence
from typing import Any

from sacrebleu.significance import PairedTest

from diglot.evaluation.metrics import Score, Scorer

TESTS = {"paired_bootstrap": "bs", "paired_approximate_randomisation": "ar"}  # sacreBLEU's names


# With fewer sentences resampling has too few to draw from: of one sentence every resample is the same,
# and any difference is "significant". Thirty is the rule of thumb for the bootstrap's distribution to mean something.
FEWEST = 30


def compare(
    scorer: Scorer, hypotheses: Sequence[str], baseline: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """Paired bootstrap resampling (Koehn, 2004) and approximate randomisation (Riezler and Maxwell, 2005).

    The numbers are those of `sacrebleu --paired-bs` and `--paired-ar` with the baseline first: 1,000 resamples and
    10,000 trials, from a fixed seed (12345, or what the environment's SACREBLEU_SEED says).

    Args:
        scorer: for the target language.
        hypotheses: the system's.
        baseline: the other system's, as many.
        references: one or several lists, each of as many lines.

    Returns:
        For each test the number of samples, and for each metric: the scores of both, their means and the half widths
        of their 95% confidence intervals (from the bootstrap alone), the p-value of the null hypothesis that both
        outputs come from one system, and the signature. Of fewer than 30 sentences there is no sample, and mean,
        interval and p-value are None.
    """
    if len(hypotheses) < FEWEST:
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
    """A metric of two systems on too few sentences."""
    sides = {
        side: {"score": score.value, "mean": None, "ci": None} for side, score in (("baseline", one), ("system", other))
    }
    return {"name": one.name, **sides, "p_value": None, "signature": one.signature}


def _plain(value: Any) -> float | None:
    return None if value is None else float(value)
