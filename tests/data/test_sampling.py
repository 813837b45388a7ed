"""Tests that random segmentations keep the text, have the papers' probabilities, and are the same in every process."""

import hashlib
import io
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from diglot.data.corpus import Sample
from diglot.data.pieces import adopt, read_model
from diglot.data.preparation import prepare
from diglot.data.sampling import Sampler, Sampling
from diglot.data.shards import Shards
from diglot.data.text import ParallelText
from diglot.data.tokenizer import Tokenizer, TokenizerTrainer
from diglot.errors import UserError


def trained(model_type: str, folder: Path, **options: object) -> Tokenizer:
    trainer = TokenizerTrainer(model_type=model_type, vocab_size=900, placeholder=r"\{[^{}\s]+\}", **options)  # type: ignore[arg-type]
    return trainer.train(Sample().read(folder)["train"].load(), folder)[0]


@pytest.fixture(scope="module")
def unigram(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return trained("unigram", tmp_path_factory.mktemp("unigram"))


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return trained("bpe", tmp_path_factory.mktemp("bpe"))


@pytest.fixture(params=["unigram", "bpe"])
def either(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


def segmentations(word: str, scores: dict[str, float]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield all segmentations of a word, with their log-probabilities."""
    if not word:
        yield (), 0.0
    for end in range(1, len(word) + 1):
        if word[:end] in scores:
            for rest, score in segmentations(word[end:], scores):
                yield (word[:end], *rest), scores[word[:end]] + score


def drawn(tokenizer: Tokenizer, text: str, alpha: float, n: int) -> Counter[tuple[str, ...]]:
    sampler, random = Sampler(tokenizer.model, alpha), Random(1)
    ids = tokenizer.encode([text])[0].ids
    return Counter(tuple(tokenizer.pieces(sampler(ids, random), "src")) for _ in range(n))


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1.0])
def test_unigram_segmentations_have_their_probabilities(unigram: Tokenizer, alpha: float) -> None:
    """Compare with Kudo (2018), section 3.2: proportional to P(x)^alpha, over all segmentations."""
    content = read_model(unigram.model)
    scores = {piece.piece: piece.score for piece in content.pieces if piece.type == 1}
    words = sorted(set(" ".join(Sample().read(Path())["train"].load().src).split()))
    word, every = next(
        (word, every) for word in words if 8 < len(every := dict(segmentations(f"\u2581{word}", scores))) < 50
    )
    weights = {parts: np.exp(alpha * score) for parts, score in every.items()}
    n = 20_000
    found = drawn(unigram, word, alpha, n)
    assert set(found) <= set(every)
    for parts, weight in weights.items():
        share = weight / sum(weights.values())
        assert found[parts] / n == pytest.approx(share, abs=5 * np.sqrt(share * (1 - share) / n) + 1e-4)


def bpe_dropout(word: str, ranks: dict[str, float], dropped: float, random: np.random.Generator) -> tuple[str, ...]:
    """Return a segmentation by algorithm 1 of Provilkov et al. (2020), followed to the letter."""
    parts = list(word)
    while True:
        merges = [i for i in range(len(parts) - 1) if parts[i] + parts[i + 1] in ranks]
        merges = [i for i in merges if random.random() >= dropped]
        if not merges:
            return tuple(parts)
        i = max(merges, key=lambda i: (ranks[parts[i] + parts[i + 1]], -i))
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def test_bpe_segmentations_have_the_frequencies_of_bpe_dropout(bpe: Tokenizer) -> None:
    content = read_model(bpe.model)
    ranks = {piece.piece: piece.score for piece in content.pieces if piece.type == 1}
    n, random = 20_000, np.random.default_rng(1)
    found = drawn(bpe, "gaser", 0.3, n)
    wanted = Counter(bpe_dropout("\u2581gaser", ranks, 0.3, random) for _ in range(n))
    assert len(wanted) > 5
    for parts in set(found) | set(wanted):
        share = wanted[parts] / n
        assert found[parts] / n == pytest.approx(share, abs=6 * np.sqrt(2 * share * (1 - share) / n) + 5e-4)


def test_without_randomness_the_segmentation_is_the_plain_one(
    unigram: Tokenizer, bpe: Tokenizer, sample_lines: list[str]
) -> None:
    """Check that the unigram model's best path, and BPE without dropped merges, are SentencePiece's segmentation."""
    for tokenizer, alpha in ((unigram, 1e6), (bpe, 0.0)):
        sampler, random = Sampler(tokenizer.model, alpha), Random(1)
        for encoded in tokenizer.encode(sample_lines):
            assert sampler(encoded.ids, random) == encoded.ids


def test_without_any_merge_characters_remain(bpe: Tokenizer) -> None:
    assert drawn(bpe, "femo", 1.0, 3) == {("\u2581", "f", "e", "m", "o"): 3}


text_of_any_kind = st.lists(
    st.one_of(
        st.sampled_from(
            ["femo", "Ler", "{name}", "{n}", " ", "  ", "\u3000", "\u2581", "</s>", "x\u0301", "\U0001f600"]
        ),
        st.text(st.characters(exclude_characters="\n\u2581", exclude_categories=["Cs"]), max_size=8),
    ),
    max_size=8,
).map("".join)


@settings(deadline=None)
@given(text=text_of_any_kind, seed=st.integers(0, 9))
def test_every_segmentation_is_of_the_same_text(unigram: Tokenizer, bpe: Tokenizer, text: str, seed: int) -> None:
    for tokenizer in (unigram, bpe):
        encoded = tokenizer.encode([text])[0]
        plain = tokenizer.decode(encoded.ids, encoded.placeholders)
        other = tokenizer.samplers(0.3)[0](encoded.ids, Random(seed))
        assert tokenizer.decode(other, encoded.placeholders) == plain
        assert not {0, 2, 3} & set(other)


def test_a_tag_stays_where_it_is(either: Tokenizer) -> None:
    tagged = Tokenizer(adopt(either.model, ["<2bol>"]), either.placeholder, None, ["bol"])
    ids = tagged.encode(["Ler nin gaser"], "bol")[0].ids
    other = tagged.samplers(0.5)[0](ids, Random(1))
    assert other[0] == ids[0]
    assert ids[0] not in other[1:]


def test_a_model_of_words_cannot_be_sampled(sample_lines: list[str]) -> None:
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sample_lines), model_writer=made, vocab_size=60, model_type="char", minloglevel=2
    )
    with pytest.raises(UserError, match=r"^tokenizer\.samples: a char model has only one segmentation"):
        Sampler(made.getvalue(), 0.1)


# ----------------------------------------------------------------------------------------------------------- prepared


@pytest.fixture(scope="module")
def text() -> ParallelText:
    train = Sample().read(Path())["train"].load()
    return ParallelText(train.src[:200], train.tgt[:200])


def versions(shards: Shards) -> list[list[tuple[list[int], list[int]]]]:
    n = shards.count("kept")
    return [
        [(shards.src[i].tolist(), shards.tgt[i].tolist()) for i in range(v * n, v * n + n)]
        for v in range(shards.n_versions)
    ]


def test_versions_contain_the_same_pairs_in_other_segmentations(
    either: Tokenizer, text: ParallelText, tmp_path: Path
) -> None:
    shards = prepare(text, either, tmp_path, max_len=100, sampling=Sampling(3, 0.2, 1), block_size=60)
    found = versions(shards)
    assert len(found) == shards.n_versions == 3
    assert len(shards.src) == 600
    assert shards.metadata["corpora"]["train"] == {"read": 200, "kept": 200, "dropped": {}}
    sources = either.encode(text.src)
    targets = either.encode_targets(text.tgt, sources)
    for version in found:
        for (src, tgt), source, target in zip(version, sources, targets, strict=True):
            assert either.decode(src, (), "src") == either.decode(source.ids, (), "src")
            assert either.decode(tgt) == either.decode(target)
    assert len({str(version) for version in found}) == 3
    plain = sum(len(source.ids) for source in sources)
    assert sum(len(src) for version in found for src, _ in version) > 1.1 * 3 * plain


def test_the_plain_segmentation_replaces_a_random_one_that_is_too_long(
    either: Tokenizer, text: ParallelText, tmp_path: Path
) -> None:
    sources = either.encode(text.src)
    targets = either.encode_targets(text.tgt, sources)
    longest = max(len(ids) for ids in [*(source.ids for source in sources), *targets]) + 1
    shards = prepare(text, either, tmp_path, max_len=longest, sampling=Sampling(4, 0.4, 1))
    free = prepare(text, either, tmp_path, max_len=500, sampling=Sampling(4, 0.4, 1))
    assert free.src.lengths.max() > longest
    assert shards.count("kept") == 200
    assert max(int(shards.src.lengths.max()), int(shards.tgt.lengths.max())) <= longest


DIGEST = """
import hashlib, sys
from pathlib import Path
from diglot.data.corpus import Sample
from diglot.data.preparation import prepare
from diglot.data.sampling import Sampling
from diglot.data.text import ParallelText
from diglot.data.tokenizer import Tokenizer

if __name__ == "__main__":
    folder, processes = Path(sys.argv[1]), int(sys.argv[2])
    train = Sample().read(Path())["train"].load()
    text = ParallelText(train.src[:200], train.tgt[:200])
    tokenizer = Tokenizer((folder / "model").read_bytes(), None)
    made = prepare(
        text, tokenizer, folder, max_len=100, sampling=Sampling(2, 0.2, 1), block_size=40, n_processes=processes
    )
    print(hashlib.sha256(made.src.ids.tobytes() + made.tgt.ids.tobytes()).hexdigest())
"""


@pytest.mark.reliability
def test_every_process_draws_the_same(either: Tokenizer, text: ParallelText, tmp_path: Path) -> None:
    model = adopt(either.model)
    script = tmp_path / "digest.py"
    script.write_text(DIGEST)
    found = set()
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        folder.mkdir()
        (folder / "model").write_bytes(model)
        done = subprocess.run(
            [sys.executable, str(script), str(folder), str(processes)], capture_output=True, check=True, text=True
        )
        found.add(done.stdout.strip())
    here = prepare(text, Tokenizer(model, None), tmp_path, max_len=100, sampling=Sampling(2, 0.2, 1), block_size=40)
    assert found == {hashlib.sha256(here.src.ids.tobytes() + here.tgt.ids.tobytes()).hexdigest()}
    other = prepare(text, Tokenizer(model, None), tmp_path, max_len=100, sampling=Sampling(2, 0.2, 2), block_size=40)
    assert other.src.ids.tobytes() != here.src.ids.tobytes()


def test_a_model_that_cannot_be_sampled_is_refused_before_the_preparation(
    bpe: Tokenizer, text: ParallelText, sample_lines: list[str], tmp_path: Path
) -> None:
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sample_lines), model_writer=made, vocab_size=60, model_type="char", minloglevel=2
    )
    for tokenizer, alpha, message in (
        (Tokenizer(adopt(made.getvalue()), None), 0.1, "a char model has only one segmentation"),
        (bpe, 5.0, r"tokenizer\.alpha=5: the share of dropped merges of a bpe model must be at most 1"),
    ):
        with pytest.raises(UserError, match=message):
            prepare(
                text, tokenizer, tmp_path, max_len=100, sampling=Sampling(2, alpha, 1), block_size=20, n_processes=2
            )
    assert not (tmp_path / "prepared").exists()
