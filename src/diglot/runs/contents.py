"""The inputs of a run, identified by a hash of their content, because a config holds only their paths."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from diglot.checkpoint import file as checkpoints
from diglot.config import build_corpus, resolved
from diglot.data.corpus import SPLITS, Corpus
from diglot.data.held_out import PREFIX, FurtherDev
from diglot.data.text import file_hash
from diglot.errors import UserError
from diglot.runs.folder import ENVIRONMENT

Contents = Mapping[str, str]  # the hash or name of each input

NAMES = {
    "train": "the training text",
    "dev": "the dev text",
    "test": "the test text",
    "languages": "the language pair",
    "init_from": "the checkpoint that init_from names",
}


def contents(config: Any, corpus: Corpus, texts: Contents) -> Contents:
    """Return the hash or name of each input that a run with a config reads.

    Args:
        config: the run's config.
        corpus: the run's corpus.
        texts: the digest of each split's text.
    """
    files = {f"tokenizer.{key}": value for key, value in resolved(config.tokenizer).items() if key != "_target_"}
    paths = {key: Path(value).expanduser() for key, value in files.items() if isinstance(value, str)}
    hashes = {key: file_hash(path) for key, path in paths.items() if path.is_file()}
    if config.init_from is not None:
        with suppress(UserError):  # a run can resume without it
            hashes["init_from"] = checkpoints.digest(checkpoints.find(config.init_from))
    return {**texts, "languages": f"{corpus.src_lang}-{corpus.tgt_lang}", **hashes}


def contents_now(config: Any) -> Contents:
    """Return the contents that a run with a config would read now; empty if its data are not prepared."""
    try:
        corpus = build_corpus(config.data)
        texts = corpus.read_checked(Path(config.data.cache_dir))
        digests = {split: text.digest() for split, text in texts.items()}
        for name, node in (resolved(config.data).get("further_dev") or {}).items():
            further = FurtherDev(name, node, corpus)
            digests[further.dev_set.name] = further.read(Path(config.data.cache_dir)).digest()
        return contents(config, corpus, digests)
    except (UserError, OSError):
        return {}


def contents_in(folder: Path) -> Contents:
    """Return the contents that the run in a folder has read; empty if unknown."""
    try:
        stored = json.loads((folder / ENVIRONMENT).read_bytes())["contents"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return stored if isinstance(stored, dict) else {}


def comparison_note(name: str) -> str:
    """Return a note for the message that an input has changed: how texts are compared, or what else to do."""
    if name == NAMES["init_from"]:
        return "; restore it, or move it away: a run resumes without it"
    is_text = name in (NAMES["train"], NAMES["dev"], NAMES["test"]) or name.startswith("the text of")
    rule = "the same lines count as changed if they are compressed or split into files differently"
    return f" (files are compared byte for byte: {rule})" if is_text else ""


def changed_contents(stored: Contents, current: Contents) -> str | None:
    """Return the name of the first input that has changed; None if no known input has changed."""
    changed_keys = [key for key in stored if key in current and stored[key] != current[key]]
    return _name_of(changed_keys[0]) if changed_keys else None


def _name_of(key: str) -> str:
    """Return the name of an input in messages."""
    if key.startswith(PREFIX):
        return f"the text of data.further_dev.{key.removeprefix(PREFIX)}"
    return NAMES.get(key, f"the file that {key} names")


def same_contents(stored: Contents, current: Contents) -> set[str]:
    """Return the inputs that have not changed, with `text` if all text and the languages are the same."""
    unchanged = {key for key in stored if stored[key] == current.get(key)}
    further = [key for key in {**stored, **current} if key.startswith(PREFIX)]
    has_same_text = all(stored.get(key) == current.get(key) for key in (*SPLITS, *further, "languages"))
    return unchanged | ({"text"} if stored and has_same_text else set())


def inputs_key(config: Mapping[str, Any]) -> str:
    """Return a key that differs between configs that may read different inputs."""
    return json.dumps([config.get(key) for key in ("data", "tokenizer", "init_from")], sort_keys=True, default=str)
