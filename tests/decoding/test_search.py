"""Beam search finds the results of exhaustive search, independently of the rest of the batch."""

import itertools
import math
from collections.abc import Callable
from typing import Any

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
    """Cache of the target prefix of each row."""

    def __init__(self) -> None:
        self.tokens: Tensor | None = None

    def select(self, hypotheses: Tensor, sentences: Tensor | None = None) -> None:
        assert self.tokens is not None
        self.tokens = self.tokens[hypotheses]


class TableModel:
    """Model whose next-token logits are a given function of the source and the target prefix, as tuples of ids."""

    def __init__(self, logits: Logits, max_positions: int | None = None) -> None:
        self.logits, self.max_tgt_positions = logits, max_positions
        self.n_decoded = 0
        self.widths: list[int] = []  # number of target tokens in each call
        self.n_sentences: list[int] = []  # number of sentences in each call

    def encode(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        return src[:, :, None].float()

    def decode(self, tgt: Tensor, memory: Tensor, src_mask: Tensor | None = None, cache: object = None) -> Tensor:
        assert isinstance(cache, PrefixCache)
        assert src_mask is not None
        seen = 0 if cache.tokens is None else cache.tokens.size(1)
        cache.tokens = tgt if cache.tokens is None else torch.cat((cache.tokens, tgt), 1)
        n = tgt.size(0) // memory.size(0)
        rows = []
        for row, prefix in enumerate(cache.tokens.tolist()):
            source = tuple(memory[row // n, src_mask[row // n], 0].long().tolist())
            rows.append([self.logits(source, tuple(prefix[1:end])) for end in range(seen + 1, len(prefix) + 1)])
        self.n_decoded += len(rows)
        self.widths.append(tgt.size(1))
        self.n_sentences.append(memory.size(0))
        return torch.tensor(np.array(rows)).float()

    def new_cache(self) -> PrefixCache:
        return PrefixCache()


def random_logits(seed: int, spread: float = 2.0) -> Logits:
    """Return logits that are random but fixed for each source and prefix."""

    def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng([seed, *source, 99, *prefix]).normal(scale=spread, size=V)

    return logits


def always(token: int, but_after: int | None = None) -> Logits:
    """Return logits that strongly favour one token, and </s> after `but_after` tokens."""

    def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> np.ndarray:
        likely = EOS if len(prefix) == but_after else token
        return np.where(np.arange(V) == likely, 5.0, -5.0)

    return logits


def sources(*rows: list[int]) -> tuple[Tensor, Tensor]:
    """Return padded sources, each ended by </s>, and their mask."""
    width = max(map(len, rows)) + 1
    src = torch.tensor([[*row, EOS] + [PAD] * (width - len(row) - 1) for row in rows])
    return src, src != PAD


def log_probability(logits: Logits, source: tuple[int, ...], target: tuple[int, ...]) -> float:
    """Return the log-probability of a target, including </s>."""
    total = 0.0
    for i, token in enumerate((*target, EOS)):
        scores = logits(source, target[:i])
        total += float(scores[token]) - math.log(np.exp(scores).sum())
    return total


def score_of(
    logits: Logits,
    source: tuple[int, ...],
    target: tuple[int, ...],
    length_penalty: float | str,
    word_reward: float = 0.0,
) -> float:
    length = len(target) + 1
    norm = length if length_penalty == "mean" else ((5 + length) / 6) ** float(length_penalty)
    return log_probability(logits, source, target) / norm + word_reward * length


def exhaustive(
    logits: Logits, source: tuple[int, ...], shortest: int, longest: int, n_best: int, **options: Any
) -> list[tuple[float, list[int]]]:
    """Return the best of all targets within the length limits, with their scores."""
    targets = [t for length in range(shortest, longest + 1) for t in itertools.product(WORDS, repeat=length)]
    scored = [(score_of(logits, source, target, **options), list(target)) for target in targets]
    return sorted(scored, reverse=True)[:n_best]


def greedy(logits: Logits, source: tuple[int, ...], limit: int) -> list[int]:
    target: list[int] = []
    while len(target) < limit:
        scores = logits(source, tuple(target))
        token = max((EOS, *WORDS), key=lambda i: scores[i])
        if token == EOS:
            break
        target.append(token)
    return target


# --------------------------------------------------------------------------------------------------- best hypotheses


KINDS: dict[str, dict[str, Any]] = {
    "log-probability": {"length_penalty": 0.0},
    "the paper's penalty": {"length_penalty": 0.6},
    "a penalty of 1": {"length_penalty": 1.0},
    "the mean": {"length_penalty": "mean"},
    "a reward": {"length_penalty": 0.0, "word_reward": 1.3},
    "a fine": {"length_penalty": 0.6, "word_reward": -0.7},
    "the mean and a reward": {"length_penalty": "mean", "word_reward": 0.2},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shortest", [0, 2])
@pytest.mark.parametrize("n_best", [1, 5])
def test_a_beam_as_wide_as_the_space_finds_the_best_there_are(kind: str, shortest: int, n_best: int) -> None:
    limit, wide = 3, len(WORDS) ** 3
    for seed in range(4):
        logits = random_logits(seed)
        search = BeamSearch(
            beam_size=wide, n_best=n_best, max_len_a=0, max_len_b=limit, min_len_b=shortest, **KINDS[kind]
        )
        src, mask = sources([4, 5], [6], [5, 5, 4])
        found = search(TableModel(logits), src, mask, SPECIAL)
        for row, hypotheses in zip(src, found, strict=True):
            source = tuple(i for i in row.tolist() if i != PAD)
            expected = exhaustive(logits, source, shortest, limit, n_best, **KINDS[kind])
            assert [h.tokens for h in hypotheses] == [tokens for _, tokens in expected]
            assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in expected], abs=1e-4)


@pytest.mark.parametrize("prefix", [[4], [6, 5], [UNK, 4], [5, 5, 5]])
def test_with_a_prefix_it_finds_the_best_that_begins_with_it(prefix: list[int]) -> None:
    limit, logits = 4, random_logits(2)
    search = BeamSearch(beam_size=len(WORDS) ** limit, max_len_a=0, max_len_b=limit)
    src, mask = sources([4, 5], [6], [5, 5, 4])
    found = search(TableModel(logits), src, mask, SPECIAL, [prefix, [], prefix[:1]])
    for row, hypotheses, begins in zip(src, found, (prefix, [], prefix[:1]), strict=True):
        source = tuple(i for i in row.tolist() if i != PAD)
        targets = [
            (*begins, *rest) for n in range(limit - len(begins) + 1) for rest in itertools.product(WORDS, repeat=n)
        ]
        best = max(targets, key=lambda target: score_of(logits, source, target, 0.6))
        assert tuple(hypotheses[0].tokens) == best
        assert hypotheses[0].score == pytest.approx(score_of(logits, source, best, 0.6), abs=1e-4)
        assert sum(hypotheses[0].log_probs) == pytest.approx(log_probability(logits, source, best), abs=1e-4)


def test_the_common_part_of_all_prefixes_is_read_in_one_step() -> None:
    model = TableModel(random_logits(2))
    src, mask = sources([4, 5], [6])
    BeamSearch(beam_size=2, max_len_a=0, max_len_b=9)(model, src, mask, SPECIAL, [[4] * 5, [5] * 6])
    assert model.widths[:2] == [6, 1]


@pytest.mark.parametrize(
    ("prefix", "reason"), [([4] * 5, "prefix 1 has 5 tokens, but its translation is limited to 4"), ([EOS], "special")]
)
def test_an_impossible_prefix_is_named(prefix: list[int], reason: str) -> None:
    src, mask = sources([4], [5])
    with pytest.raises(ValueError, match=reason):
        BeamSearch(max_len_a=0, max_len_b=4)(TableModel(random_logits(1)), src, mask, SPECIAL, [[], prefix])


@pytest.mark.parametrize("start", [PAD, EOS])
def test_other_starts_than_their_own_token_leave_the_end_and_token_2_possible(start: int) -> None:
    special, words = SPECIAL._replace(bos=start), (BOS, *WORDS)
    limit, logits = 3, random_logits(5)
    search = BeamSearch(beam_size=len(words) ** limit, max_len_a=0, max_len_b=limit)
    src, mask = sources([4, 5], [6])
    model = TableModel(logits)
    # A target of BART begins with <s>, which is no start there.
    for row, (best, *_), begins in zip(src, search(model, src, mask, special, [[BOS], []]), ((BOS,), ()), strict=True):
        source = tuple(i for i in row.tolist() if i != PAD)
        targets = [
            (*begins, *rest) for n in range(limit - len(begins) + 1) for rest in itertools.product(words, repeat=n)
        ]
        assert tuple(best.tokens) == max(targets, key=lambda target: score_of(logits, source, target, 0.6))


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
    """Compare with a plain search of a few lines that never stops early."""
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
            live = [(total, p) for total, p in candidates if p[-1] != EOS][:beam_size]
        for n_best in (1, 2, beam_size):
            search = BeamSearch(beam_size=beam_size, n_best=n_best, max_len_a=0, max_len_b=limit)
            src, mask = sources([4, 5])
            (hypotheses,) = search(TableModel(logits), src, mask, SPECIAL)
            expected = sorted(ended, reverse=True)[:n_best]
            assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in expected], abs=1e-4)
            assert [tuple(h.tokens) for h in hypotheses] == [tokens for _, tokens in expected]


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0])
def test_scores_are_penalised_log_probabilities_best_first(length_penalty: float) -> None:
    logits = random_logits(3)
    search = BeamSearch(beam_size=4, n_best=4, length_penalty=length_penalty, max_len_a=1.0, max_len_b=3)
    src, mask = sources([4, 5], [6], [5, 5, 4])
    for row, hypotheses in zip(src, search(TableModel(logits), src, mask, SPECIAL), strict=True):
        source = tuple(i for i in row.tolist() if i != PAD)
        assert 1 <= len(hypotheses) <= 4
        assert len({tuple(h.tokens) for h in hypotheses}) == len(hypotheses)
        scores = [h.score for h in hypotheses]
        assert scores == sorted(scores, reverse=True)
        for hypothesis in hypotheses:
            assert sum(hypothesis.log_probs) == pytest.approx(
                log_probability(logits, source, tuple(hypothesis.tokens)), abs=1e-4
            )
            assert len(hypothesis.log_probs) == len(hypothesis.tokens) + 1
            expected = score_of(logits, source, tuple(hypothesis.tokens), length_penalty)
            assert hypothesis.score == pytest.approx(expected, abs=1e-4)


def test_a_search_stops_when_nothing_can_get_better() -> None:
    model = TableModel(always(EOS))
    src, mask = sources([4, 5, 6])
    (hypotheses,) = BeamSearch(beam_size=2, max_len_b=100)(model, src, mask, SPECIAL)
    assert hypotheses[0].tokens == []
    assert model.n_decoded <= 4


def test_a_long_output_may_overtake_a_short_one_that_has_ended() -> None:
    """Compare an empty output of probability 0.55 with a long one of 0.45, whose length penalty is twice as large."""

    def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> np.ndarray:
        chances = {EOS: 0.55, 4: 0.45} if not prefix else {EOS if len(prefix) == 6 else 4: 1.0}
        return np.log([chances.get(i, 1e-9) for i in range(V)])

    src, mask = sources([4])
    search = BeamSearch(beam_size=2, n_best=2, length_penalty=1.0, max_len_a=0, max_len_b=6)
    (hypotheses,) = search(TableModel(logits), src, mask, SPECIAL)
    assert [h.tokens for h in hypotheses] == [[4] * 6, []]
    assert [h.score for h in hypotheses] == pytest.approx([math.log(0.45) / 2, math.log(0.55)], abs=1e-4)


# ------------------------------------------------------------------------------------------ independence of the batch


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


@pytest.mark.sampled(3)
@pytest.mark.parametrize("position", ["sinusoidal", "rotary", "relative_bias"])
@torch.no_grad()
def test_neighbours_change_nothing_for_a_transformer(build_model: Callable[..., Transformer], position: str) -> None:
    # In double precision, rounding does not affect the result.
    model = build_model(f"model/position={position}", "model.tying=none").double()
    model.output.weight *= 3  # makes the probabilities less uniform
    model.output.weight[EOS] += 0.15
    rows, search = random_rows(20, 15, 37), BeamSearch(beam_size=4, max_len_a=1.0, max_len_b=3)
    alone = in_batches(search, model, rows, 1)
    assert len({len(row[0].tokens) for row in alone}) > 3
    assert_same(in_batches(search, model, rows, 3), alone)
    assert_same(in_batches(search, model, rows, 20), alone)


@pytest.mark.reliability
@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 3},
        {"beam_size": 4, "n_best": 3, "length_penalty": 0.0},
        {"beam_size": 2, "length_penalty": "mean", "min_len_b": 2},
        {"beam_size": 3, "word_reward": 0.3},
    ],
    ids=str,
)
def test_only_results_that_depend_on_rounding_are_marked(options: dict[str, Any]) -> None:
    """Search with logits many of which are equal except for noise as small as rounding errors."""

    def noisy(seed: int) -> Logits:
        def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> np.ndarray:
            random = np.random.default_rng([7, *source, 99, *prefix])
            noise = np.random.default_rng([seed, *source, 99, *prefix]).normal(scale=3e-7, size=V)
            coarse = random.integers(0, 4, V).astype(float)
            return coarse + noise if random.random() < 0.5 else random.normal(scale=2.0, size=V) + noise

        return logits

    rows, search = random_rows(150, 5, V), BeamSearch(**options, max_len_a=1.0, max_len_b=2)
    found = [in_batches(search, TableModel(noisy(seed)), rows, 50) for seed in (1, 2, 3)]
    differs = [len({str([h.tokens for h in run[i]]) for run in found}) > 1 for i in range(len(rows))]
    marked = [any(h.near_tie for run in found for h in run[i]) for i in range(len(rows))]
    assert any(differs)
    assert all(near_tie for near_tie, other in zip(marked, differs, strict=True) if other)
    clear = in_batches(search, TableModel(random_logits(11)), rows, 50)
    assert not any(h.near_tie for row in clear for h in row)


def test_sentences_that_are_done_leave_when_half_of_all_are() -> None:
    """Check that the model sees only a few different batch sizes."""

    def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> np.ndarray:
        return always(5, but_after=len(source))(source, prefix)

    model = TableModel(logits)
    rows = [[4] * n for n in range(1, 17)]
    found = BeamSearch(beam_size=2, length_penalty=0.0)(model, *sources(*rows), SPECIAL)
    assert [len(row[0].tokens) for row in found] == [n + 1 for n in range(1, 17)]
    assert list(dict.fromkeys(model.n_sentences)) == [16, 8, 4, 2, 1]


def test_work_grows_linearly_with_the_output() -> None:
    src, mask = sources([4])
    n_decoded = []
    for length in (20, 40, 80):
        model = TableModel(always(5))
        BeamSearch(beam_size=3, max_len_a=0, max_len_b=length)(model, src, mask, SPECIAL)
        assert set(model.widths) == {1}
        n_decoded.append(model.n_decoded)
    assert n_decoded[2] - n_decoded[1] == 2 * (n_decoded[1] - n_decoded[0])


# ------------------------------------------------------------------------------------------------------------ limits


def test_no_output_is_shorter_than_its_minimum() -> None:
    src, mask = sources([4], [4] * 6, [4] * 3)
    for beam_size in (1, 3):
        search = BeamSearch(beam_size=beam_size, min_len_a=0.5, min_len_b=1, max_len_b=4)
        found = search(TableModel(always(EOS)), src, mask, SPECIAL)
        assert [len(row[0].tokens) for row in found] == [1, 4, 2]  # 0.5 x source + 1, rounded down


def test_the_minimum_length_never_exceeds_the_model_s_positions() -> None:
    src, mask = sources([4, 4])
    (row,) = BeamSearch(min_len_b=30, max_len_b=30)(TableModel(always(5), max_positions=8), src, mask, SPECIAL)
    assert len(row[0].tokens) == 7


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
    search = BeamSearch(beam_size=2, n_best=2, length_penalty=0.0, max_len_a=0, max_len_b=1)
    (hypotheses,) = search(TableModel(logits), src, mask, SPECIAL)
    assert [(h.tokens, h.cut) for h in hypotheses] == [([5], False), ([4], True)]


@pytest.mark.parametrize(("max_positions", "longest"), [(None, 12), (30, 12), (8, 7), (2, 1)])
def test_no_output_is_longer_than_the_model_s_positions(max_positions: int | None, longest: int) -> None:
    model = TableModel(always(6), max_positions)  # <s> also takes a position
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
        ({"length_penalty": "median"}, "length_penalty"),
        ({"length_penalty": math.nan}, "length_penalty"),
        ({"word_reward": math.inf}, "word_reward"),
        ({"coverage_penalty": -1.0}, "coverage_penalty"),
        ({"n_best": 0}, "n_best"),
        ({"beam_size": 2, "n_best": 3}, "n_best"),
        ({"min_len_b": 21}, "min_len_b"),
        ({"min_len_a": -0.5}, "min_len_a"),
        ({"max_len_a": -1.0}, "max_len_a"),
        ({"max_len_b": -1}, "max_len_b"),
        ({"max_len_a": 0.0, "max_len_b": 0}, "max_len_b"),
    ],
)
def test_impossible_search_options_are_refused_by_name(options: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        BeamSearch(**options)
