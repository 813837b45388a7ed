"""The start of a run from a checkpoint (`init_from`): its weights, and the values of the config that come with them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, open_dict

from diglot.checkpoint import file as checkpoints
from diglot.checkpoint.file import Checkpoint
from diglot.checkpoint.weights import refuse_other_model
from diglot.config import (
    EXTENSION,
    build_corpus,
    check_parts,
    is_composed,
    is_tokenizer_node,
    meaning_of,
    plain_config,
    read_config,
    resolved,
    trusted,
    typed_nodes,
)
from diglot.data.extension import source_from
from diglot.data.tokenizer import Tokenizer, TokenizerSource
from diglot.errors import UserError
from diglot.huggingface import hub_models
from diglot.runs.contents import contents_in
from diglot.runs.folder import CONFIG
from diglot.runs.resume import named_folder

_KEY = "init_from"  # of the hash of its checkpoint in a run's environment.json
_LANGUAGES = {"src_lang": "src", "tgt_lang": "tgt"}  # with the code of a corpus that does not know its language


def load_initial(config: DictConfig) -> Checkpoint | None:
    """Return the checkpoint that a run starts from, or None if it starts from random weights.

    If the checkpoint of `init_from` is gone or has changed, that of the run to resume takes its place.

    Raises:
        UserError: there is no such checkpoint, or it cannot be loaded.
    """
    if config.init_from is None:
        return None
    trust, folder = trusted(config), named_folder(config)
    try:
        path = checkpoints.find(config.init_from)
        if folder is not None and contents_in(folder).get(_KEY, digest := checkpoints.digest(path)) != digest:
            raise UserError(f"init_from={config.init_from}: the checkpoint has changed since the run in {folder} began")
        return checkpoints.load(config.init_from, trust)
    except UserError:
        newest = checkpoints.newest_intact(folder) if folder is not None else None
        if newest is None:
            raise
        path, content, _ = newest
        return checkpoints.rebuild(content, path, trust)


def tokenizer_of(
    config: DictConfig, source: TokenizerSource, initial: Checkpoint | None, tgt_lang: str
) -> TokenizerSource | Tokenizer:
    """Return a run's tokenizer, or its source.

    Args:
        config: the run's config.
        source: the source that the config names.
        initial: the checkpoint that the run starts from; see `load_initial`.
        tgt_lang: code of the target language of dev.

    Raises:
        UserError: the source extends a tokenizer, and there is none or it does not suit.
    """
    if initial is not None and initial.path.parent == named_folder(config):
        return initial.tokenizer  # the run's own, which has been extended
    return source_from(source, initial.tokenizer if initial else None, tgt_lang)


def inherit(config: DictConfig) -> None:
    """Take the model, the options of the tokenizer, and the languages from the checkpoint that `init_from` names.

    What the command line or an experiment says is laid over them; it may be another dropout, but no other model. The
    languages are taken only if the corpus does not know its own. A run that is resumed takes all this from its own
    config in place of the checkpoint, which may be gone.

    Args:
        config: the config as composed, which is changed. Without `init_from`, it stays as it is.

    Raises:
        UserError: there is no such checkpoint, or the command line describes another model.
    """
    if config.init_from is None or is_composed():  # a config that was composed before is complete
        return
    own = _own_config(config)
    if own is not None and own["init_from"].startswith(f"{config.init_from}@"):  # a name of the Hub, at its commit
        config.init_from = own["init_from"]
    elif own is None and hub_models.is_name(config.init_from):
        config.init_from = hub_models.fetch(config.init_from, "init_from")
    source = own or _config_of_checkpoint(config)
    model = resolved(config.model)
    node = source["model"]
    for path in _said("model", model):
        node = _laid_over(node, model, path)
    if own is None:
        try:
            refuse_other_model(node, source["model"])
        except UserError as error:
            raise UserError(f"init_from={config.init_from}: {error}") from None
    with open_dict(config):
        config.model = node
        _inherit_tokenizer(config, source)
        _inherit_languages(config, source)


def _own_config(config: DictConfig) -> dict[str, Any] | None:
    """Return the config in the folder of the run to resume, or None if there is none.

    Raises:
        UserError: the config cannot be read, or a part of its model is not accepted.
    """
    folder = named_folder(config)
    if folder is None or not (folder / CONFIG).is_file():
        return None
    stored = read_config(folder / CONFIG)
    if not isinstance(stored.get("init_from"), str):  # another run; the changes are reported later
        return None
    _check(str(folder / CONFIG), stored, config)
    parts = {key: stored.get(key) for key in ("model", "tokenizer", "init_from")}
    return parts | {"data": _mapping(stored.get("data"))}


def _config_of_checkpoint(config: DictConfig) -> dict[str, Any]:
    """Return the values that a checkpoint's record holds, in the form of a run's config."""
    path = checkpoints.find(config.init_from)
    record = checkpoints.read_record(path)
    _check(f"checkpoint {path}", record, config)
    stored, languages = record["config"], {key: record[key] for key in _LANGUAGES}
    data = {**_mapping(stored.get("data")), **languages}
    parts = {key: record[key] for key in ("model", "placeholder")}
    return parts | {"tokenizer": stored.get("tokenizer"), "data": data}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _check(subject: str, stored: Mapping[str, Any], config: DictConfig) -> None:
    """Check the model that a file describes, before anything is built from it."""
    try:
        if missing := [key for key in ("model", "search") if not isinstance(stored.get(key), dict)]:
            raise UserError(f"it has no {missing[0]}")
        check_parts(dict(stored), trusted(config))
    except UserError as error:
        raise UserError(f"{subject}: {error}") from None


def _said(key: str, current: dict[str, Any]) -> list[list[str]]:
    """Return the paths below a node that the command line sets, or that differ from the defaults of conf/train.yaml.

    The latter are those that an experiment sets.

    Args:
        key: the node's key.
        current: the node as composed, as plain data.
    """
    typed = [name.split(".")[1:] for name in typed_nodes() if name == key or name.startswith(f"{key}.")]
    return [*typed, *_differing(plain_config("train")[key], current)]


def _differing(default: Any, current: Any) -> Iterator[list[str]]:
    """Yield the paths at which two nodes differ. If they are of different classes, they differ as a whole."""
    if isinstance(default, dict) and isinstance(current, dict) and default.get("_target_") == current.get("_target_"):
        for key in {**default, **current}:
            yield from ([key, *path] for path in _differing(default.get(key), current.get(key)))
    elif default != current:
        yield []


def _laid_over(node: Any, over: Any, path: Sequence[str]) -> Any:
    """Return a node with the value that another node has at a path, or without a value if the other has none."""
    if not path or not isinstance(node, dict) or not isinstance(over, dict):
        return over
    name, *rest = path
    if name not in over:
        return {key: value for key, value in node.items() if key != name}
    return {**node, name: _laid_over(node.get(name), over[name], rest)}


def _inherit_tokenizer(config: DictConfig, source: Mapping[str, Any]) -> None:
    """Take the options of the tokenizer; those of random segmentation may be typed.

    Raises:
        UserError: an option is typed that this tokenizer lacks.
    """
    if "vocab_size" in config.data and "vocab_size" in source["data"]:
        config.data.vocab_size = source["data"]["vocab_size"]
    node, current = source["tokenizer"], resolved(config.tokenizer)
    if current.get("_target_") == EXTENSION:
        return
    # A node of a Hugging Face folder, of an earlier version, or a class of the user's; or one that has been extended.
    if not is_tokenizer_node(node) or node["_target_"] == EXTENSION:
        if "placeholder" in current:
            config.tokenizer.placeholder = source.get("placeholder")
        return
    for path in _said("tokenizer", current):
        key = ".".join(["tokenizer", *path])
        if meaning_of(key).of_vocabulary:  # refused if typed; an experiment's tokenizer gives way
            continue
        if path[0] not in node:
            raise UserError(f"{key}: the tokenizer of init_from={config.init_from} has no such option")
        node = _laid_over(node, current, path)
    config.tokenizer = node


def _inherit_languages(config: DictConfig, source: Mapping[str, Any]) -> None:
    """Take the languages for which neither the command line nor the corpus has a code."""
    missing = {key: code for key, code in _LANGUAGES.items() if config.data.get(key, code) is None}
    if not missing:
        return
    corpus = build_corpus(config.data)
    stored = {key: source["data"].get(key) for key in _LANGUAGES}
    unknown = [key for key, code in missing.items() if getattr(corpus, key) == code]
    if all(getattr(corpus, key) == stored[key] for key in _LANGUAGES if key not in unknown):
        for key in unknown:
            if stored[key] != missing[key]:  # the checkpoint's run knew no language either
                config.data[key] = stored[key]
