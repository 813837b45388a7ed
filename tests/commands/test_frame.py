"""The frame of every command: the command's signature is the schema of its config."""

import importlib
import inspect
import signal
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import OmegaConf

from diglot.commands.doctor import DoctorKeys, DoctorOptions
from diglot.commands.frame import CheckedLoader, arguments
from diglot.commands.schema import TrainKeys
from diglot.commands.start import COMMANDS
from diglot.config import CONF, check, keys_of
from diglot.config.keys import plain_config
from diglot.errors import UserError
from diglot.sweeps.sweep import SweepKeys
from diglot.system import interruption

OF_ONE_CONFIG = {"train": TrainKeys, "doctor": DoctorKeys}


def schema(command: str) -> Any:
    return OF_ONE_CONFIG.get(command) or importlib.import_module(f"diglot.commands.{command}").main


def written(file: str) -> set[str]:
    """Return the names in a file of conf/: its keys, and the groups in its defaults list."""
    node: Any = OmegaConf.to_container(OmegaConf.load(CONF / f"{file}.yaml"))
    found = node.keys() - {"defaults", "hydra"}
    for line in node["defaults"]:
        if isinstance(line, dict):
            found |= {key for key in line if not key.startswith(("override", "experiment"))}
        elif line != "_self_":
            found |= written(line)
    return found


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "sweep"])
def test_a_commands_signature_and_its_file_have_the_same_names(command):
    assert keys_of(schema(command)).keys() == written(command)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("sweep", *OF_ONE_CONFIG)])
def test_all_defaults_stand_in_the_file(command):
    parameters = inspect.signature(schema(command)).parameters.values()
    assert {(p.kind, p.default) for p in parameters} == {(inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty)}


@pytest.mark.parametrize(("keys", "node"), [(SweepKeys, "sweep"), (DoctorOptions, "doctor")])
def test_a_node_without_a_class_has_the_names_of_its_schema(keys, node):
    assert keys_of(keys).keys() == plain_config("doctor")[node].keys()


def test_a_function_is_given_nodes_as_they_are_and_lists_as_plain_data():
    def function(*, one: str | list[str], many: list[str], node: dict, none: dict | None) -> None: ...

    config = OmegaConf.create({"one": "a", "many": ["${one}", "b"], "node": {"c": "${one}"}, "more": 3})
    found = arguments(config, function)
    assert found == {"one": "a", "many": ["a", "b"], "node": config.node, "none": None}
    assert type(found["many"]) is list
    assert found["node"].c == "a"


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("doctor.max_near", "x", "doctor.max_near='x': must be a number or null"),
        ("doctor.prob", 3, "there is no key doctor.prob; did you mean doctor.probe?"),
        ("sweep.job", 3, "sweep.job=3: must be text or null"),
        ("sweep.folders", "x", "there is no key sweep.folders; did you mean sweep.folder?"),
        ("trainer.max_steps", "x", "trainer.max_steps='x': must be an integer or null"),
        ("trainer.precision", None, "trainer.precision=null: must be an integer or text"),
        (
            "trainer.process_timeouts",
            3,
            "there is no key trainer.process_timeouts; did you mean trainer.process_t",
        ),
        ("trainer.plugins", [], "trainer.plugins is not supported: diglot sets it"),
        ("data.vocab_size", "x", "data.vocab_size='x': must be an integer"),
        (
            "objective",
            "bleu",
            "objective=bleu: this run does not compute it; it computes dev/bleu, ",
        ),
        ("init_from", "", "init_from= is empty: leave it out"),
        ("model", 3, "model=3: must be a mapping"),
        ("bleu_tokenizer", "13b", "bleu_tokenizer='13b': must be none or zh or 13a or "),
    ],
)
def test_values_are_checked_by_the_schema(key, value, wanted):
    config = OmegaConf.create(plain_config("doctor"))
    check(config, DoctorKeys)
    OmegaConf.update(config, key, value, merge=False, force_add=True)
    with pytest.raises(UserError) as refused:
        check(config, DoctorKeys)
    assert str(refused.value).startswith(wanted)


def test_a_signal_that_hydra_turns_into_another_error_still_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> None:
        monkeypatch.setattr(interruption, "received", signal.SIGTERM)  # as the handler does
        raise ConfigCompositionException("Error loading a config")

    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", failing)
    loader = object.__new__(CheckedLoader)
    with pytest.raises(interruption.Interrupted, match="SIGTERM"):  # Hydra's first composition ignores any Exception
        loader.load_configuration("train", [], RunMode.MULTIRUN, validate_sweep_overrides=False)
