"""What all tests share: one thread (unless OMP_NUM_THREADS says otherwise), no network, and small things that are quick
to build."""

import copy
import io
import os
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from diglot.data.text import ParallelText  # before torch: see diglot.threads

# isort: split
import hypothesis
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from diglot.config import CONF, build
from diglot.data.corpus import Sample
from diglot.data.tokenizer import Tokenizer, TokenizerTrainer
from diglot.model import Transformer

os.environ["HF_HUB_OFFLINE"] = "1"
# Also of the commands that tests start: several run at once. No test depends on it: OMP_NUM_THREADS=2 make test
torch.set_num_threads(int(os.environ.setdefault("OMP_NUM_THREADS", "1")))
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the commands that tests start would ignore it
# How fast a busy machine is says nothing of the code. The same cases each time: `make test-all` looks for new ones.
hypothesis.settings.register_profile("diglot", deadline=None, derandomize=True)
hypothesis.settings.register_profile("new", deadline=None)
hypothesis.settings.load_profile("diglot")

# Sizes that all differ, so that an axis taken for another one is seen: D 24, H 3, K 8, F 40.
SMALL = ("model=tiny", "model.d_model=24", "model.n_heads=3", "model.d_ff=40", "model.dropout=0.0")


@pytest.fixture(autouse=True, scope="session")
def yaml_is_parsed_once() -> Iterator[None]:
    """Hydra reads thirty files for each command line, which takes half of its time. They are in conf/ and in Hydra."""
    parsed: dict[tuple[str, int, int], Any] = {}

    def load_once(file: Any) -> Any:
        if not isinstance(file, io.TextIOWrapper) or not isinstance(file.name, str):
            return load(file)
        status = os.fstat(file.fileno())
        key = (file.name, status.st_mtime_ns, status.st_size)
        if key not in parsed:
            parsed[key] = load(file)
        return copy.deepcopy(parsed[key])

    load = OmegaConf.load
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OmegaConf, "load", load_once)
        yield


@cache
def composed(overrides: tuple[str, ...]) -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", list(overrides))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest begin first, so that no worker has one of them left at the end."""
    slow = {item.path for item in items if item.get_closest_marker("end_to_end")}
    items.sort(key=lambda item: item.path not in slow)  # stable: else the order stays


@pytest.fixture(scope="session")
def compose_train() -> Callable[..., DictConfig]:
    """The config of a training run as overrides make it: `compose_train("model=base")`. Not to be changed."""
    return lambda *overrides: composed(overrides)


@pytest.fixture(scope="session")
def config() -> DictConfig:
    """The config of a training run with nothing overridden."""
    return composed(())


@pytest.fixture(scope="session")
def build_model() -> Callable[..., Transformer]:
    """A small model in evaluation mode, the same weights each time: `build_model("model/position=rotary")`."""

    def made(*overrides: str, src_vocab_size: int = 37, tgt_vocab_size: int = 37, seed: int = 1) -> Transformer:
        torch.manual_seed(seed)
        node = composed(SMALL + overrides).model
        return build(node, "model", src_vocab_size=src_vocab_size, tgt_vocab_size=tgt_vocab_size).eval()

    return made


@pytest.fixture
def tiny_model(build_model: Callable[..., Transformer]) -> Transformer:
    return build_model()


@pytest.fixture(scope="session")
def sample_lines() -> list[str]:
    """Some lines of the sample corpus, both languages."""
    train = Sample().read(Path())["train"].load()
    return train.src[:400] + train.tgt[:400]


@pytest.fixture(scope="session")
def tokenizer(sample_lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A small tokenizer that keeps {name} whole."""
    trainer = TokenizerTrainer(model_type="unigram", vocab_size=400, placeholder=r"\{[^{}\s]+\}")
    return trainer.train(ParallelText(sample_lines, sample_lines), tmp_path_factory.mktemp("tokenizer"), ["src"])[0]
