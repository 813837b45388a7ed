"""The folder of an export, which is written atomically."""

import fnmatch
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from diglot import __version__
from diglot.data.byte_level import is_byte_level
from diglot.data.capitals import CAPITALS
from diglot.data.pieces import is_composing, tag
from diglot.data.text import refuse_address, write_bytes
from diglot.data.tokenizer import SLOTS, Tokenizer
from diglot.errors import UserError
from diglot.system.atomic import scratch_folder, sync, sync_folder, temporary_name

# The files that identify a folder as an export.
METADATA = ("diglot.json", "config.json")
CARD = "README.md"  # the model card
# All files that an export writes.
EXPORTED = (
    *METADATA,
    *("model.bin", "model.safetensors", "tokenizer.model", "tokenizer.tgt.model", "*_vocabulary.*"),
    *("adapter_config.json", "adapter_model.safetensors"),
    *(
        "source.spm",
        "target.spm",
        "*vocab.json",
        "merges.txt",
        "sentencepiece.bpe.model",
        "tokenizer.json",
        "tokenizer_config.json",
    ),
    *("generation_config.json", CARD),
    "certificate.json",
)


@contextmanager
def export_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which replaces `folder` when the block ends without an error.

    Only an earlier export is replaced.

    Raises:
        UserError: `folder` exists and is not an export, or it cannot be written.
    """
    check_replaceable(folder)
    temporary = folder
    try:
        with scratch_folder(folder) as temporary:
            yield temporary
            for file in temporary.iterdir():
                with file.open("rb") as stream:
                    sync(stream.fileno())
            sync_folder(temporary)
            check_replaceable(folder)
            previous = temporary_name(folder)  # if this process is killed, a later process removes it
            with suppress(FileNotFoundError):
                folder.rename(previous)
            temporary.rename(folder)
            shutil.rmtree(previous, ignore_errors=True)
            sync_folder(folder.parent)
    except UserError as error:  # a file that cannot be written is named in the folder that it was meant for
        raise UserError(str(error).replace(str(temporary), str(folder))) from None
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror or error}") from None


def check_replaceable(folder: Path) -> None:
    """Check that a folder is missing, empty, or an earlier export without any other files.

    Raises:
        UserError: it contains something else, or is a file or a symbolic link.
    """
    refuse_address("output", folder, "a folder is needed")
    if not (folder.exists() or folder.is_symlink()):
        return
    names = [file.name for file in folder.iterdir()] if folder.is_dir() and not folder.is_symlink() else None
    if names is None or (names and not any(_identifies_export(folder / name) for name in METADATA)):
        raise UserError(f"output={folder} already exists and is not an export: choose another folder")
    for name in sorted(names):
        if name == CARD and _is_edited(folder):
            raise UserError(
                f"output={folder}: {CARD} was edited after the export and would be lost: move it away first"
            )
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in EXPORTED):
            raise UserError(
                f"output={folder}: {name} in it is not from an export and would be lost: choose another folder"
            )


def _is_edited(folder: Path) -> bool:
    """Return whether the model card in a folder differs from the one that was exported."""
    try:
        about = json.loads((folder / METADATA[0]).read_bytes())
        return bool(about["card"] != hash_of_card((folder / CARD).read_bytes()))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return True


def hash_of_card(card: bytes) -> str:
    """Return the hash of a model card that diglot.json has, by which a later export recognises an edited one."""
    return hashlib.sha256(card).hexdigest()


def _identifies_export(file: Path) -> bool:
    try:
        return "diglot" in dict(json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def write_tokenizer(folder: Path, tokenizer: Tokenizer, record: dict[str, Any]) -> dict[str, Any]:
    """Write a model's SentencePiece files.

    Returns:
        Metadata that a user of the files needs: languages, special tokens, placeholders and search options.
    """
    names = {
        "src": "tokenizer.model",
        "tgt": "tokenizer.model" if tokenizer.tgt_model is None else "tokenizer.tgt.model",
    }
    write_bytes(folder / names["src"], tokenizer.model)
    if tokenizer.tgt_model is not None:
        write_bytes(folder / names["tgt"], tokenizer.tgt_model)
    return tokenizer_metadata(tokenizer, record, names)


def tokenizer_metadata(tokenizer: Tokenizer, record: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return what a user of a model's SentencePiece files needs to know. `names` are those of the files, by side."""
    ids = tokenizer.special._asdict()
    return {
        "diglot": __version__,
        "update": record.get("update"),
        "corpus": record["corpus"],
        "languages": {"src": record["src_lang"], "tgt": record["tgt_lang"], "all": list(tokenizer.languages)},
        # The pieces that name languages, for a model of several languages.
        "tags": {language: tag(language) for language in tokenizer.languages},
        # What precedes each source and target: control pieces, and the tags of src_lang and tgt_lang.
        "prefixes": tokenizer.prefixes._asdict(),
        "tokenizer": names,
        # Whether text must be composed (NFC) first. The SentencePiece models' own rules do so except for some rare
        # orders of combining marks.
        "nfc": {"src": is_composing(tokenizer.model), "tgt": is_composing(tokenizer.tgt_model or tokenizer.model)},
        # Whether the pieces are those of a byte-level BPE: text must be split into words, and each byte spelt by a
        # character, as GPT-2 does.
        "byte_level": {
            side: is_byte_level(model)
            for side, model in (("src", tokenizer.model), ("tgt", tokenizer.tgt_model or tokenizer.model))
        },
        # The piece that precedes a source in capitals, which is then encoded in lower case; null: there is none.
        "capitals": CAPITALS if tokenizer.marks_capitals else None,
        "special_ids": ids,
        "special_tokens": dict(zip(ids, tokenizer.pieces(list(ids.values()), "tgt"), strict=True)),
        # Each match of this regular expression in a source is replaced by the next of the slots.
        "placeholder": tokenizer.placeholder,
        "slots": list(SLOTS) if tokenizer.placeholder else [],
        "search": {key: value for key, value in record["search"].items() if key != "_target_"},
    }
