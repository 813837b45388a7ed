"""The reference is independent of diglot and gives the papers' numbers, and DeepNorm's initialisation is the paper's.

That models agree with the reference is one of the promises.
"""

import ast
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from conformance import reference
from conformance.reference import alibi, alibi_slopes, deep_norm_alpha, rotated, sinusoid, t5_bucket
from conformance.variants import build_variant, small
from diglot.model.residual import DeepNorm


def test_the_reference_calls_nothing_of_diglot() -> None:
    tree = ast.parse(Path(reference.__file__).read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported == {"collections.abc", "math", "omegaconf", "torch", "typing"}


def test_sinusoids_of_the_reference() -> None:
    assert sinusoid(0, 4) == [0, 1, 0, 1]
    assert sinusoid(3, 4) == pytest.approx([0.141120, -0.989992, 0.029996, 0.999550], abs=1e-6)  # 3 and 0.03


def test_rotation_of_the_reference() -> None:
    turned = rotated(torch.tensor([[5.0, 6.0, 7.0, 8.0], [1.0, 0.0, 0.0, 1.0]]).double(), base=10_000.0)
    assert turned[0].tolist() == [5, 6, 7, 8]
    assert turned[1].tolist() == pytest.approx([0.540302, 0.841471, -0.010000, 0.999950], abs=1e-6)  # by 1 and 0.01


def test_slopes_and_penalties_of_the_reference() -> None:
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert alibi_slopes(6) == [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]
    assert [alibi(0.5, offset) for offset in (-3, 0, 3)] == [-1.5, 0, -0.75]


def test_buckets_of_the_reference() -> None:
    both_ways = {0: 0, -1: 1, 1: 17, -7: 7, -8: 8, 8: 24, -16: 10, -32: 12, -64: 14, -128: 15, 900: 31}
    causal = {0: 0, 5: 0, -1: 1, -15: 15, -16: 16, -32: 21, -64: 26, -128: 31, -900: 31}
    assert {offset: t5_bucket(offset, False, 32, 128) for offset in both_ways} == both_ways
    assert {offset: t5_bucket(offset, True, 32, 128) for offset in causal} == causal


# By (N encoder, M decoder layers): alpha of encoder and decoder, beta of encoder and decoder.
DEEP_NORM = {
    (1, 3): (0.867571, 1.732051, 0.812268, 0.408248),  # 3^(1/16) = 1.071075; 9^(1/4); 36^(-1/4)
    (6, 2): (1.323845, 1.565085, 0.532313, 0.451801),  # 2592^(1/16) = 1.634377; 6^(1/4); 24^(-1/4)
}
WIDE = ("model.d_model=96", "model.n_heads=6", "model.n_kv_heads=3", "model.d_ff=160")
DECODER = "model/residual@model.decoder_residual"


@pytest.mark.parametrize("depths", DEEP_NORM)
def test_the_skips_of_deep_norm_are_as_heavy_as_published(depths: tuple[int, int]) -> None:
    expected = dict(zip(("encoder", "decoder"), DEEP_NORM[depths][:2], strict=True))
    n, m = depths
    overrides = ("model/residual=deep_norm", f"model.n_encoder_layers={n}", f"model.n_decoder_layers={m}")
    model, _ = build_variant(small("base") + overrides)
    for name, module in model.named_modules():
        if isinstance(module, DeepNorm):
            assert module.alpha == pytest.approx(expected[name.partition(".")[0]], abs=1e-6)
    for stack, alpha in expected.items():
        assert deep_norm_alpha(stack, n, m) == pytest.approx(alpha, abs=1e-6)


def test_a_given_gain_is_that_of_the_draw() -> None:
    given = ("model/residual=deep_norm", "model.residual.beta=0.1", *WIDE)
    model, _ = build_variant(small("base") + given)
    for name, module in model.encoder.named_modules():
        if isinstance(module, nn.Linear):
            gain = 1.0 if name.rpartition(".")[2] in ("query", "key") else 0.1
            deviation = gain * math.sqrt(2 / sum(module.weight.shape))
            assert module.weight.std().item() == pytest.approx(deviation, rel=0.05), name


@pytest.mark.sampled(3)
@pytest.mark.parametrize("depths", DEEP_NORM)
@pytest.mark.parametrize(
    ("deep", "residuals"),
    [
        (("encoder", "decoder"), ("model/residual=deep_norm",)),
        (("decoder",), (f"{DECODER}=deep_norm",)),
        (("encoder",), ("model/residual=deep_norm", f"{DECODER}=pre_norm")),
    ],
    ids=["both", "decoder", "encoder"],
)
@pytest.mark.parametrize("feed_forward", ["relu", "swiglu"])
def test_weights_are_drawn_as_light_as_their_norm_placement_asks(
    depths: tuple[int, int], deep: tuple[str, ...], residuals: tuple[str, ...], feed_forward: str
) -> None:
    beta = dict(zip(("encoder", "decoder"), DEEP_NORM[depths][2:], strict=True))
    sizes = (f"model.n_encoder_layers={depths[0]}", f"model.n_decoder_layers={depths[1]}", *WIDE)
    model, _ = build_variant(small("base") + sizes + residuals + (f"model/feed_forward={feed_forward}",))
    seen = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module is not model.output:
            stack, projection = name.partition(".")[0], name.rpartition(".")[2]
            light = stack in deep and projection not in ("query", "key")
            deviation = (beta[stack] if light else 1.0) * math.sqrt(2 / sum(module.weight.shape))
            assert module.weight.std().item() == pytest.approx(deviation, rel=0.05), name
            # DeepNorm uses a normal distribution, as published; other placements use a uniform one.
            assert (module.weight.abs().max().item() > 2.5 * deviation) == (stack in deep), name
            assert not module.bias.any(), name
            seen.add(projection)
    assert seen == {"query", "key", "value", "out", "up", "down"} | ({"gate"} if feed_forward == "swiglu" else set())
