"""`init_from` brings the model, the tokenizer's options and the languages; what was typed is laid over them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from diglot.checkpoint import file as checkpoints
from diglot.config import CONF, as_yaml, resolved, without_secrets
from diglot.errors import UserError
from diglot.huggingface import hub_models
from diglot.runs.inheritance import inherit, load_initial
from diglot.runs.resume import refuse_other_contents
from hydra_plugins.diglot_launcher.launcher import hydra_config
from support.made import checkpoint_content, write_checkpoint

# Another model than the default, also in a part (positions) and in a dropout.
OTHER = ("model.d_model=24", "model.n_heads=3", "model.d_ff=40", "model/position=learned", "model.dropout=0.3")


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compose_train: Any, tokenizer: Any) -> DictConfig:
    """Write the checkpoint first.ckpt into the working folder, and return the config of its run."""
    monkeypatch.chdir(tmp_path)
    config = compose_train("data=sample", *OTHER, "tokenizer=bpe", "data.vocab_size=400", "tokenizer.samples=4")
    write_checkpoint(Path("first.ckpt"), checkpoint_content(config, tokenizer))
    return config


@pytest.fixture
def typed(first: DictConfig) -> Callable[..., DictConfig]:
    """Return a function that composes the config of `make train init_from=first.ckpt WORDS` and completes it."""

    def made(*words: str, init_from: str = "init_from=first.ckpt") -> DictConfig:
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(CONF), version_base="1.3"):
            composed = compose("train", ["data=sample", init_from, *words], return_hydra_config=True)
        config = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
        with hydra_config(composed):
            inherit(config)
        return config

    return made


def test_without_a_word_the_model_and_the_tokenizer_are_the_checkpoints(first, typed):
    config = typed()
    assert resolved(config.model) == resolved(first.model)
    assert resolved(config.tokenizer) == resolved(first.tokenizer)
    assert config.data.vocab_size == 400
    assert config.search._target_ == "diglot.decoding.BeamSearch"  # the run's own
    assert typed("scheduler=paper").scheduler.d_model == 24  # a reference to the model sees the same
    assert resolved(typed(init_from="seed=1").model)["d_model"] == 192


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["model.dropout=0.1"], "model.dropout", 0.1),  # the default, but typed
        (["model.embedding_dropout=0.2"], "model.embedding_dropout", 0.2),
        (["model.attention_dropout=0.2", "model.d_model=24"], "model.attention_dropout", 0.2),
        (["model/position=learned"], "model.dropout", 0.3),
        (["tokenizer.samples=2"], "tokenizer.samples", 2),
        (["tokenizer.alpha=0.1"], "tokenizer.samples", 4),
    ],
)
def test_what_is_typed_is_laid_over(typed, words, key, value):
    config = typed(*words)
    assert OmegaConf.select(config, key) == value
    assert config.model.d_model == 24


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["model.d_ff=100"], "init_from=first.ckpt: model.d_ff is 40 in the checkpoint, but 100 here"),
        (["model.d_ff=768"], "model.d_ff is 40 in the checkpoint, but 768 here"),  # the default, but typed
        (["model=tiny"], "model.position._target_ is diglot.model.position.Learned in the checkpoint, but"),
        (["model=gru_attention"], "model."),
        (["model/position=rotary"], "model.position._target_ is diglot.model.position.Learned in the checkpoint"),
        (["model/norm@model.decoder_norm=rms_norm"], "model.decoder_norm"),
        (["experiment=smoke"], "model.d_model is 24 in the checkpoint, but 48 here"),
    ],
)
def test_another_model_is_refused_by_key(typed, words, wanted):
    with pytest.raises(UserError) as refused:
        typed(*words)
    assert wanted in str(refused.value)


def test_a_wrong_checkpoint_is_refused_before_anything_is_built_from_it(first, typed, tokenizer):
    content = checkpoint_content(first, tokenizer)
    content["diglot"]["model"]["norm"] = {"_target_": "os.system", "command": "touch canary"}
    write_checkpoint(Path("bad.ckpt"), content)
    with pytest.raises(UserError, match=r"checkpoint bad\.ckpt: model\.norm\._target_ names 'os\.system'"):
        typed(init_from="init_from=bad.ckpt")
    content = checkpoint_content(first, tokenizer)
    content["diglot"]["config"]["tokenizer"] = {"_target_": "os.system", "command": "touch canary"}
    write_checkpoint(Path("bad.ckpt"), content)
    assert typed(init_from="init_from=bad.ckpt").tokenizer.model_type == "unigram"  # the command's own
    with pytest.raises(UserError, match=r"checkpoint none\.ckpt: no such file"):
        typed(init_from="init_from=none.ckpt")


def test_an_option_that_the_tokenizer_lacks_is_refused(first, typed, compose_train, tokenizer):
    config = compose_train("data=sample", *OTHER, "tokenizer=per_side", "model.tying=target")
    write_checkpoint(Path("sides.ckpt"), checkpoint_content(config, tokenizer))
    with pytest.raises(UserError, match=r"tokenizer\.samples: the tokenizer of init_from=sides\.ckpt has no such"):
        typed("tokenizer.samples=2", init_from="init_from=sides.ckpt")


@pytest.mark.parametrize(
    ("names", "words", "languages"),
    [
        (("a.txt", "b.txt"), [], ("avi", "bol")),
        (("a.txt", "b.txt"), ["data.src_lang=avi"], ("avi", "bol")),
        (("a.txt", "b.txt"), ["data.src_lang=de"], ("de", None)),  # another direction: nothing is guessed
        (("a.de", "b.en"), [], (None, None)),  # the corpus knows better
    ],
)
def test_the_languages_are_the_checkpoints_where_the_corpus_has_none(typed, names, words, languages):
    for name in names:
        Path(name).write_text("x\n")
    config = typed("data=files", f"data.train.src={names[0]}", f"data.train.tgt={names[1]}", *words)
    assert (config.data.src_lang, config.data.tgt_lang) == languages


def test_a_run_resumes_without_the_checkpoint_that_it_started_from(first, typed, tokenizer):
    config = typed("model.dropout=0.2", "run.folder=run")
    folder = Path("run")
    folder.mkdir()
    (folder / "config.yaml").write_text(as_yaml(without_secrets(config)))
    content = checkpoint_content(config, tokenizer, seed=2)
    write_checkpoint(folder / "last.ckpt", content)
    Path("first.ckpt").unlink()
    for words in (["resume=run"], ["resume=auto", "run.folder=run"]):
        resumed = typed(*words)
        assert resolved(resumed.model) == resolved(config.model)
        assert resolved(resumed.tokenizer) == resolved(config.tokenizer)
        initial = load_initial(resumed)
        assert initial is not None
        assert initial.record["update"] == 200
    with pytest.raises(UserError, match=r"checkpoint first\.ckpt: no such file"):
        typed("resume=auto")
    bad = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
    bad["model"]["norm"]["_target_"] = "os.system"
    (folder / "config.yaml").write_text(as_yaml(bad))
    with pytest.raises(UserError, match=r"run/config\.yaml: model\.norm\._target_ names 'os\.system'"):
        typed("resume=run")


def test_a_checkpoint_that_has_changed_gives_way_to_that_of_the_run_to_resume(first, typed, tokenizer):
    config, folder = typed("run.folder=run"), Path("run")
    folder.mkdir()
    (folder / "config.yaml").write_text(as_yaml(without_secrets(config)))
    contents = {"init_from": checkpoints.digest(Path("first.ckpt"))}
    (folder / "environment.json").write_text(json.dumps({"contents": contents}))
    resumed = typed("resume=run")
    assert load_initial(resumed).path == Path("first.ckpt")
    write_checkpoint(Path("first.ckpt"), checkpoint_content(first, tokenizer, seed=3))
    with pytest.raises(UserError, match=r"first\.ckpt: the checkpoint has changed since the run in run began$"):
        load_initial(resumed)
    write_checkpoint(folder / "last.ckpt", checkpoint_content(config, tokenizer, seed=2))
    assert load_initial(resumed).path == folder / "last.ckpt"
    now = {"init_from": checkpoints.digest(Path("first.ckpt"))}
    with pytest.raises(UserError, match=r"init_from names is no longer .*; restore it, or move it away: a run"):
        refuse_other_contents("resume=run", contents, now)


def test_a_name_of_the_hub_is_fetched_when_it_is_typed_and_a_run_keeps_its_commit(first, typed, monkeypatch):
    fetched: list[str] = []

    def fetch(name: str, key: str) -> str:
        fetched.append(f"{key}={name}")
        return f"{name}@abc"

    monkeypatch.setattr(hub_models, "fetch", fetch)
    monkeypatch.setattr(hub_models, "cached", lambda name: Path("first.ckpt") if name.endswith("@abc") else None)
    config = typed("run.folder=run", init_from="init_from=owner/model")
    assert config.init_from == "owner/model@abc"
    assert config.model.d_model == 24
    assert fetched == ["init_from=owner/model"]
    Path("run").mkdir()
    Path("run/config.yaml").write_text(as_yaml(without_secrets(config)))
    resumed = typed("resume=run", init_from="init_from=owner/model")
    assert resumed.init_from == "owner/model@abc"
    assert len(fetched) == 1
    monkeypatch.setattr(hub_models, "cached", lambda name: None)
    with pytest.raises(UserError, match="checkpoint owner/other: no such file"):  # one that a file names
        checkpoints.load("owner/other")
    assert len(fetched) == 1
