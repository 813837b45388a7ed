"""The keys that decide which weights are trained: what they do to a model, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from diglot.commands.schema import TrainKeys
from diglot.config import FineTuning, changes, config_hash, trial_build
from diglot.config.check import check
from diglot.errors import UserError
from diglot.model import Transformer

Build = Callable[..., Transformer]
Compose = Callable[..., DictConfig]


def of(**keys: Any) -> FineTuning:
    return FineTuning.of(OmegaConf.create({"init_from": "run", **keys}))


def trained(model: Transformer) -> set[str]:
    return {name for name, weight in model.named_parameters() if weight.requires_grad}


def test_a_config_from_before_the_keys_existed_trains_all_weights(build_model: Build, compose_train: Compose) -> None:
    model = build_model()
    names = {name for name, _ in model.named_parameters()}
    for config in (OmegaConf.create({"init_from": None}), compose_train()):
        tuning = FineTuning.of(config)
        tuning.apply(model)
        assert trained(model) == names
        assert tuning.factors(model) == {}
        assert tuning.describe(model) == []


def test_an_earlier_config_is_the_same_config(compose_train: Compose) -> None:
    config: Any = OmegaConf.to_container(compose_train("data=sample"))
    earlier = {key: value for key, value in config.items() if key not in ("freeze", "learning_rates", "lora")}
    assert changes(earlier, config) == changes(config, earlier) == []
    assert config_hash(OmegaConf.create(earlier)) == config_hash(OmegaConf.create(config))


@pytest.mark.parametrize(
    ("override", "takes_effect"),
    [
        ("freeze=[encoder]", False),
        ("lora={rank: 4}", False),
        ("learning_rates={encoder: 0.5}", True),
        ("learning_rates={encoder.attention: 0.5}", True),
    ],
)
def test_factors_may_change_in_a_run_and_the_trained_weights_may_not(
    compose_train: Compose, override: str, takes_effect: bool
) -> None:
    before, after = (OmegaConf.to_container(compose_train("data=sample", *words)) for words in ([], [override]))
    for found in (changes(before, after), changes(after, before)):
        assert [change.takes_effect for change in found] == [takes_effect]
    assert config_hash(OmegaConf.create(before)) != config_hash(OmegaConf.create(after))


def test_frozen_parts_are_not_trained_and_are_named(build_model: Build) -> None:
    model = build_model("model.tying=none")
    tuning = of(freeze=["encoder", "norms", "src_embedding"])
    tuning.apply(model)
    names = {name for name, _ in model.named_parameters()}
    assert trained(model) == {
        name for name in names if not name.startswith(("encoder", "src_embedding")) and "norm" not in name
    }
    n_trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    n_all = sum(weight.numel() for weight in model.parameters())
    line = f"training {n_trained:,} of {n_all:,} weights; frozen: encoder, norms, src_embedding"
    assert tuning.describe(model) == [line]


def test_one_part_needs_no_list(build_model: Build) -> None:
    assert of(freeze="encoder") == of(freeze=["encoder"])


def test_what_shares_a_frozen_matrix_is_frozen_and_named(build_model: Build) -> None:
    model = build_model("model.tying=all")
    tuning = of(freeze=["embeddings"])
    tuning.apply(model)
    assert not model.output.weight.requires_grad
    assert tuning.describe(model)[0].endswith("; frozen: embeddings (with output, the same matrix)")
    both = of(freeze=["embeddings", "output"])
    both.apply(model)
    assert both.describe(model)[0].endswith("; frozen: embeddings, output")


def test_the_start_states_adapters_and_rates(build_model: Build) -> None:
    model = build_model()
    n_all = sum(weight.numel() for weight in model.parameters())
    tuning = of(lora={"rank": 4, "train": ["norms"]}, learning_rates={"encoder": 0.5})
    tuning.apply(model)
    layers = 2 * (len(model.encoder) + 2 * len(model.decoder))  # query and value of each attention
    n_norms = sum(weight.numel() for name, weight in model.named_parameters() if "norm" in name)
    assert tuning.describe(model) == [
        f"training {layers * 4 * (24 + 24):,} weights of adapters: LoRA of rank 4 on query, value",
        f"training {n_norms:,} of {n_all:,} weights: norms",
        "learning rates: encoder x 0.5",
    ]
    assert {factor for name, factor in tuning.factors(model).items() if name.startswith("encoder")} == {0.5}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"freeze": ["encodr"]}, r"freeze=\[encodr\]: 'encodr' is no part of this model"),
        ({"freeze": ["encoder", "decoder", "embeddings", "output"]}, "no weight is left to train"),
        ({"freeze": 5}, "freeze=5: must be a list of parts"),
        ({"freeze": [1]}, r"freeze=\[1\]: must be a list of parts"),
        ({"learning_rates": ["encoder"]}, "must be a mapping, such as {encoder: 0.1}"),
        ({"learning_rates": {"encoder": 0}}, r"encoder is 0, which trains nothing: type freeze=\[encoder\]"),
        ({"learning_rates": {"encoder": -1}}, "encoder is -1, and must be a positive number"),
        ({"learning_rates": {"encoder": "x"}}, "encoder is 'x', and must be a positive number"),
        ({"learning_rates": {"encoder": True}}, "must be a positive number"),
        ({"learning_rates": {"encoder": float("inf")}}, "must be a positive number"),
        ({"learning_rates": {"encoder": 0.5}, "freeze": ["encoder"]}, "'encoder' contains no weight that is trained"),
        ({"lora": {}, "freeze": ["encoder"]}, "freeze and lora: with lora, all weights are frozen except"),
        ({"lora": {}, "init_from": None}, "lora: adapters adapt a trained model: name it by init_from=CHECKPOINT"),
        ({"lora": {"on": ["quary"]}}, r"lora\.on: 'quary' is no part of this model"),
        ({"lora": {"train": ["nroms"]}}, r"lora\.train: 'nroms' is no part of this model"),
        ({"lora": {"rank": -1}}, r"lora: rank \(-1\) must be positive"),
        (
            {"lora": {"rank": 49}},
            r"lora: rank \(49\) must be at most \d+, the smaller size of the matrix encoder.0.self_att",
        ),
        ({"lora": {"rank": "x"}}, "lora: "),
        ({"lora": {"ranc": 1}}, "lora: "),
    ],
)
def test_values_that_cannot_be_used_are_refused(build_model: Build, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        of(**keys).apply(build_model())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lora={ranc: 4}", "there is no key lora.ranc; did you mean lora.rank"),
        ("lora={rank: x}", "lora.rank='x': must be an integer"),
        ("lora={on: query}", "lora.on='query': must be a list of texts"),
        ("lora={on: [0]}", 'lora.on=[0]: must be a list of texts; to make a number a text, type ["0"]'),
        ("lora=8", "lora=8: must be a mapping or null"),
        ("freeze=3", "freeze=3: must be text or a list of texts"),
        (
            "freeze=[0,1]",
            'freeze=[0, 1]: must be text or a list of texts or null; to make a number a text, type ["0","1"]',
        ),
        ("learning_rates=0.1", "learning_rates=0.1: must be a mapping or null"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_key(compose_train: Compose, override: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        check(compose_train("data=sample", override), TrainKeys)
    assert message in str(raised.value)


def test_parts_are_checked_before_the_data_are_read(compose_train: Compose) -> None:
    with pytest.raises(UserError, match="'encodr' is no part of this model"):
        trial_build(compose_train("data=sample", "freeze=[encodr]"))
    model = trial_build(compose_train("data=sample", "freeze=[encoder]", "learning_rates={decoder: 2}"))
    assert not any(weight.requires_grad for weight in model.get_submodule("encoder").parameters())


class Fixed(torch.optim.lr_scheduler.LRScheduler):
    """Schedule that sets the same rate for all weights."""

    def __init__(self, optimizer: torch.optim.Optimizer, total_updates: int) -> None:
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return [0.1 for _ in self.optimizer.param_groups]


def test_a_schedule_that_ignores_the_factors_is_refused(compose_train: Compose) -> None:
    config: Any = OmegaConf.to_container(compose_train("data=sample"))
    config["scheduler"] = {"_target_": f"{__name__}.Fixed", "_partial_": True}
    trial_build(OmegaConf.create(config))
    with pytest.raises(UserError, match=r"learning_rates: .*Fixed sets the rate of each weight itself"):
        trial_build(OmegaConf.create({**config, "learning_rates": {"decoder": 2.0}}))
