"""A run can be compared with others from its start, and also if it is stopped."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from diglot.training import loggers
from diglot.training.checkpoint_writer import CheckpointWriter
from diglot.training.hyper_parameters import HyperParameters

NONE: Any = None


def test_hyper_parameters_stand_from_the_start_and_the_best_scores_as_they_come(tmp_path: Path) -> None:
    logger = loggers.tensorboard(tmp_path)
    writer = CheckpointWriter(tmp_path)
    callback = HyperParameters({"model.d_model": 64}, writer, ["bleu"])
    trainer: Any = SimpleNamespace(loggers=[logger], fast_dev_run=False, sanity_checking=False, global_step=0)
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

    for update, best in ((10, 10), (20, 10), (30, 30)):
        trainer.global_step, writer.best_update = update, best
        writer.best_metrics = {"dev/bleu": float(torch.tensor(update / 10)), "dev/loss": 1.0}
        callback.on_validation_end(trainer, NONE)
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("best/bleu")] == [(10, 1.0), (30, 3.0)]
    assert [event.value for event in events.Scalars("best/update")] == [10, 30]
