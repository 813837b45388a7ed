"""Fixtures and settings for all tests.

Tests use one thread (unless OMP_NUM_THREADS is set), no network, and small objects that are quick to build.
"""

import copy
import io
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from diglot.data.text import ParallelText  # before torch: see diglot.system.threads

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
from support.browser import Browser

os.environ["HF_HUB_OFFLINE"] = "1"
# Commands that tests start inherit it, since several run at once. No test depends on it: OMP_NUM_THREADS=2 make test
torch.set_num_threads(int(os.environ.setdefault("OMP_NUM_THREADS", "1")))
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, commands that tests start would inherit SIG_IGN
# No deadline: the speed of a busy machine says nothing about the code. The same cases each time: `make test-all` looks
# for new ones.
hypothesis.settings.register_profile("diglot", deadline=None, derandomize=True)
hypothesis.settings.register_profile("new", deadline=None)
hypothesis.settings.load_profile("diglot")

# All sizes differ, so that a mix-up of axes is detected: D 24, H 3, K 8, F 40.
SMALL = ("model=tiny", "model.d_model=24", "model.n_heads=3", "model.d_ff=40", "model.dropout=0.0")


@pytest.fixture(autouse=True, scope="session")
def yaml_is_parsed_once() -> Iterator[None]:
    """Parse each YAML file only once.

    Hydra reads thirty files, in conf/ and in its own package, for each command line. That takes half of its time.
    """
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


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move cases of `sampled` tests to the reliability tier, and run the slowest files first.

    A worker that starts a slow file last would run it alone.
    """
    cases: Counter[object] = Counter()
    for item in items:
        sampled = item.get_closest_marker("sampled")
        if sampled is not None and isinstance(item, pytest.Function):
            if cases[item.function] % sampled.args[0]:
                item.add_marker(pytest.mark.reliability)
            cases[item.function] += 1
    slow = {item.path for item in items if item.get_closest_marker("end_to_end")}
    items.sort(key=lambda item: item.path not in slow)  # stable: otherwise the order is kept


@pytest.fixture(scope="session")
def compose_train() -> Callable[..., DictConfig]:
    """Return a function that composes a training config: `compose_train("model=base")`. Do not modify the result."""
    return lambda *overrides: composed(overrides)


@pytest.fixture(scope="session")
def config() -> DictConfig:
    """Return the config of a training run without overrides."""
    return composed(())


@pytest.fixture(scope="session")
def build_model() -> Callable[..., Transformer]:
    """Return a function that builds a small model in evaluation mode: `build_model("model/position=rotary")`.

    The weights are the same each time.
    """

    def made(*overrides: str, src_vocab_size: int = 37, tgt_vocab_size: int = 37, seed: int = 1) -> Transformer:
        torch.manual_seed(seed)
        node = composed(SMALL + overrides).model
        return build(node, "model", src_vocab_size=src_vocab_size, tgt_vocab_size=tgt_vocab_size).eval()

    return made


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Return a headless browser, for tests that are marked with `needs_chromium`."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(Path(folder))
        yield browser
        browser.close()


@pytest.fixture
def tiny_model(build_model: Callable[..., Transformer]) -> Transformer:
    return build_model()


@pytest.fixture(scope="session")
def sample_lines() -> list[str]:
    """Return some lines of the sample corpus in both languages."""
    train = Sample().read(Path())["train"].load()
    return train.src[:400] + train.tgt[:400]


@pytest.fixture(scope="session")
def tokenizer(sample_lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Return a small tokenizer that keeps placeholders such as {name} whole."""
    trainer = TokenizerTrainer(model_type="unigram", vocab_size=400, placeholder=r"\{[^{}\s]+\}")
    return trainer.train(ParallelText(sample_lines, sample_lines), tmp_path_factory.mktemp("tokenizer"), ["src"])[0]
