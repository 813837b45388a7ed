"""Scores of given targets follow from the logits, do not depend on the batch, and equal those of a search."""

import math

import pytest
import torch

from diglot.decoding import BeamSearch, SpecialIds, pair_scores
from diglot.model import Transformer

PAD, UNK, BOS, EOS = SPECIAL = SpecialIds(pad=0, unk=1, bos=2, eos=3)
SOURCES = [[5, 6, 7, 8], [9], [10, 11, 12, 13, 14, 15, 16], []]
TARGETS = [[20, 21], [22, 23, 24, 25, 26], [], [27]]


def padded(rows: list[list[int]]) -> torch.Tensor:
    width = max(map(len, rows)) + 1
    return torch.tensor([row + [EOS] + [PAD] * (width - len(row) - 1) for row in rows])


def by_hand(model: Transformer, source: list[int], target: list[int]) -> list[float]:
    """Score a single pair, one token at a time, from the softmax."""
    found = []
    for i, token in enumerate([*target, EOS]):
        with torch.no_grad():
            logits = model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *target[:i]]]))
        found.append(math.log(torch.softmax(logits[0, -1].double(), -1)[token]))
    return found


VARIANTS = ["model/position=sinusoidal", "model/position=alibi", "model/residual=post_norm"]


@pytest.mark.parametrize("words", VARIANTS)
def test_scores_are_those_computed_by_hand_from_the_logits(build_model, words):
    model = build_model(words)
    scores = pair_scores(model, padded(SOURCES), padded(TARGETS), SPECIAL)
    assert [len(score) for score in scores] == [len(target) + 1 for target in TARGETS]
    for score, source, target in zip(scores, SOURCES, TARGETS, strict=True):
        assert score == pytest.approx(by_hand(model, source, target), abs=1e-4)


def test_neighbours_and_padding_change_nothing(build_model):
    model = build_model()
    together = pair_scores(model, padded(SOURCES), padded(TARGETS), SPECIAL)
    for i, score in enumerate(together):
        (alone,) = pair_scores(model, padded([SOURCES[i]]), padded([TARGETS[i]]), SPECIAL)
        assert score == pytest.approx(alone, abs=1e-4)


def test_a_score_does_not_depend_on_later_target_tokens(build_model):
    model = build_model()
    (score,) = pair_scores(model, padded([SOURCES[0]]), padded([[20, 21, 22]]), SPECIAL)
    (other,) = pair_scores(model, padded([SOURCES[0]]), padded([[20, 21, 30]]), SPECIAL)
    assert score[:2] == pytest.approx(other[:2], abs=1e-5)
    assert score[2] != pytest.approx(other[2], abs=1e-3)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0])
def test_the_score_of_a_search_includes_its_length_penalty(build_model, length_penalty):
    model = build_model()
    src = padded(SOURCES)
    search = BeamSearch(beam_size=3, length_penalty=length_penalty, max_len_a=1.0, max_len_b=4)
    for row, hypotheses in enumerate(search(model, src, src != PAD, SPECIAL)):
        for found in hypotheses:
            (score,) = pair_scores(model, padded([SOURCES[row]]), padded([found.tokens]), SPECIAL)
            divisor = ((5 + len(found.tokens) + 1) / 6) ** length_penalty
            assert sum(score) / divisor == pytest.approx(found.score, abs=1e-4)


def test_dropout_is_off_and_the_mode_stays_what_it_was(build_model):
    model = build_model("model.dropout=0.5").train()
    model.encoder[0].eval()
    before = [module.training for module in model.modules()]
    first, second = (pair_scores(model, padded(SOURCES), padded(TARGETS), SPECIAL) for _ in range(2))
    assert first == second
    assert [module.training for module in model.modules()] == before
    assert len(set(before)) == 2


def test_small_types_and_autocast_are_computed_on_in_float32(build_model):
    model = build_model()
    with torch.autocast("cpu", torch.bfloat16):
        cast = pair_scores(model, padded(SOURCES), padded(TARGETS), SPECIAL)
    assert cast == pair_scores(model, padded(SOURCES), padded(TARGETS), SPECIAL)
    small = pair_scores(build_model().bfloat16(), padded(SOURCES), padded(TARGETS), SPECIAL)
    probability = [math.exp(score[0]) for score in small]
    assert all(value != torch.tensor(value).bfloat16().item() for value in probability)  # more digits than bfloat16


@pytest.mark.parametrize(("side", "longest"), [("source", 7), ("target", 5)])
def test_a_pair_beyond_the_positions_is_named_and_one_that_just_fits_is_not(build_model, side, longest):
    model = build_model("model/position=learned", f"model.position.max_positions={longest}")
    sources, targets = ([[5], [5] * longest], [[6], [6]]) if side == "source" else ([[5], [5]], [[6], [6] * longest])
    with pytest.raises(ValueError, match=f"the {side} of row 1 has {longest + 1} tokens; the maximum is {longest}"):
        pair_scores(model, padded(sources), padded(targets), SPECIAL)
    fitting = [row[: longest - 1] for row in sources], [row[: longest - 1] for row in targets]
    assert len(pair_scores(model, padded(fitting[0]), padded(fitting[1]), SPECIAL)) == 2
