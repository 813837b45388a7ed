"""The shared parts of HTML pages are filled in, and text stays text."""

import json
import math
from html.parser import HTMLParser
from pathlib import Path

import pytest

from diglot.system.pages import embedded, escaped, template


def test_a_template_includes_files_beside_it_and_shared_ones(tmp_path: Path) -> None:
    (tmp_path / "own.css").write_text("h1 { color: red; }\n")
    (tmp_path / "page.html").write_text("<style>\n/* page.css */\n/* own.css */\n</style>/* no file */\n")
    text = template(tmp_path / "page.html")
    assert "color-scheme: light dark" in text
    assert text.endswith("h1 { color: red; }\n</style>/* no file */\n")
    (tmp_path / "page.html").write_text("/* missing.css */\n")
    with pytest.raises(FileNotFoundError):
        template(tmp_path / "page.html")


def test_escaped_text_is_shown_letter_by_letter() -> None:
    text = "<b> & \"'\x00\x1b\x7f\ttab \ud800"
    shown: list[str] = []
    parser = HTMLParser()
    parser.handle_data = shown.append  # type: ignore[method-assign]
    parser.handle_starttag = lambda *_: pytest.fail("markup")  # type: ignore[method-assign]
    parser.feed(escaped(text))
    parser.close()
    assert "".join(shown) == "<b> & \"'␀␛␡\ttab \ufffd"


def test_embedded_data_cannot_end_their_script_element() -> None:
    data = {"</script>": ["<!--", 1.5, None, "\ud800"]}
    assert "<" not in embedded(data)
    assert json.loads(embedded(data)) == data
    with pytest.raises(ValueError, match="JSON"):
        embedded([math.nan])
