"""A run can be compared with others from its start, and also if it is stopped."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from diglot.training import loggers
from diglot.training.checkpoint_writer import CheckpointWriter
from diglot.training.hyper_parameters import HyperParameters

NONE: Any = None


def test_hyper_parameters_stand_from_the_start_and_the_best_scores_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = loggers.tensorboard(tmp_path)
    callback = HyperParameters({"model.d_model": 64}, ["bleu"])
    trainer: Any = SimpleNamespace(loggers=[logger], fast_dev_run=False, sanity_checking=False, global_step=0)
    trainer.is_global_zero = False
    callback.on_train_start(trainer, NONE)

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert not events.Tags()["scalars"]
    content = {
        tag: plugin_data_pb2.HParamsPluginData.FromString(events.SummaryMetadata(tag).plugin_data.content)
        for tag in ("_hparams_/session_start_info", "_hparams_/experiment")
    }
    assert content["_hparams_/session_start_info"].session_start_info.hparams["model.d_model"].number_value == 64
    metrics = [info.name.tag for info in content["_hparams_/experiment"].experiment.metric_infos]
    assert metrics == ["best/bleu", "best/loss", "best/perplexity", "best/cut", "best/update"]

    writer, saved = CheckpointWriter(tmp_path), list[int]()
    monkeypatch.setattr(writer, "_rank", lambda metrics: (metrics["dev/bleu"],))

    def save(trainer: Any) -> None:
        """Look at the events that a kill just after the checkpoint leaves."""
        logger.experiment.flush()
        events.Reload()
        saved.append(len(events.Scalars("best/bleu")))

    monkeypatch.setattr(writer, "save", save)
    for update, bleu in ((10, 1.0), (20, 0.5), (30, 3.0)):
        trainer.global_step = update
        trainer.callback_metrics = {"dev/bleu": torch.tensor(bleu), "dev/loss": torch.tensor(1.0)}
        writer.on_validation_end(trainer, NONE)
    assert saved == [1, 1, 2]
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("best/bleu")] == [(10, 1.0), (30, 3.0)]
    assert [event.value for event in events.Scalars("best/update")] == [10, 30]
