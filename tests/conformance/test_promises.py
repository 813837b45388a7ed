"""Every model of conf/model keeps every promise.

`make test` covers each choice in some model, `make test-reliability` each pair of choices, and `make test-all` all
combinations of files.
"""

import copy
from operator import attrgetter

import pytest
from omegaconf import DictConfig

from conformance.promises import OF_ALL, OF_THE_CAPTURED, OF_TRANSFORMERS, TIED, Promise
from conformance.variants import (
    FACTORS,
    FILES,
    OTHERS,
    PAIRWISE,
    PRESETS,
    Variant,
    all_pairs,
    build_variant,
    few_rows_with_each_value,
    full_product,
    pairs,
    variant_of,
)
from diglot.model import EncoderDecoder, Transformer

FEW = few_rows_with_each_value(PAIRWISE)
PAIRED = [pytest.param(variant_of(row), marks=() if row in FEW else pytest.mark.reliability) for row in PAIRWISE]
VARIANTS = [*PRESETS, *OTHERS]
built: dict[Variant, tuple[EncoderDecoder, DictConfig]] = {}


def fresh(variant: Variant) -> tuple[EncoderDecoder, DictConfig]:
    """Return a copy of a variant's model, which the test may modify, and its config."""
    if variant not in built:
        built[variant] = build_variant(variant.overrides)
    model, config = built[variant]
    return copy.deepcopy(model), config


def test_every_pair_of_choices_stands_together_in_some_variant() -> None:
    assert set().union(*map(pairs, PAIRWISE)) == all_pairs()
    assert all(FILES[group] == list(FACTORS[group]) for group in ("position", "residual", "norm", "feed_forward"))
    assert set(FACTORS["tying"]) == set(TIED)


@pytest.mark.parametrize("variant", [*PAIRED, *VARIANTS], ids=attrgetter("name"))
@pytest.mark.parametrize("promise", OF_ALL, ids=attrgetter("__name__"))
def test_every_model_keeps(promise: Promise, variant: Variant) -> None:
    promise(*fresh(variant))


@pytest.mark.parametrize("variant", [*PAIRED, *(v for v in VARIANTS if v.kind is Transformer)], ids=attrgetter("name"))
@pytest.mark.parametrize("promise", OF_TRANSFORMERS, ids=attrgetter("__name__"))
def test_every_transformer_keeps(promise: Promise, variant: Variant) -> None:
    promise(*fresh(variant))


@pytest.mark.reliability  # because each model is compiled
@pytest.mark.parametrize("row", FEW, ids=lambda row: variant_of(row).name)
@pytest.mark.parametrize("promise", OF_THE_CAPTURED, ids=attrgetter("__name__"))
def test_with_every_choice_it_is_true_that(promise: Promise, row: dict[str, str]) -> None:
    promise(*fresh(variant_of(row)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("residual", FILES["residual"])
@pytest.mark.parametrize("position", FILES["position"])
def test_every_combination_of_files_keeps_every_promise(position: str, residual: str) -> None:
    for variant in full_product(position, residual):
        model, config = build_variant(variant.overrides)
        for promise in (*OF_ALL, *OF_TRANSFORMERS, *OF_THE_CAPTURED):
            try:
                promise(copy.deepcopy(model), config)
            except AssertionError as error:
                error.add_note(f"{promise.__name__}: {' '.join(variant.overrides)}")
                raise
