"""Which keys a command's config has, and what a wrong one may have meant."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

# The checkout's conf/, or, in a wheel, the copy inside the package.
CONF = next(
    p for p in (Path(__file__).parents[3] / "conf", Path(__file__).parents[1] / "conf") if (p / "train.yaml").is_file()
)

# Keys of libraries that would go past ours, and what does it here.
OURS_INSTEAD = {
    "trainer.max_epochs": "run.passes",
    "trainer.min_epochs": "run.passes",
    "trainer.min_steps": "run.updates",
    "trainer.limit_train_batches": "run.updates",
    "trainer.limit_val_batches": "data (dev is always scored whole)",
    "trainer.limit_test_batches": "data (test is always scored whole)",
    "trainer.overfit_batches": "data.train (a small file) and run.updates",
    "trainer.accumulate_grad_batches": "data.batches_per_update",
    "trainer.val_check_interval": "run.validate_every",
    "trainer.check_val_every_n_epoch": "run.validate_every",
    "trainer.logger": "logger",
    "trainer.callbacks": "callbacks",
    "trainer.default_root_dir": "run.folder",
    "trainer.enable_checkpointing": "run.validate_every (a checkpoint follows each validation)",
    "trainer.use_distributed_sampler": "nothing: batches are shared out already",
    "trainer.reload_dataloaders_every_n_epochs": "nothing: a run is one pass of its loader",
    "optimizer.lr": "scheduler.lr",
    "optimizer.params": "nothing: all weights are trained",
    "scheduler.optimizer": "optimizer",
    "scheduler.total_updates": "run.updates",
    "model.src_vocab_size": "tokenizer.vocab_size",
    "model.tgt_vocab_size": "tokenizer.tgt_vocab_size",
    "model.vocab_size": "tokenizer.vocab_size",
    "hydra.run.dir": "run.folder",
    "hydra.sweep.dir": "sweep.folder",
}
# What a model gives its parts, and from which of its own keys.
GIVEN_TO_PARTS: dict[str, dict[str, str | None]] = {
    "position": {"d_model": "d_model", "n_heads": "n_heads", "d_head": "d_head", "causal": None},
    "residual": {"d_model": "d_model", "norm": "norm", "dropout": "dropout", "sublayer": None, "depth": None},
    "norm": {"normalized_shape": "d_model"},
    "feed_forward": {"d_model": "d_model", "d_ff": "d_ff", "dropout": "activation_dropout"},
}
for _part, _given in GIVEN_TO_PARTS.items():
    for _name, _key in _given.items():
        _what = f"model.{_key}" if _key else "nothing: the model gives it"
        OURS_INSTEAD |= {f"model.{prefix}{_part}.{_name}": _what for prefix in ("", "decoder_")}


@cache
def plain_config(config_name: str) -> dict[str, Any]:
    """A command's config as it stands in conf/. Not to be changed."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config: Any = OmegaConf.to_container(compose(config_name))
    return config


def required_keys(config_name: str) -> list[str]:
    """The keys of a command's config that stand at its top."""
    return [str(key) for key in plain_config(config_name)]


def known_keys(config_name: str) -> list[str]:
    """All keys of a command's config, and all groups of choices."""
    groups = [str(p.relative_to(CONF)) for p in CONF.rglob("*") if p.is_dir()]
    return sorted({*flat_keys(plain_config(config_name)), *groups})


def flat_keys(node: Any, path: str = "") -> Iterator[str]:
    """The dotted path of every node of a config."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            here = f"{path}.{key}" if path else str(key)
            yield here
            yield from flat_keys(value, here)


def unknown_key(key: str, known: Sequence[str]) -> str:
    """Say that there is no such key, and which one was meant."""
    key = key.lstrip("+~").split("@")[0]
    if key in OURS_INSTEAD:
        return f"{key} is not used here; what does it is {OURS_INSTEAD[key]}"
    if match := re.fullmatch(r"model[./](decoder_(\w+))", key):
        part, group = match.group(1), f"model/{match.group(2)}"
        if (CONF / group).is_dir():
            return f"there is no key {key}; did you mean {group}@model.{part}?"
    known = [k for k in known if k != key]
    nearest = difflib.get_close_matches(key, known, 1, cutoff=0.75)
    if not nearest:  # the right name in another place, like n_heads for model.n_heads
        leaf = key.rpartition(".")[2]
        nearest = [k for k in known if k.rpartition(".")[2] == leaf]
        leaves = {k.rpartition(".")[2]: k for k in known}
        nearest = nearest or [leaves[n] for n in difflib.get_close_matches(leaf, leaves, 1, cutoff=0.75)]
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"there is no key {key}{hint}"
