"""Words typed after `make train` reach the command byte for byte, and set-up repairs itself.

The real Makefile and the real make run in a temporary folder, where `.venv/bin/python` is a stand-in.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diglot.commands import from_make as make

ROOT = Path(__file__).parents[2]
TARGETS = [
    *("help", "setup", "prepare", "doctor", "train", "sweep", "replay", "average", "evaluate", "translate"),
    *("score", "export", "convert", "certify", "verify", "tensorboard"),
    *("test", "test-all", "test-reliability", "soak", "conformance", "check", "docs", "lock", "benchmark", "clean"),
]
# The tests may themselves run under make.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "ARGS"))}

# Prints the arguments of diglot.commands.from_make and what it makes of them; without site-packages, for speed.
STAND_IN = f"""\
#!{sys.executable} -IS
import json, os, sys
sys.path.insert(0, {str(ROOT / "src")!r})
from diglot.commands import from_make
print(json.dumps([sys.argv[1:], from_make.arguments(os.environ)]))
"""


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return a checkout that is not set up."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "constraints.txt").touch()
    return tmp_path


@pytest.fixture
def ready(folder) -> Path:
    """Return a checkout that is set up, with a stand-in for Python."""
    executable(folder / ".venv/bin/python", STAND_IN)
    (folder / ".venv/.ready").touch()
    return folder


def run_make(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *words], cwd=folder, env={**ENVIRONMENT, **environment}, capture_output=True, text=True, timeout=60
    )


def arrived(folder: Path, *words: str, **environment: str) -> list[str]:
    """Return the arguments that a command gets when `make train` is typed with the given words."""
    done = run_make(folder, "train", *words, **environment)
    assert done.returncode == 0, done.stderr
    argv, arguments = json.loads(done.stdout)
    assert argv == ["-m", "diglot.commands.from_make", "train"]
    return arguments


NASTY = [
    "model/position=rotary",
    "model/residual@model.decoder_residual=post_norm",
    "model.n_heads=8",
    "model.n_heads={encoder:8,decoder:8,cross:4}",
    "+x.y=1",
    "++x=1",
    "key@pkg=v",
    "data.train.src=/some/a b/x.txt",
    "search.list=[1, 2]",
    "x={a: 1, b: 'two words'}",
    'x="double"',
    "x='single'",
    "x=it's",
    "x=(",
    "x=)",
    "x=a;b",
    "x=a; touch canary",
    "x=a & touch canary",
    "x=a | touch canary",
    "x=> canary",
    "x=`touch canary`",
    "x=$(touch canary)",
    "x=$(shell touch canary)",
    "x.y=$(shell touch canary)",
    "v=${shell touch canary}",
    ".name=$(shell touch canary)",
    "x=$",
    "x=$$",
    "x=$$$x",
    "x=${model.d_model}",
    "x=${oc.env:HOME}",
    "x=${unclosed",
    "x=$(unclosed",
    "x=\\",
    "x=a\\ b",
    "x=\\\\",
    "x=\\$",
    "x=a#b",
    "x=#",
    "x=50%",
    "%=x",
    "x=a:b",
    "x=a\tb",
    "x=\\\ta",
    "x=two\nlines",
    "x=trailing blanks  ",
    "x=Übergröße 訳 ✓",
    "x=",
    "a=b=c",
    "x=*",
    "x=~",
    "x=!",
    "x=-- y=1",
    "x=@",
    "seed=1",
    "define=1",
    "PATH=/nowhere",
    "HOME=/nowhere",
    "SHELL=/bin/false",
    ".SHELLFLAGS=-n",
    "FITS=x",
    "LC_ALL=xx",
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("word", NASTY)
def test_an_override_arrives_byte_for_byte_and_nothing_is_executed(ready, word):
    assert arrived(ready, word) == [word]
    assert not (ready / "canary").exists()


def test_many_overrides_arrive_in_the_order_typed(ready):
    words = list({word.split("=")[0]: word for word in NASTY}.values())
    assert len(words) > 15
    assert arrived(ready, *words) == words


KEYS = st.from_regex(r"\+{0,2}[a-z][a-z0-9_]*([./@][a-z][a-z0-9_]*){0,2}", fullmatch=True)
# An argument cannot contain NUL. make drops blanks at the start of a value.
VALUES = st.text(
    st.one_of(
        st.sampled_from(" \t\n$(){}[]'\"\\;&|#%:=,*?~`-"),
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    ),
    max_size=12,
).map(lambda value: value.lstrip(" \t\n\v\f\r"))


@pytest.mark.reliability
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_overrides_arrive(ready, choices):
    words = [f"{key}={value}" for key, value in choices.items()]
    assert arrived(ready, *words) == words


@pytest.mark.parametrize("options", [["-k"], ["-j2"], ["--no-print-directory"], ["-k", "-j2", "-s", "-I", "a -- b=1"]])
def test_options_of_make_are_no_overrides(ready, options):
    assert arrived(ready, *options) == []
    assert arrived(ready, *options, "seed=1", "x=a b") == ["seed=1", "x=a b"]


def test_overrides_pass_through_a_make_that_calls_this_one(ready):
    (ready / "outer.mk").write_text("all:\n\t@$(MAKE) --no-print-directory -f Makefile train\n")
    done = run_make(ready, "-f", "outer.mk", "x=a b", "y=c;d")
    # Each intermediate make reverses the order.
    assert sorted(json.loads(done.stdout)[1]) == ["x=a b", "y=c;d"]


def test_args_carries_what_has_no_equals_sign(ready):
    assert arrived(ready, "seed=1,2", "ARGS=-m ~key 'a:b=c d' $x") == ["-m", "~key", "a:b=c d", "$x", "seed=1,2"]
    assert arrived(ready, "seed=1", ARGS="--cfg job") == ["--cfg", "job", "seed=1"]
    assert arrived(ready, "ARGS=-m", ARGS="--cfg job") == ["-m"]


def test_variables_of_the_makefile_are_no_overrides(ready):
    assert arrived(ready, "PYTHON=python3.11", "LOGDIR=a b", "PIP_RETRIES=1", "seed=1") == ["seed=1"]


def test_makeflags_without_overrides_means_none():
    for makeflags in ("", "k", " -j2 --no-print-directory", "w --", " --no-print-directory -- "):
        assert make.overrides(makeflags) == []


def test_main_becomes_the_command(monkeypatch):
    started = []
    monkeypatch.setattr(make, "start", lambda command: started.append((command, list(sys.argv), dict(os.environ))))
    monkeypatch.setattr(sys, "argv", ["diglot.commands.from_make", "train"])
    monkeypatch.setenv("MAKEFLAGS", r"k -- y=$$ x=a\ b")
    monkeypatch.setenv("ARGS", "-m")
    make.main()
    ((command, argv, environment),) = started
    assert (command, argv) == ("train", ["diglot-train", "-m", "x=a b", "y=$"])
    assert "MAKEFLAGS" not in environment


def test_help_is_the_default_and_lists_every_target(folder):
    shown = run_make(folder).stdout
    assert re.findall(r"^  make ([a-z-]+) +\S", shown, flags=re.MULTILINE) == TARGETS
    assert shown == run_make(folder, "help").stdout


def test_translate_prints_nothing_of_its_own(ready):
    executable(ready / ".venv/bin/python", "#!/bin/sh\ncat\n")
    done = subprocess.run(
        ["make", "translate", "checkpoint=x"],
        cwd=ready,
        env=ENVIRONMENT,
        input="a\nb\n",
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("a\nb\n", "")


def test_a_failure_gives_exit_status_2(ready):
    executable(ready / ".venv/bin/python", "#!/bin/sh\nexit 5\n")
    assert run_make(ready, "train").returncode == 2


def test_a_signal_to_make_reaches_the_command(ready):
    executable(
        ready / ".venv/bin/python",
        f"#!{sys.executable} -IS\n"
        "import signal, sys, time\n"
        "def stop(*_):\n    open('stopped', 'w').close()\n    sys.exit(1)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "open('started', 'w').close()\n"
        "for _ in range(6000): time.sleep(0.02)\n",
    )
    process = subprocess.Popen(["make", "train", "x=1"], cwd=ready, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    wait_for(ready / "started")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) != 0
    wait_for(ready / "stopped")


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)


# A Python of a supported version, with venv, that logs its calls. The environment that it creates contains a copy of
# itself, whose pip fails while the file `broken` exists.
FAKE_PYTHON = """\
#!/bin/sh
case "$*" in
    *sys.version_info*) exit 0 ;;
    "-c import venv"*) test ! -e no_venv ;;
    "-m venv --clear .venv") echo venv >> log; rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
    --version) echo Python 3.14.1 ;;
    "-m pip --version") exit 0 ;;
    "-m pip install"*) echo install >> log; echo "index: $PIP_INDEX_URL" >> log; sleep 0.1; test ! -e broken ;;
    "-m diglot.commands.from_make"*) echo train >> log ;;
esac
"""


@pytest.fixture
def python(folder) -> str:
    return str(executable(folder / "fake_python", FAKE_PYTHON))


def log(folder: Path) -> list[str]:
    return [line for line in (folder / "log").read_text().splitlines() if not line.startswith("index")]


def test_a_set_up_that_was_cut_short_is_completed(folder, python):
    (folder / "broken").touch()
    done = run_make(folder, "train", f"PYTHON={python}")
    assert done.returncode == 2
    assert done.stdout == ""
    assert log(folder) == ["venv", "install"]
    (folder / "broken").unlink()
    assert run_make(folder, "train", f"PYTHON={python}").returncode == 0
    assert log(folder) == ["venv", "install", "install", "train"]
    assert run_make(folder, "train", f"PYTHON={python}").returncode == 0
    assert log(folder)[4:] == ["train"]


def test_a_broken_environment_is_made_anew(folder, python):
    executable(folder / ".venv/bin/python", '#!/bin/sh\ntest "$2" != pip\n')
    assert run_make(folder, "setup", f"PYTHON={python}").returncode == 0
    assert log(folder) == ["venv", "install"]


def test_a_change_of_the_dependencies_installs_again(folder, python):
    run_make(folder, "setup", f"PYTHON={python}")
    future = time.time() + 10
    os.utime(folder / "constraints.txt", (future, future))
    run_make(folder, "setup", f"PYTHON={python}")
    assert log(folder) == ["venv", "install", "install"]


@pytest.mark.skipif(shutil.which("flock") is None, reason="without flock there is no lock")
def test_two_makes_at_once_set_up_once(folder, python):
    command = ["make", "train", f"PYTHON={python}"]
    both = [subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    assert sorted(log(folder)) == ["install", "train", "train", "venv"]


def test_set_up_hands_pip_its_settings(folder, python):
    run_make(folder, "setup", f"PYTHON={python}", PIP_INDEX_URL="from the environment")
    assert "index: from the environment" in (folder / "log").read_text()
    (folder / ".venv/.ready").unlink()
    run_make(folder, "setup", f"PYTHON={python}", "PIP_INDEX_URL=typed")
    assert "index: typed" in (folder / "log").read_text()


def test_the_first_python_that_fits_is_taken(folder, python):
    executable(folder / "bin/python3", "#!/bin/sh\nexit 1\n")
    executable(folder / "bin/python3.12", FAKE_PYTHON)
    done = run_make(folder, "setup", PATH=f"{folder / 'bin'}:{ENVIRONMENT['PATH']}")
    assert done.returncode == 0
    assert "Setting up .venv with Python 3.14.1" in done.stderr
    assert log(folder) == ["venv", "install"]


def test_no_fitting_python_is_one_clear_line(folder):
    old = executable(folder / "old", '#!/bin/sh\ntest "$1" = --version && echo Python 3.10.13\n')
    done = run_make(folder, "train", f"PYTHON={old} missing")
    ours, from_make = done.stderr.splitlines()
    assert f"Python 3.11 to 3.14 is needed, and none was found ({old} is Python 3.10.13)" in ours
    assert from_make.startswith("make: ***")
    assert (done.returncode, done.stdout) == (2, "")


def test_a_missing_venv_module_is_one_clear_line(folder, python):
    (folder / "no_venv").touch()
    done = run_make(folder, "train", f"PYTHON={python}")
    ours, from_make = done.stderr.splitlines()
    assert "apt install python3-venv" in ours
    assert from_make.startswith("make: ***")
    assert not (folder / ".venv").exists()


def test_clean_leaves_runs_and_cache(folder):
    kept = [folder / "runs/1/x", folder / "cache/x", folder / ".venv/x", folder / "src/diglot/x.py"]
    gone = [
        folder / "dist/x",
        folder / ".ruff_cache/x",
        folder / "src/diglot/__pycache__/x",
        folder / "tests/__pycache__/x",
    ]
    for path in kept + gone:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert run_make(folder, "clean").returncode == 0
    assert [path for path in kept + gone if path.exists()] == kept


def test_benchmark_says_that_there_is_none(ready):
    assert "no benchmark" in run_make(ready, "benchmark").stdout
