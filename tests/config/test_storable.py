"""A run and a reader of checkpoints apply the same rules to a checkpoint's content."""

import copy
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sentencepiece
import torch
from omegaconf import DictConfig, OmegaConf

from diglot.checkpoint import container
from diglot.checkpoint import file as checkpoint
from diglot.config import (
    build,
    check_language,
    check_parts,
    check_run_config,
    resolved,
    trial_build,
    trusted,
    without_folders,
)
from diglot.data.pieces import load_processor, without_paths
from diglot.errors import UserError
from support.made import write_checkpoint

MINE = """
from diglot.decoding import BeamSearch
from diglot.model import Transformer
from diglot.model.position import Rotary

class Mine(Transformer):
    pass

class Where(Rotary):
    pass

class Find(BeamSearch):
    pass

class Other:
    pass
"""
OWN = {"model._target_": "mine.Mine", "model.position._target_": "mine.Where", "search._target_": "mine.Find"}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Yield a folder with a user's module that Python can find but has not imported."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.fixture
def store(compose_train, tokenizer, tmp_path):
    """Return a function that writes a checkpoint of a small model with changed config values.

    The function returns the checkpoint's path, config and record.
    """

    def write(targets, **changed):
        words = ("data=sample", "model=tiny", "model.d_model=8", "model.d_ff=8", "model.n_heads=2", "search=beam")
        config = copy.deepcopy(compose_train(*words))
        for key, target in targets.items():
            OmegaConf.update(config, key, target)
        record = checkpoint.record(config, tokenizer, "sample", "avi", "bol")
        sizes = {"src_vocab_size": tokenizer.src_vocab_size, "tgt_vocab_size": tokenizer.tgt_vocab_size}
        model = build(config.model, "model", **sizes)
        weights = {f"model.{name}": weight for name, weight in model.state_dict().items()}
        path = tmp_path / "x.ckpt"
        write_checkpoint(path, {"diglot": record | changed, "state_dict": weights})
        return SimpleNamespace(path=path, config=config, record=record | changed)

    return write


def test_a_user_s_class_is_created_if_its_module_is_trusted(mine, store):
    stored = store(OWN)
    sys.modules.pop("mine", None)
    found = checkpoint.load(stored.path, trust=["mine"])
    made = {(type(each).__module__, type(each).__name__) for each in (*found.model.modules(), found.search)}
    assert {("mine", "Mine"), ("mine", "Where"), ("mine", "Find")} <= made


@pytest.mark.parametrize("key", OWN)
def test_a_checkpoint_alone_imports_no_module_and_the_message_says_what_to_type(mine, store, key):
    stored = store({key: OWN[key]})
    sys.modules.pop("mine", None)
    with pytest.raises(UserError, match=rf"{key} names '{OWN[key]}'.*type trust=mine"):
        checkpoint.load(stored.path)
    with pytest.raises(UserError, match="type trust=mine"):
        checkpoint.load(stored.path, trust=["mine.models", "yours"])
    assert "mine" not in sys.modules


def test_a_module_that_the_program_has_imported_is_trusted(mine, store):
    stored = store(OWN)
    assert "mine" in sys.modules
    assert type(checkpoint.load(stored.path).model).__name__ == "Mine"


def test_a_config_trusts_the_modules_of_its_classes_and_of_its_key_trust():
    config = OmegaConf.create({"search": {"_target_": "mine.Find"}, "model": {"_target_": "diglot.model.Transformer"}})
    assert trusted(config) == ["mine"]
    assert trusted(OmegaConf.create({"trust": "yours"})) == ["yours"]
    assert trusted(OmegaConf.create({"trust": ["yours", "a.b"]})) == ["yours", "a.b"]
    for wrong in ("../mine", "mine/x", "torch", "os", "diglot.data", ""):
        with pytest.raises(UserError, match="trust="):
            trusted(OmegaConf.create({"trust": [wrong]}))


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("mine.Gone", "cannot be imported"),
        ("mine.Other", "a checkpoint may not use in a model or search"),
        ("mine.BeamSearch.__init__", "a checkpoint may not use in a model or search"),
        ("mine.torch.nn.Sequential", "cannot be imported"),
        ("nowhere.Mine", "type trust=nowhere"),
        ("os.system", "a checkpoint may not use in a model or search"),
        ("torch.nn.Sequential", "a checkpoint may not use in a model or search"),
        ("torch.hub.load", "a checkpoint may not use in a model or search"),
    ],
)
def test_trust_in_a_module_does_not_extend_to_what_it_imports(mine, store, target, said):
    stored = store({})
    content = container.read(stored.path)
    content["diglot"]["model"]["position"]["_target_"] = target
    write_checkpoint(stored.path, content)
    with pytest.raises(UserError, match=said) as error:
        checkpoint.load(stored.path, trust=["mine"])
    assert "\n" not in str(error.value)


def test_an_alias_of_a_library_s_class_is_not_made(mine, store):
    (mine / "mine.py").write_text(MINE + "from torch.nn import Sequential\n")
    stored = store({})
    content = container.read(stored.path)
    content["diglot"]["model"]["norm"] = {"_target_": "mine.Sequential", "_partial_": True}
    write_checkpoint(stored.path, content)
    with pytest.raises(UserError, match="a checkpoint may not use in a model or search"):
        checkpoint.load(stored.path, trust=["mine"])


@pytest.mark.reliability
def test_every_reading_command_takes_trust(mine, store):
    stored = store(OWN)
    words = [sys.executable, "-c", "import sys; from diglot.commands.average import main; main()"]
    words += [f"checkpoint={stored.path}", f"output={mine / 'mean.ckpt'}"]
    done = [
        subprocess.run([*words, *more], capture_output=True, text=True, cwd=mine, check=False)
        for more in ([], ["trust=mine"])
    ]
    assert (done[0].returncode, done[0].stderr.count("\n")) == (2, 1)
    assert "type trust=mine" in done[0].stderr
    assert done[1].returncode == 0, done[1].stderr
    conf = Path(__file__).parents[2] / "conf"
    commands = ("train", "translate", "evaluate", "score", "average", "export")
    assert all("\ntrust: []" in (conf / f"{name}.yaml").read_text() for name in commands)


@pytest.mark.parametrize("code", ["en", "zh-Hant", "sr@latin", "zho_Hans", "ca-ES@valencia", "c++", "中文"])
def test_a_language_code_that_fits_file_names_is_accepted_by_both(store, code):
    check_language("data.src_lang", code)
    assert checkpoint.load(store({}, src_lang=code).path).record["src_lang"] == code


@pytest.mark.parametrize("code", ["", "zh/tw", "../../../esc", "a..b", ".x", "a\x1b[2J", "a\n", "x" * 51, "C:\\x"])
@pytest.mark.parametrize("key", ["src_lang", "tgt_lang"])
def test_a_language_code_that_does_not_fit_file_names_is_refused_by_both(store, key, code):
    with pytest.raises(UserError, match=rf"data\.{key}=.*part of file names"):
        check_language(f"data.{key}", code)
    stored = store({}, **{key: code})
    with pytest.raises(UserError, match=f"{key}="):
        checkpoint.load(stored.path)
    with pytest.raises(UserError, match=f"could not be read again: {key}="):
        checkpoint.check_readable(stored.record, ())


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("search.max_len_b", 10_001, "search.max_len_b is 10,001"),
        ("search.max_len_a", 101, "search.max_len_a is 101"),
        ("search.beam_size", 1001, "at most 1,000"),
    ],
)
def test_a_search_without_end_is_refused_by_both(store, key, value, said):
    stored = store({key: value})
    with pytest.raises(UserError, match=said):
        checkpoint.load(stored.path)
    with pytest.raises(UserError, match=said):
        trial_build(stored.config)


def test_an_output_that_never_ends_is_refused(store):
    stored = store({"search.max_len_b": 10_000, "search.min_len_b": 5_000})
    with pytest.raises(UserError, match="min_len_b is 5,000"):
        checkpoint.load(stored.path)


def test_a_layer_that_no_checkpoint_may_name_is_refused_at_the_start(compose_train):
    model = resolved(compose_train("model.feed_forward.activation._target_=torch.nn.Flatten").model)
    with pytest.raises(UserError, match=r"model\.feed_forward\.activation\._target_ names 'torch\.nn\.Flatten'"):
        check_parts({"model": model, "search": {}})


def changed(stored, change):
    content = container.read(stored.path)
    change(content)
    write_checkpoint(stored.path, content)
    return stored.path


def weights_as(dtype):
    return lambda content: content.update(state_dict={k: v.to(dtype) for k, v in content["state_dict"].items()})


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int64])
def test_weights_of_another_kind_of_number_are_refused(store, dtype):
    with pytest.raises(UserError, match=f"its weight .* is {dtype}, but the model's is torch.float32"):
        checkpoint.load(changed(store({}), weights_as(dtype)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_weights_of_another_precision_are_taken(store, dtype):
    assert checkpoint.load(changed(store({}), weights_as(dtype))).model is not None


def test_a_record_shared_by_weights_of_different_sublayers_is_refused(store):
    def tie(content):
        weights = content["state_dict"]
        for i in (0, 1):
            names = [name for name in weights if f"encoder.layers.{i}." in name or f"encoder.{i}." in name]
            first = {tuple(weights[name].shape): weights[name] for name in names}
            weights.update({name: first[tuple(weights[name].shape)] for name in names})

    with pytest.raises(UserError, match=r"its model needs [\d,]+ numbers, but the file has [\d,]+"):
        checkpoint.load(changed(store({}), tie))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_named(store, value):
    def spoil(content):
        content["state_dict"]["model.output.weight"].view(-1)[3] = value

    with pytest.raises(UserError, match=r"its weight \S+ is not finite"):
        checkpoint.load(changed(store({}), spoil))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dropout", float("nan")),
        ("dropout", 3.0),
        ("n_heads", 10**12),
        ("norm", {"_target_": "torch.nn.LayerNorm", "_partial_": True, "eps": float("inf")}),
        ("d_model", "8"),
        ("n_encoder_layers", True),
        ("nothing", 1),
    ],
)
def test_values_that_no_command_line_may_give_are_refused(store, key, value):
    with pytest.raises(UserError, match=r"x\.ckpt: ") as error:
        checkpoint.load(changed(store({}), lambda content: content["diglot"]["model"].update({key: value})))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("pattern", ["(?x) a # b", "(a|b" * 1_000_000])
def test_a_placeholder_that_is_no_pattern_is_refused_by_both(store, pattern):
    stored = store({}, placeholder=pattern)
    with pytest.raises(UserError, match="its placeholder"):
        checkpoint.load(stored.path)
    with pytest.raises(UserError, match="placeholder"):
        build({"_target_": "diglot.data.tokenizer.TokenizerFiles", "model": "x", "placeholder": pattern}, "tokenizer")


def test_a_checkpoint_stores_only_the_last_part_of_paths(compose_train, tokenizer, tmp_path):
    config = copy.deepcopy(compose_train("data=files"))
    for key, value in {
        "data.train.src": "/home/alice/corpora/train.de",
        "data.train.tgt": ["../alice/a.en", "~/alice/b.en"],
        "data.cache_dir": str(tmp_path / "cache"),
        "run.folder": "/srv/alice/run",
        "init_from": str(Path.home() / "x" / "best.ckpt"),
        "data.columns": ["Helsinki-NLP/opus-100", f"--at={Path.home()}/x"],
    }.items():
        OmegaConf.update(config, key, value, force_add=True)
    stored = checkpoint.record(config, tokenizer, "files", "de", "en")["config"]
    assert (stored["data"]["train"]["src"], stored["data"]["train"]["tgt"]) == ("train.de", ["a.en", "b.en"])
    assert (stored["data"]["cache_dir"], stored["run"]["folder"], stored["init_from"]) == ("cache", "run", "best.ckpt")
    assert stored["data"]["columns"] == ["Helsinki-NLP/opus-100", "--at=~/x"]
    assert "alice" not in str(stored)
    assert stored == without_folders(stored)


def test_a_checkpoint_s_tokenizer_does_not_say_where_it_was_trained(tmp_path):
    text = tmp_path / "alice.txt"
    text.write_text("one two three four five six seven\n" * 50)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(tmp_path / "m"), vocab_size=30, minloglevel=2, hard_vocab_limit=False
    )
    model = (tmp_path / "m.model").read_bytes()
    assert b"alice" in model
    stripped = without_paths(model)
    assert str(tmp_path).encode() not in stripped
    assert b"alice" not in stripped
    assert load_processor(stripped).encode("one two") == load_processor(model).encode("one two")
    assert without_paths(stripped) == stripped


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("optimizer", {"_target_": "os.system"}, "optimizer._target_ names 'os.system', a class that is not part of"),
        ("logger", {"mine": {"_target_": "mine.Logger"}}, "if you trust that module, type trust=mine"),
        ("seed", "${oc.env:HOME}", "seed contains the interpolation"),
        ("run", {"_args_": [1]}, "run._args_ contains positional arguments"),
        ("data", None, "the config has no data"),
        ("optimizer", {"_target_": "torch.optim.SGD", "_partial_": True, "leraning": 1}, "leraning"),
    ],
)
def test_the_config_of_a_folder_names_only_classes_of_conf_and_no_expressions(
    config: DictConfig, key: str, value: Any, message: str
) -> None:
    stored = {name: node for name, node in resolved(config).items() if name != "callbacks"}
    check_run_config(stored)
    with pytest.raises(UserError, match=re.escape(message)):
        check_run_config({**stored, key: value})
    check_run_config({**stored, "optimizer": {"_target_": "torch.optim.SGD", "_partial_": True, "momentum": 0.9}})
    check_run_config({**stored, "logger": {"mine": {"_target_": "mine.Logger"}}}, ["mine"])
