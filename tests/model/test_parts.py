"""Which weights a part contains, in every kind of model."""

from collections.abc import Callable

import pytest
from omegaconf import DictConfig

from diglot.config import build
from diglot.model import EncoderDecoder, Transformer
from diglot.model.meta import meta_device
from diglot.model.parts import WORDS, Parts, factors_of

Build = Callable[..., Transformer]
LEARNED = ("model/position=learned", "model/position@model.decoder_position=relative_bias", "model.tying=none")


@pytest.mark.parametrize(
    ("part", "patterns"),
    [
        ("encoder", ["encoder.", "encoder_norm.", "encoder_position."]),
        ("decoder", ["decoder.", "decoder_norm.", "decoder_position."]),
        ("embeddings", ["src_embedding.", "tgt_embedding."]),
        ("output", ["output."]),
        ("position", ["encoder_position.", "decoder_position."]),
        ("layers", ["encoder.", "decoder."]),
        ("encoder.layers", ["encoder."]),
        ("encoder.1", ["encoder.1."]),
        ("encoder.layers.1-1", ["encoder.1."]),
        ("decoder.0-1.cross_attention", ["decoder.0.cross_attention.", "decoder.1.cross_attention."]),
        ("encoder.position", ["encoder_position."]),
        ("encoder.0.self_attention.norm", ["encoder.0.self_attention.norm."]),
        ("decoder_norm", ["decoder_norm."]),
        ("output.weight", ["output."]),
    ],
)
def test_a_part_contains_the_weights_below_these_names(build_model: Build, part: str, patterns: list[str]) -> None:
    model = build_model(*LEARNED)
    names = [name for name, _ in model.named_parameters()]
    assert Parts(model)[part] == [name for name in names if name.startswith(tuple(patterns))]


@pytest.mark.parametrize(
    ("part", "fragments"),
    [
        ("attention", ["self_attention.", "cross_attention."]),
        ("feed_forward", ["feed_forward."]),
        ("query", [".query."]),
        ("norms", ["norm."]),
        ("biases", [".bias"]),
        ("*.out.weight", [".out.weight"]),
        ("attention.norms", ["attention.norm."]),
        ("down.biases", [".down.bias"]),
    ],
)
def test_a_part_contains_the_weights_with_these_names(build_model: Build, part: str, fragments: list[str]) -> None:
    model = build_model(*LEARNED)
    names = [name for name, _ in model.named_parameters()]
    found = Parts(model)[part]
    assert found == [name for name in names if any(fragment in name for fragment in fragments)]
    assert 0 < len(found) < len(names)


def test_a_tied_matrix_is_in_each_of_its_parts(build_model: Build) -> None:
    parts = Parts(build_model("model.tying=all"))
    (first,) = parts["embeddings"]
    assert parts["output"] == parts["src_embedding"] == [first]
    assert len(parts.names[first]) == 3
    assert parts.shared("embeddings") == ["output"]
    assert parts.shared("output") == ["tgt_embedding", "src_embedding"]
    assert Parts(build_model("model.tying=none")).shared("embeddings") == []


@pytest.mark.parametrize("part", ["encodr", "position", "encoder.cross_attention", "", ".", "encoder.", "gate", "[a]"])
def test_a_part_without_weights_is_refused_with_the_parts_that_exist(build_model: Build, part: str) -> None:
    with pytest.raises(ValueError, match=r"is no part of this model: type one of encoder, decoder, embed.*, biases,"):
        Parts(build_model())[part]


@pytest.mark.parametrize("part", ["encoder.1-9", "encoder.layers.0-9"])
def test_a_layer_that_does_not_exist_is_refused(build_model: Build, part: str) -> None:
    model = build_model()
    with pytest.raises(ValueError, match=rf"'{part}' counts layers from 0, and the last one here is "):
        Parts(model)[part]


def test_the_recurrent_model_has_an_encoder_and_a_decoder(compose_train: Callable[..., DictConfig]) -> None:
    with meta_device():
        model: EncoderDecoder = build(
            compose_train("model=gru_attention").model, "model", src_vocab_size=37, tgt_vocab_size=37
        )
    parts = Parts(model)
    of_stacks = parts["encoder"] + parts["decoder"]
    assert sorted(of_stacks + parts["embeddings"]) == sorted(parts.names)
    assert {name.split(".")[0] for name in parts["encoder"]} == {"reader", "backward_reader"}
    assert parts["attention.query"] == ["attention.query.weight"]
    assert all("bias" in name for name in parts["biases"])


def test_no_word_stands_for_two_things(build_model: Build) -> None:
    assert WORDS.keys().isdisjoint(build_model().stacks)


def test_a_part_within_another_one_takes_precedence(build_model: Build) -> None:
    model = build_model("model.tying=none")
    for weight in model.tgt_embedding.parameters():
        weight.requires_grad_(False)
    rates = {"encoder": 0.5, "encoder.0.norms": 3.0, "encoder.0": 2.0, "output": 0.1}
    for factors in (rates, dict(reversed(rates.items()))):
        found = factors_of(model, factors)
        for name in found:
            in_first = 3.0 if "norm" in name else 2.0
            other = {"encoder": in_first if name.startswith("encoder.0.") else 0.5, "output": 0.1}
            assert found[name] == other.get(name.split(".")[0].removesuffix("_norm"), 1.0)
        assert found.keys() == {name for name, _ in model.named_parameters()} - {"tgt_embedding.weight"}


@pytest.mark.parametrize(
    ("tying", "factors", "message"),
    [
        ("none", {"encoder": 0.5, "norms": 2.0}, "'norms' and 'encoder' both contain encoder"),
        ("all", {"embeddings": 0.5, "output": 2.0}, "'embeddings' and 'output' both contain tgt_embedding.weight"),
        ("none", {"tgt_embedding": 0.5}, "'tgt_embedding' contains no weight that is trained"),
        ("none", {"encodr": 0.5}, "'encodr' is no part of this model"),
    ],
)
def test_factors_that_contradict_each_other_are_refused(
    build_model: Build, tying: str, factors: dict[str, float], message: str
) -> None:
    model = build_model(f"model.tying={tying}")
    if tying == "none":
        model.tgt_embedding.weight.requires_grad_(False)
    with pytest.raises(ValueError, match=message):
        factors_of(model, factors)
