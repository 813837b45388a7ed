"""The end of a run folder's name, which says what the user typed."""

import re
from collections.abc import Sequence

from diglot.config import meaning_of
from diglot.system.masking import masked

MAX_PART, MAX_LENGTH = 24, 60  # characters


def typed_name(overrides: Sequence[str]) -> str:
    """Return overrides as part of a folder name, safe on all file systems: `position-alibi_d_model-64`.

    Keys without effect on the training, paths, and the corpus, which the name contains already, are left out.

    Args:
        overrides: overrides as typed.
    """
    last = {override.partition("=")[0]: override for override in overrides}  # of a key that was typed twice
    name = ""
    for part in filter(None, map(_part, last.values())):
        if len(name) + len(part) < MAX_LENGTH:
            name += f"_{part}"
    return name.removeprefix("_")


def _part(override: str) -> str:
    key, _, value = override.lstrip("+").partition("=")
    dotted = key.replace("/", ".")
    meaning = meaning_of(dotted)
    is_secret = masked(value) != value or "${" in value
    if key == "data" or not value or is_secret or meaning.on_resume == "ignore" or meaning.content is not None:
        return ""
    return f"{_safe(re.split(r'[./@]', key)[-1])}-{_safe(value)}"[:MAX_PART].rstrip("-.")


def _safe(text: str) -> str:
    """Return a text with all characters but ASCII letters, digits, dots and underscores replaced by hyphens."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.")
