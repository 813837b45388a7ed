"""What each key of a run's config means beside the value that it gives: one table, which all code asks."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal


@dataclass(frozen=True)
class Meaning:
    """The meaning of a key. What is not said of a key is what these defaults say.

    Attributes:
        on_resume: what becomes of a run that goes on with another value of the key. It is refused, since it would be
            another run; or the new value takes effect from then on, and the user is told; or it is ignored, since what
            is trained stays the same.
        hashed: whether two jobs of a sweep that differ in the key alone are two: always; if a value is given, and null
            is as if there were no such key; never. Where it is "as typed" they are one, too, but a command that gives
            the key another value makes another sweep, in a folder of its own.
        content: of a key that says where something is: what a run compares in place of the path, see
            `diglot.runs.contents`.
        in_checkpoints: whether every checkpoint holds the value itself, so that it must be no secret.
        may_rotate: whether a text from the environment may be another one when a run goes on: a service's password.
        settled: whether a run writes into its config what came of the value, and not what was typed.
        is_hyper_parameter: whether a table of runs has a column for it.
        of_vocabulary: whether it says which tokenizer a run has, as `init_from` does.
        says: what it says, where other keys say the same. One of them may be typed.
        instead: of a key of a library that would go past ours: what does here what it would do.
        given_by_code: whether the code that builds the node gives it, and a config must not.
        found_for_jobs: of a key of a single run: what finds its value for the jobs of a sweep.
        kind: the class whose instances or makers the node takes. (The parts of a node take what the parameters of its
            class are annotated with.)
    """

    on_resume: Literal["refuse", "take effect", "ignore"] = "refuse"
    hashed: Literal["always", "if given", "as typed", "never"] = "always"
    content: str | None = None
    in_checkpoints: bool = False
    may_rotate: bool = False
    settled: bool = False
    is_hyper_parameter: bool = False
    of_vocabulary: bool = False
    says: str | None = None
    instead: str | None = None
    given_by_code: bool = False
    found_for_jobs: str | None = None
    kind: str | None = None


_LENGTH = "how long the run is"

# `*` stands for any one name, and `.**` at the end for the key itself and all below it. Of the patterns that match a
# key the most specific one holds, and it alone.
MEANINGS: dict[str, Meaning] = {
    # Keys at the top.
    "seed": Meaning(is_hyper_parameter=True),
    "label_smoothing": Meaning("take effect", is_hyper_parameter=True),
    "init_from": Meaning(content="init_from"),
    "resume": Meaning("ignore", "never", found_for_jobs="the same command again finds"),
    "objective": Meaning("ignore", "never"),
    "export": Meaning("ignore", "if given"),  # jobs that were hashed before there was the key are found again
    "trust.**": Meaning("ignore", "as typed"),
    # The text. data.vocab_size is where tokenizer.vocab_size takes its value from.
    "data": Meaning(kind="diglot.data.corpus.Corpus"),
    "data.train.**": Meaning(content="text"),
    "data.dev.**": Meaning(content="text"),
    "data.test.**": Meaning(content="text"),
    "data.path.**": Meaning(content="text"),
    "data.data_files.**": Meaning(content="text"),
    "data.corpora.*.src": Meaning(content="text"),
    "data.corpora.*.tgt": Meaning(content="text"),
    "data.corpora.*.tsv": Meaning(content="text"),
    "data.corpora.*.csv": Meaning(content="text"),
    "data.name": Meaning(in_checkpoints=True),
    "data.src_lang": Meaning(in_checkpoints=True),
    "data.tgt_lang": Meaning(in_checkpoints=True),
    "data.vocab_size": Meaning(is_hyper_parameter=True, of_vocabulary=True),
    "data.tokens_per_batch": Meaning(is_hyper_parameter=True),
    "data.batches_per_update": Meaning(is_hyper_parameter=True),
    "data.cache_dir": Meaning("ignore", "as typed"),
    "data.n_workers": Meaning("ignore"),
    "data.n_processes": Meaning("ignore"),
    "data.eval_tokens_per_batch": Meaning("ignore"),
    # The tokenizer. That of `init_from` may segment at random, too.
    "tokenizer": Meaning(of_vocabulary=True, kind="diglot.data.tokenizer.TokenizerSource"),
    "tokenizer.**": Meaning(of_vocabulary=True),
    "tokenizer.model": Meaning(content="tokenizer.model", of_vocabulary=True),
    "tokenizer.tgt_model": Meaning(content="tokenizer.tgt_model", of_vocabulary=True),
    "tokenizer.placeholder": Meaning(in_checkpoints=True, of_vocabulary=True),
    "tokenizer.samples": Meaning(),
    "tokenizer.alpha": Meaning(),
    "tokenizer.seed": Meaning(),
    # The model and the search, which every checkpoint holds whole.
    "model": Meaning(in_checkpoints=True, is_hyper_parameter=True, kind="diglot.model.EncoderDecoder"),
    "model.**": Meaning(in_checkpoints=True, is_hyper_parameter=True),
    "model.src_vocab_size": Meaning(instead="tokenizer.vocab_size"),
    "model.tgt_vocab_size": Meaning(instead="tokenizer.tgt_vocab_size"),
    "model.vocab_size": Meaning(instead="tokenizer.vocab_size"),
    "search": Meaning(in_checkpoints=True, kind="diglot.decoding.Search"),
    "search.**": Meaning(in_checkpoints=True),
    # What drives the updates may change from one to the next. An optimizer's state is that of its class.
    "optimizer": Meaning("take effect", is_hyper_parameter=True, kind="torch.optim.Optimizer"),
    "optimizer.**": Meaning("take effect", is_hyper_parameter=True),
    "optimizer._target_": Meaning(),
    "optimizer.lr": Meaning(instead="scheduler.lr"),
    "optimizer.params": Meaning(instead="nothing: all weights are trained"),
    "scheduler": Meaning("take effect", is_hyper_parameter=True, kind="torch.optim.lr_scheduler.LRScheduler"),
    "scheduler.**": Meaning("take effect", is_hyper_parameter=True),
    "scheduler.optimizer": Meaning(instead="optimizer"),
    "scheduler.total_updates": Meaning(instead="run.updates"),
    # The run. Its config counts in updates once the data are known.
    "run": Meaning("take effect", kind="diglot.training.run.Budget"),
    "run.**": Meaning("take effect"),
    "run.updates": Meaning("take effect", says=_LENGTH, is_hyper_parameter=True),
    "run.passes": Meaning("take effect", says=_LENGTH, settled=True),
    "run.folder": Meaning("ignore", "never", found_for_jobs="sweep.folder names"),
    # Lightning's trainer. The weights and the optimizer's state are of one precision, which `auto` has chosen.
    "trainer": Meaning("take effect", kind="lightning.Trainer"),
    "trainer.**": Meaning("take effect"),
    "trainer.precision": Meaning("refuse", settled=True),
    "trainer.max_steps": Meaning("take effect", says=_LENGTH, settled=True),
    "trainer.log_every_n_steps": Meaning("ignore"),
    "trainer.process_timeout": Meaning("ignore"),
    "trainer.max_epochs": Meaning(instead="run.passes"),
    "trainer.min_epochs": Meaning(instead="run.passes"),
    "trainer.min_steps": Meaning(instead="run.updates"),
    "trainer.limit_train_batches": Meaning(instead="run.updates"),
    "trainer.limit_val_batches": Meaning(instead="data (dev is always scored whole)"),
    "trainer.limit_test_batches": Meaning(instead="data (test is always scored whole)"),
    "trainer.overfit_batches": Meaning(instead="data.train (a small file) and run.updates"),
    "trainer.accumulate_grad_batches": Meaning(instead="data.batches_per_update"),
    "trainer.val_check_interval": Meaning(instead="run.validate_every"),
    "trainer.check_val_every_n_epoch": Meaning(instead="run.validate_every"),
    "trainer.logger": Meaning(instead="logger"),
    "trainer.callbacks": Meaning(instead="callbacks"),
    "trainer.plugins": Meaning(given_by_code=True),
    "trainer.default_root_dir": Meaning(instead="run.folder"),
    "trainer.enable_checkpointing": Meaning(instead="run.validate_every (a checkpoint follows each validation)"),
    "trainer.use_distributed_sampler": Meaning(instead="nothing: batches are shared out already"),
    "trainer.reload_dataloaders_every_n_epochs": Meaning(instead="nothing: a run is one pass of its loader"),
    # Any number of classes, each under a name. A callback may train, those that watch and log do not.
    "callbacks.*": Meaning(may_rotate=True, kind="lightning.Callback"),
    "callbacks.*.**": Meaning(may_rotate=True),
    "watch.**": Meaning("ignore"),
    "watch.*": Meaning("ignore", kind="lightning.Callback"),
    "logger.**": Meaning("ignore"),
    "logger.*": Meaning("ignore", kind="lightning.pytorch.loggers.Logger"),
    "logger.*.folder": Meaning("ignore", given_by_code=True),
    "logger.*.resumed": Meaning("ignore", given_by_code=True),
    # A sweep is another one by what it varies (sweep=NAME), and not by where it is.
    "sweep": Meaning("ignore", "as typed"),
    "sweep.**": Meaning("ignore", "never"),
    # Hydra's folders.
    "hydra.run.dir": Meaning(instead="run.folder"),
    "hydra.sweep.dir": Meaning(instead="sweep.folder"),
}

# What a model gives its parts, and from which of its own keys.
_GIVEN_TO_PARTS: dict[str, dict[str, str | None]] = {
    "position": {"d_model": "d_model", "n_heads": "n_heads", "d_head": "d_head", "causal": None},
    "residual": {"d_model": "d_model", "norm": "norm", "dropout": "dropout", "sublayer": None, "depth": None},
    "norm": {"normalized_shape": "d_model"},
    "feed_forward": {"d_model": "d_model", "d_ff": "d_ff", "dropout": "activation_dropout"},
}
MEANINGS |= {
    f"model.{part}.{name}": Meaning(instead=f"model.{key}" if key else "nothing: the model gives it")
    for one, given in _GIVEN_TO_PARTS.items()
    for part in (one, f"decoder_{one}")
    for name, key in given.items()
}


@lru_cache(maxsize=10_000)
def meaning_of(key: str) -> Meaning:
    """Return what a key means.

    Args:
        key: dotted, as in `data.train.src`; it need not be one that there is.
    """
    return next((meaning for pattern, meaning in _SPECIFIC_FIRST if pattern.fullmatch(key)), Meaning())


def _specificity(pattern: str) -> tuple[int, bool, int]:
    names = pattern.removesuffix(".**").split(".")
    return len(names), not pattern.endswith(".**"), -names.count("*")


def _compiled(pattern: str) -> re.Pattern[str]:
    names = pattern.removesuffix(".**").split(".")
    key = r"\.".join(r"[^.]+" if name == "*" else re.escape(name) for name in names)
    return re.compile(key + (r"(\..+)?" if pattern.endswith(".**") else ""))


_SPECIFIC_FIRST = [
    (_compiled(pattern), MEANINGS[pattern]) for pattern in sorted(MEANINGS, key=_specificity, reverse=True)
]
