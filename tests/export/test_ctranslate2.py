"""For each choice and some combinations, CTranslate2 computes the same as the model, or the export is rejected."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import pytest
import torch

from diglot.config import CONF, resolved
from diglot.config.exportable import _ctranslate2_buckets, unrepresentable
from diglot.data.encoding import Prefixes
from diglot.decoding import BeamSearch, SpecialIds
from diglot.export import ctranslate2 as converter
from diglot.model import Transformer

# Lengths of five sources and targets without </s>; all differ, so most are padded.
SRC, TGT = (3, 11, 7, 1, 5), (6, 2, 9, 4, 8)
CLOSE = 5e-5  # tolerance of log-probabilities: ten times the rounding error, and far below the effect of a wrong weight

# Choices of conf/model that cannot be represented. All others must be.
REFUSED = {"position=alibi"}


class Pieces:
    """Fake tokenizer with one piece per id."""

    pad_id, unk_id, bos_id, eos_id = range(4)
    languages: tuple[str, ...] = ()
    prefixes, n_tgt_prefix, tgt_model = Prefixes(), 0, None
    model = b""  # a model file without pieces

    def __init__(self, src_vocab_size: int, tgt_vocab_size: int) -> None:
        self.src_vocab_size, self.tgt_vocab_size = src_vocab_size, tgt_vocab_size
        self.is_joint = src_vocab_size == tgt_vocab_size

    def pieces(self, ids: Sequence[int], side: str) -> list[str]:
        return [("<pad>", "<unk>", "<s>", "</s>")[i] if i < 4 else f"{i}" for i in ids]


def shaken(model: Transformer) -> Transformer:
    """Randomise the weights, so that every bias, gain and table matters."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "table" in name:
                weight.normal_()
            elif weight.dim() == 1:
                weight.add_(0.3 * torch.randn_like(weight))
            else:
                weight.mul_(1.5)
    return model


def padded(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def check_parity(model: Transformer, folder: Path) -> None:
    """Check that both engines agree in log-probabilities, of given targets and in each step of greedy search."""
    n_src, n_tgt = model.src_embedding.num_embeddings, model.tgt_embedding.num_embeddings
    pieces: Any = Pieces(n_src, n_tgt)
    converter.write(shaken(model), pieces, folder)
    engine = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
    random = torch.Generator().manual_seed(1)
    sources = [torch.randint(4, n_src, (length,), generator=random).tolist() for length in SRC]
    targets = [torch.randint(4, n_tgt, (length,), generator=random).tolist() for length in TGT]
    src, tgt_in = padded([[*source, 3] for source in sources]), padded([[2, *target] for target in targets])
    words = [pieces.pieces(source, "src") for source in sources]
    with torch.no_grad():
        log_probs = model(src, tgt_in, src != 0).log_softmax(-1)  # (B, T, V)
    found = engine.score_batch(words, [pieces.pieces(target, "tgt") for target in targets])
    for row, target, scored in zip(log_probs, targets, found, strict=True):
        labels = torch.tensor([*target, 3])
        assert scored.log_probs == pytest.approx(row[range(len(labels)), labels].tolist(), abs=CLOSE)

    search = BeamSearch(beam_size=1, length_penalty=0.0, max_len_a=0.0, max_len_b=15)
    ours = [best for best, *_ in search(model, src, src != 0, SpecialIds(0, 1, 2, 3))]
    theirs = engine.translate_batch(
        words,
        beam_size=1,
        max_decoding_length=15,
        min_decoding_length=0,
        disable_unk=True,
        suppress_sequences=[["<pad>"], ["<s>"]],
        return_logits_vocab=True,
    )
    assert sum(best.near_tie for best in ours) < len(ours) / 2  # near ties may differ between processors
    for source, best, each in zip(sources, ours, theirs, strict=True):
        if best.near_tie:
            continue
        assert pieces.pieces(best.tokens, "tgt") == each.hypotheses[0]
        # The logits of each step, which CTranslate2 computes with its cache.
        with torch.no_grad():
            wanted = model(torch.tensor([[*source, 3]]), torch.tensor([[2, *best.tokens][:15]]))[0]  # (T, V)
        got = torch.stack([torch.from_numpy(np.asarray(step).reshape(-1)) for step in each.logits[0]])
        assert torch.allclose(got[:, 3:].log_softmax(-1), wanted[:, 3:].log_softmax(-1), rtol=0, atol=CLOSE)


@pytest.fixture
def parity(build_model: Callable[..., Transformer], tmp_path: Path) -> Callable[..., None]:
    """Return a function that checks a model of two vocabularies, or of one if they are tied."""

    def check(*words: str) -> None:
        tied = bool({"model.tying=all", "model.tying=inputs"} & {*words})
        tying = () if any(word.startswith("model.tying") for word in words) else ("model.tying=none",)
        model = build_model(*words, *tying, src_vocab_size=37, tgt_vocab_size=37 if tied else 41)
        check_parity(model, tmp_path)

    return check


CHOICES = sorted(
    f"{folder.name}={file.stem}"
    for folder in (CONF / "model").iterdir()
    if folder.is_dir()
    for file in folder.glob("*.yaml")
)


@pytest.mark.reliability
@pytest.mark.parametrize("place", ["both", "decoder"])
@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_of_a_part_translates_identically_or_is_refused(parity, compose_train, choice, place):
    part, _, name = choice.partition("=")
    word = f"model/{choice}" if place == "both" else f"model/{part}@model.decoder_{part}={name}"
    reasons = unrepresentable(resolved(compose_train("model=tiny", word).model))
    assert bool(reasons) == (place == "both" and choice in REFUSED), reasons
    if not reasons:
        parity(word)


@pytest.mark.parametrize("file", sorted(file.stem for file in (CONF / "model").glob("*.yaml")))
def test_every_model_except_the_recurrent_one_can_be_exported(compose_train, file):
    reasons = unrepresentable(resolved(compose_train(f"model={file}").model))
    if file == "gru_attention":
        (reason,) = reasons
        assert "model._target_=diglot.model.GruAttention: CTranslate2 has no such model; nearest: model=tiny" in reason
    else:
        assert not reasons


@pytest.mark.reliability
@pytest.mark.parametrize(
    "words",
    [
        # tying and depth
        "model.tying=all",
        "model.tying=target",
        "model.tying=inputs",
        "model.n_encoder_layers=4 model.n_decoder_layers=1 model/position=sinusoidal",
        "model.n_encoder_layers=1 model.n_decoder_layers=3",
        # heads
        "model.n_heads=1",
        "model.d_head=10",
        "model.n_heads={encoder:2,decoder:3,cross:3}",
        "model.d_head={encoder:6,decoder:10,cross:4}",
        "model.n_kv_heads=1",
        "model.n_heads=4 model.n_kv_heads=2",
        "model.n_heads=4 model.n_kv_heads=1 model.d_head=10",
        "model.n_heads=4 model.n_kv_heads={encoder:2,decoder:1,cross:4} model/position=relative_bias",
        "model.n_heads=4 model.n_kv_heads={encoder:4,decoder:4,cross:1} model/position=sinusoidal",
        "model.n_heads=4 model.n_kv_heads={encoder:1,decoder:4,cross:2} model.d_head={encoder:4,decoder:10,cross:6}",
        "model.n_heads=4 model.n_kv_heads=2 model/position@model.decoder_position=alibi",
        "model.n_heads={encoder:2,decoder:3,cross:1} model.n_heads.decoder=1 model.qk_norm=true",
        "model.n_heads=1 model.qk_norm=true model/norm=rms_norm",
        # positions
        "model.position.base=500",
        "model/position=relative_bias model.position.n_buckets=6 model.position.max_distance=10",
        "model/position=relative_bias model/position@model.decoder_position=learned",
        "model/position=none model/position@model.decoder_position=relative_bias",
        "model/position=learned model.position.max_positions=20 model/position@model.decoder_position=none",
        # norms and their eps
        "model/norm=rms_norm model/norm@model.decoder_norm=layer_norm",
        "model.norm.eps=0.1",
        "model/norm=rms_norm model.norm.eps=null",
        "model/norm=rms_norm model/residual=post_norm model/norm@model.decoder_norm=layer_norm model.norm.eps=1e-5",
        "+model.norm.elementwise_affine=false",
        "+model.norm.bias=false",
        # biases, norm and scale of the embeddings
        "model.output_bias=true model.tying=all",
        "model.bias=false model.n_heads=4 model.n_kv_heads=2",
        "model.bias=false model/feed_forward=swiglu model/norm=rms_norm model/position=relative_bias",
        "model.scale_embeddings=false model/position=sinusoidal model.position.offset=2 model.position.base=30",
        "model.embedding_norm=true model/residual=post_norm model/position=learned",
        "model.embedding_norm=true model/norm=rms_norm model.scale_embeddings=false model/position=sinusoidal",
        "model.embedding_norm=true model/residual=deep_norm model.residual.alpha=3 model.norm.eps=0.1",
        # placements
        "model/residual=deep_norm model.residual.alpha=3 model/position=sinusoidal model.norm.eps=0.1",
        "model/residual=deep_norm model.residual.alpha=0.4 model/norm=rms_norm",
        "model/residual=deep_norm model/residual@model.decoder_residual=sandwich_norm model.n_encoder_layers=3",
        "model/residual=sandwich_norm model/residual@model.decoder_residual=deep_norm model/position=learned",
        "model/residual=post_norm model/residual@model.decoder_residual=pre_norm model/norm=rms_norm",
        "model/residual=sandwich_norm model/norm=rms_norm model/feed_forward=swiglu model.n_heads=4 model.n_kv_heads=2",
        # feed-forward
        "model/feed_forward=geglu model/feed_forward@model.decoder_feed_forward=relu",
        "model/feed_forward=gelu +model.feed_forward.activation.approximate=tanh",
        "model.feed_forward.activation._target_=torch.nn.Tanh",
        "model/feed_forward=geglu model.feed_forward.activation._target_=torch.nn.Sigmoid",
    ],
)
def test_combinations_translate_alike(parity, compose_train, words):
    assert not unrepresentable(resolved(compose_train("model=tiny", *words.split()).model))
    parity(*words.split())


@pytest.mark.parametrize("position", ["relative_bias", "sinusoidal", "rotary"])
def test_long_sequences_are_scored_alike(monkeypatch, parity, position):
    monkeypatch.setattr(f"{__name__}.SRC", (300, 2))
    monkeypatch.setattr(f"{__name__}.TGT", (3, 200))
    parity(f"model/position={position}")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (
            "model/position=alibi",
            "model/position=alibi: CTranslate2's encoder does not support it; nearest: model/position=relative_bias, "
            "and model/position@model.decoder_position=alibi",
        ),
        (
            "model/position=alibi model/position@model.decoder_position=rotary",
            "model/position=alibi: CTranslate2's encoder does not support it; nearest: model/position=relative_bias",
        ),
        (
            "model.n_heads={encoder:4,decoder:4,cross:2}",
            "model.n_heads.cross=2: CTranslate2's decoder has the same number of heads for both attentions; "
            "nearest: model.n_heads.cross=4",
        ),
        (
            "model.qk_norm=true",
            "model.qk_norm=true: CTranslate2 normalises the queries of cross-attention before it splits them into "
            "heads; nearest: model.qk_norm=false",
        ),
        (
            "model/position=relative_bias model.position.n_buckets=36 model.position.max_distance=50",
            "model.position.max_distance=50: CTranslate2 may put distance 30 into another bucket; nearest: "
            "model.position.max_distance=51",
        ),
        (
            "model/norm@model.decoder_norm=rms_norm model.norm.eps=1e-3",
            "model.decoder_norm.eps=1e-06: CTranslate2 has one eps for both stacks, or 1e-05 for layer_norm and 1e-06 "
            "for rms_norm; nearest: model.decoder_norm.eps=0.001",
        ),
        (
            "model.feed_forward.activation._target_=torch.nn.Mish",
            "model.feed_forward.activation._target_=torch.nn.Mish: CTranslate2 supports torch.nn.ReLU, torch.nn.GELU, "
            "torch.nn.SiLU, torch.nn.Tanh, torch.nn.Sigmoid",
        ),
        (
            "model.residual._target_=mine.Residual",
            "model.residual._target_=mine.Residual: CTranslate2 has no such residual; nearest: model/residual=pre_norm",
        ),
    ],
)
def test_unsupported_values_are_refused_with_key_and_nearest_value(compose_train, words, wanted):
    assert unrepresentable(resolved(compose_train("model=tiny", *words.split()).model)) == [wanted]


@pytest.mark.parametrize("words", ["model.qk_norm=true", "model.n_heads={encoder:3,decoder:3,cross:1}"])
def test_refused_values_are_computed_differently_by_ctranslate2(parity, words):
    """Check that rejected choices are incompatible; if one no longer is, it need not be rejected any more."""
    with pytest.raises((AssertionError, ValueError, RuntimeError)):
        parity(words)


def test_a_tie_of_buckets_is_refused_whatever_this_machine_computes(monkeypatch, compose_train):
    """Check a tie: 18 + 18 ln(30/18) / ln(50/18) is exactly 27, but 26 if a logarithm is wrong in its last bit."""
    words = ("model/position=relative_bias", "model.position.n_buckets=36", "model.position.max_distance=50")
    model = resolved(compose_train("model=tiny", *words).model)
    for step in (0, np.inf):  # logarithms rounded down, or up
        monkeypatch.setattr(np, "log", lambda x, step=step: np.nextafter(np.float32(math.log(x)), np.float32(step)))
        assert len(unrepresentable(model)) == 1


@pytest.mark.parametrize(
    ("distance", "n_exact", "n_buckets", "max_distance", "wanted"),
    [
        (30, 18, 36, 50, {26, 27}),  # a tie with inexact logarithms
        (16, 8, 16, 128, {10}),  # a tie, but with logarithms of powers of two, which every library rounds equally
        (64, 8, 16, 128, {14}),
        (27, 9, 18, 243, {12}),
        (31, 18, 36, 50, {27}),
        (200, 18, 36, 50, {35}),
    ],
)
def test_ctranslate2_s_buckets_cover_all_results_of_rounding(distance, n_exact, n_buckets, max_distance, wanted):
    assert _ctranslate2_buckets(distance, n_exact, n_buckets, max_distance) == wanted


def test_buckets_that_are_accepted_are_counted_alike(monkeypatch, parity):
    monkeypatch.setattr(f"{__name__}.SRC", (3, 2))
    monkeypatch.setattr(f"{__name__}.TGT", (40, 35))
    parity("model/position=relative_bias", "model.position.n_buckets=36", "model.position.max_distance=51")


def test_a_config_from_before_a_choice_existed_is_checked_too(compose_train):
    model = resolved(compose_train().model)
    before = {key: value for key, value in model.items() if key != "qk_norm" and not key.startswith("decoder_")}
    assert not unrepresentable(before)
    assert len(unrepresentable({**before, "qk_norm": True})) == 1


def test_sources_longer_than_the_position_table_are_refused_by_ctranslate2_and_the_limit_is_exported(
    build_model, tmp_path
):
    model = build_model("model/position=learned", "model.position.max_positions=20")
    assert converter.longest(model) == {"source": 20, "target": 20}
    assert converter.longest(build_model()) == {"source": None, "target": None}
    pieces: Any = Pieces(37, 37)
    converter.write(model, pieces, tmp_path)
    engine = ctranslate2.Translator(str(tmp_path), device="cpu")
    assert engine.translate_batch([["5"] * 19], max_decoding_length=20)[0].hypotheses
    with pytest.raises((ValueError, RuntimeError), match="position"):
        engine.translate_batch([["5"] * 20], max_decoding_length=20)


def test_tied_weights_are_in_the_file_once(build_model, tmp_path):
    sizes = []
    for tying in ("all", "none"):
        model = build_model(f"model.tying={tying}", src_vocab_size=3000, tgt_vocab_size=3000)
        pieces: Any = Pieces(3000, 3000)
        (tmp_path / tying).mkdir()
        converter.write(model, pieces, tmp_path / tying)
        sizes.append((tmp_path / tying / "model.bin").stat().st_size)
    assert sizes[1] - sizes[0] == pytest.approx(2 * 3000 * 24 * 4, rel=0.01)


def test_buckets_are_judged_for_the_stacks_that_have_them(compose_train):
    words = ("model.position.n_buckets=36", "model.position.max_distance=50")
    everywhere = resolved(compose_train("model/position=relative_bias", *words).model)
    assert unrepresentable(everywhere)  # because of distance 30 in the decoder
    rotary = resolved(compose_train().model)["position"]
    assert not unrepresentable({**everywhere, "decoder_position": rotary})
