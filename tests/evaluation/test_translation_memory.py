"""The translation memory finds the same matches as a plain search."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz import fuzz

from diglot.evaluation import translation_memory as memory
from diglot.evaluation.translation_memory import nearest

SENTENCES = st.lists(st.text("abc ", max_size=8), max_size=12)


@given(queries=SENTENCES, known=SENTENCES.filter(bool), chunk=st.sampled_from([1, 7, 2**22]))
def test_the_nearest_is_the_first_with_the_highest_ratio(queries: list[str], known: list[str], chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "_CELLS_AT_ONCE", chunk)
        matches = nearest(queries, known)
    assert len(matches) == len(queries)
    for query, match in zip(queries, matches):
        ratios = [fuzz.ratio(query, sentence) for sentence in known]
        assert match.index == ratios.index(max(ratios))
        assert match.similarity == pytest.approx(max(ratios), abs=1e-4)


def test_an_equal_sentence_has_similarity_100() -> None:
    assert nearest(["b"], ["a", "b", "b"]) == [(1, 100.0)]


def test_no_queries_have_no_matches_and_an_empty_memory_is_refused() -> None:
    assert nearest([], []) == []
    with pytest.raises(ValueError, match="empty memory"):
        nearest(["a"], [])


def test_a_long_comparison_is_reported_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "_LONG", 6)
    nearest(["a", "b"], ["c", "d"])
    assert capsys.readouterr().err == ""
    nearest(["a", "b"], ["c", "d", "e"])
    captured = capsys.readouterr()
    assert "comparing 2 sentences with 3" in captured.err
    assert captured.out == ""
