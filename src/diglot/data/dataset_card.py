"""The description that a local dataset carries (README.md), which may name its files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CARD, STANDALONE = "README.md", ".huggingface.yaml"


def address_in_card(folder: Path) -> str | None:
    """Return an address that a local dataset names as one of its files, such as https://...; None if it names none.

    `datasets` would open it without a question.
    """
    from huggingface_hub import DatasetCard

    descriptions: list[Any] = []
    if (card := folder / CARD).is_file():
        descriptions.append(DatasetCard.load(card).data.to_dict())
    if (standalone := folder / STANDALONE).is_file():
        descriptions.append(yaml.safe_load(standalone.read_bytes()))
    configs = [description.get("configs") for description in descriptions if isinstance(description, dict)]
    return next((text for text in _texts_in(configs) if "://" in text or "::" in text), None)


def _texts_in(node: Any) -> Iterator[str]:
    """Yield the texts in plain data."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        yield from _texts_in(list(node.values()))
    elif isinstance(node, list):
        for item in node:
            yield from _texts_in(item)
