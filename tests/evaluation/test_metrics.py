"""Metrics equal values computed by hand, and textbook implementations on random text."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF, TER

from diglot.errors import UserError
from diglot.evaluation.breakdown import by_length
from diglot.evaluation.metrics import Accuracy, Cer, EditRate, Metric, Per, Rouge, Wer, check_metric
from diglot.evaluation.scorer import Scorer, recorded_metrics
from diglot.evaluation.significance import compare


def score(metric: Metric, hypotheses: Sequence[str], *references: Sequence[str]) -> float:
    return Scorer("und", metrics={"mine": metric})(hypotheses, *references)[0].value


def edits(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the edit distance, by the table of Wagner and Fischer (1974)."""
    table = [[max(i, j) if 0 in (i, j) else 0 for j in range(len(other) + 1)] for i in range(len(one) + 1)]
    for i in range(1, len(one) + 1):
        for j in range(1, len(other) + 1):
            replaced = table[i - 1][j - 1] + (one[i - 1] != other[j - 1])
            table[i][j] = min(table[i - 1][j] + 1, table[i][j - 1] + 1, replaced)
    return table[-1][-1]


@pytest.mark.parametrize(
    ("metric", "hypotheses", "references", "expected"),
    [
        (Accuracy(), ["a b", "c ", "d", ""], [["a b", " c", "D", ""]], 75.0),
        (Accuracy(), ["a", "b", "c"], [["x", "b", "y"], ["a", "z", "z"]], 100 * 2 / 3),
        (Wer(), ["the cat sat", "yes"], [["the cat sat down", "no"]], 100 * 2 / 5),
        (Wer(), [""], [["a b c"]], 100.0),
        (Wer(), ["a b c d"], [["a"]], 300.0),
        (Per(), ["HH AH L OW", "W ER L"], [["HH EH L OW", "W ER L D"]], 100 * 2 / 8),
        (Cer(), ["kitten", " abc "], [["sitting", "abc"]], 100 * 3 / 10),
        (Cer(), ["a b"], [["ab"]], 50.0),
        # The second reference needs one edit and has two words, the first needs two and has three.
        (Wer(), ["a b"], [["a x y"], ["a c"]], 100 / 2),
        (Wer(), ["", ""], [["", ""]], 0.0),
        (Wer(), ["a", ""], [["", ""]], 100.0),
        # Precision and recall of words are 2/3 and 2/4, of pairs 1/2 and 1/3, and the longest subsequence has 2 words.
        (Rouge("rouge1"), ["The cat ran"], [["the cat sat down"]], 100 * 4 / 7),
        (Rouge("rouge2"), ["The cat ran"], [["the cat sat down"]], 100 * 2 / 5),
        (Rouge("rougeL"), ["ran cat the"], [["the cat sat down"]], 100 * 2 / 7),
        (Rouge("rouge1"), ["a b", ""], [["x", "y"], ["a b", "z"]], 50.0),
        (Rouge("rouge1", "words"), ["Кот спит"], [["Кот ест"]], 50.0),
        (Rouge("rougeL", "characters"), ["我们 去"], [["我去"]], 80.0),
    ],
)
def test_values_computed_by_hand(
    metric: Metric, hypotheses: list[str], references: list[list[str]], expected: float
) -> None:
    assert score(metric, hypotheses, *references) == pytest.approx(expected)


LINES = st.lists(st.text("ab ", max_size=6), min_size=3, max_size=3)


@settings(deadline=None, max_examples=60)
@given(LINES, st.lists(LINES, min_size=1, max_size=3))
def test_rates_equal_those_of_a_textbook_edit_distance(hypotheses: list[str], references: list[list[str]]) -> None:
    splits: list[tuple[Metric, Callable[[str], Sequence[str]]]] = [(Cer(), str.strip), (Wer(), str.split)]
    for metric, split in splits:
        n_edits = length = 0
        for hypothesis, *lines in zip(hypotheses, *references, strict=True):
            each = [(edits(split(hypothesis), split(line)), len(split(line))) for line in lines]
            fewest = next(pair for pair in each if pair[0] == min(pair[0] for pair in each))
            n_edits, length = n_edits + fewest[0], length + fewest[1]
        expected = 100 * n_edits / length if length else 100.0 * bool(n_edits)
        assert score(metric, hypotheses, *references) == pytest.approx(expected)


def test_signatures_name_references_unit_and_version() -> None:
    two = [["a"], ["b"]]
    assert "nrefs:2|unit:symbols|" in Scorer("und", metrics={"per": Per()})(["a"], *two)[0].signature
    assert Scorer("und", metrics={"r": Rouge("rouge1")})(["a"], ["a"])[0].signature.startswith("nrefs:1|tok:ascii|")


OUTPUTS = ["the cat sat on the mat", "a dog ran in the park", ""]
FIRST = ["the cat sat on a mat", "dogs run in the park today", "it rains here"]
SECOND = ["a cat was on the mat", None, "it is raining here"]


@pytest.mark.parametrize(("name", "theirs"), [("bleu", BLEU()), ("chrf", CHRF(word_order=2)), ("ter", TER())])
def test_a_sentence_may_lack_a_reference_as_for_sacrebleu(name: str, theirs: Any) -> None:
    scored = dict(zip(("bleu", "chrf", "ter"), Scorer("en")(OUTPUTS, FIRST, SECOND), strict=True))[name]
    assert scored.value == pytest.approx(theirs.corpus_score(OUTPUTS, [FIRST, SECOND]).score)
    assert scored.signature == str(theirs.get_signature())
    assert scored.signature.startswith("nrefs:var|")


def test_a_missing_reference_is_no_empty_one() -> None:
    metrics = {"accuracy": Accuracy(), "wer": Wer(), "rouge1": Rouge("rouge1")}
    scorer = Scorer("en", metrics=metrics)
    accuracy, wer, _ = scorer(["", "b c"], ["a", "x"], [None, "b d"])
    assert (accuracy.value, wer.value) == (0.0, 100 * 2 / 3)
    assert scorer(["", "b c"], ["a", "x"], ["", "b d"])[0].value == 50.0
    assert {score.signature[:9] for score in scorer([""], ["a"], [None])} == {"nrefs:1|m", "nrefs:1|u", "nrefs:1|t"}
    assert all(score.signature.startswith("nrefs:var|") for score in (accuracy, wer))
    bootstrap = compare(scorer, ["", "b c"], ["a", "x"], [["a", "x"], [None, "b d"]])["paired_bootstrap"]
    assert all(metric["signature"].startswith("nrefs:var|") for metric in bootstrap["metrics"])


def test_rouge_notes_that_its_tokenizer_keeps_nothing() -> None:
    (note,) = Scorer("ru", ["Кот спит"], metrics={"rouge1": Rouge("rouge1")}).notes
    assert "use metric.rouge1.tokenizer=words" in note
    assert Scorer("ru", ["Кот спит"], metrics={"rouge1": Rouge("rouge1", "words")}).notes == []


def test_without_bleu_there_is_no_note_about_its_tokenizer() -> None:
    assert Scorer("en", ["我们今天去公园。"]).notes
    assert Scorer("en", ["我们今天去公园。"], metrics={"cer": Cer()}).notes == []
    assert Scorer("th", ["วันนี้เราไปที่สวน"], metrics={"accuracy": Accuracy()}).notes == []


@pytest.mark.parametrize(
    ("metric", "unit", "sizes"),
    [(Per(), "reference symbols", [2, 1]), (Cer(), "reference characters", [1, 1, 1])],
)
def test_the_breakdown_counts_in_the_unit_of_the_task(metric: EditRate, unit: str, sizes: list[int]) -> None:
    references = ["AA BB C", "C", "a b c d e f"]  # 3, 1 and 6 symbols; 7, 1 and 11 characters
    scorer = Scorer("und", metrics={"accuracy": Accuracy(), "mine": metric})
    found = by_length(scorer, ["hello"] * 3, references, [references], "src")
    assert found["unit"] == unit
    assert [bucket["sentences"] for bucket in found["buckets"]] == sizes
    assert [entry["name"] for entry in found["buckets"][0]["scores"]] == ["accuracy", "mine"]


def test_the_significance_of_accuracy_follows_the_lines_that_only_one_system_has_right() -> None:
    references = [str(i) for i in range(100)]
    baseline = [line if i % 2 else "wrong" for i, line in enumerate(references)]
    better = [line if i % 2 or i < 40 else "wrong" for i, line in enumerate(references)]
    slightly = [line if i % 2 or i < 2 else "wrong" for i, line in enumerate(references)]
    scorer = Scorer("und", metrics={"accuracy": Accuracy(), "cer": Cer()})
    for system, low, high in ((better, 0.0, 0.01), (slightly, 0.05, 1.01)):
        for test in compare(scorer, system, baseline, [references]).values():
            accuracy, cer = test["metrics"]
            assert low < accuracy["p_value"] < high
            assert (accuracy["name"], cer["name"]) == ("accuracy", "CER")
            assert accuracy["baseline"]["score"] == 50
            assert accuracy["system"]["score"] == (70 if system is better else 51)
    bootstrap = compare(scorer, better, baseline, [references])["paired_bootstrap"]["metrics"][0]
    # The standard error of a share of 70 in 100 is 4.6, so that 95% lie within about 9 of it.
    assert bootstrap["system"]["mean"] == pytest.approx(70, abs=0.5)
    assert bootstrap["system"]["ci"] == pytest.approx(1.96 * 100 * np.sqrt(0.7 * 0.3 / 100), rel=0.1)
    assert "nrefs:1|bs:1000|seed:12345|match:line" in bootstrap["signature"]


class Own(Metric):
    """A metric whose methods return what a test gives it."""

    def __init__(self, statistics: Any = (1.0,), score: Any = 0.0) -> None:
        self.returned = statistics, score

    def statistics(self, hypothesis: str, references: Sequence[str]) -> Any:
        return self._returned(0)

    def score(self, sums: Sequence[float]) -> Any:
        return self._returned(1)

    def _returned(self, which: int) -> Any:
        if isinstance(self.returned[which], Exception):
            raise self.returned[which]
        return self.returned[which]


@pytest.mark.parametrize(
    ("statistics", "value", "message"),
    [
        ("text", 0.0, "statistics must return a list of finite numbers, .* it returned 'text' for the first one"),
        (["text"], 0.0, r"it returned \['text'\]"),
        ([float("nan")], 0.0, r"it returned \[nan\]"),
        (None, 0.0, "it returned None"),
        (1.0, 0.0, r"it returned 1\.0"),
        ([], 0.0, r"it returned \[\]"),
        ([1.0], "text", "score returned 'text'; it must be a finite number"),
        ([1.0], float("nan"), "score returned nan"),
        ([1.0], None, "score returned None"),
        ([1.0], True, "score returned True"),
        ([1.0], ZeroDivisionError("division\nby zero"), "score raised ZeroDivisionError: division by zero"),
        (KeyError("a"), 0.0, "statistics raised KeyError: 'a'"),
    ],
)
def test_a_wrong_metric_is_refused_in_one_line(statistics: Any, value: Any, message: str) -> None:
    with pytest.raises(UserError, match=rf"^metric\.mine: .*{message}") as refused:
        check_metric("mine", Own(statistics, value))
    assert "\n" not in str(refused.value)
    check_metric("mine", Own())


def test_a_direction_that_is_not_a_boolean_is_refused() -> None:
    own = Own()
    own.higher_is_better = "lower"  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"metric\.mine: higher_is_better is 'lower'; it must be True or False"):
        check_metric("mine", own)


def test_a_checkpoint_names_the_metrics_of_its_run_and_no_class_is_imported_for_it() -> None:
    module = "diglot.evaluation.metrics"
    nodes = {
        "accuracy": {"_target_": f"{module}.Accuracy"},
        "rouge1": {"_target_": f"{module}.Rouge", "kind": "rouge1", "tokenizer": "words"},
        "mine": {"_target_": "antigravity.Metric"},
    }
    metrics, others = recorded_metrics({"config": {"run": {"monitor": "rouge1"}, "metric": nodes}})
    assert list(metrics or ()) == ["rouge1", "accuracy"]
    assert others == ["mine"]
    assert recorded_metrics({"config": {"run": {}}}) == (None, [])
    for wrong in ("Metric", "LABELS", "missing", "_SacrebleuMetric"):
        with pytest.raises(UserError, match="metrics cannot be read"):
            recorded_metrics({"config": {"metric": {"a": {"_target_": f"{module}.{wrong}"}}}})
