"""The properties of each key of a run's config besides its value, in one table for all code."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal


@dataclass(frozen=True)
class Meaning:
    """The properties of a key. These defaults apply to everything that the table does not mention.

    Attributes:
        on_resume: the treatment of a new value when a run resumes. "refuse": it is an error, since the value would make
            it another run. "take effect": the new value applies from then on, and is reported. "ignore": the value does
            not affect training.
        hashed: whether the key enters the hash that identifies a job of a sweep. "always". "if given": unless the value
            is null, which is the same as a missing key. "never". "as typed": not in the job's hash, but an override of
            the key enters the hash of the sweep's folder, so another value starts another sweep.
        content: for a key whose value is a path: the name of the content that a run compares instead, see
            `diglot.runs.contents`.
        in_checkpoints: whether every checkpoint stores the value itself, so that it must not be a secret.
        may_rotate: whether a text from the environment, such as a service's password, may change between a run and its
            resumption.
        settled: whether a run's config stores the resulting value, such as the precision that `auto` chose, instead of
            the typed one.
        is_hyper_parameter: whether a table of runs has a column for the key.
        of_vocabulary: whether the key determines the run's tokenizer, as `init_from` does.
        says: what the key determines, if other keys determine the same. Only one of them may be typed.
        instead: for a library's parameter that a config must not set: the key to use, or why none is needed.
        given_by_code: whether the code that builds the node sets the key, so that a config must not.
        found_for_jobs: for a key of a single run: what determines its value for the jobs of a sweep.
        kind: the class that the node's target must be, or return. (The parameters of a target are annotated, and their
            annotations determine the kinds of its parts.)
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


_LENGTH = "the length of the run"

# `*` matches any one name. `.**` at the end matches the key itself and everything below it. Only the most specific of
# the patterns that match a key applies.
MEANINGS: dict[str, Meaning] = {
    # Top-level keys.
    "seed": Meaning(is_hyper_parameter=True),
    "label_smoothing": Meaning("take effect", is_hyper_parameter=True),
    "init_from": Meaning(content="init_from"),
    "resume": Meaning("ignore", "never", found_for_jobs="the same command again finds"),
    "objective": Meaning("ignore", "never"),
    "export": Meaning("ignore", "if given"),  # hashes from before the key existed stay valid
    "trust.**": Meaning("ignore", "as typed"),
    # The text. tokenizer.vocab_size takes its value from data.vocab_size.
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
    # The tokenizer. samples, alpha and seed are not of_vocabulary: `init_from`'s tokenizer may segment at random, too.
    "tokenizer": Meaning(of_vocabulary=True, kind="diglot.data.tokenizer.TokenizerSource"),
    "tokenizer.**": Meaning(of_vocabulary=True),
    "tokenizer.model": Meaning(content="tokenizer.model", of_vocabulary=True),
    "tokenizer.tgt_model": Meaning(content="tokenizer.tgt_model", of_vocabulary=True),
    "tokenizer.placeholder": Meaning(in_checkpoints=True, of_vocabulary=True),
    "tokenizer.samples": Meaning(),
    "tokenizer.alpha": Meaning(),
    "tokenizer.seed": Meaning(),
    # The model and the search. Every checkpoint holds their complete config.
    "model": Meaning(in_checkpoints=True, is_hyper_parameter=True, kind="diglot.model.EncoderDecoder"),
    "model.**": Meaning(in_checkpoints=True, is_hyper_parameter=True),
    "model.src_vocab_size": Meaning(instead="use tokenizer.vocab_size"),
    "model.tgt_vocab_size": Meaning(instead="use tokenizer.tgt_vocab_size"),
    "model.vocab_size": Meaning(instead="use tokenizer.vocab_size"),
    "search": Meaning(in_checkpoints=True, kind="diglot.decoding.Search"),
    "search.**": Meaning(in_checkpoints=True),
    # The optimizer's and scheduler's values may change between updates. The optimizer's class may not: its state
    # belongs to the class.
    "optimizer": Meaning("take effect", is_hyper_parameter=True, kind="torch.optim.Optimizer"),
    "optimizer.**": Meaning("take effect", is_hyper_parameter=True),
    "optimizer._target_": Meaning(),
    "optimizer.lr": Meaning(instead="use scheduler.lr"),
    "optimizer.params": Meaning(instead="all weights are trained"),
    "scheduler": Meaning("take effect", is_hyper_parameter=True, kind="torch.optim.lr_scheduler.LRScheduler"),
    "scheduler.**": Meaning("take effect", is_hyper_parameter=True),
    "scheduler.optimizer": Meaning(instead="use optimizer"),
    "scheduler.total_updates": Meaning(instead="use run.updates"),
    # The run. Its config counts in updates once the data is known.
    "run": Meaning("take effect", kind="diglot.training.run.Budget"),
    "run.**": Meaning("take effect"),
    "run.updates": Meaning("take effect", says=_LENGTH, is_hyper_parameter=True),
    "run.passes": Meaning("take effect", says=_LENGTH, settled=True),
    "run.folder": Meaning("ignore", "never", found_for_jobs="sweep.folder names"),
    # Lightning's trainer. The precision of the weights and of the optimizer's state is fixed, even if chosen by `auto`.
    "trainer": Meaning("take effect", kind="lightning.Trainer"),
    "trainer.**": Meaning("take effect"),
    "trainer.precision": Meaning("refuse", settled=True),
    "trainer.max_steps": Meaning("take effect", says=_LENGTH, settled=True),
    "trainer.log_every_n_steps": Meaning("ignore"),
    "trainer.process_timeout": Meaning("ignore"),
    "trainer.max_epochs": Meaning(instead="use run.passes"),
    "trainer.min_epochs": Meaning(instead="use run.passes"),
    "trainer.min_steps": Meaning(instead="use run.updates"),
    "trainer.limit_train_batches": Meaning(instead="use run.updates"),
    "trainer.limit_val_batches": Meaning(instead="use data (the complete dev text is always scored)"),
    "trainer.limit_test_batches": Meaning(instead="use data (the complete test text is always scored)"),
    "trainer.overfit_batches": Meaning(instead="use data.train (a small file) and run.updates"),
    "trainer.accumulate_grad_batches": Meaning(instead="use data.batches_per_update"),
    "trainer.val_check_interval": Meaning(instead="use run.validate_every"),
    "trainer.check_val_every_n_epoch": Meaning(instead="use run.validate_every"),
    "trainer.logger": Meaning(instead="use logger"),
    "trainer.callbacks": Meaning(instead="use callbacks"),
    "trainer.plugins": Meaning(given_by_code=True),
    "trainer.default_root_dir": Meaning(instead="use run.folder"),
    "trainer.enable_checkpointing": Meaning(instead="use run.validate_every (a checkpoint follows each validation)"),
    "trainer.use_distributed_sampler": Meaning(instead="each process already gets its own batches"),
    "trainer.reload_dataloaders_every_n_epochs": Meaning(instead="a run is a single pass of its loader"),
    # Any number of classes, each under a name. A callback may change training; watchers and loggers do not.
    "callbacks.*": Meaning(may_rotate=True, kind="lightning.Callback"),
    "callbacks.*.**": Meaning(may_rotate=True),
    "watch.**": Meaning("ignore"),
    "watch.*": Meaning("ignore", kind="lightning.Callback"),
    "logger.**": Meaning("ignore"),
    "logger.*": Meaning("ignore", kind="lightning.pytorch.loggers.Logger"),
    "logger.*.folder": Meaning("ignore", given_by_code=True),
    "logger.*.resumed": Meaning("ignore", given_by_code=True),
    # What a sweep varies (sweep=NAME) makes it another sweep; its folder does not.
    "sweep": Meaning("ignore", "as typed"),
    "sweep.**": Meaning("ignore", "never"),
    # Hydra's folders.
    "hydra.run.dir": Meaning(instead="use run.folder"),
    "hydra.sweep.dir": Meaning(instead="use sweep.folder"),
}

# The parameters that a model passes to its parts, each with the model's key that it comes from.
_GIVEN_TO_PARTS: dict[str, dict[str, str | None]] = {
    "position": {"d_model": "d_model", "n_heads": "n_heads", "d_head": "d_head", "causal": None},
    "residual": {"d_model": "d_model", "norm": "norm", "dropout": "dropout", "sublayer": None, "depth": None},
    "norm": {"normalized_shape": "d_model"},
    "feed_forward": {"d_model": "d_model", "d_ff": "d_ff", "dropout": "activation_dropout"},
}
MEANINGS |= {
    f"model.{part}.{name}": Meaning(instead=f"use model.{key}" if key else "the model sets it")
    for one, given in _GIVEN_TO_PARTS.items()
    for part in (one, f"decoder_{one}")
    for name, key in given.items()
}


@lru_cache(maxsize=10_000)
def meaning_of(key: str) -> Meaning:
    """Return the properties of a key.

    Args:
        key: a dotted key, as in `data.train.src`. It need not exist.
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
