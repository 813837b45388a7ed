"""Samples follow the model's probabilities and do not depend on the batch; also minimum Bayes risk and ensembles."""

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import sacrebleu
import torch

from diglot.decoding import BeamSearch, Ensemble, Hypothesis, SamplingSearch, SpecialIds
from diglot.decoding.sampling import gumbel
from diglot.model import GruAttention, Transformer

PAD, UNK, BOS, EOS = SPECIAL = SpecialIds(0, 1, 2, 3)
V = 37


@pytest.fixture
def model(build_model: Callable[..., Transformer]) -> Transformer:
    built = build_model("model/position=rotary", "model.tying=none")
    with torch.no_grad():
        built.output.weight *= 3
        built.output.weight[EOS] += 0.15
    return built


def sources(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows)) + 1
    src = torch.tensor([[*row, EOS] + [PAD] * (width - len(row) - 1) for row in rows])
    return src, src != PAD


def random_rows(n: int, longest: int = 12, seed: int = 5) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(4, V, random.integers(1, longest + 1)).tolist() for _ in range(n)]


def log_probs_of(model: Transformer, row: list[int], tokens: list[int]) -> list[float]:
    """Return the log-probabilities of the tokens and </s> by teacher forcing."""
    with torch.no_grad():
        logits = model(torch.tensor([[*row, EOS]]), torch.tensor([[BOS, *tokens]]))[0].log_softmax(-1)
    return [float(logits[i, token]) for i, token in enumerate([*tokens, EOS])]


# ------------------------------------------------------------------------------------------------------------- samples


def test_first_tokens_are_drawn_as_often_as_they_are_probable(model: Transformer) -> None:
    n = 4000
    (found,) = SamplingSearch(n_samples=n, max_len_a=0, max_len_b=1)(model, *sources([[5, 6, 7]]), SPECIAL)
    with torch.no_grad():
        chances = model(torch.tensor([[5, 6, 7, EOS]]), torch.tensor([[BOS]]))[0, 0].softmax(-1).double()
    chances[[PAD, UNK, BOS]] = 0
    chances /= chances.sum()
    drawn = Counter(hypothesis.tokens[0] if hypothesis.tokens else EOS for hypothesis in found)
    assert len(found) == n
    for token in range(V):
        expected, deviation = n * chances[token], math.sqrt(n * chances[token] * (1 - chances[token]))
        assert abs(drawn[token] - expected) < 4.5 * deviation + 1, token


@pytest.mark.parametrize(("temperature", "sharper"), [(0.3, True), (3.0, False)])
def test_a_low_temperature_makes_the_probable_more_so(model: Transformer, temperature: float, sharper: bool) -> None:
    def distinct(temperature: float) -> int:
        search = SamplingSearch(n_samples=300, temperature=temperature, max_len_a=0, max_len_b=1)
        (found,) = search(model, *sources([[5, 6, 7]]), SPECIAL)
        return len({tuple(hypothesis.tokens) for hypothesis in found})

    assert (distinct(temperature) < distinct(1.0)) == sharper


def test_the_most_probable_token_alone_is_greedy_search(model: Transformer) -> None:
    src, mask = sources(random_rows(9))
    greedy = BeamSearch(beam_size=1)(model, src, mask, SPECIAL)
    for search in (SamplingSearch(top_k=1), SamplingSearch(top_p=1e-6), SamplingSearch(temperature=1e-3)):
        assert [[h.tokens for h in row] for row in search(model, src, mask, SPECIAL)] == [
            [h.tokens for h in row] for row in greedy
        ]


def test_tokens_outside_top_k_and_the_nucleus_are_never_drawn(model: Transformer) -> None:
    row = [5, 6, 7]
    with torch.no_grad():
        logits = model(torch.tensor([[*row, EOS]]), torch.tensor([[BOS]]))[0, 0]
    logits[[PAD, UNK, BOS]] = -torch.inf
    chances, order = logits.softmax(-1).sort(descending=True)
    n_nucleus = int((chances.cumsum(0) < 0.6).sum()) + 1
    for search, n in (
        (SamplingSearch(n_samples=500, top_k=3, max_len_a=0, max_len_b=1), 3),
        (SamplingSearch(n_samples=500, top_p=0.6, max_len_a=0, max_len_b=1), n_nucleus),
        (SamplingSearch(n_samples=500, top_k=2, top_p=0.999, max_len_a=0, max_len_b=1), 2),
    ):
        (found,) = search(model, *sources([row]), SPECIAL)
        assert {h.tokens[0] if h.tokens else EOS for h in found} == set(order[:n].tolist())


def test_scores_are_log_probabilities_under_the_model_itself(model: Transformer) -> None:
    row = [9, 4, 30]
    (found,) = SamplingSearch(n_samples=20, temperature=0.5, top_k=5)(model, *sources([row]), SPECIAL)
    for hypothesis in found:
        expected = log_probs_of(model, row, hypothesis.tokens)
        assert hypothesis.log_probs == pytest.approx(expected, abs=1e-4)
        assert hypothesis.score == pytest.approx(sum(expected), abs=1e-4)


def test_a_sentence_has_the_same_samples_wherever_it_stands(model: Transformer) -> None:
    rows, search = random_rows(24), SamplingSearch(n_samples=3, max_len_a=1.0, max_len_b=3)
    alone = [search(model, *sources([row]), SPECIAL)[0] for row in rows]
    assert len({len(h.tokens) for row in alone for h in row}) > 3
    backwards = search(model, *sources(rows[::-1]), SPECIAL)[::-1]
    for found, expected in zip(backwards, alone, strict=True):
        assert [h.tokens for h in found] == [h.tokens for h in expected]
        assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-4)
    one, other = search(model, *sources([rows[0]] * 2), SPECIAL)  # with two threads, rounding may differ between rows
    assert [h.tokens for h in one] == [h.tokens for h in other]
    assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-4)


def test_random_numbers_are_those_of_splitmix() -> None:
    mask = 2**64 - 1

    def splitmix(key: int, number: int) -> int:
        z = (key + (number + 1) * 0x9E3779B97F4A7C15) & mask
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        return z ^ (z >> 31)

    assert splitmix(0, 0) == 0xE220A8397B1DCDAF
    keys = [0, 1, 2**62 + 12345, 2**63 - 2]
    found = gumbel(torch.tensor(keys)[:, None], torch.arange(50), torch.float64)
    for key, row in zip(keys, found.tolist(), strict=True):
        chances = [((splitmix(key, i) >> 12) + 0.5) / 2**52 for i in range(50)]
        assert row == pytest.approx([-math.log(-math.log(chance)) for chance in chances], rel=1e-12)
    assert gumbel(torch.tensor([[5]]), torch.arange(100_000), torch.float32).isfinite().all()


@pytest.mark.reliability
def test_rounding_changes_no_sample_of_a_large_vocabulary() -> None:
    """Check that relative noise of 1e-6, as between batches, only changes tokens that were marked as close."""
    generator = torch.Generator().manual_seed(1)
    log_probs = (3 * torch.randn((200, 1, 30_000), generator=generator)).log_softmax(-1)
    keys = torch.randint(2**63 - 1, (200, 1), generator=generator)
    search = SamplingSearch()
    tokens, lead = search.draw(log_probs, keys)
    assert (lead < 1e-5).sum() <= 1
    for _ in range(3):
        other, _ = search.draw(log_probs * (1 + 1e-6 * torch.randn(log_probs.shape, generator=generator)), keys)
        assert (other == tokens)[lead >= 2e-5].all()


def test_samples_that_rounding_may_change_are_marked() -> None:
    search = SamplingSearch()
    log_probs = torch.full((1, 1, 9), -torch.inf)
    log_probs[..., 5], log_probs[..., 6] = 0.0, 0.0
    keys = torch.tensor([[77]])
    noise = gumbel(keys[..., None], torch.arange(9), torch.float64)[0, 0]
    log_probs[..., 6] = noise[5] - noise[6]
    assert abs(float(search.draw(log_probs, keys)[1])) < 1e-5
    log_probs[..., 6] += 0.1
    tokens, lead = search.draw(log_probs, keys)
    assert (int(tokens), float(lead)) == (6, pytest.approx(0.1, abs=1e-6))
    log_probs[..., 6] = -torch.inf  # only one token is possible
    assert float(search.draw(log_probs, keys)[1]) == math.inf


def test_another_seed_gives_other_samples(model: Transformer) -> None:
    src, mask = sources(random_rows(6))
    one, again, other = (SamplingSearch(seed=seed)(model, src, mask, SPECIAL) for seed in (1, 1, 2))
    assert one == again != other


def test_a_prefix_and_a_minimum_hold_for_samples_too(model: Transformer) -> None:
    search = SamplingSearch(n_samples=8, min_len_b=5, max_len_b=9)
    for row in search(model, *sources(random_rows(4)), SPECIAL, [[8, 9], [], [UNK], [8, 9, 10]]):
        assert all(len(h.tokens) >= 5 for h in row)
    begins = [[8, 9], [], [UNK], [8, 9, 10]]
    for row, begin in zip(search(model, *sources(random_rows(4)), SPECIAL, begins), begins, strict=True):
        assert all(h.tokens[: len(begin)] == begin for h in row)
        assert all(UNK not in h.tokens[len(begin) :] for h in row)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"n_samples": 0}, "n_samples"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
    ],
)
def test_a_wrong_option_of_sampling_is_named(options: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SamplingSearch(**options)


# ------------------------------------------------------------------------------------------------- minimum Bayes risk


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_the_text_most_like_all_others_comes_first(utility: str) -> None:
    texts = [
        "the cat sat on the mat",
        "a dog ran",
        "the cat sat on a mat",
        "the cat sat on the mat",
        "no cat sat on it",
    ]
    metric = sacrebleu.CHRF() if utility == "chrf" else sacrebleu.BLEU(effective_order=True)
    expected = {a: np.mean([metric.sentence_score(a, [b]).score for b in texts]) for a in texts}
    hypotheses = [Hypothesis([i], -1.0, False, [-0.5, -0.5]) for i in range(len(texts))]
    search = SamplingSearch(utility=utility, n_samples=5)  # type: ignore[arg-type]
    found = search.ranked(hypotheses, lambda tokens: texts[tokens[0]])
    assert [(texts[h.tokens[0]], h.score) for h in found] == [
        (text, pytest.approx(worth)) for text, worth in sorted(expected.items(), key=lambda item: -item[1])
    ]


def test_bleu_utility_uses_characters_in_a_language_without_spaces() -> None:
    texts = ["我们今天去公园。", "他们今天去公园。", "我们今天去了公园。"]
    hypotheses = [Hypothesis([i], -1.0, False, []) for i in range(len(texts))]
    found = SamplingSearch(utility="bleu", n_samples=3).ranked(hypotheses, lambda ids: texts[ids[0]])
    metric = sacrebleu.BLEU(effective_order=True, tokenize="char")
    for hypothesis in found:
        text = texts[hypothesis.tokens[0]]
        worth = sum(metric.sentence_score(text, [other]).score for other in texts) / 3
        assert hypothesis.score == pytest.approx(worth)
    assert found[0].score > 50


def test_other_searches_leave_their_hypotheses_as_they_are() -> None:
    hypotheses = [Hypothesis([i], -float(i), False, []) for i in range(3)]
    for search in (BeamSearch(), SamplingSearch(n_samples=3)):
        assert search.ranked(hypotheses, str) == hypotheses


# ------------------------------------------------------------------------------------------------------------ ensembles


def gru() -> GruAttention:
    torch.manual_seed(2)
    sizes = {"src_vocab_size": V, "tgt_vocab_size": V, "d_model": 24, "d_hidden": 10, "d_attention": 14}
    return GruAttention(**sizes, dropout=0.3, tying="none").eval()


def test_an_ensemble_of_copies_is_the_model(model: Transformer) -> None:
    src, mask = sources(random_rows(9))
    for search in (BeamSearch(beam_size=3, n_best=3), SamplingSearch(n_samples=2)):
        one = search(model, src, mask, SPECIAL)
        three = search(Ensemble([model] * 3), src, mask, SPECIAL)
        for a, b in zip(one, three, strict=True):
            assert [h.tokens for h in a] == [h.tokens for h in b]
            assert [h.score for h in a] == pytest.approx([h.score for h in b], abs=1e-4)


def test_an_ensemble_averages_the_probabilities_of_models_of_any_kind(model: Transformer) -> None:
    other, row = gru(), [5, 9, 30, 12]
    ensemble = Ensemble([model, other]).eval()
    (hypotheses,) = BeamSearch(beam_size=4, n_best=4)(ensemble, *sources([row]), SPECIAL)
    for hypothesis in hypotheses:
        each = [np.exp(log_probs_of(m, row, hypothesis.tokens)) for m in (model, other)]  # type: ignore[arg-type]
        assert np.exp(hypothesis.log_probs) == pytest.approx(np.mean(each, 0), rel=1e-3)
    assert len(ensemble.attentions()["cross"]) == len(model.attentions()["cross"]) + 1


def test_an_ensemble_of_other_vocabularies_is_refused(build_model: Callable[..., Transformer]) -> None:
    one, other = (
        gru(),
        GruAttention(
            src_vocab_size=V + 1, tgt_vocab_size=V, d_model=24, d_hidden=10, d_attention=14, dropout=0.0, tying="none"
        ),
    )
    with pytest.raises(ValueError, match="vocabularies"):
        Ensemble([one, other])


# ------------------------------------------------------------------------------------------------------------- coverage


@pytest.mark.parametrize("kind", ["transformer", "gru"])
def test_coverage_equals_that_of_a_full_forward_pass(model: Transformer, kind: str) -> None:
    found_by = model if kind == "transformer" else gru()
    rows, beta = random_rows(6, 16), 0.4
    search = BeamSearch(beam_size=3, n_best=3, coverage_penalty=beta, max_len_a=0, max_len_b=4)
    penalties = []
    for row, hypotheses in zip(rows, search(found_by, *sources(rows), SPECIAL), strict=True):
        for h in hypotheses:
            weights = found_by.attention_weights(torch.tensor([[*row, EOS]]), torch.tensor([[BOS, *h.tokens]])).cross
            looked = torch.stack([layer[0].mean(0) for layer in weights]).mean(0).sum(0)  # (S,)
            covered = beta * float(looked.clamp(max=1.0).log().sum())
            assert h.score == pytest.approx(search.score(sum(h.log_probs), len(h.tokens) + 1) + covered, abs=1e-4)
            penalties.append(covered)
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
    assert min(penalties) < -0.1
    assert all(attention.watcher is None for attention in found_by.attentions()["cross"])


def test_a_model_without_cross_attention_has_no_coverage(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "attentions", lambda: {"cross": []})
    with pytest.raises(ValueError, match="coverage_penalty"):
        BeamSearch(coverage_penalty=0.2)(model, *sources([[5]]), SPECIAL)
