"""A run's folder is named after what was typed, safely."""

import re

import pytest

from diglot.runs.naming import typed_name


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], ""),
        (["data=sample", "model/position=alibi", "model.d_model=64"], "position-alibi_d_model-64"),
        (["model/position@model.decoder_position=none"], "decoder_position-none"),
        (["callbacks=[early_stopping,ema]", "scheduler.lr=3e-4"], "callbacks-early_stopping_lr-3e-4"),
        (["run.folder=x", "resume=auto", "watch=none", "logger=csv", "~watch.position", "trust=mine"], ""),
        (["data.train.src=/home/me/secret.de", "init_from=runs/a"], ""),
        (["+callbacks.mine.key=${oc.env:KEY}"], ""),
        (["model.d_model=", "seed=3"], "seed-3"),
        (["seed=3", "model=base", "seed=4"], "seed-4_model-base"),
        (["search.beam_size=4", 'tokenizer.symbols="[A-Z]: /\\\\?*<>|\\0ü漢"'], "beam_size-4_symbols-A-Z-0"),
    ],
)
def test_a_name_says_what_was_typed(overrides: list[str], name: str) -> None:
    assert typed_name(overrides) == name


def test_a_name_is_short_and_safe() -> None:
    name = typed_name([f"model.key{i}=value.{i}.." for i in range(50)] + ["model.x=" + "y" * 500])
    assert 40 < len(name) <= 60
    assert re.fullmatch(r"[A-Za-z0-9._-]*[A-Za-z0-9_]", name)
