"""Speed is measured without validations, and a resumed run continues the totals."""

import json
import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diglot.training import throughput as module
from diglot.training.operations import Operations
from diglot.training.throughput import Throughput


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)


def micro_batch(real: int, places: int, update_target_tokens: int) -> Any:
    src_mask, tgt_mask = torch.zeros(2, places // 4, dtype=torch.bool), torch.zeros(2, places // 4, dtype=torch.bool)
    src_mask.view(-1)[: real // 2] = True
    tgt_mask.view(-1)[: real - real // 2] = True
    return SimpleNamespace(src_mask=src_mask, tgt_mask=tgt_mask, update_target_tokens=update_target_tokens)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(clock=Clock(monkeypatch), logged=[], loader=SimpleNamespace(waited=0.0))
    device = SimpleNamespace(root_device=torch.device("cpu"))
    made.trainer = SimpleNamespace(
        global_step=0,
        max_steps=9,
        log_every_n_steps=2,
        strategy=device,
        train_dataloader=made.loader,
        world_size=1,
    )
    made.module = SimpleNamespace(log=lambda name, value, **_: made.logged.append((name, value)))
    return made


def train(run: SimpleNamespace, callback: Throughput, seconds: float, micro_batches: int = 1, tokens: int = 60) -> None:
    """Train for one update; each micro-batch has 30 tokens in 40 positions and waits 0.1 s for data."""
    for i in range(micro_batches):
        batch = micro_batch(30, 40, tokens)
        callback.on_train_batch_start(run.trainer, run.module, batch, i)
        run.clock.now += seconds / micro_batches
        run.loader.waited += 0.1
        if i == micro_batches - 1:
            run.trainer.global_step += 1
        callback.on_train_batch_end(run.trainer, run.module, None, batch, i)


def test_it_counts_updates_and_not_micro_batches_nor_validations(run: SimpleNamespace) -> None:
    callback = Throughput()
    callback.on_train_start(run.trainer, run.module)
    train(run, callback, seconds=2.0, micro_batches=2)
    assert not run.logged
    callback.on_validation_start(run.trainer, run.module)
    run.clock.now += 1000
    callback.on_validation_end(run.trainer, run.module)
    train(run, callback, seconds=4.0, micro_batches=2)
    found = dict(run.logged)
    assert found["speed/target_tokens_per_second"] == pytest.approx(120 / 6)
    assert found["speed/updates_per_second"] == pytest.approx(2 / 6)
    assert found["speed/waiting_for_data"] == pytest.approx(0.4 / 6)
    assert found["train/padding"] == pytest.approx(0.25)
    assert found["speed/memory_gb"] > 0.05
    train(run, callback, seconds=1.0)
    train(run, callback, seconds=1.0)
    assert dict(run.logged)["speed/target_tokens_per_second"] == pytest.approx(60)  # in the newest interval only
    callback.on_train_end(run.trainer, run.module)
    assert (callback.seconds, callback.target_tokens) == (pytest.approx(8.0), 240)
    assert callback.target_tokens_per_second == pytest.approx(30)


def test_a_resumed_run_counts_on(run: SimpleNamespace) -> None:
    first, second = Throughput(), Throughput()
    first.on_train_start(run.trainer, run.module)
    train(run, first, seconds=3.0)
    first.on_validation_start(run.trainer, run.module)  # checkpoints are written at this point
    second.load_state_dict(first.state_dict())
    second.on_train_start(run.trainer, run.module)
    train(run, second, seconds=5.0)
    second.on_train_end(run.trainer, run.module)
    assert (second.seconds, second.target_tokens) == (pytest.approx(8.0), 120)
    found = dict(run.logged)  # the interval began before the checkpoint
    assert found["speed/target_tokens_per_second"] == pytest.approx(120 / 8)
    assert found["train/padding"] == pytest.approx(0.25)
    run.logged.clear()
    run.trainer.global_step = run.trainer.max_steps - 1
    train(run, second, seconds=1.0)
    assert "speed/updates_per_second" in dict(run.logged)  # the last update is always logged


def test_the_share_of_the_peak_counts_real_tokens_alone(run: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update has 30 source tokens in 2 sentences, and as many target tokens, in 2 seconds."""
    run.module.model, run.trainer.callbacks = None, []
    counted = Operations(constant=1.0, src=20.0, tgt=300.0, src_src=0.0, src_tgt=0.0, tgt_tgt=0.0)
    monkeypatch.setattr(Operations, "of", lambda model: counted)
    monkeypatch.setattr(module, "peak", lambda device, dtype: {torch.bfloat16: 1e4}[dtype])
    callback = Throughput("bf16-mixed")
    callback.on_train_start(run.trainer, run.module)
    train(run, callback, seconds=2.0, micro_batches=2)
    callback.on_validation_start(run.trainer, run.module)
    resumed = Throughput("bf16-mixed")
    resumed.load_state_dict(json.loads(json.dumps(callback.state_dict())))
    resumed.on_train_start(run.trainer, run.module)
    train(run, resumed, seconds=2.0, micro_batches=2)
    assert dict(run.logged)["speed/mfu"] == pytest.approx(2 * 2 * (2 + 15 * 20 + 15 * 300) / 4 / 1e4)


def test_a_model_whose_operations_cannot_be_counted_has_no_share(
    run: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "diglot")

    def fail(model: Any) -> None:
        raise RuntimeError("no such\noperation")

    run.module.model, run.trainer.callbacks, run.trainer.log_every_n_steps = None, [], 1
    monkeypatch.setattr(Operations, "of", fail)
    for precision in ("32-true", "transformer-engine"):
        callback = Throughput(precision)
        callback.on_train_start(run.trainer, run.module)
        train(run, callback, seconds=1.0)
        assert "speed/mfu" not in dict(run.logged)
        assert "speed/updates_per_second" in dict(run.logged)
    assert caplog.messages == [
        "speed/mfu is not logged: the operations of the model cannot be counted: no such operation"
    ]


def test_a_checkpoint_of_an_earlier_version_is_read() -> None:
    callback = Throughput()
    interval = {"real": 7, "places": 9, "pending": 0, "seconds": 1.0, "tokens": 3, "updates": 1, "waited": 0.0}
    callback.load_state_dict({"seconds": 5.0, "target_tokens": 8, "interval": interval})
    assert callback._sums()[0][1:] == [7, 0]
    assert "real" not in callback.state_dict()["interval"]


def validate(run: SimpleNamespace, callback: Throughput, batches: list[tuple[int, float]]) -> None:
    """Validate on batches, each with a number of sentences and the seconds of its search."""
    callback.on_validation_epoch_start(run.trainer, run.module)
    for sentences, seconds in batches:
        outputs = {"hypotheses": [None] * sentences, "search_seconds": seconds}
        callback.on_validation_batch_end(run.trainer, run.module, outputs, micro_batch(8, 8, 1), 0)
    callback.on_validation_epoch_end(run.trainer, run.module)


def test_the_newest_search_is_measured_and_a_checkpoint_keeps_its_speed(run: SimpleNamespace) -> None:
    first, second = Throughput(), Throughput()
    assert first.dev_sentences_per_second is None
    validate(run, first, [(100, 1.0)])
    validate(run, first, [(30, 2.0), (10, 3.0)])
    assert first.dev_sentences_per_second == pytest.approx(40 / 5)
    run.trainer.world_size = 2
    validate(run, first, [(20, 1.0)])
    assert first.dev_sentences_per_second == pytest.approx(40)
    state = first.state_dict()
    second.load_state_dict(state)
    assert second.dev_sentences_per_second == pytest.approx(40)
    del state["dev_sentences_per_second"]  # of an earlier version
    second.load_state_dict(state)
    assert second.dev_sentences_per_second is None
    validate(run, first, [])
    assert first.dev_sentences_per_second is None


def test_nothing_is_divided_by_zero() -> None:
    assert Throughput().target_tokens_per_second == 0.0
    assert module._waited(SimpleNamespace(train_dataloader=None)) == 0.0  # type: ignore[arg-type]
