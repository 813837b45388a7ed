"""A checkpoint is whole: model, tokenizer and search are rebuilt from it alone, and loading it runs no code."""

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig
from torch.nn.modules.module import register_module_parameter_registration_hook

from diglot import __version__
from diglot.checkpoint import container, format1
from diglot.config import (
    FROM_ENVIRONMENT,
    build,
    check_language,
    check_parts,
    check_search,
    check_tokenizer,
    check_trust,
    different_values,
    resolved,
    without_folders,
    without_secrets,
)
from diglot.data.pieces import without_paths
from diglot.data.placeholders import check_placeholder
from diglot.data.text import refuse_address
from diglot.data.tokenizer import Tokenizer
from diglot.decoding import Search
from diglot.errors import UserError
from diglot.model import EncoderDecoder
from diglot.system.console import warn
from diglot.system.masking import shortened
from diglot.system.quoting import printable, reading

FORMAT = 2  # one safetensors file, see diglot.checkpoint.container
OLD_FORMAT = 1  # what torch.save wrote
_OLD_START = b"PK\3\4"  # in a file of format 2 this would be the length of a header that is too long
GOES_ON_FROM = ("last.ckpt", "previous.ckpt", "best.ckpt")  # the newest first
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

# What a checkpoint says of itself, and as what.
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
    """What a checkpoint file holds, rebuilt.

    Attributes:
        model: in evaluation mode, on the CPU.
        tokenizer: of both sides.
        search: the search that dev scores were made with.
        record: plain data: src_lang, tgt_lang, corpus, config, update, dev_bleu, search, model, ...
        path: the file.
    """

    model: EncoderDecoder
    tokenizer: Tokenizer
    search: Search
    record: dict[str, Any]
    path: Path


def record(config: DictConfig, tokenizer: Tokenizer, corpus: str, src_lang: str, tgt_lang: str) -> dict[str, Any]:
    """What goes into every checkpoint of a run beside Lightning's own state: plain data and a tensor."""
    plain = {key: value for key, value in without_secrets(config).items() if key != FROM_ENVIRONMENT}
    return {
        "format": FORMAT,
        "version": __version__,
        "model": resolved(config.model),
        "search": resolved(config.search),
        "tokenizer": _as_tensor(without_paths(tokenizer.model)),
        "tgt_tokenizer": None if tokenizer.tgt_model is None else _as_tensor(without_paths(tokenizer.tgt_model)),
        "placeholder": tokenizer.placeholder,
        "languages": list(tokenizer.languages),
        "corpus": corpus,
        "src_lang": src_lang,
        "tgt_lang": tgt_lang,
        "config": without_folders(plain),
    }


def _as_tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def has_tokenizer(ours: dict[str, Any], tokenizer: Tokenizer) -> bool:
    """Whether a checkpoint's record holds this tokenizer, paths in its files apart."""
    a, b = (
        ([model and without_paths(model) for model in (each.model, each.tgt_model)], each.placeholder, each.languages)
        for each in (_tokenizer(ours), tokenizer)
    )
    return a == b


def find(path: str | Path) -> Path:
    """The checkpoint file that a user means by a file, or by a run's folder: its best one.

    Raises:
        UserError: if there is none.
    """
    refuse_address("checkpoint", path)
    found = Path(path).expanduser()
    if found.is_dir():
        for name in ("best.ckpt", "last.ckpt"):
            if (found / name).is_file():
                return found / name
        raise UserError(f"checkpoint {path}: the folder holds no best.ckpt or last.ckpt")
    if not found.is_file():
        raise UserError(f"checkpoint {path}: no such file")
    return found


def read(path: Path, warns: bool = True) -> dict[str, Any]:
    """A checkpoint file as plain data and tensors. No code in it is run, whatever the environment says, and no more
    memory is taken than the file has.

    Args:
        path: of the file.
        warns: whether to warn, once, where it is of format 1.

    Returns:
        What stands in it. `format` is `FORMAT` also where the file is of format 1: it is written in that again.

    Raises:
        UserError: if it is none of ours, or damaged.
    """
    try:
        is_old = is_of_old_format(path)
        content = _read_old(path) if is_old else container.read(path)
    except OSError as error:
        raise UserError(f"checkpoint {path}: cannot be read ({error.strerror})") from None
    except UserError as error:
        raise UserError(f"checkpoint {path}: {_printable(error)}") from None
    except Exception as error:  # a damaged file can make the reader fail in any way
        raise UserError(f"checkpoint {path}: damaged, or no checkpoint ({type(error).__name__})") from None
    ours = content.get("diglot") if isinstance(content, dict) else None
    if not isinstance(ours, dict) or not isinstance(content.get("state_dict"), dict):
        raise UserError(f"checkpoint {path}: not written by diglot")
    if ours.get("format") != (OLD_FORMAT if is_old else FORMAT):
        raise UserError(
            f"checkpoint {path}: written in format {ours.get('format')}; this diglot reads formats {OLD_FORMAT} and "
            f"{FORMAT}"
        )
    for name, kinds in KINDS.items():
        if not isinstance(ours.get(name), kinds):
            raise UserError(f"checkpoint {path}: not whole (its {name} is {type(ours.get(name)).__name__})")
    if is_old and warns:
        _warn_of_old_format(path.absolute())
    ours["format"] = FORMAT
    return content


def is_of_old_format(path: Path) -> bool:
    """Return whether a file is a checkpoint of format 1, if it is one at all.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(_OLD_START)) == _OLD_START


def _read_old(path: Path) -> Any:
    with path.open("rb") as file:
        return format1.read(file)


@cache
def _warn_of_old_format(path: Path) -> None:
    warn(f"checkpoint {printable(path)} is in the old format {OLD_FORMAT}: {reading('convert', path)} rewrites it")


def _printable(error: Exception) -> str:
    """What an error says, where a file may have put words into it that command a terminal, or no end of them."""
    said = "".join(c if c.isprintable() else " " for c in shortened(error, 500))
    return " ".join(said.split())


def newest_whole(folder: Path) -> tuple[Path, dict[str, Any], list[str]] | None:
    """The newest checkpoint of a run that is whole, what it holds, and what is wrong with newer ones; None: there is
    no checkpoint.

    Raises:
        UserError: all are damaged.
    """
    damaged: list[str] = []
    for name in GOES_ON_FROM:
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


def has_whole(folder: Path) -> bool:
    """Whether `newest_whole` would find a checkpoint, as far as all but its tensors says that, which are not read."""
    for name in GOES_ON_FROM:
        with suppress(Exception):  # a damaged file can make the reader fail in any way
            if (folder / name).is_file():  # a pipe would be waited for
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
    """Rebuild what a checkpoint holds.

    Args:
        path: the file, or a run's folder.
        trust: modules of the user's own whose classes it may name. No other module is imported.

    Raises:
        UserError: if there is none, or it is not whole.
    """
    check_trust(trust)
    file = find(path)
    return rebuild(read(file), file, trust)


def rebuild(content: dict[str, Any], file: Path, trust: Collection[str] = ()) -> Checkpoint:
    """See `load`; `content` is what `read` found in the file."""
    ours = content["diglot"]
    try:
        tokenizer, search = _tokenizer(ours), _search(ours, trust)
        sizes = tokenizer.vocab_sizes
        with torch.device("meta"), _no_more_than(content["state_dict"]):  # what does not fit is never given memory
            _check_weights(_model(ours, sizes), content["state_dict"])
        model = _model(ours, sizes)
        load_weights(model, content["state_dict"])
    except UserError as error:
        raise UserError(f"checkpoint {file}: {_printable(error)}") from None
    except Exception as error:  # what is wrong inside can make anything fail
        raise UserError(f"checkpoint {file}: not whole ({type(error).__name__}: {_printable(error)})") from None
    return Checkpoint(model.eval(), tokenizer, search, ours, file)


def check_readable(record: dict[str, Any], trust: Collection[str]) -> None:
    """Make sure, before a run computes anything, that what its checkpoints will say of it can be read again.

    Args:
        record: see `record`.
        trust: modules that the user vouches for.

    Raises:
        UserError: it cannot.
    """
    try:
        container.check_tree({"diglot": record})
        _tokenizer(record)
        _search(record, trust)
    except UserError as error:
        raise UserError(f"the run's checkpoints could not be read again: {_printable(error)}") from None


def _search(ours: dict[str, Any], trust: Collection[str]) -> Search:
    """The search; that of the model, too, all parts are looked at before."""
    check_parts(ours, trust)
    search = build(ours["search"], "search")
    if not isinstance(search, Search):
        raise UserError("it holds no search")
    check_search("search", search)
    return search


def _tokenizer(ours: dict[str, Any]) -> Tokenizer:
    for name in ("tokenizer", "tgt_tokenizer"):
        if ours.get(name) is not None:
            check_tokenizer(f"its {name}", ours[name].nbytes)
    try:
        check_placeholder(ours["placeholder"])
    except ValueError as error:
        raise UserError(f"its {error}") from None
    languages = ours.get("languages", ())
    for name, code in [("src_lang", ours["src_lang"]), ("tgt_lang", ours["tgt_lang"])]:
        check_language(name, code)
    for code in languages:
        check_language("languages", code)
    own = ours.get("tgt_tokenizer")
    return Tokenizer(
        ours["tokenizer"].numpy().tobytes(),
        ours["placeholder"],
        None if own is None else own.numpy().tobytes(),
        languages,
    )


def _model(ours: dict[str, Any], sizes: dict[str, int]) -> EncoderDecoder:
    model = build(ours["model"], "model", **sizes)
    if not isinstance(model, EncoderDecoder):
        raise UserError("it holds no model")
    return model


@contextmanager
def _no_more_than(weights: dict[str, Any]) -> Iterator[None]:
    """Refuse to build a model of more parameters than there are weights for, before it is large."""
    tensors = [weight for weight in weights.values() if isinstance(weight, torch.Tensor)]
    n = len({tensor.data_ptr() for tensor in tensors})
    left = n + 50  # a few are tied, replaced, or made on trial

    def count(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise UserError(f"its model has more parameters than the {n:,} weights there")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def check_training_state(content: dict[str, Any], file: Path) -> None:
    """Make sure that what a checkpoint holds is such as a run can go on from: whole numbers where something is counted,
    weights that are finite, and moments that are numbers and take no more memory than they have in the file.

    Raises:
        UserError: naming the part that is not.
    """
    ours = content["diglot"]
    place = ours.get("place") or []
    due_since = ours.get("validation_due_since")
    is_right = {
        "global_step": _is_count(content.get("global_step")),
        "loops": isinstance(content.get("loops"), dict) and _counts_only(content["loops"]),
        "optimizer_states": isinstance(content.get("optimizer_states"), list)
        and len(content["optimizer_states"]) == 1
        and all(_takes_its_own_memory(tensor) for tensor in _tensors(content["optimizer_states"])),
        "lr_schedulers": isinstance(content.get("lr_schedulers"), list),
        "place": isinstance(place, list) and len(place) in (0, 3) and all(map(_is_count, place)),
        "validation_due_since": isinstance(due_since, (float, type(None))),
        "has_stopped": isinstance(ours.get("has_stopped", False), bool),
    }
    if wrong := [name for name, right in is_right.items() if not right]:
        raise UserError(f"checkpoint {file}: no run can go on from it, its {wrong[0]} is not such as a run writes")
    try:
        for part in ("state_dict", "current_model_state"):  # the latter beside an average
            _check_finite(content.get(part, {}))
    except UserError as error:
        raise UserError(f"checkpoint {file}: no run can go on from it, {error}") from None
    if any(tensor.isnan().any() for tensor in _tensors(content["optimizer_states"])):
        raise UserError(f"checkpoint {file}: no run can go on from it, moments of its optimizer are no numbers")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _counts_only(node: Any) -> bool:
    """Whether a state of loops holds nothing but what they count."""
    if isinstance(node, dict):
        return all(map(_counts_only, node.values()))
    return node is None or isinstance(node, bool) or _is_count(node)


def _tensors(node: Any) -> Iterator[torch.Tensor]:
    if isinstance(node, torch.Tensor):
        yield node
    elif isinstance(node, (dict, list, tuple)):
        for value in node.values() if isinstance(node, dict) else node:
            yield from _tensors(value)


def _takes_its_own_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor of an optimizer stays as large as it is when it is given its weight's type."""
    return tensor.numel() <= 1 or tensor.dtype in _FLOATS


def _check_weights(model: EncoderDecoder, state_dict: dict[str, Any]) -> None:
    """Make sure that weights are such as a model has, before it is given memory: of its shapes and types, as many
    numbers as it needs, and all of them numbers.

    Raises:
        UserError: naming those that are not.
    """
    weights = _fitting_weights(model, state_dict)
    own = model.state_dict(keep_vars=True)
    for name, weight in weights.items():
        if weight.dtype != own[name].dtype and not (weight.dtype in _FLOATS and own[name].dtype in _FLOATS):
            raise UserError(f"its weight {name} is {weight.dtype}, and the model's is {own[name].dtype}")
    n_needed = sum({id(weight): weight.numel() for weight in own.values()}.values())
    n_there = sum({weight.data_ptr(): weight.numel() for weight in weights.values()}.values())
    if n_needed > n_there:
        raise UserError(f"its model needs {n_needed:,} numbers, and {n_there:,} are there: weights are tied otherwise")
    _check_finite(weights)


def _check_finite(weights: dict[str, Any]) -> None:
    """Make sure that all weights are numbers.

    Raises:
        UserError: naming one that is not.
    """
    for name, weight in weights.items():
        if isinstance(weight, torch.Tensor) and weight.dtype in _FLOATS and weight.numel():
            least, greatest = (float(each) for each in weight.aminmax())  # which takes no memory
            if not math.isfinite(least) or not math.isfinite(greatest):
                raise UserError(f"its weight {name} is not finite: the training had failed when it was written")


def load_weights(model: EncoderDecoder, state_dict: dict[str, Any]) -> None:
    """Put the weights of a task's state into a model.

    Raises:
        UserError: naming the weights that do not fit.
    """
    model.load_state_dict(_fitting_weights(model, state_dict))


def _fitting_weights(model: EncoderDecoder, state_dict: dict[str, Any]) -> dict[str, torch.Tensor]:
    weights = {name.removeprefix("model."): value for name, value in state_dict.items()}
    own = model.state_dict()
    differences = [f"{name} is no tensor there" for name in weights if not isinstance(weights[name], torch.Tensor)]
    differences += [
        f"{name} is {tuple(weights[name].shape)} there and {tuple(own[name].shape)} here"
        for name in own
        if isinstance(weights.get(name), torch.Tensor) and weights[name].shape != own[name].shape
    ]
    differences += [f"{name} is missing there" for name in own if name not in weights]
    differences += [f"{name} is missing here" for name in weights if name not in own]
    if differences:
        more = f", and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise UserError(f"its weights do not fit this model: {'; '.join(differences[:3])}{more}")
    return weights


def refuse_other_model(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Make sure that two configs name the same model, dropout apart: weights of one fit another of the same shapes, and
    mean something else there.

    Raises:
        UserError: naming the first key in which they differ.
    """
    for key, a, b in different_values(theirs, mine, "model"):
        if "dropout" not in key:
            raise UserError(f"{key} is {a} there and {b} here")
