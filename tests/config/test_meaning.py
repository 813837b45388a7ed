"""The table of key properties: each row has an existing key, and hashes that depend on the table stay the same."""

import re
from dataclasses import asdict
from typing import Any

import pytest
from hydra.utils import get_class
from omegaconf import OmegaConf

from diglot.choices import choices, groups_of
from diglot.commands.start import COMMANDS
from diglot.config import CONF, MEANINGS, config_hash, known_keys, meaning_of
from diglot.config.differences import changes
from diglot.config.keys import flat_keys, plain_config
from diglot.config.meaning import FOREIGN_NAMES, foreign
from diglot.data.noise import Noise

TEXT = {"src": "text/train.de", "tgt": ["text/train.en", "./text/../more.en"]}
NOISE = {"_target_": "diglot.data.noise.Noise", **asdict(Noise())}
WHOLE: dict[str, Any] = {
    "seed": 1,
    "label_smoothing": 0.1,
    "init_from": "./first/../first.ckpt",
    "resume": None,
    "objective": "dev/bleu",
    "export": None,
    "trust": [],
    "data": {"_target_": "diglot.data.corpus.Files", "cache_dir": "cache", "train": TEXT, "n_workers": 0}
    | {"corpora": {"news": {"src": "./a.de", "tgt": "b.en", "weight": 2}}, "path": "./set", "tokens_per_batch": 100},
    "tokenizer": {"_target_": "diglot.data.tokenizer.TokenizerFiles", "model": "./spm.model", "samples": 0},
    "model": {"_target_": "diglot.model.Transformer", "d_model": 8},
    "run": {"_target_": "diglot.training.run.Run", "updates": 3, "folder": None},
    "trainer": {"_target_": "lightning.Trainer", "precision": "auto", "process_timeout": 600},
    "watch": {},
    "sweep": {"folder": None, "job": None, "stop_at_first_failure": False},
}


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({}, "be5257424082"),
        ({"export": "safetensors"}, "89ec4559e751"),
        (
            {"data.train.file": None, "data.train.jsonl": None, "data.reader": None, "data.dev_size": None},
            "be5257424082",
        ),
        (
            {"resume": "x", "objective": "dev/chrf", "trust": ["mine"], "run.folder": "x", "data.cache_dir": "x"},
            "be5257424082",
        ),
        ({"run.test": False}, "be5257424082"),
        ({"sweep.folder": "x", "sweep.stop_at_first_failure": True}, "be5257424082"),
        (
            {"data.train.src": "./text/more/../train.de", "tokenizer.model": "spm.model", "init_from": "first.ckpt"},
            "be5257424082",
        ),
        ({"data.train.src": "${oc.env:PLACE}"}, "7573421718a0"),
        ({"data.corpora.news.src": ["${oc.env:PLACE}"]}, "70e52a86a1a7"),
        ({"trust": ["${oc.env:PLACE}"], "run.folder": "${oc.env:PLACE}"}, "be5257424082"),
        ({"seed": 2}, "194c20c0e3b1"),
        ({"watch": {"mine": 3}}, "1871eb317bf8"),
        ({"data.n_workers": 1}, "ab9d4ea7b6e1"),
        ({"trainer.process_timeout": 1}, "47a5b4cef272"),
        ({"bleu_tokenizer": "${oc.env:PLACE}"}, "94ba7214012c"),
        ({"data.noise": NOISE}, "be5257424082"),
    ],
)
def test_the_hashes_of_half_done_sweeps_stay(tmp_path, monkeypatch, changed, wanted):
    """Check hashes that were computed before the table existed. With other hashes, finished jobs would be run again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACE", "/some/hunter2-0a1b")
    config = OmegaConf.create(WHOLE)
    for key, value in changed.items():
        OmegaConf.update(config, key, value, force_add=True)
    assert config_hash(config) == wanted


@pytest.mark.parametrize("part", ["position", "decoder_position"])
@pytest.mark.parametrize(
    ("target", "options", "is_same"),
    [
        ("Sinusoidal", {"base": 10_000.0, "offset": 0}, True),
        ("Sinusoidal", {"base": 10_000.0, "offset": 2}, False),
        ("Sinusoidal", {"base": 9_000.0, "offset": 0}, False),
        ("Rotary", {"base": 10_000.0}, False),  # its config always had the base, and the hashes contain it
    ],
)
def test_new_keys_of_a_class_leave_hashes_and_resuming_as_they_were(part, target, options, is_same):
    before = {"model": {part: {"_target_": f"diglot.model.position.{target}", "_partial_": True}}}
    now = {"model": {part: {**before["model"][part], **options}}}
    assert (config_hash(OmegaConf.create(before)) == config_hash(OmegaConf.create(now))) == is_same
    assert (not changes(before, now)) == (is_same or target == "Rotary")


def written_keys() -> set[str]:
    """Return all keys in the files below conf/."""
    found = {*known_keys("doctor")}
    for file in CONF.rglob("*.yaml"):
        group = ".".join(file.relative_to(CONF).parts[:-1]).replace("data.shared", "data")
        found |= {f"{group}.{key}".lstrip(".") for key in flat_keys(OmegaConf.to_container(OmegaConf.load(file)))}
    return found


def test_every_row_is_of_a_key_that_there_is():
    known = written_keys()
    ours = [
        pattern.removesuffix(".**")
        for pattern, meaning in MEANINGS.items()
        if not (meaning.instead or meaning.given_by_code or "*" in pattern.removesuffix(".**"))
    ]
    assert not [key for key in ours if key not in known]
    assert not [
        key
        for key, meaning in MEANINGS.items()
        if meaning.instead and key in known - {"hydra.run.dir", "hydra.sweep.dir"}
    ]


def test_every_kind_is_a_class():
    assert all(get_class(meaning.kind) for meaning in MEANINGS.values() if meaning.kind)


@pytest.mark.parametrize(
    ("pattern", "key"),
    [
        ("tokenizer", "tokenizer"),
        ("tokenizer.**", "tokenizer.model_type"),
        ("tokenizer.samples", "tokenizer.samples"),
        ("trainer.**", "trainer.precisions"),
        ("trust.**", "trust.0"),
        ("callbacks.*", "callbacks.mine"),
        ("callbacks.*.**", "callbacks.mine.token.0"),
        ("logger.*.folder", "logger.mine.folder"),
        ("logger.**", "logger.mine.name"),
        ("data.corpora.*.src", "data.corpora.news.src"),
        ("sweep", "sweep"),
        ("sweep.**", "sweep.folder"),
    ],
)
def test_the_most_specific_row_holds(pattern, key):
    assert meaning_of(key) is MEANINGS[pattern]


@pytest.mark.parametrize("key", ["callbacks", "data.corpora.news.weight", "data.trainer", "model_size", "", "a.b.c"])
def test_a_key_without_a_row_means_what_most_keys_do(key):
    meaning = meaning_of(key)
    assert (meaning.on_resume, meaning.hashed, meaning.content, meaning.kind) == ("refuse", "always", None, None)


@pytest.mark.parametrize("line", FOREIGN_NAMES)
def test_what_to_type_for_a_foreign_name_can_be_typed(line):
    chosen = dict(re.findall(r"([\w/]+)=(\w+)", line))
    assert all(choice in choices(group) for group, choice in chosen.items() if group in groups_of("train"))
    having = {name: {*flat_keys(plain_config(name)), *groups_of(name)} for name in COMMANDS if name != "sweep"}
    for name in FOREIGN_NAMES[line].split():
        told = [foreign(name, "1", keys.__contains__) for keys in having.values()]
        assert f"type {line.format(1)}" in told, name


def test_a_foreign_name_of_the_users_own_class_is_no_mistake():
    assert meaning_of("model.hidden_size").in_checkpoints
    assert meaning_of("model.hidden_size").instead is None
