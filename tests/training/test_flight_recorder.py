"""Unusual updates are recorded with the checkpoint that they can be repeated from."""

import json
import logging
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.trainer.states import TrainerFn

from diglot.data.tokenizer import Tokenizer
from diglot.decoding import BeamSearch
from diglot.model import Transformer
from diglot.training import flight_recorder
from diglot.training.checkpoint_writer import CheckpointWriter
from diglot.training.flight_recorder import Bound, FlightRecorder
from diglot.training.gradients import NonFiniteError
from diglot.training.schedule import Constant
from diglot.training.task import TranslationTask


def test_the_bound_is_the_median_plus_a_multiple_of_the_deviation() -> None:
    bound = Bound(window=4, deviations=2)
    bound.add([1.0])
    assert bound() == math.inf
    bound.add([100.0, math.nan, 2.0, 3.0, 3.0, math.inf])
    assert bound() == 3.0 + 2 * 0.5  # of 100, 2, 3, 3: the median is 3, with deviations 97, 1, 0, 0
    bound.add([3.0] * 4)
    assert bound() == pytest.approx(3.0 + 2 * 0.03)


class Run:
    """A run whose updates have given losses and gradient norms; it logs every fifth update."""

    def __init__(self, folder: Path, task: TranslationTask, patch: pytest.MonkeyPatch, **options: Any) -> None:
        self.folder, self.task = folder, task
        self.recorder = FlightRecorder(window=10, deviations=5, **options)
        (folder / "config.yaml").write_text("seed: 1\n")
        self.trainer: Any = SimpleNamespace(
            global_step=0,
            max_steps=100,
            log_every_n_steps=5,
            world_size=1,
            strategy=SimpleNamespace(reduce=lambda sums, reduce_op: sums),
            precision_plugin=SimpleNamespace(scaler=None),
            default_root_dir=str(folder),
            callbacks=[CheckpointWriter(folder)],
            state=SimpleNamespace(fn=TrainerFn.FITTING),
            sanity_checking=False,
            fast_dev_run=False,
            is_global_zero=True,
        )
        task._trainer = self.trainer
        patch.setattr(TranslationTask, "trainer", self.trainer, raising=False)
        shards = SimpleNamespace(folder=Path("cache/prepared/0"), key=7)
        patch.setattr(flight_recorder, "parts", lambda *_: (task, SimpleNamespace(shards=shards)))
        self.recorder.on_train_start(self.trainer, task)

    def train(self, *losses: float, norm: float = 1.0) -> None:
        for loss in losses:
            number = self.trainer.global_step + 1
            batch: Any = SimpleNamespace(position=number - 1, pairs=torch.tensor([number]), ends_update=True)
            self.recorder.on_train_batch_start(self.trainer, self.task, batch, 0)
            self.task._newest = torch.tensor([loss * 10, 0.0, 10.0]), 0.1
            self.task._gradient_norm = torch.tensor(norm)
            self.trainer.global_step = number
            self.recorder.on_train_batch_end(self.trainer, self.task, None, batch, 0)

    def save(self) -> None:
        self.recorder.on_save_checkpoint(self.trainer, self.task, {})
        new = self.folder / "new.ckpt"
        new.write_text(f"update {self.trainer.global_step}")
        new.replace(self.folder / "last.ckpt")

    @property
    def records(self) -> dict[int, dict[str, Any]]:
        files = (self.folder / "records").glob("*.json")
        return {record["update"]: record for record in (json.loads(file.read_text()) for file in files)}


@pytest.fixture
def run(
    tmp_path: Path, build_model: Callable[..., Transformer], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Run]:
    task = TranslationTask(
        model=build_model(src_vocab_size=400, tgt_vocab_size=400),
        tokenizer=tokenizer,
        search=BeamSearch(beam_size=2),
        optimizer=torch.optim.SGD,
        scheduler=partial(Constant, lr=0.25),
        total_updates=100,
        label_smoothing=0.1,
        seed=3,
        record={},
    )
    return partial(Run, tmp_path, task, monkeypatch)


def test_a_spike_is_recorded_with_the_checkpoint_before_it(
    run: Callable[..., Run], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "diglot")
    a_run = run()
    a_run.train(*[2.0] * 8)
    a_run.save()
    a_run.train(2.0, 2.0, 2.0, 9.0)
    assert not a_run.records  # its figures are not fetched before update 15
    a_run.save()  # but before the checkpoint is replaced
    (record,) = a_run.records.values()
    assert (record["update"], record["start"], record["reason"]) == (12, 8, "loss")
    assert (record["loss"], record["pairs"], record["positions"], record["seed"]) == (9.0, [12], [11], 3)
    assert (a_run.folder / "records" / "update_12.ckpt").read_text() == "update 8"
    assert (a_run.folder / "records" / "update_12.yaml").read_text() == "seed: 1\n"
    assert f"make replay record={a_run.folder}/records/update_12.json repeats it" in caplog.text


def test_a_disturbance_is_recorded_once_and_a_run_has_few_records(run: Callable[..., Run]) -> None:
    a_run = run(limit=2)
    for _ in range(4):
        a_run.train(*[2.0] * 12, 9.0, 9.0, 9.0)
    assert sorted(a_run.records) == [13, 28]
    assert a_run.records[13]["start"] == 0
    assert not (a_run.folder / "records" / "update_13.ckpt").exists()


def test_a_gradient_that_is_unusually_large_is_recorded(run: Callable[..., Run]) -> None:
    a_run = run()
    a_run.train(*[2.0] * 10)
    a_run.train(*[2.0] * 5, norm=7.0)
    assert [(number, record["reason"]) for number, record in a_run.records.items()] == [(11, "gradient_norm")]


@pytest.mark.parametrize("scaler", [None, object()])
def test_an_overflow_that_a_loss_scaler_provokes_is_not_recorded(run: Callable[..., Run], scaler: object) -> None:
    a_run = run()
    a_run.task.gradient_check.limit = 10
    a_run.trainer.precision_plugin.scaler = scaler
    a_run.train(*[2.0] * 5, norm=math.inf)
    assert len(a_run.records) == (3 if scaler is None else 0)


def test_the_update_that_ends_a_run_is_recorded_beyond_the_limit(run: Callable[..., Run]) -> None:
    a_run = run(limit=1)
    a_run.train(*[2.0] * 10, 9.0, 2.0, 2.0, 2.0, 2.0, 2.0)
    batch: Any = SimpleNamespace(position=16, pairs=torch.tensor([17]), ends_update=True)
    a_run.recorder.on_train_batch_start(a_run.trainer, a_run.task, batch, 0)
    a_run.task._gradient_norm = torch.tensor(math.nan)
    a_run.recorder.on_exception(a_run.trainer, a_run.task, NonFiniteError(17, [17], {}, 0.1))
    assert sorted(a_run.records) == [11, 17]
    assert (a_run.records[17]["reason"], a_run.records[17]["gradient_norm"]) == ("non_finite", "nan")


def test_a_record_that_cannot_be_written_is_reported_and_ends_nothing(
    run: Callable[..., Run], caplog: pytest.LogCaptureFixture
) -> None:
    a_run = run()
    (a_run.folder / "records").write_text("in its place")
    a_run.train(*[2.0] * 10, 9.0, 2.0, 2.0, 2.0, 2.0)
    assert "update 11 is not recorded" in caplog.text
