"""Updates whose gradient is not finite are skipped, at once or on the device."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam

from diglot.training import gradients
from diglot.training.gradients import GradientCheck, NonFiniteError, Update, gradient_norms
from diglot.training.state import RunState

CLIP = 0.5


def train(check: GradientCheck, broken: int, n_updates: int = 5) -> tuple[nn.Module, Adam]:
    """Train a layer; the gradient of one update is infinite in one parameter."""
    torch.manual_seed(1)
    layer = nn.Linear(3, 2)
    optimizer = Adam(layer.parameters(), lr=0.1, fused=True)
    for number in range(1, n_updates + 1):
        layer(torch.randn(4, 3)).pow(2).sum().backward()
        if number == broken:
            layer.bias.grad = torch.tensor([math.inf, 0.0])
        names, norms, norm = gradient_norms(layer)
        if check.accept(Update(number, 0.1, [torch.tensor([number, 7])], names, norms, norm), optimizer):
            nn.utils.clip_grads_with_norm_(layer.parameters(), CLIP, norm)
        else:
            optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()
    return layer, optimizer


def tensors(layer: nn.Module, optimizer: Adam) -> list[Tensor]:
    moments: list[dict[str, Any]] = list(optimizer.state_dict()["state"].values())
    return [*layer.state_dict().values(), *(moment[name] for moment in moments for name in sorted(moment))]


@pytest.mark.parametrize("broken", [1, 3, 5])
def test_an_update_skipped_on_the_device_leaves_the_same_weights_and_moments(
    broken: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, later = RunState(), RunState()
    expected = train(GradientCheck(now, 1), broken)
    monkeypatch.setattr(gradients, "decides_on_device", lambda *_: True)
    check = GradientCheck(later, 1)
    result = train(check, broken)
    assert later.skipped == 0
    check.report()
    check.report()  # reports each update once
    assert (now.skipped, later.skipped) == (1, 1)
    for tensor, same in zip(tensors(*result), tensors(*expected), strict=True):
        assert torch.equal(tensor, same)
        assert tensor.isfinite().all()


@pytest.mark.parametrize("is_on_device", [False, True])
def test_one_skipped_update_too_many_names_the_update_its_pairs_and_its_norms(
    is_on_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "decides_on_device", lambda *_: is_on_device)
    check = GradientCheck(RunState(), 0)

    def train_and_report() -> None:
        train(check, 3)
        check.report()

    with pytest.raises(NonFiniteError, match=r"gradient of update 3 is not finite in 1 of 2 parameters") as error:
        train_and_report()
    assert (error.value.update, error.value.pairs, error.value.learning_rate) == (3, [3, 7], 0.1)
    assert error.value.norms["bias"] == math.inf
    assert 0 < error.value.norms["weight"] < math.inf


def test_the_norm_of_the_gradient_is_torch_s() -> None:
    layer = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    layer(torch.randn(5, 3)).pow(2).sum().backward()
    _, norms, norm = gradient_norms(layer)
    grads = [p.grad for p in layer.parameters()]
    assert torch.equal(norm, nn.utils.get_total_norm(grads))  # type: ignore[arg-type]
    assert norms.tolist() == [pytest.approx(float(grad.norm())) for grad in grads]  # type: ignore[union-attr]


def test_only_an_optimizer_that_can_skip_an_update_decides_on_a_device() -> None:
    parameters = [nn.Parameter(torch.zeros(1))]
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert gradients.decides_on_device(Adam(parameters, fused=True), cuda)
    assert not gradients.decides_on_device(Adam(parameters, fused=False), cuda)
    assert not gradients.decides_on_device(torch.optim.SGD(parameters), cuda)
    assert not gradients.decides_on_device(Adam(parameters, fused=True), cpu)
