"""Adapters: what they compute, before and after training and merged, and which weights they leave to train."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from diglot.model import Transformer
from diglot.model.lora import Lora, LoraLinear, add, merge, merged

Build = Callable[..., Transformer]
PAIR = ("0.feed_forward.sublayer.up", "1.feed_forward.sublayer.down")
TOKENS = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])


def logits(model: Transformer) -> Tensor:
    with torch.no_grad():
        return model(TOKENS, TOKENS)


def fill(model: Transformer) -> None:
    """Give the matrices B the values of a trained adapter."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("lora_b"):
                weight += torch.randn(weight.shape, generator=generator) * 0.3


def adapted(model: Transformer) -> set[str]:
    return {name for name, module in model.named_modules() if isinstance(module, LoraLinear)}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_start_is_exact_and_training_changes_it(build_model: Build, precision: str) -> None:
    def computed() -> Tensor:  # a context of its own, because autocast caches weights within one
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            return logits(model)

    model = build_model()
    before = computed()
    add(model, Lora(on=("attention", "feed_forward")))
    assert torch.equal(computed(), before)
    fill(model)
    assert not torch.allclose(computed(), before)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        (["query", "value"], lambda name: name.endswith(("query", "value"))),
        (["decoder.cross_attention"], lambda name: "cross_attention" in name),
        (["encoder.0.up", "encoder.1.down"], lambda name: name.startswith("encoder.") and name.endswith(PAIR)),
    ],
)
def test_adapters_are_on_the_linear_layers_of_the_parts(
    build_model: Build, on: list[str], expected: Callable[[str], bool]
) -> None:
    model = build_model()
    layers = {name for name, module in model.named_modules() if type(module) is nn.Linear}
    own = {name for name, _ in model.named_parameters()}
    add(model, Lora(on=on))
    assert adapted(model) == {name for name in layers if expected(name)} != set()
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained == {name for name, _ in model.named_parameters()} - own


def test_weights_beside_the_adapters_are_trained_if_lora_says_so(build_model: Build) -> None:
    model = build_model()
    add(model, Lora(train=("norms", "biases")))
    for name, weight in model.named_parameters():
        assert weight.requires_grad == ("norm" in name or name.endswith("bias") or "lora" in name), name


def test_an_adapter_adds_its_product(build_model: Build) -> None:
    layer = LoraLinear(nn.Linear(3, 2).double(), Lora(rank=2, alpha=5.0))
    nn.init.normal_(layer.lora_b)
    x = torch.randn(4, 3).double()
    expected = x @ (layer.weight + 2.5 * layer.lora_b @ layer.lora_a).T + layer.bias
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer.merged()(x), expected)


def test_the_dropout_is_that_of_the_adapter_s_input() -> None:
    layer = LoraLinear(nn.Linear(64, 64, bias=False), Lora(rank=64, alpha=64.0, dropout=0.5))
    with torch.no_grad():
        layer.weight.zero_()
        layer.lora_a.copy_(torch.eye(64))
        layer.lora_b.copy_(torch.eye(64))
    torch.manual_seed(1)
    found = layer(torch.ones(50, 64))
    assert set(found.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(layer.eval()(torch.ones(2, 64)), torch.ones(2, 64))


def test_merged_weights_compute_the_same_and_nothing_of_the_model_changes(build_model: Build) -> None:
    model, lora = build_model(), Lora(rank=4, alpha=8.0, on=("attention", "up"))
    add(model, lora)
    fill(model)
    state = {name: weight.clone() for name, weight in model.state_dict().items()}
    plain = build_model()
    plain.load_state_dict(merge(state, lora.factor))
    with merged(model):
        assert not adapted(model)
        inside = logits(model)
    assert torch.equal(inside, logits(plain))  # the same bits
    torch.testing.assert_close(inside, logits(model), rtol=1e-4, atol=1e-5)
    assert adapted(model)
    assert all(torch.equal(state[name], weight) for name, weight in model.state_dict().items())
    assert not torch.allclose(inside, logits(build_model()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("encoder.0.self_attention.sublayer.query.lora_a"), "query.lora_a is missing"),
        (lambda state: state.pop("encoder.0.self_attention.sublayer.query.lora_b"), "query.lora_b is missing"),
        (lambda state: state.pop("encoder.0.self_attention.sublayer.query.weight"), "query.weight is missing"),
        (lambda state: state.update({"encoder_norm.lora_a": torch.ones(2, 2)}), "encoder_norm.lora_b is missing"),
        (
            lambda state: state.update({"encoder.0.self_attention.sublayer.query.lora_a": torch.ones(8, 23)}),
            "query has an adapter of another shape",
        ),
        (
            lambda state: state.update({"encoder.0.self_attention.sublayer.query.lora_b": torch.ones(24)}),
            "query has an adapter of another shape",
        ),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(
    build_model: Build, change: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    model = build_model()
    add(model, Lora())
    state = dict(model.state_dict())
    change(state)
    with pytest.raises(ValueError, match=message):
        merge(state, 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on": ["norms"]}, "'norms' contains no linear layer with a matrix of its own"),
        ({"on": ["output"]}, "'output' contains no linear layer with a matrix of its own"),  # tied
        ({"on": ["quary"]}, "'quary' is no part of this model"),
        ({"train": ["nroms"]}, "'nroms' is no part of this model"),
        ({"on": []}, "on must name at least one part"),
        ({"rank": 0}, r"rank \(0\) must be positive"),
        ({"alpha": 0.0}, r"alpha \(0.0\) must be positive"),
        ({"alpha": float("nan")}, r"alpha \(nan\) must be positive"),
        ({"dropout": 1.0}, r"dropout \(1.0\) must be at least 0 and below 1"),
    ],
)
def test_values_out_of_range_are_refused(build_model: Build, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        add(build_model(), Lora(**options))  # type: ignore[arg-type]
