"""Configuration of Sphinx for `make docs`: README.md, CHANGELOG.md and the pages of docs/ as they are, as one site."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

project = "diglot"
html_title = "diglot"
html_theme = "furo"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["README.md", "CHANGELOG.md", "docs/*.md"]
# Other folders, such as .venv, are not searched for pages.
exclude_patterns = [path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "docs"]
myst_heading_anchors = 3  # as on GitHub
highlight_language = "none"
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_copyright = False

LANGUAGES = {".py": "python", ".yaml": "yaml"}


def add_contents(app: Any, name: str, text: list[str]) -> None:
    """Append the pages to README.md, in the order of the index, for the contents at the side."""
    if name == root_doc:
        index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
        pages = [f"docs/{page}" for page in ["README", *re.findall(r"\]\(([\w-]+)\.md\)", index)]]
        text[0] += "\n".join(["\n```{toctree}", ":hidden:", *pages, "CHANGELOG", "```\n"])


def link_files(app: Any, page: Any) -> None:
    """Turn links to files of the repository into links to their pages, and links to folders into text."""
    from docutils import nodes
    from sphinx import addnodes

    folder = Path(page["source"]).parent
    for link in list(page.findall(addnodes.download_reference)):
        app.files.add((folder / link["reftarget"]).resolve().relative_to(ROOT).as_posix())
        # The site has the folders of the repository.
        link.replace_self(nodes.reference("", "", *link.children, refuri=f"{link['reftarget']}.html", internal=True))
    for link in list(page.findall(addnodes.pending_xref)):
        if (folder / link["reftarget"]).is_dir():
            link.replace_self(link.children)


def file_pages(app: Any) -> Iterator[tuple[str, dict[str, str], str]]:
    """Yield the pages of the files that are linked."""
    for name in sorted(app.files):
        text = (ROOT / name).read_text(encoding="utf-8")
        code = app.builder.highlighter.highlight_block(text, LANGUAGES.get(Path(name).suffix, "none"))
        yield name, {"title": name, "body": f"<h1>{name}</h1>{code}"}, "page.html"


def add_index(app: Any, error: Exception | None) -> None:
    """Copy the first page to where a browser looks for it."""
    if error is None:
        shutil.copyfile(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def setup(app: Any) -> None:
    """Connect the functions above to Sphinx."""
    app.files = set[str]()
    app.connect("source-read", add_contents)
    app.connect("doctree-read", link_files, priority=400)  # before Sphinx collects the files to copy
    app.connect("html-collect-pages", file_pages)
    app.connect("build-finished", add_index)
