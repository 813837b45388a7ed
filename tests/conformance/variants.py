"""The models that the suite tests: combinations of the choices in conf/model.

A new file in conf/model is tested without a change here.
"""

import inspect
import itertools
import random
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import get_class
from omegaconf import DictConfig

from diglot.config import CONF, build
from diglot.model import EncoderDecoder, Transformer

FOLDER = CONF / "model"
FILES = {
    group.name: sorted(file.stem for file in group.glob("*.yaml"))
    for group in sorted(FOLDER.iterdir())
    if group.is_dir()
}

# Sizes that all differ, so that confused axes are detected. A gated network with d_ff 56 has an inner width of 40.
SIZES = {
    "d_model": 24,
    "n_heads": 3,
    "d_head": 10,
    "n_kv_heads": 1,
    "d_ff": 56,
    "d_hidden": 20,
    "d_attention": 14,
    "n_encoder_layers": 2,
    "n_decoder_layers": 2,
}
# Settings under which even a short sentence shows the full effect of a choice: distances share buckets, and angles
# differ much from the default.
SETTINGS = {"relative_bias": {"n_buckets": 8, "max_distance": 6}, "rotary": {"base": 50.0}}
V = 37  # target vocabulary size; that of the source is larger unless they must be equal


class Variant(NamedTuple):
    """A model's name, the overrides that select it, and its class."""

    name: str
    overrides: tuple[str, ...]
    kind: type[EncoderDecoder] = Transformer


def _compose(overrides: tuple[str, ...]) -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", list(overrides)).model


@cache
def _preset(name: str) -> DictConfig:
    return _compose((f"model={name}",))


@cache
def small(preset: str) -> tuple[str, ...]:
    """Return overrides for a preset with small sizes and without dropout."""
    model = _preset(preset)
    sizes = {key: value for key, value in SIZES.items() if model.get(key) is not None}
    return (
        f"model={preset}",
        *(f"model.{key}={value}" for key, value in sizes.items()),
        *(f"model.{key}=0.0" for key in model if key.endswith("dropout")),
    )


def _variant(preset: str, *overrides: str) -> Variant:
    kind = get_class(_preset(preset)._target_)
    return Variant(",".join((preset, *overrides)), small(preset) + overrides, kind)


def _unlike() -> Iterator[str]:
    """Yield the presets that are still different models when all have small sizes."""
    seen = set()
    for file in sorted(FOLDER.glob("*.yaml")):
        node = dict(_preset(file.stem))
        node |= {key: size for key, size in SIZES.items() if node.get(key) is not None}
        node |= {key: 0.0 for key in node if key.endswith("dropout")}
        if (text := repr(sorted(node.items()))) not in seen:
            seen.add(text)
            yield file.stem


PRESETS = [_variant(preset) for preset in _unlike()]
# Models that no file of conf/model describes.
OTHERS = [
    *(_variant("gru_attention", f"model.tying={tying}") for tying in ("none", "target", "inputs")),
    _variant("base", "model.position.base=30.0", "model.position.offset=3"),
    _variant("base", "model/residual=deep_norm", "model.residual.alpha=1.7", "model.residual.beta=0.4"),
    _variant(
        "base",
        "model/residual@model.decoder_residual=deep_norm",
        "model.decoder_residual.alpha=1.3",
        "model/position=relative_bias",
        "model.position.n_buckets=6",
        "model.position.max_distance=5",
        "model/position@model.decoder_position=rotary",
        "model.decoder_position.base=3.0",
    ),
    _variant(
        "base",
        "model/norm=rms_norm",
        "model.norm.eps=1e-3",
        "model/position=learned",
        "model.position.max_positions=48",
    ),
]


# ----------------------------------------------------------------------------------------------------------- factors


def _factors() -> dict[str, dict[str, tuple[str, ...]]]:
    """Return all choices: for each factor its values, and for each value its overrides."""
    parameters = inspect.signature(Transformer).parameters
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for group, files in FILES.items():

        def settings(file: str, node: str) -> list[str]:
            return [f"model.{node}.{key}={value}" for key, value in SETTINGS.get(file, {}).items()]

        found[group] = {file: (f"model/{group}={file}", *settings(file, group)) for file in files}
        if f"decoder_{group}" in parameters:
            node = f"decoder_{group}"
            own = {file: (f"model/{group}@model.{node}={file}", *settings(file, node)) for file in files}
            found[f"decoder_{group}"] = {"null": (), **own}
    found["tying"] = {t: (f"model.tying={t}",) for t in typing.get_args(parameters["tying"].annotation)}
    found["heads"] = {  # widths are even, for rotary positions
        "three": (),
        "six": ("model.n_heads=6",),  # not a power of two, and more than four: two series of ALiBi slopes
        "one_each": ("model.n_heads={encoder:6,decoder:4,cross:3}",),
        "grouped": ("model.n_heads=6", "model.n_kv_heads={encoder:2,decoder:3,cross:1}"),
        "multi_query": ("model.n_heads=4", "model.n_kv_heads=1", "model.d_head=10"),
        "own_width": ("model.n_heads=2", "model.d_head={encoder:10,decoder:6,cross:4}"),
    }
    found["qk_norm"] = {value: (f"model.qk_norm={value}",) for value in ("false", "true")}
    for key in ("bias", "embedding_norm", "scale_embeddings", "output_bias"):
        found[key] = {value: (f"model.{key}={value}",) for value in ("false", "true")}
    found["depth"] = {
        f"{n}+{m}": (f"model.n_encoder_layers={n}", f"model.n_decoder_layers={m}") for n, m in ((1, 3), (2, 1), (2, 2))
    }
    return found


FACTORS = _factors()
Row = dict[str, str]  # one value per factor


def pairs(row: Row) -> set[tuple[tuple[str, str], ...]]:
    """Return all pairs of values in a row."""
    return set(itertools.combinations(sorted(row.items()), 2))


def all_pairs() -> set[tuple[tuple[str, str], ...]]:
    """Return all pairs of values of different factors."""
    found = set()
    for one, other in itertools.combinations(sorted(FACTORS), 2):
        found |= {((one, a), (other, b)) for a in FACTORS[one] for b in FACTORS[other]}
    return found


def pairwise() -> list[Row]:
    """Return a small set of rows that contains every pair of values of any two factors.

    The algorithm is greedy. A row starts with a missing pair; then each factor, the one with most values first, gets
    the value that adds most missing pairs. Of several such rows with random starts and ties, the best is kept.
    """
    missing, rows, chance = all_pairs(), [], random.Random(6)
    longest = sorted(FACTORS, key=lambda factor: -len(FACTORS[factor]))
    while missing:
        begun = sorted(missing)
        candidates = [_row(dict(chance.choice(begun)), longest, missing, chance) for _ in range(12)]
        best = max(candidates, key=lambda row: len(pairs(row) & missing))
        missing -= pairs(best)
        rows.append(best)
    return rows


def _row(row: Row, factors: list[str], missing: set[Any], chance: random.Random) -> Row:
    for factor in factors:
        if factor not in row:
            gains = {
                value: sum(tuple(sorted(((factor, value), other))) in missing for other in row.items())
                for value in FACTORS[factor]
            }
            most = max(gains.values())
            row[factor] = chance.choice([value for value, gain in gains.items() if gain == most])
    return row


def variant_of(row: Row) -> Variant:
    chosen = [override for factor, value in row.items() for override in FACTORS[factor][value]]
    return Variant(",".join(row[factor] for factor in FACTORS), (*small("base"), *chosen))


PAIRWISE = pairwise()

# The factors whose combinations are all tested by `make test-all`; the other factors are drawn at random.
FULL = ("position", "residual", "decoder_residual", "norm", "feed_forward", "tying")


def full_product(position: str, residual: str) -> Iterator[Variant]:
    """Yield all combinations with one position encoding and one norm placement."""
    rest = [[value for value in FACTORS[factor] if value != "null"] for factor in FULL[2:]]
    for values in itertools.product(*rest):
        fixed = (position, residual, *values)
        chance = random.Random(",".join(fixed))
        row = {factor: chance.choice(list(choices)) for factor, choices in FACTORS.items()}
        yield variant_of(row | dict(zip(FULL, fixed, strict=True)))


def few_rows_with_each_value(rows: list[Row]) -> list[Row]:
    """Select rows in which each value of each factor occurs at least once."""
    missing = {(factor, value) for factor, values in FACTORS.items() for value in values}
    kept = []
    while missing:
        best = max(rows, key=lambda row: len(missing & set(row.items())))
        missing -= set(best.items())
        kept.append(best)
    return kept


# ---------------------------------------------------------------------------------------------------------- models


def build_variant(overrides: tuple[str, ...]) -> tuple[EncoderDecoder, DictConfig]:
    """Build a model, with the same weights each time, and return it with its config."""
    config = _compose(overrides)
    return build_from(config, seed=1), config


def build_from(config: DictConfig, seed: int) -> EncoderDecoder:
    """Build a model in evaluation mode, with weights that depend on the seed."""
    torch.manual_seed(seed)
    src_vocab_size = V if config.tying in ("inputs", "all") else V + 9
    return build(config, "model", src_vocab_size=src_vocab_size, tgt_vocab_size=V).eval()
