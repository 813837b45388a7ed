"""The layout of a model for decoding changes neither its output nor its parameters."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from diglot.decoding import BeamSearch, Hypothesis, SpecialIds, layout
from diglot.decoding.layout import (
    PackedLinear,
    Precision,
    check_precision,
    float32_kind,
    pack_for_decoding,
    packed_for_decoding,
)
from diglot.errors import UserError
from diglot.model import Transformer

SPECIAL = SpecialIds(pad=0, unk=1, bos=2, eos=3)
SRC, TGT = torch.tensor([[5, 6, 7, 3]]), torch.tensor([[2, 9, 8]])


@pytest.mark.parametrize("tying", ["all", "target", "none"])
def test_a_packed_model_has_the_same_output_and_parameters(build_model: Callable[..., Transformer], tying: str) -> None:
    model = build_model(f"model.tying={tying}")
    parameters = dict(model.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        before = model(SRC, TGT)
        pack_for_decoding(model)
        assert torch.allclose(model(SRC, TGT), before, atol=1e-5)
    after = dict(model.named_parameters(remove_duplicate=False))
    assert list(after) == list(parameters)
    assert all(after[name] is parameter for name, parameter in parameters.items())
    assert isinstance(model.output, PackedLinear)
    assert not [m for m in model.modules() if type(m) is nn.Linear]
    assert pack_for_decoding(model) == []
    assert torch.allclose(copy.deepcopy(model)(SRC, TGT), before, atol=1e-5)


def test_a_model_is_as_before_when_it_is_no_longer_packed(build_model: Callable[..., Transformer]) -> None:
    model = build_model().train()
    modules, calls = dict(model.named_modules()), []
    model.output.register_forward_hook(lambda *_: calls.append(1))
    with packed_for_decoding(model):
        assert type(model.output) is PackedLinear
    assert dict(model.named_modules()) == modules
    with pytest.raises(KeyError), packed_for_decoding(model):
        raise KeyError
    assert dict(model.named_modules()) == modules
    model(SRC, TGT).sum().backward()
    assert calls == [1]
    assert all(parameter.grad is not None for parameter in model.parameters())


class OwnLinear(nn.Linear):
    pass


def test_what_it_does_not_know_is_left_alone(build_model: Callable[..., Transformer]) -> None:
    model = build_model(seed=2)
    model.output = OwnLinear(model.d_model, 37)
    wide = model.decoder[0].feed_forward.sublayer
    wide.up.double()
    pack_for_decoding(model)
    assert type(model.output) is OwnLinear
    assert type(wide.up) is nn.Linear
    assert type(wide.down) is PackedLinear


def test_on_another_device_float32_stays_as_it_is(
    build_model: Callable[..., Transformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "float32_kind", None)  # so that a measurement would fail
    model = build_model().to("meta")
    assert pack_for_decoding(model) == []
    assert pack_for_decoding(model, "bfloat16")
    assert model(SRC.to("meta"), TGT.to("meta")).dtype is torch.float32


def test_the_product_is_the_variable_s_or_one_that_is_clearly_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {"packed": 1.3}
    monkeypatch.setattr(layout, "speedup", lambda kind, over: measured[kind])
    monkeypatch.delenv(layout.LINEAR, raising=False)
    assert float32_kind() == "packed"
    measured["packed"] = 1.2
    assert float32_kind() == "plain"
    monkeypatch.setenv(layout.LINEAR, "packed")
    assert float32_kind() == "packed"
    measured["packed"] = 0.0
    with pytest.raises(UserError, match="DIGLOT_LINEAR=packed: this PyTorch cannot compute it"):
        float32_kind()
    monkeypatch.setenv(layout.LINEAR, "plain")
    assert float32_kind() == "plain"
    monkeypatch.setenv(layout.LINEAR, "fast")
    with pytest.raises(UserError, match="DIGLOT_LINEAR=fast: must be packed or plain"):
        float32_kind()


def test_a_precision_that_gains_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda:1")
    monkeypatch.setattr(layout, "speedup", lambda kind, over: {"bfloat16": 1.4, "int8": 0.1}[kind])
    check_precision("float32", gpu)
    check_precision("bfloat16", gpu)
    check_precision("bfloat16", cpu)
    with pytest.raises(UserError, match="precision=int8: only a CPU supports it, but device is cuda:1"):
        check_precision("int8", gpu)
    with pytest.raises(UserError, match="precision=int8: on this CPU, PyTorch is not faster in it than in float32"):
        check_precision("int8", cpu)


@pytest.fixture(scope="module")
def trained(build_model: Callable[..., Transformer]) -> Transformer:
    """Return a model that has learned to copy a few tokens."""
    model = build_model("model.dropout=0.0").train()
    optimizer, random = torch.optim.Adam(model.parameters(), 4e-3), torch.Generator().manual_seed(1)
    for _ in range(250):
        tokens = torch.randint(4, 37, (32, 6), generator=random)
        end, begin = torch.full((32, 1), SPECIAL.eos), torch.full((32, 1), SPECIAL.bos)
        logits = model(torch.cat((tokens, end), 1), torch.cat((begin, tokens), 1))
        loss = F.cross_entropy(logits.flatten(0, 1), torch.cat((tokens, end), 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def best(model: Transformer, sources: list[list[int]], batch_size: int) -> list[Hypothesis]:
    found = []
    for start in range(0, len(sources), batch_size):
        rows = [torch.tensor([*source, SPECIAL.eos]) for source in sources[start : start + batch_size]]
        src = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=SPECIAL.pad)
        search = BeamSearch(beam_size=3, max_len_a=1.0, max_len_b=4)
        found += [hypotheses[0] for hypotheses in search(model, src, src != SPECIAL.pad, SPECIAL)]
    return found


@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-4), ("bfloat16", 1e-2), ("int8", 1e-2)])
def test_a_precision_keeps_most_outputs_and_a_line_s_score_in_any_batch(
    trained: Transformer, precision: Precision, bound: float
) -> None:
    random = torch.Generator().manual_seed(2)
    lengths = torch.randint(2, 9, (60,), generator=random).tolist()
    sources = [torch.randint(4, 37, (length,), generator=random).tolist() for length in lengths]
    expected, model = best(trained, sources, 60), copy.deepcopy(trained)
    pack_for_decoding(model, precision)
    together, apart = best(model, sources, 60), best(model, sources, 7)
    assert sum(a.tokens == b.tokens for a, b in zip(together, expected, strict=True)) >= 48
    assert sum(a.tokens == b.tokens for a, b in zip(together, apart, strict=True)) >= 57
    gaps = [abs(a.score - b.score) for a, b in zip(together, apart, strict=True) if a.tokens == b.tokens]
    assert max(gaps) < bound
    assert (max(abs(a.score - b.score) for a, b in zip(together, expected, strict=True)) > 1e-4) == (
        precision != "float32"
    )
