"""A batch that does not fit into memory is found before the first update, with a budget that would fit."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.plugins import Precision
from torch import Tensor, nn

from diglot.data.corpus import Sample
from diglot.data.module import TranslationData
from diglot.data.options import DataOptions
from diglot.data.tokenizer import Tokenizer
from diglot.errors import UserError
from diglot.training import memory_probe
from diglot.training.memory_probe import OutOfMemoryProbe


@pytest.fixture(scope="module")
def data(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> TranslationData:
    cache = str(tmp_path_factory.mktemp("cache"))
    options = DataOptions(cache_dir=cache, tokens_per_batch=600, max_len=100)
    made = TranslationData(corpus=Sample(), tokenizer=tokenizer, seed=1, options=options)
    made.setup()
    return made


class Task(nn.Module):
    """Model whose memory holds a fixed number of source positions."""

    def __init__(self, memory: int) -> None:
        super().__init__()
        self.memory, self.label_smoothing, self.device = memory, 0.0, torch.device("cpu")
        self.weight = nn.Parameter(torch.zeros(400))
        self.computed: list[tuple[int, ...]] = []

    def model(self, src: Tensor, tgt_in: Tensor, src_mask: Tensor) -> Tensor:
        self.computed.append(tuple(src.shape))
        if src.numel() > self.memory:
            raise torch.OutOfMemoryError
        return self.weight.expand(*tgt_in.shape, 400)


def start(monkeypatch: pytest.MonkeyPatch, data: TranslationData, memory: int, everywhere: bool = True) -> Task:
    monkeypatch.setattr(memory_probe, "TranslationTask", Task)
    task: Any = Task(memory)
    OutOfMemoryProbe(data, everywhere).on_train_start(SimpleNamespace(precision_plugin=Precision(), world_size=1), task)  # type: ignore[arg-type]
    return task


def test_the_largest_batches_are_those_of_the_plan(data: TranslationData) -> None:
    shapes = [
        (len(pairs), max(int(data.batching.src_lengths[pairs].max()), int(data.batching.tgt_lengths[pairs].max())))
        for pairs in data.batching.batches(0)
    ]
    found = [(len(b.src), max(b.src.size(1), b.labels.size(1))) for b in data.largest_batches()]
    assert max(rows * length for rows, length in shapes) == max(rows * length for rows, length in found)
    assert max(length for _, length in shapes) == max(length for _, length in found)
    assert len(found) <= 2


def test_batches_that_fit_are_computed_once_and_leave_no_gradient(
    data: TranslationData, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = start(monkeypatch, data, memory=10_000)
    assert len(task.computed) == len(data.largest_batches())
    assert task.weight.grad is None


def test_on_a_cpu_nothing_is_tried(data: TranslationData, monkeypatch: pytest.MonkeyPatch) -> None:
    assert start(monkeypatch, data, memory=0, everywhere=False).computed == []


@pytest.mark.parametrize("memory", [200, 40, 0])
def test_a_batch_that_does_not_fit_is_refused_with_a_budget_that_fits(
    data: TranslationData, monkeypatch: pytest.MonkeyPatch, memory: int
) -> None:
    with pytest.raises(UserError, match=r"out of memory in the largest batch \(\d+ x \d+ source and") as refused:
        start(monkeypatch, data, memory)
    said = str(refused.value)
    assert "data.tokens_per_batch=600" in said
    assert memory or said.endswith("not even one row of it fits")
    if said.endswith("not even one row of it fits"):
        return
    budget = int(said.rpartition("=")[2].split()[0])
    assert 0 < budget <= 600 / 2
    batch = data.largest_batches()[0]
    rows = budget // max(batch.src.size(1), batch.labels.size(1))
    assert rows * batch.src.size(1) <= memory
