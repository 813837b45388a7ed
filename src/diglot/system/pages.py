"""The parts that diglot's HTML pages share: the style, functions of their scripts, and the escaping of text.

A page is a single file that loads nothing from the network. Its text is shown as text, whatever it contains.
"""

import html
import json
import re
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_INCLUDED = re.compile(r"/\* (\w+\.(?:css|js)) \*/\n")
# Replace control characters, which HTML forbids or does not show, by Unicode control pictures, as page.js does.
_PICTURES = {code: 0x2400 + code for code in range(0x20) if code != ord("\t")} | {0x7F: 0x2421}


def template(file: Path) -> str:
    """Return the template of a page, in which each line like `/* page.css */` is replaced by the file that it names.

    Args:
        file: the template. The other files are in its folder or, if all pages share them, in the folder of this module.
    """

    def content(match: re.Match[str]) -> str:
        beside = file.with_name(match[1])
        return (beside if beside.exists() else _HERE / match[1]).read_text(encoding="utf-8")

    return _INCLUDED.sub(content, file.read_text(encoding="utf-8"))


def escaped(text: str) -> str:
    """Return a text as HTML that shows it literally."""
    return re.sub("[\ud800-\udfff]", "\ufffd", html.escape(text.translate(_PICTURES)))


def embedded(data: Any) -> str:
    """Return data as JSON for the content of a script element.

    Raises:
        ValueError: a number is not finite, because JSON has no NaN or infinity.
    """
    # Inside a script element, only "<" can start markup.
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
