"""Self-contained checkpoints: the file alone suffices to rebuild model, tokenizer and search. Loading runs no code."""

from collections.abc import Collection
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig

from diglot import __version__
from diglot.checkpoint import container, format1, huggingface_folder
from diglot.checkpoint.merging import adapter_record, merged_weights
from diglot.checkpoint.weights import check_weights, limit_parameters, load_weights
from diglot.config import (
    FROM_ENVIRONMENT,
    FineTuning,
    build,
    check_language,
    check_parts,
    check_search,
    check_tokenizer,
    check_trust,
    resolved,
    without_folders,
    without_secrets,
)
from diglot.data.encoding import MAX_PREFIX, Prefixes
from diglot.data.pieces import without_paths
from diglot.data.placeholders import check_placeholder
from diglot.data.text import file_hash, refuse_address
from diglot.data.tokenizer import Tokenizer
from diglot.decoding import Search
from diglot.errors import UserError
from diglot.huggingface import hub_models
from diglot.model import EncoderDecoder
from diglot.model.meta import meta_device
from diglot.system.atomic import atomic_file
from diglot.system.console import warn
from diglot.system.masking import shortened
from diglot.system.quoting import printable, reading

FORMAT = 2  # one safetensors file, see diglot.checkpoint.container
OLD_FORMAT = 1  # written by torch.save
RESUME_ORDER = ("last.ckpt", "previous.ckpt", "best.ckpt")  # newest first

# Keys of a checkpoint's record, and the types of their values.
KINDS: dict[str, tuple[type, ...]] = {
    "version": (str,),
    "model": (dict,),
    "search": (dict,),
    "tokenizer": (torch.Tensor,),
    "tgt_tokenizer": (torch.Tensor, type(None)),
    "placeholder": (str, type(None)),
    "corpus": (str,),
    "src_lang": (str,),
    "tgt_lang": (str,),
    "config": (dict,),
}


class Checkpoint(NamedTuple):
    """Rebuilt content of a checkpoint file.

    Attributes:
        model: the model, in evaluation mode, on the CPU.
        tokenizer: tokenizer of both sides.
        search: the search of the dev scores.
        record: plain data: src_lang, tgt_lang, corpus, config, update, dev_bleu or another score, search, ...
        path: the file.
    """

    model: EncoderDecoder
    tokenizer: Tokenizer
    search: Search
    record: dict[str, Any]
    path: Path


def record(config: DictConfig, tokenizer: Tokenizer, corpus: str, src_lang: str, tgt_lang: str) -> dict[str, Any]:
    """Return what a run's checkpoints hold besides Lightning's own state: plain data, and tokenizers as tensors."""
    values = {key: value for key, value in without_secrets(config).items() if key != FROM_ENVIRONMENT}
    lora = FineTuning.of(config).lora
    return {
        "format": FORMAT,
        "version": __version__,
        "model": resolved(config.model),
        "search": resolved(config.search),
        **_tokenizer_record(tokenizer),
        "corpus": corpus,
        "src_lang": src_lang,
        "tgt_lang": tgt_lang,
        "config": without_folders(values),
        **({} if lora is None else {"lora": adapter_record(lora)}),
    }


def _tokenizer_record(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "tokenizer": _as_tensor(without_paths(tokenizer.model)),
        "tgt_tokenizer": None if tokenizer.tgt_model is None else _as_tensor(without_paths(tokenizer.tgt_model)),
        "placeholder": tokenizer.placeholder,
        "languages": list(tokenizer.languages),
        "prefixes": {side: list(prefix) for side, prefix in tokenizer.prefixes._asdict().items()},
    }


def _as_tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def has_tokenizer(record: dict[str, Any], tokenizer: Tokenizer) -> bool:
    """Return whether a checkpoint's record holds this tokenizer, ignoring paths in the tokenizer's files."""
    a, b = (
        (
            [model and without_paths(model) for model in (t.model, t.tgt_model)],
            t.placeholder,
            t.languages,
            t.prefixes,
        )
        for t in (tokenizer_of(record), tokenizer)
    )
    return a == b


def find(path: str | Path) -> Path:
    """Return the checkpoint that a path names: a file, the best one in a run's folder, or a Hugging Face folder.

    If a run's folder holds no best checkpoint, its last one is returned. A name of the Hugging Face Hub stands for its
    folder in the Hub's cache. Nothing is fetched.

    Raises:
        UserError: the path names no checkpoint.
    """
    refuse_address("checkpoint", path)
    expanded = Path(path).expanduser()
    if expanded.is_dir():
        for name in ("best.ckpt", "last.ckpt"):
            if (expanded / name).is_file():
                return expanded / name
        if huggingface_folder.is_huggingface(expanded):
            return expanded
        raise UserError(
            f"checkpoint {path}: the folder holds no best.ckpt or last.ckpt, and no config.json of transformers"
        )
    if hub_models.is_name(str(path)) and (cached := hub_models.cached(str(path))) is not None:
        return cached
    if not expanded.is_file():
        raise UserError(f"checkpoint {path}: no such file or folder")
    return expanded


def read(path: Path, warns: bool = True) -> dict[str, Any]:
    """Return the content of a checkpoint file as plain data and tensors.

    No code in the file is run, regardless of environment variables, and the tensors take no more memory than the file.

    Args:
        path: the file.
        warns: whether to warn once if the file is in format 1.

    Returns:
        The content. Its `format` is `FORMAT` even if the file is in format 1, because it would be written in format 2.

    Raises:
        UserError: the file was not written by diglot, or is damaged.
    """
    return _read(path, warns)


def read_record(path: Path) -> dict[str, Any]:
    """Return the record in a checkpoint file. The weights of a file in format 2 are not read.

    Raises:
        UserError: the file was not written by diglot, or its record is damaged.
    """
    record: dict[str, Any] = _read(path, warns=False, part="diglot")["diglot"]
    return record


def _read(path: Path, warns: bool, part: str | None = None) -> dict[str, Any]:
    """Read a checkpoint file, or only one part of it; see `read`."""
    if path.is_dir():
        return _read_folder(path, with_weights=part is None)
    try:
        is_old = is_of_old_format(path)
        content = _read_old(path) if is_old else container.read(path, part)
    except OSError as error:
        raise UserError(f"checkpoint {path}: cannot be read ({error.strerror})") from None
    except UserError as error:
        raise UserError(f"checkpoint {path}: {_printable(error)}") from None
    except Exception as error:  # a damaged file can make the reader fail in any way
        raise UserError(f"checkpoint {path}: damaged, or not a checkpoint ({type(error).__name__})") from None
    record = content.get("diglot") if isinstance(content, dict) else None
    if not isinstance(record, dict) or not (part or isinstance(content.get("state_dict"), dict)):
        raise UserError(f"checkpoint {path}: not written by diglot")
    if record.get("format") != (OLD_FORMAT if is_old else FORMAT):
        raise UserError(
            f"checkpoint {path}: written in format {record.get('format')}; this diglot reads formats {OLD_FORMAT} and "
            f"{FORMAT}"
        )
    for name, types in KINDS.items():
        if not isinstance(record.get(name), types):
            raise UserError(f"checkpoint {path}: incomplete (its {name} is {type(record.get(name)).__name__})")
    if is_old and warns:
        _warn_of_old_format(path.absolute())
    record["format"] = FORMAT
    return content


def _read_folder(folder: Path, with_weights: bool) -> dict[str, Any]:
    """Return the content of a Hugging Face folder in the form of a checkpoint's."""
    try:
        imported = huggingface_folder.read(folder, with_weights)
    except UserError as error:
        raise UserError(f"checkpoint {folder}: {_printable(error)}") from None
    record = {
        "format": FORMAT,
        "version": __version__,
        "model": imported.model,
        "search": imported.search,
        **_tokenizer_record(imported.tokenizer),
        "corpus": "huggingface",
        "src_lang": imported.src_lang,
        "tgt_lang": imported.tgt_lang,
        "config": {"data": {"vocab_size": imported.tokenizer.src_vocab_size}},
    }
    return {"diglot": record, "state_dict": imported.state}


def home(path: Path) -> Path:
    """Return the folder that holds what belongs to a checkpoint: that of its file, or a Hugging Face folder itself."""
    return path if path.is_dir() else path.parent


def output_home(path: Path) -> Path:
    """Return the folder into which a command writes what belongs to a checkpoint.

    Raises:
        UserError: the checkpoint belongs to the Hugging Face Hub's cache.
    """
    if path.is_dir() and hub_models.is_in_cache(path):
        raise UserError(f"output must be given, because {path} belongs to the Hub's cache: output=FOLDER")
    return home(path)


def digest(path: Path) -> str:
    """Return a hash of the content of a checkpoint that `find` returned."""
    return huggingface_folder.digest(path) if path.is_dir() else file_hash(path)


def write(content: dict[str, Any], path: Path) -> None:
    """Write a checkpoint atomically: write the file next to its final name, check it, and rename it.

    Raises:
        UserError: a value in it cannot be stored exactly, or the file cannot be written.
    """
    try:
        with atomic_file(path) as temporary:
            container.write(content, temporary)
            temporary.flush()
            container.check(Path(temporary.name))
    except UserError as error:
        hint = "the state of your own callbacks must consist of plain data and tensors"
        raise UserError(f"{path}: the checkpoint cannot be written: {error} ({hint})") from None
    except OSError as error:
        raise UserError(f"{path}: the checkpoint cannot be written ({error.strerror or error})") from error


def is_of_old_format(path: Path) -> bool:
    """Return whether a file is in format 1, provided that it is a checkpoint.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        # In format 2, this would be the length of a header that is too long.
        return file.read(len(format1.ZIP_START)) == format1.ZIP_START


def _read_old(path: Path) -> Any:
    with path.open("rb") as file:
        return format1.read(file)


@cache
def _warn_of_old_format(path: Path) -> None:
    warn(f"checkpoint {printable(path)} is in the old format {OLD_FORMAT}: {reading('convert', path)} rewrites it")


def _printable(error: Exception) -> str:
    """Return an error's message in one short line of printable text: it may quote the content of a hostile file."""
    message = "".join(c if c.isprintable() else " " for c in shortened(error, 500))
    return " ".join(message.split())


def newest_intact(folder: Path) -> tuple[Path, dict[str, Any], list[str]] | None:
    """Return a run's newest intact checkpoint, its content, and the errors of newer ones; None if there is none.

    Raises:
        UserError: all checkpoints are damaged.
    """
    damaged: list[str] = []
    for name in RESUME_ORDER:
        file = folder / name
        if not file.exists():
            continue
        try:
            return file, read(file), damaged
        except UserError as error:
            damaged.append(str(error))
    if damaged:
        raise UserError("; ".join(damaged))
    return None


def has_intact(folder: Path) -> bool:
    """Return whether `newest_intact` would find a checkpoint, without reading the tensors."""
    for name in RESUME_ORDER:
        with suppress(Exception):  # a damaged file can make the reader fail in any way
            if (folder / name).is_file():  # reading a pipe would block
                _check_header(folder / name)
                return True
    return False


def _check_header(path: Path) -> None:
    if not is_of_old_format(path):
        container.check(path)
        return
    with path.open("rb") as file:
        format1.check(file, checksums=False)


def load(path: str | Path, trust: Collection[str] = ()) -> Checkpoint:
    """Rebuild the content of a checkpoint.

    Args:
        path: the file, or a run's folder.
        trust: the user's own modules whose classes the checkpoint may name. No other module is imported.

    Raises:
        UserError: there is no checkpoint, or it is incomplete.
    """
    check_trust(trust)
    file = find(path)
    return rebuild(read(file), file, trust)


def rebuild(content: dict[str, Any], file: Path, trust: Collection[str] = ()) -> Checkpoint:
    """Rebuild the content that `read` returned for a file; see `load`."""
    record = content["diglot"]
    try:
        tokenizer, search = tokenizer_of(record), _search(record, trust)
        sizes, weights = tokenizer.vocab_sizes, merged_weights(content)
        with meta_device(), limit_parameters(weights):  # a model that does not fit is never allocated
            check_weights(_model(record, sizes), weights)
        model = _model(record, sizes)
        load_weights(model, weights)
    except UserError as error:
        raise UserError(f"checkpoint {file}: {_printable(error)}") from None
    except Exception as error:  # wrong content can make anything fail
        raise UserError(
            f"checkpoint {file}: incomplete or wrong ({type(error).__name__}: {_printable(error)})"
        ) from None
    return Checkpoint(model.eval(), tokenizer, search, record, file)


def check_readable(record: dict[str, Any], trust: Collection[str]) -> None:
    """Check, before a run computes anything, that its checkpoints will be readable.

    Args:
        record: see the function `record`.
        trust: modules that the user trusts.

    Raises:
        UserError: they would not be readable.
    """
    try:
        container.check_tree({"diglot": record})
        tokenizer_of(record)
        _search(record, trust)
    except UserError as error:
        raise UserError(f"the run's checkpoints could not be read again: {_printable(error)}") from None


def _search(record: dict[str, Any], trust: Collection[str]) -> Search:
    """Return the search; all parts, including the model's, are checked before it is built."""
    check_parts(record, trust)
    search = build(record["search"], "search")
    if not isinstance(search, Search):
        raise UserError("it holds no search")
    check_search("search", search)
    return search


def tokenizer_of(record: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer that a checkpoint's record holds; each part of it is checked."""
    for name in ("tokenizer", "tgt_tokenizer"):
        if record.get(name) is not None:
            check_tokenizer(f"its {name}", record[name].nbytes)
    try:
        check_placeholder(record["placeholder"])
    except ValueError as error:
        raise UserError(f"its {error}") from None
    languages = record.get("languages", ())
    for name, code in [("src_lang", record["src_lang"]), ("tgt_lang", record["tgt_lang"])]:
        check_language(name, code)
    for code in languages:
        check_language("languages", code)
    tgt_model = record.get("tgt_tokenizer")
    return Tokenizer(
        record["tokenizer"].numpy().tobytes(),
        record["placeholder"],
        None if tgt_model is None else tgt_model.numpy().tobytes(),
        languages,
        _prefixes(record.get("prefixes")),
    )


def _prefixes(node: Any) -> Prefixes:
    """Return the prefixes in a checkpoint's record; a record from before they existed has the default.

    Raises:
        UserError: they are not two lists of short texts.
    """
    if node is None:
        return Prefixes()
    if not isinstance(node, dict) or node.keys() != {*Prefixes._fields}:
        raise UserError("its prefixes are not those of src and tgt")
    for side, prefix in node.items():
        is_list = isinstance(prefix, (list, tuple)) and len(prefix) <= MAX_PREFIX
        if not is_list or not all(isinstance(piece, str) and len(piece) <= 100 for piece in prefix):
            raise UserError(f"its prefixes.{side} is not a list of at most {MAX_PREFIX} pieces")
    return Prefixes(*(tuple(node[side]) for side in Prefixes._fields))


def _model(record: dict[str, Any], sizes: dict[str, int]) -> EncoderDecoder:
    model = build(record["model"], "model", **sizes)
    if not isinstance(model, EncoderDecoder):
        raise UserError("it holds no model")
    return model
