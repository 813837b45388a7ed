"""The private parts of Hydra and OmegaConf that diglot uses exist, and do what diglot uses them for."""

import copy
import sys
from pathlib import Path
from typing import Any

import hydra
import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import RunMode
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from diglot.config import hydra_seams as seams


class RefusedError(Exception):
    """Raised by the test's loader."""


class Refusing(seams.ConfigLoader):
    def load_configuration(self, *arguments: Any, **options: Any) -> DictConfig:
        if "x=3" in options["overrides"]:  # from a typed command line
            raise RefusedError
        return super().load_configuration(*arguments, **options)


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of configs, which is also the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    (tmp_path / "x.yaml").write_text("x: 1\nhydra: {run: {dir: .}, output_subdir: null}\n")
    return tmp_path


def test_a_command_composes_its_config_by_a_loader_of_ours(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[DictConfig] = []
    main = hydra.main(version_base="1.3", config_path=str(conf), config_name="x")(seen.append)
    for word in ("x=2", "x=3"):
        monkeypatch.setattr(sys, "argv", ["command", word])
        with seams.config_loader(Refusing):
            if word == "x=3":
                with pytest.raises(RefusedError):
                    main()
            else:
                main()
    assert [config.x for config in seen] == [2], "Hydra changed how a command gets its ConfigLoaderImpl"
    main()
    assert [config.x for config in seen] == [2, 3], "the loader outlives its block"


@pytest.mark.filterwarnings("ignore")
def test_a_job_of_a_sweep_is_composed_by_a_loader_of_ours(conf: Path) -> None:
    with seams.config_loader(Refusing), initialize_config_dir(str(conf), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        assert isinstance(loader, Refusing), "Hydra changed how compose gets its ConfigLoaderImpl"
        config = loader.load_configuration("x", overrides=[], run_mode=RunMode.MULTIRUN)
        assert loader.load_sweep_config(config, ["x=2"]).x == 2
        with pytest.raises(RefusedError):  # otherwise Hydra changed ConfigLoaderImpl.load_sweep_config
            loader.load_sweep_config(config, ["x=3"])


def test_a_loader_reads_each_file_once(conf: Path) -> None:
    with initialize_config_dir(str(conf), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        seams.read_once(loader)
        before = compose("x", ["x=2"])
        (conf / "x.yaml").write_text("x: 9\n")
        assert [before.x, compose("x").x] == [2, 1], "Hydra changed CachingConfigRepository"
        copied: Any = copy.deepcopy(loader)
        assert copied.repository is loader.repository, "Hydra changed ConfigLoaderImpl.repository"


def test_a_stored_config_is_forgotten() -> None:
    store = ConfigStore.instance()
    store.store(group="seams/one", name="two", node={"a": 1})
    file = Path("seams/one/two.yaml")
    assert store.load(str(file)).node.a == 1
    seams.forget_stored(file)
    assert store.list("seams/one") == [], "Hydra changed ConfigStore.repo"
    seams.forget_stored(Path("seams/nothing/two.yaml"))


def test_a_job_says_what_it_returned_and_prints_nothing(capsys: pytest.CaptureFixture) -> None:
    job = JobReturn(status=JobStatus.FAILED)
    job.return_value = error = ValueError("mine")
    assert seams.returned_value(job) is error, "Hydra changed JobReturn._return_value"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "kind"), [("basic_sweeper.BasicSweeper", Sweeper), ("basic_launcher.BasicLauncher", Launcher)]
)
def test_hydra_s_own_plugins_are_in_one_package(name: str, kind: type) -> None:
    assert issubclass(get_class(f"{seams.CORE_PLUGINS}.{name}"), kind), "Hydra changed where its plugins are"


@pytest.mark.parametrize("text", ["1e5", "on", "1_000", "null", "a", "${x}", "1.5"])
def test_a_text_is_written_so_that_it_is_read_back_as_text(text: str) -> None:
    class Mine(seams.YamlDumper):
        pass

    Mine.add_representer(str, seams.YamlDumper.str_representer)
    written = yaml.dump({"a": text}, Dumper=Mine)
    read: Any = OmegaConf.to_container(OmegaConf.create(written), resolve=False)
    assert read == {"a": text}, "OmegaConf changed OmegaConfDumper"
