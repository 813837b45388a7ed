"""Scores are those of the sacrebleu command line on the same files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from diglot.data.text import write_lines
from diglot.errors import UserError
from diglot.training.metrics import Score, Scorer, bleu_tokenizer

THREE = (
    ["The cat sat on the mat today.", "A dog ran in the park", "It's raining;  we stay inside"],
    ["The cat sat on the mat today.", "The dog was running through a park.", "We stay at home, because it rains!"],
)
CHINESE = (["我们今天去公园。", "他喜欢红色的苹果"], ["我们今天去了公园。", "她喜欢吃红苹果。"])


def command_line(folder: Path, hypotheses: list[str], references: list[str], *options: str) -> dict[str, dict]:
    """What the sacrebleu command says, metric by metric."""
    write_lines(folder / "hypotheses", hypotheses)
    write_lines(folder / "references", references)
    metrics = ["-m", "bleu", "chrf", "ter", "--chrf-word-order", "2", "-w", "6", "-f", "json"]
    command = [sys.executable, "-m", "sacrebleu", "references", "-i", "hypotheses", *metrics, *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return {result["name"].lower().replace("chrf2++", "chrf++"): result for result in json.loads(done.stdout)}


def assert_equal(scores: list[Score], expected: dict[str, dict]) -> None:
    assert {score.name.lower() for score in scores} == set(expected) == {"bleu", "chrf++", "ter"}
    for score in scores:
        assert score.value == pytest.approx(expected[score.name.lower()]["score"], abs=1e-5)
        signature = expected[score.name.lower()]["signature"]
        assert sorted(score.signature.split("|")) == sorted(signature.split("|"))


def test_scores_equal_the_command_line(tmp_path: Path) -> None:
    scores = Scorer("en")(*THREE)
    assert_equal(scores, command_line(tmp_path, *THREE))
    assert 0 < scores[0].value < 100  # although the first of three is a perfect match


def test_chinese_is_scored_by_its_characters(tmp_path: Path) -> None:
    scores = Scorer("zh-Hans")(*CHINESE)
    assert_equal(scores, command_line(tmp_path, *CHINESE, "--tokenize", "zh"))
    assert "tok:zh" in scores[0].signature
    assert scores[0].value > 10 > Scorer("en")(*CHINESE)[0].value


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        ("zh", "zh"),
        ("zh_CN", "zh"),
        ("ZH-Hant", "zh"),
        ("ja", "ja-mecab"),
        ("ko", "ko-mecab"),
        ("de", "13a"),
        ("", "13a"),
    ],
)
def test_the_tokenizer_is_the_target_language_s(language: str, tokenizer: str) -> None:
    assert bleu_tokenizer(language) == tokenizer


def test_perfect_output_has_perfect_scores() -> None:
    scores = Scorer("de")(THREE[1], THREE[1])
    assert [score.value for score in scores] == pytest.approx([100, 100, 0])
    assert [str(score) for score in scores] == ["BLEU 100.00", "chrF++ 100.00", "TER 0.00"]


def test_empty_output_has_scores() -> None:
    assert [score.value for score in Scorer("de")(["", "", ""], THREE[1])] == pytest.approx([0, 0, 100])


def test_the_slow_metric_can_be_left_out() -> None:
    assert [score.name for score in Scorer("de")(*THREE, with_ter=False)] == ["BLEU", "chrF++"]


@pytest.mark.parametrize(("hypotheses", "references"), [(3, 1), (1, 3), (0, 0), (3, 0)])
def test_unequal_counts_are_refused(hypotheses: int, references: int) -> None:
    with pytest.raises(ValueError, match=f"{hypotheses} hypotheses for {references} references"):
        Scorer("de")(["a"] * hypotheses, ["a"] * references)


@pytest.mark.parametrize(("language", "module", "extra"), [("ja", "MeCab", "ja"), ("ko-KR", "mecab_ko", "ko")])
def test_a_tokenizer_that_is_not_installed_is_told_at_once_in_one_line(
    monkeypatch: pytest.MonkeyPatch, language: str, module: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name.startswith("sacrebleu.tokenizers.tokenizer_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # not there, whatever this environment has
    with pytest.raises(UserError) as refused:
        Scorer(language)
    assert f"pip install 'sacrebleu[{extra}]'" in str(refused.value)
    assert language in str(refused.value)
    assert "\n" not in str(refused.value)
