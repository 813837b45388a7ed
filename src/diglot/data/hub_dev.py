"""Further dev sets of the Hugging Face Hub."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diglot.data.hub import Hub
from diglot.data.text import Parallel
from diglot.errors import UserError

KEY = "hub"  # names the dataset in a further dev set
_OPTIONS = ("config", "revision", "src_lang", "tgt_lang", "column", "data_files")
_SPLIT = "validation"


class HubDev(Hub):
    """One split of a dataset of the Hub, as a further dev set. Its rows are read as by `Hub`, and none is dropped.

    Args:
        key: key of the set in the config, for messages.
        node: the set: the dataset (`hub`), its split, and the options of `Hub` for the rows.
        languages: the languages for which the set names none; they may be missing.

    Raises:
        UserError: a key is unknown, missing or invalid.
    """

    needs_train = False

    def __init__(self, key: str, node: Mapping[str, Any], languages: Mapping[str, str]) -> None:
        self.key = key
        known = (KEY, "split", *_OPTIONS)
        if unknown := [name for name in node if name not in known]:
            raise UserError(f"{key}.{unknown[0]} is not known; the keys of a set of the Hub are {', '.join(known)}")
        options: dict[str, Any] = {"src_lang": None, "tgt_lang": None, **languages}
        options |= {name: node[name] for name in _OPTIONS if name in node}
        with self._renamed():
            super().__init__(path=node[KEY], splits={"dev": node.get("split") or _SPLIT}, **options)

    def prepare(self, cache_dir: Path) -> None:
        with self._renamed():
            super().prepare(cache_dir)

    def read_checked(self, cache_dir: Path) -> Mapping[str, Parallel]:
        with self._renamed():
            return super().read_checked(cache_dir)

    @contextmanager
    def _renamed(self) -> Iterator[None]:
        """Replace the keys of data=hub in the message of a UserError by those of the set."""
        try:
            yield
        except UserError as error:
            message = re.sub(r"data=files data\.train\.file=", f"{self.key}.file=", str(error))
            message = re.sub(r"data\.splits\.dev\b", f"{self.key}.split", message)
            message = re.sub(r"data\.path\b", f"{self.key}.{KEY}", message)
            message = re.sub(rf"data\.({'|'.join(_OPTIONS)})\b", rf"{self.key}.\1", message)
            raise UserError(message) from None
