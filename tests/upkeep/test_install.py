"""Check the wheel and the pinned dependencies: installed without the checkout, every command starts."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections import defaultdict
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).parents[2]
COMMANDS = (
    *("prepare", "doctor", "train", "replay", "average", "evaluate", "translate", "score", "export", "convert"),
    *("certify", "verify"),
)
SCRIPTS = (*COMMANDS, "sweep")


def run(*command: str | Path, cwd: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command that must succeed, and return its output."""
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    run(*pip, "--wheel-dir", folder, ROOT, cwd=folder)
    (path,) = folder.glob("diglot-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """Install the wheel into a folder, without dependencies."""
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    run(*pip, "--target", target, wheel, cwd=target)
    return target


def test_every_package_has_a_least_version_and_python_a_range():
    """Check the ranges; the minimum versions have wheels for this range of Python, so that no compiler is needed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [package for packages in project["optional-dependencies"].values() for package in packages]
    assert [package for package in project["dependencies"] + extras if ">=" not in package] == []
    assert project["requires-python"] == ">=3.11,<3.15"
    makefile = (ROOT / "Makefile").read_text()
    assert "(3, 11) <= sys.version_info < (3, 15)" in makefile
    assert "--only-binary sentencepiece" in makefile


def pins() -> dict[str, list[Requirement]]:
    """Return the lines of constraints.txt by package."""
    found = defaultdict(list)
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        requirement = Requirement(line)
        found[canonicalize_name(requirement.name)].append(requirement)
    return found


def of_here(pinned: list[Requirement]) -> list[Requirement]:
    return [pin for pin in pinned if pin.marker is None or pin.marker.evaluate()]


def test_whatever_set_up_installs_is_pinned():
    """Check the dependencies of diglot with its dev extra, including indirect ones, as far as they are installed."""
    pinned, seen, waiting = pins(), set(), [("diglot", frozenset({"dev"}))]
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        for line in metadata.requires(name) or ():
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    names = {name for name, _ in seen} - {"diglot"}
    assert len(names) > 60
    from_torch = re.compile("cuda|nvidia|triton")  # each build of torch requires its own versions of these
    assert not [name for name in sorted(names) if len(of_here(pinned[name])) != 1 and not from_torch.match(name)]


def test_pins_are_versions_that_the_ranges_allow_on_every_python():
    pinned = pins()
    assert all(str(pin.specifier).startswith("==") and not pin.url for found in pinned.values() for pin in found)
    assert [str(pin) for pin in pinned["torch"]] == ["torch==2.13.0"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = project["dependencies"] + [line for extra in project["optional-dependencies"].values() for line in extra]
    for requirement in map(Requirement, lines):
        found = pinned[canonicalize_name(requirement.name)]
        assert found, requirement
        for pin in found:
            assert requirement.specifier.contains(str(pin.specifier)[2:], prereleases=True), (requirement, pin)


def test_the_wheel_holds_configs_corpus_licence_and_commands(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
        scripts = archive.read(entry_points).decode().splitlines()
    configs = {f"diglot/conf/{path.relative_to(ROOT / 'conf').as_posix()}" for path in ROOT.glob("conf/**/*.yaml")}
    corpus = {f"diglot/sample/{split}.{language}" for split in ("train", "dev", "test") for language in ("avi", "bol")}
    assert {f"diglot/conf/{command}.yaml" for command in COMMANDS} <= configs
    assert configs | corpus <= names
    assert any(name.endswith("/LICENSE") for name in names)
    assert {f"diglot-{command} = diglot.commands.start:{command}" for command in SCRIPTS} <= set(scripts)
    assert "hydra_plugins/diglot_launcher/launcher.py" in names
    assert "hydra_plugins/__init__.py" not in names, "others' plugins could not be found"


# Runs scripts in forks of a process that has imported their common modules.
TYPES = """
import importlib, os, runpy, sys
from pathlib import Path
import diglot.commands.train
print(diglot.__file__)
for script in sys.argv[2:]:
    pid = os.fork()
    if not pid:
        os.dup2(os.open(Path(sys.argv[1], Path(script).name), os.O_WRONLY | os.O_CREAT), 1)
        sys.argv[:] = [script, *(["--hydra-help"] if script.endswith("sweep") else ["--cfg", "job"])]
        runpy.run_path(script, run_name="__main__")
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.reliability
def test_every_command_starts_from_the_installed_wheel(installed, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    scripts = [installed / "bin" / f"diglot-{command}" for command in SCRIPTS]
    here, said = tmp_path / "here", tmp_path / "said"
    here.mkdir()
    said.mkdir()
    where, *statuses = run(sys.executable, "-c", TYPES, said, *scripts, cwd=here, environment=environment).splitlines()
    assert where.startswith(str(installed))
    assert statuses == ["0"] * len(SCRIPTS)
    for script in scripts:
        wanted = "Hydra" if script.name.endswith("sweep") else "\n(data|checkpoint):"
        assert re.search(wanted, "\n" + (said / script.name).read_text()), script
    assert list(here.iterdir()) == []


@pytest.mark.reliability
def test_help_of_the_installed_wheel_names_the_commands_as_they_are_typed_there(installed, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    page = run(sys.executable, installed / "bin" / "diglot-train", "--help", cwd=tmp_path, environment=environment)
    assert "Usage: diglot-train [KEY=VALUE ...]" in page
    assert "diglot-train model/position=rotary" in page
    assert "make train" not in page


@pytest.mark.reliability
def test_the_installed_wheel_trains_on_the_corpus_that_ships_in_it(installed, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    script = installed / "bin" / "diglot-train"
    words = ["data=sample", "model.d_model=32", "trainer=cpu", "trainer.fast_dev_run=true"]
    assert "validation succeeded" in run(sys.executable, script, *words, cwd=tmp_path, environment=environment)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "runs"]
