"""A config, even an untrusted one, can only call classes of the kind that a key accepts."""

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile import Call, composed
from omegaconf import OmegaConf

from diglot import config as root
from diglot.commands.schema import TrainKeys
from diglot.errors import UserError

pytestmark = pytest.mark.reliability


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


MINE = """
from __future__ import annotations
import lightning as L
from lightning.pytorch.loggers import CSVLogger, Logger
from torch import nn
from torch.optim import SGD, Optimizer
from diglot.data.corpus import Sample
from diglot.model import Transformer

class Callback(L.Callback):
    def __init__(self, inner: L.Callback | None = None, size: int = 3) -> None: ...

class Unclear(L.Callback):
    def __init__(self, inner=None) -> None: ...

class Norm(nn.LayerNorm): ...
class Model(Transformer): ...
class Corpus(Sample): ...
class MyOptimizer(SGD): ...

def logger(folder, resumed_at=None, *, level: int = 1) -> Logger:
    return CSVLogger(folder)

def optimizer(params, lr: float) -> Optimizer:
    return SGD(params, lr)

def norm(width: int) -> nn.Module:
    return nn.LayerNorm(width)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("mine", None)
    yield
    sys.modules.pop("mine", None)


def refused(call: Callable[[], Any], wanted: str) -> None:
    with pytest.raises(UserError) as error:
        call()
    assert wanted in str(error.value)
    assert "\n" not in str(error.value)


def check(*words: str) -> None:
    root.check(composed("data=sample", "trainer=cpu", *words), TrainKeys)


@pytest.mark.promise(
    "A config from any source can create only objects of the kinds that its keys accept, and cannot call anything else"
)
class TestTargets:
    @pytest.mark.parametrize(
        ("word", "wanted"),
        [
            ("+callbacks.x={_target_: torch.load, f: CANARY, weights_only: false}", "callbacks.x._target_: torch.load"),
            ("+callbacks.x={_target_: builtins.open, file: CANARY, mode: w}", "builtins.open is no Callback"),
            ("+callbacks.x={_target_: logging.FileHandler, filename: CANARY}", "logging.FileHandler is no Callback"),
            (
                "+callbacks.x={_target_: urllib.request.urlopen, url: 'http://x'}",
                "urllib.request.urlopen is no Callback",
            ),
            ("+callbacks.x={_target_: os.system, command: touch CANARY}", "os.system is no Callback"),
            ("+callbacks.x={_target_: diglot.data.text.write_lines, path: CANARY, lines: [x]}", "is no Callback"),
            (
                "+callbacks.x={_target_: diglot.runs.plan.logging.os.system, command: touch CANARY}",
                "is no Callback",
            ),
            ("+callbacks.x={_target_: torch.utils.collect_env.run, command: touch CANARY}", "is no Callback"),
            ("+callbacks.x={_target_: antigravity.fly}", "antigravity.fly is no Callback"),
            ("+callbacks.x={_target_: pip.__main__}", "is no Callback"),
            ("+callbacks.x={_target_: torch.nn.Linear, in_features: 1, out_features: 1}", "is no Callback"),
            ("+watch.x={_target_: builtins.open, file: CANARY, mode: w}", "watch.x._target_"),
            ("+callbacks.x.y={_target_: builtins.open, file: CANARY, mode: w}", "is not accepted here"),
            ("logger.tensorboard._target_=logging.FileHandler", "logging.FileHandler is no Logger"),
            ("logger.tensorboard._target_=torch.load", "torch.load is no Logger"),
            ("+logger.x={_target_: torch.load, f: CANARY}", "logger.x._target_: torch.load"),
            (
                "+logger.x=[{y: {_target_: torch.load, f: CANARY}}]",
                ": a Logger needs a _target_; type +logger.x._target_=CLASS",
            ),
            ("optimizer._target_=torch.load", "torch.load is no Optimizer"),
            ("+optimizer._args_=[{_target_: torch.load, f: CANARY}]", "optimizer._args_"),
            ("optimizer.betas=[{_target_: torch.load, f: CANARY}]", "optimizer.betas"),
            ("scheduler._target_=builtins.print", "is no LRScheduler"),
            ("search._target_=builtins.print", "is no Search"),
            ("data._target_=builtins.dict", "is no Corpus"),
            ("tokenizer._target_=builtins.dict", "is no tokenizer"),
            ("run._target_=builtins.dict", "is no Budget"),
            ("trainer._target_=builtins.dict", "is no Trainer"),
            ("+trainer.profiler={_target_: torch.load, f: CANARY}", "trainer.profiler._target_: torch.load"),
            ("data.clean._target_=builtins.dict", "data.clean._target_"),
            ("model.norm._target_=torch.load", "model.norm._target_: torch.load"),
            ("model.norm._target_=torch.jit.load", "model.norm._target_: torch.jit.load"),
            ("model.position._target_=torch.nn.LayerNorm", "is no PositionEncoding"),
            ("model.feed_forward.activation._target_=builtins.print", "model.feed_forward.activation._target_"),
            ("+callbacks.x={_target_: mine.Callback, inner: {_target_: torch.load, f: CANARY}}", "callbacks.x.inner"),
            (
                "+callbacks.x={_target_: mine.Unclear, inner: {_target_: mine.Callback}}",
                "not annotated with a class",
            ),
            ("model.norm._target_=mine.norm", "mine.norm is no"),
        ],
    )
    def test_what_is_no_such_class_is_refused(self, canary: Path, mine: None, word: str, wanted: str) -> None:
        refused(lambda: check(word.replace("CANARY", str(canary))), wanted)
        assert not canary.exists()

    @pytest.mark.parametrize(
        "word",
        [
            "+callbacks.x._target_=mine.Callback",
            "+callbacks.x={_target_: mine.Callback, inner: {_target_: mine.Callback}}",
            "+callbacks.x={_target_: lightning.pytorch.callbacks.DeviceStatsMonitor}",
            "+watch.x._target_=mine.Callback",
            "logger.tensorboard={_target_: mine.logger, level: 2}",
            "optimizer={_target_: mine.MyOptimizer, _partial_: true}",
            "optimizer={_target_: mine.optimizer, _partial_: true}",
            "optimizer={_target_: torch.optim.SGD, _partial_: true}",
            "model.norm={_target_: mine.Norm, _partial_: true}",
            "model._target_=mine.Model",
            "data._target_=mine.Corpus",
        ],
    )
    def test_classes_of_one_s_own_are_taken(self, mine: None, word: str) -> None:
        config = composed("data=sample", "trainer=cpu")
        key, _, value = word.lstrip("+").partition("=")
        OmegaConf.set_struct(config, False)
        OmegaConf.update(config, key, OmegaConf.create(value) if value.startswith("{") else value, merge=False)
        root.check(config, TrainKeys)

    @pytest.mark.parametrize(
        ("said", "wanted"),
        [
            ("callbacks: {x: {_target_: builtins.open, file: CANARY, mode: w}}", "hydra.callbacks"),
            (
                "job_logging: {handlers: {x: {class: logging.FileHandler, filename: CANARY}}}",
                "hydra.job_logging",
            ),
            (
                "hydra_logging: {root: {}, handlers: {x: {(): builtins.open, file: CANARY, mode: w}}}",
                "hydra.hydra_logging",
            ),
            ("job: {env_set: {GIT_CONFIG_COUNT: '1'}}", "hydra.job.env_set"),
            ("sweeper: {_target_: builtins.open}", "hydra.sweeper._target_"),
            ("launcher: {_target_: builtins.open}", "hydra.launcher._target_"),
        ],
    )
    def test_a_file_of_configs_says_nothing_to_hydra_that_calls(
        self, canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, said: str, wanted: str
    ) -> None:
        from diglot.commands.translate import main

        file = tmp_path / "theirs" / "search" / "theirs.yaml"
        file.parent.mkdir(parents=True)
        inside = said.replace("CANARY", str(canary))
        file.write_text(f"# @package _global_\nsearch: {{beam_size: 2}}\nhydra:\n  {inside}\n")
        words = ["diglot-translate", "--config-dir", str(tmp_path / "theirs"), "search=theirs", "checkpoint=x.ckpt"]
        for mode in ([], ["-m"]):
            monkeypatch.setattr(sys, "argv", [*words, *mode])
            with pytest.raises(SystemExit) as left:
                main()
            assert left.value.code == 2
            line = capsys.readouterr().err
            assert line.startswith(f"diglot-translate: {wanted}: ")
            assert line.count("\n") == 1
        assert not canary.exists()

    def test_a_pickled_config_is_not_run_again(
        self, canary: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
    ) -> None:
        from diglot.commands.translate import main

        (tmp_path / "config.pickle").write_bytes(pickle.dumps(Call(os.system, f"touch {canary}")))
        monkeypatch.setattr(sys, "argv", ["diglot-translate", "--experimental-rerun", str(tmp_path / "config.pickle")])
        with pytest.raises(SystemExit):
            main()
        assert "--experimental-rerun: not supported" in capsys.readouterr().err
        assert not canary.exists()
