"""The numbers in a run's reports add up."""

from collections.abc import Callable

import pytest
from omegaconf import DictConfig

from diglot.config import resolved
from diglot.data.text import ParallelText
from diglot.model import Transformer
from diglot.model.lora import Lora, add
from diglot.runs.report import hyper_parameters, parameters_by_part, samples


@pytest.mark.parametrize("tying", ["none", "target", "all"])
def test_the_parts_of_a_model_add_up_to_the_whole(build_model: Callable[..., Transformer], tying: str) -> None:
    model = build_model(f"model.tying={tying}")
    parts = parameters_by_part(model)
    assert sum(parts.values()) == sum(p.numel() for p in model.parameters())
    assert {"encoder self_attention", "decoder cross_attention", "decoder feed_forward"} < parts.keys()
    assert {name for name in parts if "embedding" in name or name == "output"} == {
        "src_embedding",
        "tgt_embedding",
        "output",
    }
    shared = [name for name in ("src_embedding", "tgt_embedding", "output") if parts[name] == 0]
    assert len(shared) == {"none": 0, "target": 1, "all": 2}[tying]


def test_adapters_do_not_count_for_the_parts_of_a_model(build_model: Callable[..., Transformer]) -> None:
    model = build_model()
    parts = parameters_by_part(model)
    add(model, Lora(rank=4))
    assert parameters_by_part(model) == parts


def test_samples_are_the_same_sentences_whoever_translates() -> None:
    pairs = ParallelText([f"{'x' * (n % 7)} {n}" for n in range(20)], [f"ref {n}" for n in range(20)])
    one = samples(lambda lines: [line.upper() for line in lines], pairs)
    two = samples(lambda lines: [line.title() for line in lines], pairs)
    sources = [line for line in one if "source" in line]
    assert len(sources) == 3
    assert sources == [line for line in two if "source" in line]
    number = sources[0].split()[-1]
    assert next(line for line in one if "reference" in line).split()[-2:] == ["ref", number]


def test_samples_have_all_references() -> None:
    lines = samples(lambda lines: lines, ParallelText(["a"], ["b"], (["c"], [None])))
    assert [line.split()[1] for line in lines if "reference" in line] == ["b", "c"]


@pytest.mark.parametrize("n", [0, 1, 2])
def test_little_text_gives_few_samples(n: int) -> None:
    lines = samples(lambda lines: list(lines), ParallelText(["a"] * n, ["b"] * n))
    assert sum("source" in line for line in lines) == n


def test_runs_are_compared_by_numbers_and_names(config: DictConfig) -> None:
    flat = hyper_parameters(resolved(config.copy()))
    assert flat["model.n_heads"] == config.model.n_heads
    assert flat["model.position"] == "Rotary"
    assert flat["scheduler"] == "Linear"
    assert flat["run.updates"] == config.run.updates
    assert all(isinstance(value, (bool, int, float, str)) for value in flat.values())
    assert not [key for key in flat if "_target_" in key or "folder" in key]
