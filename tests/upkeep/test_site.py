"""The site of `make docs` has every page, leads nowhere else than the repository, and refuses broken links."""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
CONF = ROOT / "docs" / "site" / "conf.py"
PACKAGES = {"sphinx": "sphinx", "myst-parser": "myst_parser", "furo": "furo"}
needs_sphinx = pytest.mark.skipif(
    not all(map(find_spec, PACKAGES.values())), reason="the extra docs is not installed (make docs installs it)"
)


def test_the_contents_name_every_page_once() -> None:
    conf, text = runpy.run_path(str(CONF)), ["# diglot\n"]
    conf["add_contents"](None, "README", text)
    named = re.findall(r"^(?:docs/\S+|CHANGELOG)$", text[0], flags=re.MULTILINE)
    pages = [path.relative_to(ROOT).with_suffix("").as_posix() for path in (ROOT / "docs").glob("*.md")]
    assert sorted(named) == sorted([*pages, "CHANGELOG"])
    conf["add_contents"](None, "docs/data", other := ["# Data\n"])
    assert other == ["# Data\n"]


def test_folders_without_pages_are_not_searched() -> None:
    excluded = runpy.run_path(str(CONF))["exclude_patterns"]
    assert {"src", "tests", "conf"} <= set(excluded)
    assert "docs" not in excluded


RECIPE = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ndocs:")[2].partition("\n\n")[0]


def test_make_docs_installs_what_the_extra_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {Requirement(line).name for line in project["optional-dependencies"]["docs"]} == set(PACKAGES)
    (imported,) = re.findall(r"-c 'import ([\w, ]+)'", RECIPE)
    assert set(imported.split(", ")) == set(PACKAGES.values())
    assert "-c constraints.txt -e '.[docs]'" in RECIPE


def test_warnings_are_errors_and_no_page_is_taken_from_an_earlier_build() -> None:
    assert {"--fail-on-warning", "--nitpicky", "--fresh-env"} <= set(build_command())


def build_command() -> list[str]:
    """Return the command of `make docs` that builds the site, with this interpreter."""
    (line,) = re.findall(r"^\S*python (-m sphinx .*)$", re.sub(r"\\\n\s*", "", RECIPE.replace("\t", "")), re.MULTILINE)
    return [sys.executable, *shlex.split(line)]


def built(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(build_command(), cwd=root, capture_output=True, text=True, timeout=300)


@pytest.mark.reliability
@needs_sphinx
def test_every_link_and_picture_of_the_site_leads_somewhere_and_a_broken_one_is_an_error(tmp_path: Path) -> None:
    for name in ("README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("docs", "src", "conf", "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    done = built(tmp_path)
    assert done.returncode == 0, done.stderr
    site = tmp_path / "build/docs"
    pages = {page.relative_to(site).as_posix(): page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    expected = {path.with_suffix(".html").name for path in (ROOT / "docs").glob("*.md")}
    assert expected <= {name.removeprefix("docs/") for name in pages}
    assert {"index.html", "src/diglot/model/attention.py.html", "CHANGELOG.html"} <= set(pages)
    links = {
        (name, found)
        for name, text in pages.items()
        for found in re.findall(r'(?:href|src)="(?![a-z]+:)([^"#?]+)', text)
    }
    assert len(links) > 500
    assert not [(name, link) for name, link in links if not (site / name).parent.joinpath(link).exists()]
    assert "_images/" in pages["index.html"]
    loaded = re.compile(r'(?:src=|<link[^>]*)"https?:[^"]*')
    assert not [found for text in pages.values() for found in loaded.findall(text)]

    broken = ["[a](lost1.md)", "[a](watching.md#lost2)", "[a](../src/lost3.py)", "![a](lost4.png)", "[a](#lost5)"]
    with (tmp_path / "docs/training.md").open("a", encoding="utf-8") as page:
        page.write("\n" + "\n\n".join(broken) + "\n")
    done = built(tmp_path)
    assert done.returncode != 0
    assert set(re.findall(r"lost\d", done.stderr)) == {f"lost{i}" for i in range(1, 6)}
