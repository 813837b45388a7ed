"""Beam search finds what exhaustive search finds, and no sentence notices its neighbours."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from diglot.decoding import BeamSearch, Hypothesis, SpecialIds
from diglot.model import Transformer

PAD, UNK, BOS, EOS = SPECIAL = SpecialIds(pad=0, unk=1, bos=2, eos=3)
V = 7
WORDS = range(4, V)

Logits = Callable[[tuple[int, ...], tuple[int, ...]], np.ndarray]


class PrefixCache:
    """The target so far of each row."""

    def __init__(self) -> None:
        self.tokens: Tensor | None = None

    def select(self, hypotheses: Tensor, sentences: Tensor | None = None) -> None:
        assert self.tokens is not None
        self.tokens = self.tokens[hypotheses]


class TableModel:
    """Next-token logits are any function of the source and of the target so far, both as tuples of ids."""

    def __init__(self, logits: Logits, max_positions: int | None = None) -> None:
        self.logits, self.max_tgt_positions = logits, max_positions
        self.n_decoded = 0

    def encode(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        return src[:, :, None].float()

    def decode(self, tgt: Tensor, memory: Tensor, src_mask: Tensor | None = None, cache: object = None) -> Tensor:
        assert isinstance(cache, PrefixCache)
        assert src_mask is not None
        cache.tokens = tgt if cache.tokens is None else torch.cat((cache.tokens, tgt), 1)
        n = tgt.size(0) // memory.size(0)
        rows = []
        for row, prefix in enumerate(cache.tokens.tolist()):
            source = memory[row // n, src_mask[row // n], 0].long().tolist()
            rows.append(self.logits(tuple(source), tuple(prefix[1:])))
        self.n_decoded += len(rows)
        return torch.from_numpy(np.stack(rows)).float()[:, None]

    def new_cache(self) -> PrefixCache:
        return PrefixCache()


def random_logits(seed: int, spread: float = 2.0) -> Logits:
    """Another distribution after every prefix of every source."""

    def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng([seed, *source, 99, *prefix]).normal(scale=spread, size=V)

    return logits


def always(token: int, but_after: int | None = None) -> Logits:
    """Nearly always the same token; after `but_after` of them </s>."""

    def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> np.ndarray:
        likely = EOS if len(prefix) == but_after else token
        return np.where(np.arange(V) == likely, 5.0, -5.0)

    return logits


def sources(*rows: list[int]) -> tuple[Tensor, Tensor]:
    """Padded sources, each ended by </s>, and their mask."""
    width = max(map(len, rows)) + 1
    src = torch.tensor([[*row, EOS] + [PAD] * (width - len(row) - 1) for row in rows])
    return src, src != PAD


def log_probability(logits: Logits, source: tuple[int, ...], target: tuple[int, ...]) -> float:
    """Of a whole target, its </s> counted."""
    total = 0.0
    for i, token in enumerate((*target, EOS)):
        scores = logits(source, target[:i])
        total += float(scores[token]) - math.log(np.exp(scores).sum())
    return total


def score_of(logits: Logits, source: tuple[int, ...], target: tuple[int, ...], length_penalty: float) -> float:
    return log_probability(logits, source, target) / ((5 + len(target) + 1) / 6) ** length_penalty


def exhaustive(logits: Logits, source: tuple[int, ...], limit: int, length_penalty: float) -> tuple[list[int], float]:
    """The best of all targets of up to `limit` tokens."""
    targets = [t for length in range(limit + 1) for t in itertools.product(WORDS, repeat=length)]
    best = max(targets, key=lambda target: score_of(logits, source, target, length_penalty))
    return list(best), score_of(logits, source, best, length_penalty)


def greedy(logits: Logits, source: tuple[int, ...], limit: int) -> list[int]:
    target: list[int] = []
    while len(target) < limit:
        scores = logits(source, tuple(target))
        token = max((EOS, *WORDS), key=lambda i: scores[i])
        if token == EOS:
            break
        target.append(token)
    return target


# -------------------------------------------------------------------------------------------------- what is the best


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_a_beam_as_wide_as_the_space_finds_the_best_there_is(seed: int, length_penalty: float) -> None:
    limit, logits = 3, random_logits(seed)
    search = BeamSearch(beam_size=len(WORDS) ** limit, length_penalty=length_penalty, max_len_a=0, max_len_b=limit)
    src, mask = sources([4, 5], [6], [5, 5, 4])
    found = search(TableModel(logits), src, mask, SPECIAL)
    for row, hypotheses in zip(src, found, strict=True):
        source = tuple(i for i in row.tolist() if i != PAD)
        tokens, score = exhaustive(logits, source, limit, length_penalty)
        assert hypotheses[0].tokens == tokens
        assert hypotheses[0].score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_a_beam_of_one_is_greedy_search(seed: int) -> None:
    limit, logits = 6, random_logits(seed)
    search = BeamSearch(beam_size=1, length_penalty=0.6, max_len_a=0, max_len_b=limit)
    src, mask = sources([4], [5, 6, 4], [6, 6])
    for row, (hypothesis,) in zip(src, search(TableModel(logits), src, mask, SPECIAL), strict=True):
        source = tuple(i for i in row.tolist() if i != PAD)
        assert hypothesis.tokens == greedy(logits, source, limit)


@pytest.mark.parametrize("beam_size", [2, 3, 5])
def test_a_beam_keeps_what_a_plain_beam_search_keeps(beam_size: int) -> None:
    """Against a search of a few lines that never stops early; the best is the same."""
    limit = 5
    for seed in range(8):
        logits = random_logits(seed)
        source = (4, 5, EOS)
        live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        ended: list[tuple[float, tuple[int, ...]]] = []
        for length in range(1, limit + 2):
            candidates = []
            for total, prefix in live:
                scores = logits(source, prefix)
                norm = math.log(np.exp(scores).sum())
                allowed = [EOS] if len(prefix) == limit else [EOS, *WORDS]
                candidates += [(total + float(scores[i]) - norm, (*prefix, i)) for i in allowed]
            candidates.sort(reverse=True)
            best = candidates[:beam_size]
            ended += [(total / ((5 + length) / 6) ** 0.6, p[:-1]) for total, p in best if p[-1] == EOS]
            if len(ended) >= beam_size:
                break
            live = [(total, p) for total, p in candidates if p[-1] != EOS][:beam_size]
        search = BeamSearch(beam_size=beam_size, length_penalty=0.6, max_len_a=0, max_len_b=limit)
        src, mask = sources([4, 5])
        (hypotheses,) = search(TableModel(logits), src, mask, SPECIAL)
        assert hypotheses[0].score == pytest.approx(max(ended)[0], abs=1e-4)
        assert tuple(hypotheses[0].tokens) == max(ended)[1]


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0])
def test_scores_are_penalised_log_probabilities_best_first(length_penalty: float) -> None:
    logits = random_logits(3)
    search = BeamSearch(beam_size=4, length_penalty=length_penalty, max_len_a=1.0, max_len_b=3)
    src, mask = sources([4, 5], [6], [5, 5, 4])
    for row, hypotheses in zip(src, search(TableModel(logits), src, mask, SPECIAL), strict=True):
        source = tuple(i for i in row.tolist() if i != PAD)
        assert 1 <= len(hypotheses) <= 4
        assert len({tuple(h.tokens) for h in hypotheses}) == len(hypotheses)
        scores = [h.score for h in hypotheses]
        assert scores == sorted(scores, reverse=True)
        for hypothesis in hypotheses:
            expected = score_of(logits, source, tuple(hypothesis.tokens), length_penalty)
            assert hypothesis.score == pytest.approx(expected, abs=1e-4)


def test_a_search_stops_when_nothing_can_get_better() -> None:
    model = TableModel(always(EOS))
    src, mask = sources([4, 5, 6])
    (hypotheses,) = BeamSearch(beam_size=2, max_len_b=100)(model, src, mask, SPECIAL)
    assert hypotheses[0].tokens == []
    assert model.n_decoded <= 4


def test_a_long_output_may_overtake_a_short_one_that_has_ended() -> None:
    """</s> at once has probability 0.55; the other way is sure after its first word, and divides by twice as much."""

    def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> np.ndarray:
        chances = {EOS: 0.55, 4: 0.45} if not prefix else {EOS if len(prefix) == 6 else 4: 1.0}
        return np.log([chances.get(i, 1e-9) for i in range(V)])

    src, mask = sources([4])
    search = BeamSearch(beam_size=2, length_penalty=1.0, max_len_a=0, max_len_b=6)
    (hypotheses,) = search(TableModel(logits), src, mask, SPECIAL)
    assert [h.tokens for h in hypotheses] == [[4] * 6, []]
    assert [h.score for h in hypotheses] == pytest.approx([math.log(0.45) / 2, math.log(0.55)], abs=1e-4)


# --------------------------------------------------------------------------------------------------------- each alone


def in_batches(search: BeamSearch, model: object, rows: list[list[int]], size: int) -> list[list[Hypothesis]]:
    found: list[list[Hypothesis]] = []
    for start in range(0, len(rows), size):
        found += search(model, *sources(*rows[start : start + size]), SPECIAL)  # type: ignore[arg-type]
    return found


def random_rows(n: int, longest: int, vocab_size: int) -> list[list[int]]:
    random = np.random.default_rng(5)
    return [random.integers(4, vocab_size, random.integers(1, longest + 1)).tolist() for _ in range(n)]


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert [[h.tokens for h in row] for row in found] == [[h.tokens for h in row] for row in expected]
    assert [[h.cut for h in row] for row in found] == [[h.cut for h in row] for row in expected]
    scores = [[h.score for row in rows for h in row] for rows in (found, expected)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


@pytest.mark.parametrize("size", [3, 20])
def test_neighbours_change_nothing_for_a_table(size: int) -> None:
    rows, search = random_rows(20, 5, V), BeamSearch(beam_size=3, max_len_a=1.0, max_len_b=2)
    model = TableModel(random_logits(11))
    alone = in_batches(search, model, rows, 1)
    assert len({len(row[0].tokens) for row in alone}) >= 3  # they end at different times
    assert_same(in_batches(search, model, rows, size), alone)


@pytest.mark.parametrize("position", ["sinusoidal", "rotary", "relative_bias"])
@torch.no_grad()
def test_neighbours_change_nothing_for_a_transformer(build_model: Callable[..., Transformer], position: str) -> None:
    model = build_model(f"model/position={position}", "model.tying=none")
    model.output.weight *= 3  # a model that is sure of something
    model.output.weight[EOS] += 0.15
    rows, search = random_rows(64, 15, 37), BeamSearch(beam_size=4, max_len_a=1.0, max_len_b=3)
    alone = in_batches(search, model, rows, 1)
    assert len({len(row[0].tokens) for row in alone}) > 3
    assert_same(in_batches(search, model, rows, 3), alone)
    assert_same(in_batches(search, model, rows, 64), alone)


# ------------------------------------------------------------------------------------------------------------ limits


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("chance", [-8.0, -math.inf])
def test_a_model_that_never_ends_is_cut_at_its_sentence_s_limit(beam_size: int, chance: float) -> None:
    def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> np.ndarray:
        return np.array([-5, -5, -5, chance, 5, -5, -5])

    search = BeamSearch(beam_size=beam_size, max_len_a=1.5, max_len_b=2)
    src, mask = sources([4], [4] * 6, [4] * 3)
    found = search(TableModel(logits), src, mask, SPECIAL)
    assert [row[0].tokens for row in found] == [[4] * 3, [4] * 11, [4] * 6]  # 1.5 x source + 2, rounded down
    assert all(row[0].cut for row in found)


def test_an_output_that_ends_at_the_limit_by_itself_is_not_cut() -> None:
    src, mask = sources([4, 4])
    search = BeamSearch(beam_size=2, max_len_a=0, max_len_b=4)
    for n, cut in ((3, False), (4, False), (5, True)):
        (hypotheses,) = search(TableModel(always(5, but_after=n)), src, mask, SPECIAL)
        assert hypotheses[0].tokens == [5] * min(n, 4)
        assert hypotheses[0].cut == cut


def test_of_two_outputs_at_the_limit_only_the_one_that_wants_more_is_cut() -> None:
    chances = {(): {4: 0.6, 5: 0.4}, (4,): {EOS: 0.1, 6: 0.9}, (5,): {EOS: 0.9, 6: 0.1}}

    def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> np.ndarray:
        return np.log([chances[prefix].get(i, 1e-9) for i in range(V)])

    src, mask = sources([4])
    search = BeamSearch(beam_size=2, length_penalty=0.0, max_len_a=0, max_len_b=1)
    (hypotheses,) = search(TableModel(logits), src, mask, SPECIAL)
    assert [(h.tokens, h.cut) for h in hypotheses] == [([5], False), ([4], True)]


@pytest.mark.parametrize(("max_positions", "longest"), [(None, 12), (30, 12), (8, 7), (2, 1)])
def test_no_output_is_longer_than_the_model_s_positions(max_positions: int | None, longest: int) -> None:
    model = TableModel(always(6), max_positions)  # <s> takes a position too
    src, mask = sources([4, 4])
    (hypotheses,) = BeamSearch(beam_size=2, max_len_a=1.0, max_len_b=10)(model, src, mask, SPECIAL)
    assert len(hypotheses[0].tokens) == longest
    assert hypotheses[0].cut


@torch.no_grad()
def test_a_transformer_with_learned_positions_is_searched_to_its_last_one(
    build_model: Callable[..., Transformer],
) -> None:
    model = build_model("model/position=learned", "model.position.max_positions=9", "model.tying=none")
    model.output.weight[EOS] = 0
    model.output.weight[4] = model.output.weight[4] * 20
    found = BeamSearch(beam_size=3, max_len_b=100)(model, *sources([4, 5], [6]), SPECIAL)
    assert max(len(h.tokens) for row in found for h in row) <= 8


@pytest.mark.parametrize("loved", [PAD, UNK, BOS])
def test_special_ids_never_come_out(loved: int) -> None:
    def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> np.ndarray:
        return random_logits(1)(source, prefix) + 20 * (np.arange(V) == loved)

    src, mask = sources([4, 5], [6])
    for row in BeamSearch(beam_size=4, max_len_b=4)(TableModel(logits), src, mask, SPECIAL):
        assert row
        assert all(token in WORDS for hypothesis in row for token in hypothesis.tokens)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"beam_size": 0}, "beam_size"),
        ({"beam_size": -1}, "beam_size"),
        ({"length_penalty": -0.1}, "length_penalty"),
        ({"max_len_a": -1.0}, "max_len_a"),
        ({"max_len_b": -1}, "max_len_b"),
        ({"max_len_a": 0.0, "max_len_b": 0}, "max_len_b"),
    ],
)
def test_values_that_allow_no_search_are_refused_by_name(options: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        BeamSearch(**options)
