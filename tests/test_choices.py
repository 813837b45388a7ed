"""The documentation in conf/: everything is explained, and the keys read as text are those that Hydra composes."""

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from diglot import choices as conf
from diglot.commands.start import COMMANDS
from diglot.config import known_keys

GROUPS = conf.groups()


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_every_choice_and_every_key_is_explained(group: str) -> None:
    found = conf.choices(group).values()
    assert not [choice.name for choice in found if not choice.meaning], "a file begins with a comment"
    silent = [(choice.name, key.name) for choice in found for key in choice.keys.values() if not key.meaning]
    silent += [(choice.name, entry.name) for choice in found for entry in choice.groups.values() if not entry.meaning]
    assert not silent, "a key has a comment, or one in another choice of its group"


def test_every_group_is_one_of_train() -> None:
    assert {name for name in conf.groups_of("train") if "@" not in name} == set(GROUPS)
    assert "data/shared" not in {*GROUPS, *known_keys("train")}


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys without further keys below them, except those that begin with an underscore."""
    for key, value in node.items():
        if not str(key).startswith("_"):
            if isinstance(value, dict) and value:
                yield from leaves(value, f"{path}{key}.")
            else:
                yield f"{path}{key}", value


def read(keys: dict[str, conf.Entry]) -> dict[str, Any]:
    """Return the defaults of entries, by the same keys as `leaves`."""
    found: dict[str, Any] = {}
    for key in keys.values():
        if key.default:
            value = OmegaConf.to_container(OmegaConf.create(f"x: {key.default}"))["x"]
            found |= dict(leaves({key.name: value}))
    return found


@pytest.fixture(scope="module")
def composed() -> Iterator[Callable[..., Any]]:
    """Yield a function that composes a command's config with interpolations unresolved."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf.CONF), version_base="1.3"):
        yield lambda name, *words: OmegaConf.to_container(compose(name, list(words)))


@pytest.mark.parametrize("name", conf.choices(""))
def test_the_keys_of_a_command_are_those_that_hydra_composes(name: str, composed: Callable[..., Any]) -> None:
    config = composed(name)
    inside = {group.replace("/", ".") for group in conf.groups_of(name)}
    with_own_nodes = inside & {"callbacks", "logger", "metric"}  # in these groups, each choice has its own node
    config |= {name: {} for name in with_own_nodes}
    inside -= with_own_nodes
    assert read(conf.command(name).keys) == dict(leaves({k: v for k, v in config.items() if k not in inside}))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("group", [g for g in GROUPS if not g.startswith(("hydra", "experiment"))])
def test_the_keys_of_a_choice_are_those_that_hydra_composes(group: str, composed: Callable[..., Any]) -> None:
    for choice in list(conf.choices(group).values())[:3]:
        if choice.name != "checkpoint":
            node = composed("train", f"{group}={choice.name}")
            for part in group.split("/"):
                node = node[part]
            parts = {name.rpartition("/")[2] for name in GROUPS if name.startswith(f"{group}/")}
            own = {k: v for k, v in leaves(node) if k.partition(".")[0].removeprefix("decoder_") not in parts}
            assert read(choice.keys) == own, choice.name


@pytest.mark.parametrize("name", sorted({*COMMANDS} - {"sweep"}))
def test_hydra_itself_logs_nothing_and_makes_no_folders(name: str, composed: Callable[..., Any]) -> None:
    hydra = compose(name, return_hydra_config=True).hydra
    assert (hydra.run.dir, hydra.sweep.dir, hydra.sweep.subdir, hydra.output_subdir) == (".", "runs", ".", None)
    assert {hydra.runtime.choices[f"hydra/{which}_logging"] for which in ("job", "hydra")} == {"none"}


EXAMPLES = sorted(
    {line for group in ("", *GROUPS) for choice in conf.choices(group).values() for line in choice.examples}
)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("line", [line for line in EXAMPLES if "make " in line])
def test_what_an_example_types_can_be_composed(line: str, composed: Callable[..., Any]) -> None:
    words = shlex.split(line.partition("make ")[2], comments=True)
    name = words.pop(0)
    assert name in COMMANDS
    if name == "sweep":  # keep only the first value of each key
        words = [word.partition(",")[0] for word in words if not word.startswith("hydra") and "(" not in word]
    composed("train" if name == "sweep" else name, *words)


FILES = {
    "train.yaml": """\
# What it does. More of it
#   make train a=1 \\
#       b=2
defaults:
  - things: one # the things
  - _self_

seed: 1 # a seed
# what is said
# above
path: "a # b" # no comment in quotes
nested: # a mapping
  inner: [1, 2] # a list
  plain: {x: 1}
hydra:
  run: {dir: .}
""",
    "things/shared/part.yaml": "# A part\nsize: 3 # how large\nother: null # unused\n",
    "things/one.yaml": "# The first\ndefaults: [shared/part@_here_, _self_]\n_target_: a.B\nsize: 4\nrate: 0.5\n",
    "things/two.yaml": "# The second: of the first\ndefaults: [one, _self_]\nrate: 1e-3 # the rate\n",
    "things/three.yaml": "# The third\nname: x\n",
    "things/recipe.yaml": "# @package _global_\n# A recipe\ndefaults: [one@things]\nseed: 2\n",
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(conf, "CONF", tmp_path)
    conf.choices.cache_clear()
    yield
    conf.choices.cache_clear()


@pytest.mark.usefixtures("files")
def test_comments_behind_and_above_keys_are_read() -> None:
    about = conf.command("train")
    assert (about.meaning, about.summary) == ("What it does. More of it", "What it does")
    assert about.examples == ["make train a=1 b=2"]
    assert list(about.keys.values()) == [
        conf.Entry("seed", "1", "a seed"),
        conf.Entry("path", '"a # b"', "what is said above no comment in quotes"),
        conf.Entry("nested", "", "a mapping"),
        conf.Entry("nested.inner", "[1, 2]", "a list"),
        conf.Entry("nested.plain", "{x: 1}", ""),
    ]
    assert conf.groups_of("train") == {"things": conf.Entry("things", "one", "the things")}


@pytest.mark.usefixtures("files")
def test_choices_take_keys_and_comments_from_each_other() -> None:
    assert conf.groups() == ["things"]
    found = conf.choices("things")
    assert found["one"].keys == {
        "size": conf.Entry("size", "4", "how large"),
        "other": conf.Entry("other", "null", "unused"),
        "rate": conf.Entry("rate", "0.5", "the rate"),
    }
    assert found["two"].bases == ["one", "part"]
    assert (found["recipe"].meaning, found["recipe"].keys) == ("A recipe", found["one"].keys)
    by_key = {row.key: row for row in conf.rows("things")}
    assert by_key["things.name"].meaning == ""
    assert by_key["things.name"].only == ["three"]
    assert by_key["things.size"].only == ["one"]
    assert by_key["things.rate"].default(lambda value: f"<{value}>") == "<0.5>; two: <1e-3>"
