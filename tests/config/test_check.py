"""A mistake on the command line is rejected within seconds, in one line that names the correction."""

import copy
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from diglot import config as root
from diglot.commands.frame import HYDRA_OPTIONS, explain
from diglot.commands.schema import TrainKeys
from diglot.commands.train import train
from diglot.config.keys import flat_keys
from diglot.errors import UserError
from diglot.runs import plan
from diglot.system.masking import masked

CHOICES = sorted(
    f"{file.parent.relative_to(root.CONF)}={file.stem}"
    for file in root.CONF.rglob("*.yaml")
    if file.parent != root.CONF
    and file.parent.name != "shared"
    and file.stem != "checkpoint"
    and file.parent.name != "experiment"
)
EXPERIMENTS = sorted(file.stem for file in (root.CONF / "experiment").glob("*.yaml"))


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs a command line that must be rejected, and returns the one line that it prints."""

    def typed(*words: str, command: str = "train") -> str:
        module = __import__(f"diglot.commands.{command}", fromlist=["main"])
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [f"diglot-{command}", *words])
        GlobalHydra.instance().clear()
        with pytest.raises(SystemExit) as stopped:
            module.main()
        out, err = capsys.readouterr()
        assert stopped.value.code == 2, err
        lines = [line for line in err.splitlines() if line]
        assert len(lines) == 1, err
        assert out == ""
        assert not (tmp_path / "runs").exists(), "something half-made was left"
        return lines[0]

    return typed


@pytest.fixture
def answer(say: Callable[..., str], compose_train: Callable[..., DictConfig], tmp_path: Path) -> Callable[..., str]:
    """Return a function like that of `say`, but faster.

    Overrides of existing keys are put into a config that is composed once: Hydra takes half a second for each command
    line.
    """
    base = compose_train("trainer=cpu", "watch=none")  # a watcher runs the model once more

    def answered(*words: str) -> str:
        try:
            overrides = OverridesParser.create().parse_overrides(list(words))
        except HydraException:
            return say(*words, "trainer=cpu")
        keys = [override.key_or_group for override in overrides]
        values = [key for key in flat_keys(base) if not (root.CONF / key).is_dir()]
        if not all(is_value(override) and key in values for override, key in zip(overrides, keys)):
            return say(*words, "trainer=cpu")
        config = copy.deepcopy(base)
        for override, key in zip(overrides, keys):
            OmegaConf.update(config, key, override.value())

        def run() -> None:
            root.check(config, TrainKeys)
            train(config)

        with pytest.raises(UserError) as refused:
            run()
        assert not (tmp_path / "runs").exists(), "something half-made was left"
        return explain(refused.value, "train", words)

    return answered


def is_value(override: Override) -> bool:
    return override.type == OverrideType.CHANGE and override.package is None and not override.is_sweep_override()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        # names
        ("model.n_head=4", "no key model.n_head; did you mean model.n_heads?"),
        ("+model.n_headz=4", "no key model.n_headz; did you mean model.n_heads?"),
        ("++run.update=5", "no key run.update; did you mean run.updates?"),
        ("n_heads=3", "no key n_heads; did you mean model.n_heads?"),
        ("foo=1", "no key foo"),
        ("+foo=1", "no key foo"),
        ("+foo.bar=1", "no key foo"),
        ("model.position.bass=1", "no key model.position.bass"),
        ("~data.pear", "data.pear"),
        ("data.pear=3", "no key data.pear; did you mean data.pair?"),
        ("data.batch=3", "no key data.batch"),
        # names of other toolkits
        (
            "batch_size=3",
            "no key batch_size; type data.max_rows=3 (sentence pairs) or data.tokens_per_batch=N (tokens)",
        ),
        ("+batch_size=3", "no key batch_size; type data.max_rows=3 (sentence pairs)"),
        ("data.batch_size=3", "no key data.batch_size; type data.max_rows=3 (sentence pairs)"),
        ("epochs=3", "no key epochs; type run.passes=3"),
        ("learning_rate=1e-3", "no key learning_rate; type scheduler.lr=1e-3"),
        ("fp16=true", "no key fp16; type trainer.precision=16-mixed"),
        ("fp16=false", "no key fp16; leave it out"),
        ("model.hidden_size=512", "no key model.hidden_size; type model.d_model=512"),
        ("+model.hidden_size=512", "no key model.hidden_size; type model.d_model=512"),
        ("model.encoder.num_layers=4", "no key model.encoder.num_layers; type model.n_encoder_layers=4"),
        ("num_layers=4", "type model.n_encoder_layers=4 model.n_decoder_layers=4"),
        ("trainer.gpus=2", "type trainer=gpu, or for several GPUs trainer=ddp trainer.devices=2"),
        ("wandb=true", "no key wandb; type logger=wandb"),
        ("max_steps=100", "no key max_steps; type run.updates=100"),
        ("beam=4", "no key beam; type search.beam_size=4"),
        ("lr_scheduler=noam", "no key lr_scheduler; type scheduler=paper"),
        ("data.src=a.de", "no key data.src; type data=files data.train.src=a.de"),
        ("data.file=a.tmx", "no key data.file; type data=files data.train.file=a.tmx"),
        ("data.train.file=a.tmx", "no key data.train.file; type data=files data.train.file=a.tmx"),
        ("scheduler=noam", "there are constant, cosine, inverse_sqrt, linear, paper; type scheduler=paper"),
        ("model=transformer", "type model=base"),
        # choices
        ("model=tinny", "did you mean model=tiny?"),
        ("model/position=rotry", "did you mean model/position=rotary?"),
        ("experiment=nothing_like_it", "experiment=nothing_like_it: there is no such choice"),
        ("serach=beam", "no key serach; did you mean search?"),
        # types
        ("model.d_model=abc", "model.d_model='abc': must be an integer"),
        ("model.d_model=64.5", "model.d_model=64.5: must be an integer"),
        ("model.d_model=true", "model.d_model=true: must be an integer"),
        ("model.tying=some", "model.tying='some': must be none or target or inputs or all"),
        ("run.validate_every=2.5", "run.validate_every=2.5: must be an integer"),
        ("optimizer.betas=3", "optimizer.betas=3: must be a list"),
        ("seed=x", "seed='x': must be an integer"),
        ("label_smoothing=x", "label_smoothing='x': must be a number"),
        ("model.position=rotary", "must be a node with a _target_; did you mean model/position=rotary?"),
        ("data.noise=light", "data.noise='light': must be a node with a _target_ or null; did you mean data/noise="),
        ("tokenizer.model_type=wordpiece", "must be unigram or bpe"),
        # values
        ("model.n_heads=5", "n_heads (5) must divide d_model (192)"),
        ("model.dropout=1.5", "dropout (1.5) must be at least 0 and below 1"),
        ("label_smoothing=1.0", "label_smoothing=1.0: must be at least 0 and below 1"),
        ("seed=-1", "seed=-1"),
        ("search.beam_size=0", "beam_size (0) must be positive"),
        ("scheduler.lr=-1", "lr (-1) must be positive"),
        ("optimizer.betas=[2, 3]", "optimizer: Invalid beta"),
        ("run.updates=0", "updates (0) must be positive"),
        ("run.updates=null", "exactly one of updates (None) and passes (None)"),
        ("tokenizer.vocab_size=50", "vocab_size (50) must be above 260"),
        ("tokenizer.placeholder='('", "is not a regular expression"),
        ("data.tokens_per_batch=100", "max_len (256) must not be above tokens_per_batch (100)"),
        ("data.pair=en-xx", "no language 'xx'"),
        ("data.clean.max_ratio=0.5", "max_ratio (0.5) must be at least 1"),
        ("data.clean.control=3", "data.clean.control=3: must be true or false"),
        ("+data.clean.identic=true", "no key data.clean.identic; did you mean data.clean.identical?"),
        ("data.shapes=bucket", "data.shapes='bucket': must be auto or free or buckets or fine_buckets"),
        ("data.max_rows=0", "max_rows (0) must be at least 1"),
        ("data=mixed", "data.corpora is empty"),
        ("trainer.precision=16-mixed", "trainer.precision=16-mixed: a CPU does not compute in float16"),
        ("trainer.precision=foo", "trainer.precision=foo: not supported"),
        ("trainer.process_timeout=0", "trainer.process_timeout=0: must be positive"),
        ("trainer.process_timeout=soon", "trainer.process_timeout='soon': must be a number"),
        ("watch.attention.every=0", "watch.attention: every (0) must be at least 1"),
        ("watch.attention.layers=[0]", "watch.attention: layers ([0]) must be numbers from 1"),
        ("watch.attention.layers=[3]", "watch.attention.layers=[3]: encoder attention has layers 1 to 2"),
        ("watch.attention.layer=[1]", "did you mean watch.attention.layers?"),
        ("watch=defualt", "did you mean watch=default?"),
        ("resume=nowhere", "resume=nowhere: no such folder"),
        # targets
        (
            "model.position._target_=nosuch.Thing",
            "there is no nosuch.Thing: no module nosuch was found; is its folder in PYTHONPATH?",
        ),
        ("model.position._target_=diglot.model.position.Rotry", "did you mean diglot.model.position.Rotary?"),
        ("model.position._target_=diglot.modle.Rotary", "model.position._target_: there is no diglot.modle.Rotary"),
        ("callbacks=my.module.Callback", "for a class of your own, type +callbacks.mine._target_=my.module.Callback"),
        ("optimizer=torch.optim.SGD", "for a class of your own, type optimizer._target_=torch.optim.SGD"),
        ("+callbacks.mine=my.Callback", "a Callback needs a _target_; type +callbacks.mine._target_=my.Callback"),
        ("+logger.mine=my.Logger", "a Logger needs a _target_; type +logger.mine._target_=my.Logger"),
        ("+watch.mine=[my.Call]", "a Callback needs a _target_; type +watch.mine._target_=CLASS"),
        ("watch.attention=my.Call", "a Callback needs a _target_; type watch.attention._target_=my.Call"),
        ("+callbacks.x._target_=nosuch.Y", "callbacks.x._target_: there is no nosuch.Y"),
        # keys that another key replaces
        ("trainer.max_epochs=3", "run.passes"),
        ("+trainer.max_epochs=3", "run.passes"),
        ("+trainer.limit_train_batches=3", "run.updates"),
        ("+trainer.overfit_batches=3", "run.updates"),
        ("+trainer.accumulate_grad_batches=3", "data.batches_per_update"),
        ("+trainer.val_check_interval=3", "run.validate_every"),
        ("+trainer.enable_checkpointing=false", "run.validate_every"),
        ("optimizer.lr=1", "scheduler.lr"),
        ("hydra.run.dir=x", "run.folder"),
        # missing
        ("data=files", "data.train.src is missing"),
        ("init_from=nowhere.ckpt", "checkpoint nowhere.ckpt: no such file"),
        (
            "tokenizer=extend",
            "tokenizer=extend adds pieces to the tokenizer of a checkpoint: type init_from=",
        ),
        ("data.further_dev={old: old.tsv}", "data.further_dev.old=old.tsv: must be a mapping with paths"),
        ("data.further_dev={old: {src: a.de}}", "data.further_dev.old.tgt is missing"),
        # the grammar
        ("run.folder=a=b", "cannot read the override run.folder=a=b"),
        ("run.folder=a(b", "cannot read the override run.folder=a(b"),
        # unusual ways to give no value
        ("model=null", "model=null is not a choice; there are base, big, deep_encoder, gru_attention, iwslt, tiny"),
        ("data=3", "data=3 is not a choice"),
        ("watch=null", "watch=null is not a choice; there are default, none"),
        ("+watch.more.every=3", "watch.more is no callback"),
        ("watch.position.positions=100000", "positions (100000) must be at most 2048"),
        ("watch.attention.kinds=[encodr]", "must be a list of encoder or decoder or cross or null"),
        ("trainer.num_nodes=2", "trainer.num_nodes=2: start one command on each machine with torchrun"),
        ("seed=${nope}", "seed"),
        ("seed=${oc.env:NO_SUCH_VARIABLE}", "seed"),
        ("~seed", "seed is needed"),
        # groups of one choice, or of several by name
        ("search=[beam,greedy]", "search=[beam,greedy]: takes one choice, like search=beam"),
        ("optimizer=[]", "optimizer=[]: takes one choice"),
        ("model/position=[rotary, alibi]", "model/position=[rotary, alibi]: takes one choice"),
        ("model/position@model.decoder_position=[rotary,alibi]", "takes one choice"),
        ("+experiment=[home_assistant_gpu,table3]", "takes one choice"),
        ("data=[sample,files]", "takes one choice"),
        ("logger.mine._target_=my.module.Logger", "begins with a plus sign, +logger.mine._target_=my.module.Logger"),
        ("callbacks.mine._target_=my.Call", "begins with a plus sign, +callbacks.mine._target_=my.Call"),
        ("watch.mine._target_=my.Call", "begins with a plus sign, +watch.mine._target_=my.Call"),
        ("lora.rank=4", "there is no key lora.rank: a new entry begins with a plus sign, +lora.rank=4"),
        ("learning_rates.encoder=0.1", "a new entry begins with a plus sign, +learning_rates.encoder=0.1"),
        ("data.further_dev.old.tsv=a.tsv", "a new entry begins with a plus sign, +data.further_dev.old.tsv=a.tsv"),
        (
            "tokenizer=extend tokenizer.pieces=[Küche]",
            "put a value with special characters in quotes, 'key=[\"value\"]'",
        ),
        ("logger._target_=mine.Logger", "a logger of your own needs a name, +logger.mine._target_="),
        ("+logger._target_=mine.Logger", "each logger needs a name: logger.NAME._target_=mine.Logger"),
        ("logger.flush_logs_every_n_steps=1", "did you mean logger.tensorboard.flush_logs_every_n_steps?"),
        ("+logger.tensorboard.folder=x", "logger.tensorboard.folder is not supported"),
        ("+logger.mine=3", "logger.mine=3: a Logger needs a _target_; type +logger.mine._target_=CLASS"),
        ("logger=[tensorboard,csw]", "did you mean logger=csv?"),
        # values that would otherwise fail only during computation
        ("seed=99999999999999999999", "seed=99999999999999999999: must be from 0 to"),
        ("scheduler.lr=nan", "scheduler.lr=nan: must be a number"),
        ("scheduler.lr=inf", "scheduler.lr=inf: must be a number"),
        ("optimizer.betas=[0.9]", "optimizer: "),
        ("trainer.log_every_n_steps=0", "trainer.log_every_n_steps=0: must be at least 1"),
        ("trainer.gradient_clip_val=-1", "trainer.gradient_clip_val=-1: must be at least 0"),
        ("trainer.precision=transformer-engine", "trainer.precision=transformer-engine"),
        ("trainer.accelerator=nonsense", "trainer: "),
        ("tokenizer.placeholder='x*'", "must not match the empty string"),
    ],
)
def test_a_wrong_word_is_answered_by_one_line(answer, word, wanted):
    assert wanted in answer(word)


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("freeze={encoder:1}", "freeze={encoder:1}: must be a list"),
        ("metric.bleu=[1]", "metric.bleu=[1]: must be a mapping"),
        ("freeze.encoder=1", "freeze.encoder=1: freeze is a list; type freeze=[...]"),
    ],
)
def test_a_list_for_a_mapping_is_answered_by_its_key(say, word, wanted):
    assert say(word) == f"diglot-train: {wanted}"


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_a_path_in_place_of_its_key_is_answered_by_the_key(split):
    node = {"_target_": "diglot.data.corpus.Files", "train": {}, split: "a.tmx"}
    (told,) = root.mistakes(node, "data")
    assert told.startswith(f"data.{split}='a.tmx': must be a mapping")
    assert told.endswith(f"; did you mean data.{split}.file=a.tmx?")


def test_a_mistake_has_the_same_message_typed_or_in_a_config(say, answer):
    for word in ("model.d_model=abc", "model.n_heads=5", "trainer.precision=foo"):
        assert say(word, "trainer=cpu") == f"diglot-train: {answer(word)}"


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        # parts that the chosen model lacks
        ("model=gru_attention model/position=rotary", "model=gru_attention has no model/position"),
        ("model=gru_attention model.n_heads=4", "model=gru_attention has no model.n_heads"),
        ("model=gru_attention sweep=table3", "model=gru_attention has no model.n_heads"),
        ("model=gru_attention run.compile=true", "run.compile: GruAttention loops over target tokens"),
        ("model=gru_attention model.dropout=1", "dropout (1) must be at least 0 and below 1"),
        ("model=gru_attention model.d_hidden=0", "d_hidden (0) must be positive"),
        # parts of the decoder
        ("model.decoder_residual=post_norm", "did you mean model/residual@model.decoder_residual?"),
        ("model/decoder_norm=rms_norm", "did you mean model/norm@model.decoder_norm?"),
        ("model/residual@model.decodr_residual=post_norm", "did you mean model/residual@model.decoder_residual?"),
        ("model/residual@model.decoder_residual=pst_norm", "did you mean model/residual=post_norm?"),
        (
            "model/residual@model.decoder_residual=deep_norm model.decoder_residual.alpha=0",
            "alpha (0) must be above 0 and at most 1000",
        ),
        ("model/position@model.decoder_position=rotary model.d_head=7 model/position=none", "d_head (7) must be even"),
        # one number for each kind of attention
        ("model.n_heads={encoder:4,decoder:4}", "a mapping of encoder, decoder, cross; cross is missing"),
        ("model.n_heads={encoder:4,decoder:4,cros:2}", "; there is no cros, cross is missing"),
        ("model.n_heads={encoder:4,decoder:4,cross:x}", "; cross is 'x' and must be an integer or null"),
        # parameters that a model passes to its parts
        ("+model.residual.dropout=0.5", "model.residual.dropout is not supported; use model.dropout"),
        ("+model.feed_forward.d_ff=64", "not supported; use model.d_ff"),
        ("+model.feed_forward.dropout=0.1", "not supported; use model.activation_dropout"),
        ("+model.position.causal=true", "model.position.causal is not supported; the model sets it"),
        ("+model.norm.normalized_shape=3", "model.norm.normalized_shape is not supported; use model.d_model"),
        (
            "model/residual@model.decoder_residual=post_norm +model.decoder_residual.dropout=0.3",
            "model.decoder_residual.dropout is not supported; use model.dropout",
        ),
        # a part of the wrong kind
        (
            "model/position@model.decoder_residual=rotary",
            "model/residual@model.decoder_residual=... (one of deep_norm, post_norm, pre_norm, sandwich_norm)?",
        ),
        ("model/residual@model.decoder_position=rotary", "did you mean model/position@model.decoder_position=..."),
        ("model/norm@model.residual=rms_norm", "did you mean model/residual=..."),
        ("model/position@model.decoder_position=null", "leave it out to give the decoder the same as the encoder"),
        ("~model.d_head", "model.d_head is null already"),
        ("+model.position.base=5", "model.position.base exists already: type model.position.base=5, without the +"),
        ("~model.decoder_position", "model.decoder_position is null already"),
        ("experiment=home_assistant_gpu model=gru_attention", "GruAttention has no model.n_encoder_layers"),
        # targets that are not a model, and models that do not work
        ("model._target_=os.system", "model._target_: os.system is no model"),
        ("model._target_=null", "model._target_=null: must name a class"),
        ("model._target_=diglot.model.transformer.EncoderLayer", "EncoderLayer is no model"),
        ("model/feed_forward=gelu +model.feed_forward.activation.approximate=tan", "model: "),
        ("model.feed_forward.activation._target_=torch.nn.GLU", "model: "),
        ("model.norm._target_=torch.nn.BatchNorm1d", "model: "),
        ("model.d_head=2000000000", "GB, and this machine has"),
        # values that would make training useless
        ("model.norm.eps=-1", "norm.eps (-1) must be positive"),
        ("model.position.base=0", "base (0) must be above 1"),
        ("model.n_heads={encoder:4,decoder:4,cross:5}", "n_heads.cross (5) must divide d_model (192)"),
        ("model.n_heads={encoder:4,decoder:null,cross:4}", "n_heads.decoder must be given"),
        ("model.d_head={encoder:8,decoder:7,cross:9}", "d_head (7) must be even for rotary positions"),
        ("model.n_kv_heads=3", "n_kv_heads (3) must divide n_heads (4)"),
        ("model.n_kv_heads={encoder:2,decoder:0,cross:null}", "n_kv_heads.decoder (0) must be positive"),
        (
            "model.n_heads={encoder:4,decoder:4,cross:8} sweep=table3",
            "give one number, which the rows of this sweep scale",
        ),
        ("model/residual=deep_norm model.residual.beta=-1", "beta (-1) must be above 0"),
        ("model.embedding_dropout=1", "embedding_dropout (1) must be at least 0 and below 1"),
        ("model.qk_norm=1", "model.qk_norm=1: must be true or false"),
    ],
)
def test_an_impossible_model_is_refused_before_it_is_built(answer, words, wanted):
    assert wanted in answer(*words.split())


def test_processes_that_cannot_share_an_update_are_refused_with_a_value_that_works(say):
    words = ("trainer=cpu", "trainer.devices=3", "data.batches_per_update=4")
    assert "type data.batches_per_update=6" in say(*words)


def test_names_of_other_toolkits_are_answered_by_the_keys_of_the_command(say):
    assert "no key beam; type search.beam_size=4" in say("checkpoint=x", "beam=4", command="translate")
    assert "no key batch_size; type tokens_per_batch=N (tokens)" in say(
        "checkpoint=x", "batch_size=4", command="translate"
    )
    assert "no key gpu; type device=cuda" in say("checkpoint=x", "gpu=true", command="evaluate")
    assert "no key scheduler.warmup_steps; type scheduler.warmup=10" in say("-m", "scheduler.warmup_steps=10,20")


@pytest.mark.parametrize(
    ("command", "words", "wanted"),
    [
        ("train", ["seed=1,2,3"], "seed=1,2,3: for several values: make sweep seed=1,2,3"),
        ("train", ["seed=range(1,4)"], "for several values: make sweep 'seed=range(1,4)'"),
        ("train", ["model=tiny,base"], "model=tiny,base: for several values: make sweep model=tiny,base"),
        ("train", ["optimizer.betas=0.9,0.98"], "for a list, type 'optimizer.betas=[0.9,0.98]'"),
        ("train", ["data=files", "data.train.src=a,b"], "for a list, type 'data.train.src=[a,b]'"),
        ("evaluate", ["checkpoint=x", "split=dev,test"], "split=dev,test: the key takes one value"),
        ("average", ["checkpoint=a,b", "output=c"], "checkpoint=a,b: for a list, type 'checkpoint=[a,b]'"),
        *(
            (command, ["runs/NAME", *more], "runs/NAME: is not of the form KEY=VALUE; type checkpoint=runs/NAME")
            for command, *more in (("evaluate",), ("translate",), ("average", "output=x"), ("export",), ("convert",))
        ),
        ("score", ["src=x", "tgt=y", "runs/my run"], "type 'checkpoint='\"'\"'runs/my run'\"'\"''"),
        (
            "evaluate",
            ["checkpoint", "runs/NAME"],
            "checkpoint: is not of the form KEY=VALUE; type checkpoint=runs/NAME",
        ),
        ("train", ["data.name=my", "corpus"], "corpus: is not of the form KEY=VALUE"),
        ("evaluate", ["--checkpoint=runs/NAME"], "a key is typed without dashes: type checkpoint=runs/NAME"),
        ("train", ["--batch-size", "3"], "--batch-size: a key is typed without dashes, and there is no key batch_size"),
        ("translate", ["--beam", "5", "checkpoint=x"], "there is no key beam; type search.beam_size=5"),
    ],
)
def test_a_word_that_is_no_override_is_answered_by_the_override(say, command, words, wanted):
    assert wanted in say(*words, command=command)


def test_a_folder_is_taken_for_a_run_and_a_file_for_text(say, tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "text.de").touch()
    assert "type resume=first to resume the run in that folder" in say("first")
    assert "type data=files data.train.src=FILE data.train.tgt=FILE" in say("text.de")


def test_a_class_that_cannot_be_imported_is_answered_by_the_reason(say, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_module.py").write_text("import no_such_library\n")
    (tmp_path / "good_module.py").write_text("import lightning\nclass Speaker(lightning.Callback): pass\n")
    said = say("trainer=cpu", "+callbacks.mine._target_=broken_module.Speaker")
    assert "broken_module.Speaker: ModuleNotFoundError: No module named 'no_such_library'" in said
    said = say("trainer=cpu", "+callbacks.mine._target_=good_module.Speeker")
    assert "there is no good_module.Speeker; did you mean good_module.Speaker?" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_missing_is_answered_by_what_to_do(say, monkeypatch):
    for word in ("trainer=gpu", "trainer.accelerator=cuda"):
        said = say(word, "data=sample")
        assert re.search(
            r"trainer.accelerator=(gpu|cuda): no GPU (can be used|was found): .*; to train on the CPU, ", said
        )
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "no GPU can be used: the environment variable CUDA_VISIBLE_DEVICES is ''" in say(
        "trainer=gpu", "data=sample"
    )


def test_hydras_own_options_are_known():
    options = {option for action in get_args_parser()._actions for option in action.option_strings}
    assert options == HYDRA_OPTIONS


def test_choices_of_another_folder_are_listed(say, tmp_path):
    (tmp_path / "mine" / "model").mkdir(parents=True)
    (tmp_path / "mine" / "model" / "tinier.yaml").write_text("defaults: [tiny]\n")
    for options in (["--config-dir", "mine"], ["--config-dir=mine"], ["-cd", "mine"]):
        assert (
            "there are base, big, deep_encoder, gru_attention, iwslt, tinier, tiny; did you mean model=tinier?"
            in say(*options, "model=tinierr")
        )
        assert (
            "model=null is not a choice; there are base, big, deep_encoder, gru_attention, iwslt, tinier, tiny"
            in say(*options, "model=null")
        )


def test_two_spellings_of_one_thing_are_refused_together(say):
    assert "run.updates and run.passes" in say("run.updates=3", "run.passes=1")
    assert "run.updates and trainer.max_steps" in say("run.updates=3", "trainer.max_steps=1")


def test_a_command_without_its_checkpoint_says_which_key_it_needs(say):
    assert "checkpoint must be given" in say(command="translate")
    assert "checkpoint must be given: checkpoint=PATH, or hypotheses=FILE" in say(command="evaluate")
    assert "checkpoint must be given" in say("output=x.ckpt", command="average")
    assert "output must be given" in say("checkpoint=x", command="average")
    assert "src must be given" in say("checkpoint=x", "tgt=y", command="score")
    assert "checkpoint must be given" in say(command="export")
    assert "no such file" in say("checkpoint=nowhere", command="evaluate")


def test_a_format_that_is_unknown_or_cannot_hold_the_model_is_refused(say):
    assert "format='onnx': must be ctranslate2 or huggingface or peft or safetensors" in say(
        "checkpoint=x", "format=onnx", command="export"
    )
    assert "check='few': must be an integer" in say("checkpoint=x", "check=few", command="export")
    assert "export='onnx': must be ctranslate2 or huggingface or peft or safetensors or null" in say("export=onnx")
    line = say("export=huggingface")
    assert line.startswith("diglot-train: export=huggingface: model.position=rotary: no stock class has it; nearest: ")
    line = say("export=ctranslate2", "model.qk_norm=true", "model/position=alibi")
    assert line.startswith("diglot-train: export=ctranslate2: model/position=alibi: ")
    assert "; model.qk_norm=true: " in line
    assert "model._target_=diglot.model.GruAttention" in say("export=ctranslate2", "model=gru_attention")


def test_a_file_that_is_no_checkpoint_is_named(say, tmp_path):
    (tmp_path / "text.ckpt").write_text("no weights here\n")
    assert "text.ckpt" in say("checkpoint=text.ckpt", command="translate")


def test_a_word_that_is_not_valid_text_is_refused_before_anything_is_trained(say):
    assert say("run.folder='latin-\udcfc'").endswith(
        r"run.folder='latin-\udcfc': is not valid utf-8, the encoding of this locale; rename the file or folder"
    )


def test_several_mistakes_are_all_named(say):
    line = say("model.d_model=abc", "+run.folders=x", "seed=x")
    assert all(key in line for key in ("model.d_model", "run.folders", "seed"))


@pytest.mark.reliability
@pytest.mark.parametrize("choice", [c for c in CHOICES if not c.startswith("data=")])
def test_every_choice_of_a_training_run_is_accepted(compose_train, choice):
    group, _, name = choice.partition("=")
    needed = ["hydra/sweeper=optuna"] if group == "hydra/sweeper/sampler" else []
    config = compose_train(*needed, f"{group}=[{name}]" if group == "callbacks" else choice)
    root.check(config, TrainKeys)
    if group.partition("/")[0] in ("model", "optimizer", "scheduler", "search"):
        root.trial_build(config)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_accepted(compose_train, name):
    config = compose_train(f"experiment={name}")
    root.check(config, TrainKeys)
    root.trial_build(config)
    plan.build_budget(config)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [c.partition("=")[2] for c in CHOICES if c.startswith("data=")])
def test_every_corpus_is_accepted(compose_train, name):
    words = {
        "files": ["data.train.src=a.de", "data.train.tgt=a.en"],
        "mixed": ["+data.corpora.news={src: a.de, tgt: a.en, weight: 2}", "data.dev.tsv=dev.tsv"],
    }.get(name, [])
    config = compose_train(f"data={name}", *words)
    root.check(config, TrainKeys)
    corpus = root.build_corpus(config.data)
    assert corpus.src_lang
    assert corpus.tgt_lang


def test_max_steps_and_passes_say_how_long_the_run_is(compose_train):
    assert plan.build_budget(compose_train("trainer.max_steps=7")).updates == 7
    budget = plan.build_budget(compose_train("run.passes=3"))
    assert (budget.updates, budget.passes) == (None, 3)


def test_a_checkpoint_may_name_nothing_but_our_classes_and_layers(compose_train):
    config = compose_train("model=tiny")
    parts = {key: root.resolved(config[key]) for key in ("model", "search")}
    root.check_parts(parts)
    others = [
        "diglot.data.text.write_lines",
        "diglot.commands.from_make.os.system",
        "torch.nn.modules.module.torch.hub.os.system",
    ]
    others += ["torch.nn.init.normal_", "torch.nn.Module.load_state_dict", "diglot.model.transformer.torch.load"]
    for target in (
        "os.system",
        "torch.load",
        "builtins.eval",
        "diglotte.x",
        "torch.nn",
        "torch.hub.load",
        3,
        ["x"],
        *others,
    ):
        for key, node in parts.items():
            with pytest.raises(UserError, match=rf"{key}\.a\[0\]\.b\._target_ names .*(not loaded|type trust=)"):
                root.check_parts({**parts, key: {**node, "a": [{"b": {"_target_": target}}]}})


def test_expressions_that_read_the_environment_are_stored_unresolved(monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    config = OmegaConf.create({"a": "${oc.env:SECRET}", "b": 3, "c": "${b}", "d": ["x-${oc.env:SECRET}"]})
    found = root.without_secrets(config)
    assert found.pop("from_environment").keys() == {"a", "d.0"}
    assert found == {"a": "${oc.env:SECRET}", "b": 3, "c": 3, "d": ["x-${oc.env:SECRET}"]}


@pytest.fixture(autouse=True)
def no_secrets_known(monkeypatch):
    """Remove values that other tests have read from the environment from those to mask."""
    monkeypatch.setattr("diglot.system.masking._expressions", {})
    monkeypatch.setattr("sys.excepthook", sys.excepthook)


@pytest.fixture
def from_environment(monkeypatch):
    """Return a config with all kinds of expressions that read the environment, and of expressions that do not."""
    monkeypatch.setenv("SECRET", "hunter2-0a1b")
    monkeypatch.setenv("MAPPING", "{key: hunter3-0a1b, more: [hunter4-0a1b]}")
    OmegaConf.register_new_resolver("test.upper", lambda text: str(text).upper(), replace=True)
    OmegaConf.register_new_resolver("test.read", lambda: os.getenv("SECRET"), replace=True)
    secret = {
        "blank": "${ oc.env:SECRET}",
        "inside": "x-${oc.env:SECRET}-y",
        "default": "${oc.env:NO_SUCH_VARIABLE,${.inside}}",
        "key": "${from.inside}",
        "relative": "${.key}",
        "two_keys_away": "${..secret.relative}",
        "decoded": "${oc.decode:${oc.env:MAPPING}}",
        "of_decoded": "${.decoded}",
        "values": "${oc.dict.values:from}",
        "made": "${oc.create:{a: '${from.inside}'}}",
        "selected": "${oc.select:from.inside}",
        "own_resolver": "${test.read:}",
        "through_a_resolver": "${test.upper:${from.inside}}",
        "mapping": "${from}",
    }
    plain = {"number": "${n}", "text": "${test.upper:${.name}}", "name": "env", "list": ["${n}", None], "keys": "${n}"}
    config = {"from": {"inside": "${oc.env:SECRET}"}, "n": 3, "plain": plain, "secret": secret}
    return OmegaConf.create(config)


def test_expressions_that_depend_on_the_environment_indirectly_are_stored_unresolved(from_environment):
    found = root.without_secrets(from_environment)
    written = OmegaConf.to_container(from_environment, resolve=False)
    assert found["secret"] == written["secret"]
    assert found["from"] == written["from"]
    assert found["plain"] == {"number": 3, "text": "ENV", "name": "env", "list": [3, None], "keys": 3}
    assert "hunter" not in str(found).lower()


def test_no_message_contains_a_value_from_the_environment(from_environment):
    root.note_secrets(from_environment)
    said = "seed='hunter2-0a1b': no; /x/hunter2-0a1b/y, x-hunter2-0a1b-y, HUNTER2-0A1B, hunter3-0a1b, hunter4-0a1b"
    assert "hunter" not in masked(said).lower()
    assert masked("seed='hunter2-0a1b': must be an integer").startswith("seed='${")


@pytest.mark.parametrize("word", ["seed=${oc.env:SECRET}", "seed=${ oc.env:SECRET}", "label_smoothing=${.init_from}"])
def test_a_wrong_value_from_the_environment_is_named_by_its_expression(say, monkeypatch, word):
    monkeypatch.setenv("SECRET", "hunter2-0a1b")
    said = say(word, "init_from=${oc.env:SECRET}", "trainer=cpu")
    assert "hunter" not in said
    assert "oc.env:SECRET" in said or "label_smoothing='${.init_from}'" in said


def test_text_from_the_environment_that_a_checkpoint_would_hold_is_refused(say, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2-0a1b")
    said = say("data.name=x-${oc.env:SECRET}", "data=files", "data.train.tsv=x", "trainer=cpu")
    assert "data.name=x-${oc.env:SECRET}: every checkpoint would store" in said


@pytest.mark.parametrize("answer", [-1, ValueError("unrecognized configuration name"), OSError(22, "Invalid argument")])
def test_a_system_that_does_not_say_how_much_memory_it_has_refuses_no_model(monkeypatch, compose_train, answer):
    def sysconf(name):
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(os, "sysconf", sysconf)
    root.trial_build(compose_train("model=tiny"))


def test_a_traceback_holds_nothing_from_the_environment(from_environment, capsys):
    root.note_secrets(from_environment)
    try:
        raise RuntimeError("bad token hunter2-0a1b")
    except RuntimeError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    said = capsys.readouterr().err
    assert "RuntimeError: bad token ${" in said
    assert "hunter" not in said


def test_short_values_from_the_environment_leave_messages_readable(monkeypatch):
    monkeypatch.setenv("SEED", "3")
    monkeypatch.setenv("A", "a")
    root.note_secrets(OmegaConf.create({"seed": "${oc.decode:${oc.env:SEED}}", "name": "${oc.env:A}"}))
    assert masked("model.n_heads=3 is a number") == "model.n_heads=3 is a number"


def test_names_of_keys_and_choices_and_what_a_config_itself_holds_are_no_secrets(monkeypatch):
    monkeypatch.setenv("DATA", "data")
    monkeypatch.setenv("KIND", "rotary")
    config = OmegaConf.create(
        {
            "data": {"train": {"src": "${oc.env:DATA}/train.en"}, "name": "${oc.env:NO_SUCH_VARIABLE,some corpus}"},
            "note": "${oc.env:KIND}",
            "of_both": "${oc.env:DATA}-${data.name}",
        }
    )
    root.note_secrets(config)
    for text in ("data.train.src: there is none", "model/position=rotary", "some corpus"):
        assert masked(text) == text
    assert masked("data/train.en") == "${oc.env:DATA}/train.en"
    assert masked("data-some corpus") == "${oc.env:DATA}-${data.name}"


def test_numbers_and_short_words_from_the_environment_are_no_secrets(monkeypatch):
    for name, value in (("SEED", "12345"), ("SIDE", "all"), ("FLAG", "true"), ("MAPPING", "{a: [hunter2]}")):
        monkeypatch.setenv(name, value)
    read = {name: f"${{oc.decode:${{oc.env:{name}}}}}" for name in ("SEED", "SIDE", "FLAG", "MAPPING")}
    config = OmegaConf.create(read)
    root.note_secrets(config)
    found = root.without_secrets(config)
    assert found.pop("from_environment").keys() == {"MAPPING"}
    assert found == {"SEED": 12345, "SIDE": "all", "FLAG": True, "MAPPING": read["MAPPING"]}
    assert masked("seed was 12345 and is true") == "seed was 12345 and is true"


def test_a_mapping_of_text_from_the_environment_that_a_checkpoint_would_hold_is_refused(say, monkeypatch):
    monkeypatch.setenv("SECRET", "{a: hunter2-0a1b}")
    said = say("model.n_heads='${oc.decode:${oc.env:SECRET}}'", "trainer=cpu")
    assert "hunter" not in said
    monkeypatch.setenv("SECRET", "{encoder: 4, decoder: 4, cross: 4, hunter2-0a1b: 3}")
    assert "hunter" not in say("model.n_heads='${oc.decode:${oc.env:SECRET}}'", "trainer=cpu")


@pytest.mark.parametrize(
    ("words", "must_fit"),
    [
        (["seed=2"], {"tokenizer": False}),
        (["data.vocab_size=9"], {"tokenizer": True}),
        (["tokenizer.vocab_size=9"], {"tokenizer": True}),
        (["tokenizer.joint=false", "tokenizer.tgt_vocab_size=9"], {"tokenizer": True}),
        (["tokenizer.must_fit=false", "tokenizer.vocab_size=9"], {"tokenizer": False}),
        (["tokenizer=per_side", "tokenizer.tgt.vocab_size=9"], {"tokenizer.src": False, "tokenizer.tgt": True}),
        (["tokenizer=files"], {"tokenizer": None}),
    ],
)
def test_only_a_size_that_is_typed_must_fit_the_text(words, must_fit, monkeypatch):
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(root.CONF), version_base="1.3"):
        config = compose("train", words)
    monkeypatch.setattr(sys.modules["diglot.config.check"], "overrides_as_typed", lambda group: words)
    root.settle_must_fit(config)
    assert {path: OmegaConf.select(config, path).get("must_fit") for path in must_fit} == must_fit


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["tokenizer.vocab_size=500"], True),
        (["tokenizer=extend", "data.vocab_size=500"], True),
        (["tokenizer=extend", "tokenizer.pieces=[a]"], False),
    ],
)
def test_a_checkpoint_s_tokenizer_may_be_extended_but_not_replaced(say, words, found):
    said = say("init_from=nowhere.ckpt", *words, "trainer=cpu")
    refused = "init_from also loads a tokenizer: remove the tokenizer's options from the command line, or type"
    assert (refused in said) == found
    assert ("checkpoint nowhere.ckpt: no such file" in said) != found
