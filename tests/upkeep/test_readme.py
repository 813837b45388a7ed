"""Check the README's commands, choices, targets and code against the project."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diglot.choices import CONF, groups
from support.made import checkpoint_content, write_checkpoint

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_group_of_choices_is_named():
    section = README.partition("## Choices")[2].partition("\n## ")[0]
    assert set(groups()) <= set(re.findall(r"`([a-z_/]+)`", section))


def test_every_make_target_named_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"^make ([a-z-]+)", README, flags=re.MULTILINE))
    assert named <= targets | {"prepare", "train", "sweep", "evaluate", "translate", "export"}


def test_every_override_named_is_a_key_or_a_group():
    from diglot.config import known_keys

    commands = ("train", "average", "evaluate", "translate", "score", "export", "convert")
    known = {key for name in commands for key in known_keys(name)}
    known |= {f"data.{key}.{side}" for key in ("train", "dev", "test") for side in ("src", "tgt", "tsv")}
    for file in (CONF / "data").glob("*.yaml"):
        known |= {f"data.{key}" for key in re.findall(r"^([a-z_]+):", file.read_text(), flags=re.MULTILINE)}
    sweeper = (CONF / "hydra/sweeper/optuna.yaml").read_text()
    known |= {f"hydra.sweeper.{key}" for key in re.findall(r"^([a-z_]+):", sweeper, flags=re.MULTILINE)}
    lines = [line.partition("#")[0] for line in README.splitlines() if line.startswith("make ")]
    words = {word for line in lines for word in re.findall(r"(?<![+\w./])([a-z_./]+)=", line)}  # + adds a key
    assert words
    assert words <= known


PROMISES = """
from conformance import promises, variants
from diglot.config import CONF
for promise in promises.OF_ALL + promises.OF_TRANSFORMERS:  # those of compiling take half a minute
    model, config = variants.build_variant(variants.small("base") + ("model/residual=res_post_norm",))
    assert type(model.encoder[0].feed_forward).__name__ == "ResPostNorm"
    promise(model, config)
print(CONF, "kept")
"""


@pytest.mark.skipif(shutil.which("git") is None, reason="git applies the change")
def test_the_variant_that_is_added_in_full_is_a_variant_that_keeps_promises(tmp_path):
    if (CONF / "model" / "residual" / "res_post_norm.yaml").exists():
        pytest.skip("it has been added")
    for name in ("src", "conf", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "docs").mkdir()
    change = re.search(r"```diff\n(.*?)```", README, flags=re.DOTALL).group(1)
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    # -C0: apply even if the surrounding lines have changed.
    subprocess.run(["git", "apply", "-C0"], input=change, cwd=tmp_path, env=environment, text=True, check=True)
    environment["PYTHONPATH"] = os.pathsep.join((str(tmp_path / "src"), str(tmp_path / "tests")))
    subprocess.run([sys.executable, "tests/upkeep/test_choices_page.py"], cwd=tmp_path, env=environment, check=True)
    assert "| `res_post_norm` | Norm on the" in (tmp_path / "docs/choices.md").read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PROMISES], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path / 'conf'} ")


def test_a_checkpoint_is_read_without_diglot_as_it_says(config, tokenizer, tmp_path):
    (tmp_path / "runs" / "NAME").mkdir(parents=True)
    content = checkpoint_content(config, tokenizer)
    write_checkpoint(tmp_path / "runs" / "NAME" / "best.ckpt", content)
    code = re.search(r"```python\n(from safetensors import safe_open\n.*?)```", README, flags=re.DOTALL).group(1)
    code += "\nimport sys\nassert 'diglot' not in sys.modules\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    weights = {tensor.data_ptr(): name.removeprefix("model.") for name, tensor in content["state_dict"].items()}
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert len(said) == len(weights) + 1
    assert said["diglot/tokenizer"].startswith("U8 [")
    width = config.model.d_model
    assert said["encoder.0.feed_forward.norm.weight"] == f"F32 [{width}]"
