"""Numbers of parameters, dropout, and rejected arguments; tests/conformance tests the properties of every model."""

import inspect
import typing
from collections.abc import Callable

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from diglot.config import CONF, build
from diglot.errors import UserError
from diglot.model import GruAttention, Transformer
from diglot.model.dropout import Dropout
from diglot.model.norm import RMSNorm
from diglot.model.recurrent import AdditiveAttention
from diglot.model.transformer import DecoderLayer, EncoderLayer

SIZES = [  # the presets that are Transformers
    file.stem
    for file in sorted((CONF / "model").glob("*.yaml"))
    if OmegaConf.load(file).get("_target_", "diglot.model.Transformer") == "diglot.model.Transformer"
]
TYINGS = typing.get_args(inspect.signature(Transformer).parameters["tying"].annotation)
B, S, T, V = 2, 5, 7, 37

Build = Callable[..., Transformer]


def ids(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(4, V, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", SIZES)
def test_a_model_has_as_many_weights_as_the_paper_counts(compose_train: Callable[..., DictConfig], size: str) -> None:
    v = 37_000  # the paper's English-German vocabulary
    config = compose_train(
        f"model={size}", "model/residual=post_norm", "model/position=sinusoidal", "model/norm=layer_norm"
    ).model
    with torch.device("meta"):
        model = build(config, "model", src_vocab_size=v, tgt_vocab_size=v)
    d, f = config.d_model, config.d_ff
    attention, network, norm = 4 * (d * d + d), d * f + f + f * d + d, 2 * d
    encoder = config.n_encoder_layers * (attention + network + 2 * norm)
    decoder = config.n_decoder_layers * (2 * attention + network + 3 * norm)
    n_weights = sum(parameter.numel() for parameter in model.parameters())
    assert n_weights == encoder + decoder + v * d
    assert len(model.encoder) == config.n_encoder_layers
    assert len(model.decoder) == config.n_decoder_layers
    assert all(isinstance(layer, EncoderLayer) for layer in model.encoder)
    assert all(isinstance(layer, DecoderLayer) for layer in model.decoder)
    assert {"base": 63_082_496, "big": 214_245_376}.get(size, n_weights) == n_weights


@pytest.mark.parametrize(
    ("preset", "published"),
    [
        ("base", (6, 6, 512, 8, 2048)),
        ("big", (6, 6, 1024, 16, 4096)),
        ("iwslt", (6, 6, 512, 4, 1024)),
        ("deep_encoder", (12, 1, 512, 8, 2048)),
    ],
)
def test_presets_have_their_published_sizes(compose_train: Callable[..., DictConfig], preset: str, published) -> None:
    config = compose_train(f"model={preset}").model
    names = ("n_encoder_layers", "n_decoder_layers", "d_model", "n_heads", "d_ff")
    assert tuple(config[name] for name in names) == published


def count(compose_train: Callable[..., DictConfig], *overrides: str) -> int:
    """Return the number of a model's parameters without one embedding matrix."""
    v = 1000
    config = compose_train(*overrides).model
    with torch.device("meta"):
        model = build(config, "model", src_vocab_size=v, tgt_vocab_size=v)
    return sum(parameter.numel() for parameter in model.parameters()) - v * config.d_model


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("overrides", "more"),  # than base: d_model 512, d_ff 2048, 12 feed-forward networks and 18 attentions
    [
        (["model/residual=post_norm"], -2 * 2 * 512),
        (["model/residual=deep_norm"], -2 * 2 * 512),
        (["model/residual=sandwich_norm"], (6 * 2 + 6 * 3) * 2 * 512),
        (["model/residual@model.decoder_residual=post_norm"], -2 * 512),
        (["model/norm=rms_norm"], -(6 * 2 + 6 * 3 + 2) * 512),
        # 3 matrices of 512 x 1368 with biases replace 2 of 512 x 2048: the same size to within 0.5%
        (["model/feed_forward=swiglu"], 12 * (3 * 512 * 1368 + 2 * 1368 - 2 * 512 * 2048 - 2048)),
        (["model/feed_forward=geglu"], 12 * (3 * 512 * 1368 + 2 * 1368 - 2 * 512 * 2048 - 2048)),
        (["model.n_kv_heads=2"], -18 * 2 * (512 + 1) * 6 * 64),
        (["model.n_kv_heads=1"], -18 * 2 * (512 + 1) * 7 * 64),
        (["model.n_heads={encoder:8,decoder:8,cross:4}", "model.d_head=64"], -6 * (3 * 513 + 512) * 4 * 64),
        (["model.qk_norm=true"], 18 * 2 * 2 * 64),
        (["model/position=learned"], 2 * 512 * 512),
        (["model/position=relative_bias"], 2 * 32 * 8),
        (["model/position=rotary"], 0),
        (["model/position=alibi"], 0),
        (["model.bias=false"], -(18 * 4 * 512 + 12 * (2048 + 512))),
        (
            ["model.bias=false", "model/feed_forward=swiglu"],
            12 * (3 * 512 * 1368 - 2 * 512 * 2048 - 2560) - 18 * 4 * 512,
        ),
        (["model.output_bias=true"], 1000),
        (["model.embedding_norm=true"], 2 * 2 * 512),
        (["model.scale_embeddings=false"], 0),
        (["model.tying=inputs"], 1000 * 512),
        (["model.tying=target"], 1000 * 512),
        (["model.tying=none"], 2 * 1000 * 512),
    ],
)
def test_a_choice_costs_as_many_weights_as_it_should(
    compose_train: Callable[..., DictConfig], overrides: list[str], more: int
) -> None:
    assert count(compose_train, "model=base", *overrides) == count(compose_train, "model=base") + more


def test_a_recurrent_model_has_as_many_weights_as_the_paper_counts(compose_train: Callable[..., DictConfig]) -> None:
    d, h, a = 620, 1000, 1000
    found = count(
        compose_train, "model=gru_attention", f"model.d_model={d}", f"model.d_hidden={h}", f"model.d_attention={a}"
    )

    def gru(width: int) -> int:
        return 3 * (h * width + h * h + 2 * h)

    attention = a * h + a * 2 * h + a + a
    readout = 2 * d * (h + d + 2 * h) + 2 * d
    assert found == 2 * gru(d) + gru(d + 2 * h) + (h * h + h) + attention + readout


@pytest.mark.parametrize("tying", [tying for tying in TYINGS if tying not in ("inputs", "all")])
def test_two_vocabularies_may_differ_where_they_are_not_tied(build_model: Build, tying: str) -> None:
    model = build_model(f"model.tying={tying}", src_vocab_size=V + 9, tgt_vocab_size=V)
    assert model(ids(B, S) + 9, ids(B, T)).shape == (B, T, V)


@pytest.mark.parametrize("tying", TYINGS)
def test_embeddings_are_drawn_with_the_paper_s_deviation(build_model: Build, tying: str) -> None:
    model = build_model(f"model.tying={tying}", "model.d_model=48", src_vocab_size=2000, tgt_vocab_size=2000)
    for weight in (model.src_embedding.weight, model.tgt_embedding.weight, model.output.weight):
        assert weight.std().item() == pytest.approx(48**-0.5, rel=0.02)
        assert abs(weight.mean().item()) < 0.002


@pytest.mark.parametrize(
    ("tying", "deviations"),  # of encoder input, decoder input and output
    [
        ("none", (1, 1, 48**-0.5)),
        ("inputs", (1, 1, 48**-0.5)),
        ("target", (1, 48**-0.5, 48**-0.5)),
        ("all", (48**-0.5, 48**-0.5, 48**-0.5)),
    ],
)
def test_vectors_and_logits_without_scaling_have_variance_1_where_weights_are_not_shared(
    build_model: Build, tying: str, deviations: tuple[float, ...]
) -> None:
    words = (f"model.tying={tying}", "model.d_model=48", "model.scale_embeddings=false", "model.output_bias=true")
    model = build_model(*words, src_vocab_size=2000, tgt_vocab_size=2000)
    weights = (model.src_embedding.weight, model.tgt_embedding.weight, model.output.weight)
    for weight, deviation in zip(weights, deviations, strict=True):
        assert weight.std().item() == pytest.approx(deviation, rel=0.02)
    assert not model.output.bias.any()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["model.n_heads=5"], "n_heads (5) must divide d_model (24)"),
        (["model.n_heads={encoder:3,decoder:3,cross:5}"], "n_heads.cross (5) must divide d_model (24)"),
        (["model.n_heads={encoder:3,decoder:0,cross:3}"], "n_heads.decoder (0) must be positive"),
        (["model.n_kv_heads=2"], "n_kv_heads (2) must divide n_heads (3)"),
        (["model.n_kv_heads={encoder:2,decoder:3,cross:1}"], "n_kv_heads.encoder (2) must divide n_heads (3)"),
        (["model.n_kv_heads=0"], "n_kv_heads (0) must be positive"),
        (["model.d_model=0"], "d_model (0)"),
        (["model.n_heads=-3"], "n_heads (-3)"),
        (["model.d_head=0"], "d_head (0)"),
        (["model.d_ff=0"], "d_ff (0)"),
        (["model.n_encoder_layers=0"], "n_encoder_layers (0)"),
        (["model.n_decoder_layers=0"], "n_decoder_layers (0)"),
        (["model.dropout=1.0"], "dropout (1.0)"),
        (["model.dropout=-0.1"], "dropout (-0.1)"),
        (["model.attention_dropout=1.5"], "attention_dropout (1.5)"),
        (["model.activation_dropout=-1"], "activation_dropout (-1)"),
        (["model.embedding_dropout=1.0"], "embedding_dropout (1.0)"),
        (["model.tying=both"], "tying (both)"),
        (["model.d_model=25", "model.n_heads=5", "model/position=sinusoidal"], "d_model (25) must be even"),
        (["model.d_model=27", "model/position=rotary"], "d_head (9) must be even"),
        (["model.d_head=7", "model/position=rotary"], "d_head (7) must be even"),
        (["model/position=none", "model/position@model.decoder_position=rotary", "model.d_head=7"], "d_head (7)"),
        (["model/position=learned", "model.position.max_positions=0"], "max_positions (0)"),
        (["model/position=relative_bias", "model.position.n_buckets=2"], "n_buckets (2) must be at least 4"),
        (["model/position=relative_bias", "model.position.n_buckets=-8"], "n_buckets (-8) must be at least 4"),
        (["model/position=relative_bias", "model.position.n_buckets=9"], "n_buckets (9) must be even"),
        (["model/position=relative_bias", "model.position.n_buckets=65538"], "n_buckets (65538) must be at most 65536"),
        (
            ["model/position=relative_bias", "model.position.max_distance=2147483649"],
            "max_distance (2147483649) must be at most 2147483648",
        ),
        (["model/position=sinusoidal", "model.position.base=1"], "base (1) must be above 1"),
        (["model/position=sinusoidal", "model.position.offset=-1"], "offset (-1) must be at least 0 and at most"),
        (["model/position=rotary", "model.position.base=0"], "base (0) must be above 1"),
        (["model/position=rotary", "model.position.base=-1"], "base (-1) must be above 1"),
        (["model.norm.eps=-1"], "norm.eps (-1) must be positive"),
        (["model/norm=rms_norm", "model.norm.eps=0"], "norm.eps (0) must be positive"),
        (["model/norm@model.decoder_norm=rms_norm", "model.decoder_norm.eps=-1e-6"], "decoder_norm.eps (-1e-06)"),
        (["model/position=relative_bias", "model.position.max_distance=8"], "max_distance (8) must be above 8"),
        (["model/residual=deep_norm", "model.residual.alpha=0"], "alpha (0) must be above 0 and at most 1000"),
        (["model/residual=deep_norm", "model.residual.alpha=1e30"], "alpha (1e+30) must be above 0 and at most 1000"),
        (["model/residual@model.decoder_residual=deep_norm", "model.decoder_residual.beta=-1"], "beta (-1)"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(build_model: Build, overrides: list[str], named: str) -> None:
    with pytest.raises(UserError) as refused:
        build_model(*overrides)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("tying", ["inputs", "all"])
def test_one_embedding_for_two_vocabularies_is_refused(build_model: Build, tying: str) -> None:
    with pytest.raises(UserError, match=f"tying {tying} needs one vocabulary; these have 30 and 37"):
        build_model(f"model.tying={tying}", src_vocab_size=30)


@torch.no_grad()
def test_learned_positions_report_their_number(build_model: Build) -> None:
    model = build_model("model/position=learned", "model.position.max_positions=6")
    assert (model.max_src_positions, model.max_tgt_positions) == (6, 6)
    assert model(ids(B, S), ids(B, 6)).isfinite().all()
    mixed = build_model("model/position=rotary", "model/position@model.decoder_position=learned")
    assert (mixed.max_src_positions, mixed.max_tgt_positions) == (None, 512)


# --------------------------------------------------------------------------------------------------------- dropout


@pytest.mark.sampled(3)
@pytest.mark.parametrize("feed_forward", ["relu", "swiglu"])
@pytest.mark.parametrize("key", ["dropout", "attention_dropout", "activation_dropout", "embedding_dropout"])
@torch.no_grad()
def test_each_share_is_dropped_in_training_alone(build_model: Build, key: str, feed_forward: str) -> None:
    none = ("model.embedding_dropout=0.0", f"model/feed_forward={feed_forward}")
    model, src, tgt = build_model(*none, f"model.{key}=0.5"), ids(B, S), ids(B, T)
    exact = build_model(*none)
    assert torch.equal(model(src, tgt), exact(src, tgt))
    assert torch.equal(exact.train()(src, tgt), exact.eval()(src, tgt))
    assert not torch.equal(model.train()(src, tgt), exact(src, tgt))


@pytest.mark.parametrize(("own", "share"), [("null", 0.3), ("0.1", 0.1)])
def test_embedding_dropout_equals_dropout_unless_it_is_set(build_model: Build, own: str, share: float) -> None:
    model = build_model("model.dropout=0.3", f"model.embedding_dropout={own}")
    assert model.embedding_dropout.p == share
    assert {layer.feed_forward.dropout.p for layer in model.encoder} == {0.3}


@pytest.mark.parametrize("share", [1e-9, 0.1, 0.5, 0.99999, 1 - 1e-6, 1 - 1e-12])
def test_the_dropped_share_equals_the_dropout_rate(share: float) -> None:
    """Include probabilities that 16 bits cannot distinguish from 0 or 1."""
    torch.manual_seed(1)
    kept = Dropout(share)(torch.ones(400_000)) != 0
    assert kept.float().mean().item() == pytest.approx(1 - share, abs=0.003)


def recurrent() -> GruAttention:
    return GruAttention(
        src_vocab_size=V, tgt_vocab_size=V, d_model=24, d_hidden=20, d_attention=14, dropout=0.1, tying="all"
    )


@torch.no_grad()
def test_the_recurrent_model_applies_dropout_to_embeddings_memory_and_outputs() -> None:
    model = recurrent()
    dropped: list[tuple[int, ...]] = []
    model.dropout.register_forward_hook(lambda module, inputs, output: dropped.append(tuple(output.shape)))
    model(ids(B, S), ids(B, T))
    assert dropped == [(B, S, 24), (B, S, 2 * 20), (B, T, 24), (B, T, 24)]


# ------------------------------------------------------------------------------------------------- the recurrent model


def test_recurrent_weights_are_drawn_orthogonal() -> None:
    model = recurrent()
    for weight in (model.reader.weight_hh_l0, model.backward_reader.weight_hh_l0, model.writer.weight_hh):
        for gate in weight.chunk(3):
            torch.testing.assert_close(gate @ gate.T, torch.eye(20), atol=1e-5, rtol=0)


@torch.no_grad()
def test_additive_attention_sums_to_one_in_low_precision_too() -> None:
    torch.manual_seed(1)
    seen: list[Tensor] = []
    attention = AdditiveAttention(10, 12, 14).to(torch.bfloat16)
    attention.watcher = seen.append
    memory = torch.randn(B, 200, 12).to(torch.bfloat16)
    attention(torch.randn(B, 10).to(torch.bfloat16), attention.key(memory), memory, None)
    assert (seen[0].sum(-1) - 1).abs().max() < 1e-5


# ------------------------------------------------------------------------------------------------------------- norms


@torch.no_grad()
def test_rms_norm_keeps_its_weights_precision_under_autocast() -> None:
    """Check that RMSNorm computes in its weight's dtype, as LayerNorm on a GPU, or without a weight in the input's."""
    x = torch.randn(B, S, 24, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert RMSNorm(24)(x).dtype == torch.float32
    assert RMSNorm(24, elementwise_affine=False)(x).dtype == torch.bfloat16
