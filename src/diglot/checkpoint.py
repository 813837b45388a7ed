"""A checkpoint is whole: model, tokenizer and search are rebuilt from it alone, and loading it runs no code."""

import inspect
import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hydra.utils import get_class
from omegaconf import DictConfig

from diglot import __version__
from diglot.config import build, different_values, refuse_foreign_targets, resolved, without_secrets
from diglot.data.tokenizer import Tokenizer
from diglot.decoding import BeamSearch
from diglot.errors import UserError
from diglot.model import EncoderDecoder

FORMAT = 1


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
    search: BeamSearch
    record: dict[str, Any]
    path: Path


def record(config: DictConfig, tokenizer: Tokenizer, corpus: str, src_lang: str, tgt_lang: str) -> dict[str, Any]:
    """What goes into every checkpoint of a run beside Lightning's own state: plain data and a tensor."""
    return {
        "format": FORMAT,
        "version": __version__,
        "model": resolved(config.model),
        "search": resolved(config.search),
        "tokenizer": _as_tensor(tokenizer.model),
        "tgt_tokenizer": None if tokenizer.tgt_model is None else _as_tensor(tokenizer.tgt_model),
        "placeholder": tokenizer.placeholder,
        "languages": list(tokenizer.languages),
        "corpus": corpus,
        "src_lang": src_lang,
        "tgt_lang": tgt_lang,
        "config": without_secrets(config),
    }


def _as_tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def find(path: str | Path) -> Path:
    """The checkpoint file that a user means by a file, or by a run's folder: its best one.

    Raises:
        UserError: if there is none.
    """
    found = Path(path).expanduser()
    if found.is_dir():
        for name in ("best.ckpt", "last.ckpt"):
            if (found / name).is_file():
                return found / name
        raise UserError(f"checkpoint {path}: the folder holds no best.ckpt or last.ckpt")
    if not found.is_file():
        raise UserError(f"checkpoint {path}: no such file")
    return found


def read(path: Path) -> dict[str, Any]:
    """A checkpoint file as plain data and tensors. No code in it is run, whatever the environment says.

    Raises:
        UserError: if it is none of ours, or damaged.
    """
    try:
        with path.open("rb") as file, warnings.catch_warnings(action="ignore"):
            with zipfile.ZipFile(file) as archive:
                damaged = archive.testzip()  # torch does not compare checksums
            if damaged is not None:
                raise UserError(f"checkpoint {path}: damaged, the checksum of its part {damaged} is wrong")
            file.seek(0)
            content = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"checkpoint {path}: cannot be read ({error.strerror})") from None
    except pickle.UnpicklingError as error:
        found = re.search(r"Unsupported (?:global|class|operand)[^.]*|GLOBAL [\w.]+", str(error))
        what = f" ({found.group()})" if found else ""
        raise UserError(f"checkpoint {path}: refused, it holds more than weights and plain data{what}") from None
    except UserError:
        raise
    except Exception as error:  # a damaged file can make the reader fail in any way
        raise UserError(f"checkpoint {path}: damaged, or no checkpoint ({type(error).__name__})") from None
    ours = content.get("diglot") if isinstance(content, dict) else None
    if not isinstance(ours, dict) or "state_dict" not in content:
        raise UserError(f"checkpoint {path}: not written by diglot")
    if ours.get("format") != FORMAT:
        raise UserError(f"checkpoint {path}: written in format {ours.get('format')}; this diglot reads format {FORMAT}")
    return content


def newest_whole(folder: Path) -> tuple[Path, dict[str, Any], list[str]] | None:
    """The newest checkpoint of a run that is whole, what it holds, and what is wrong with newer ones; None: there is
    no checkpoint.

    Raises:
        UserError: all are damaged.
    """
    damaged: list[str] = []
    for name in ("last.ckpt", "previous.ckpt", "best.ckpt"):
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


def load(path: str | Path) -> Checkpoint:
    """Rebuild what a checkpoint holds.

    Raises:
        UserError: if there is none, or it is not whole.
    """
    file = find(path)
    content = read(file)
    ours = content["diglot"]
    try:
        own = ours.get("tgt_tokenizer")
        tokenizer = Tokenizer(
            ours["tokenizer"].numpy().tobytes(),
            ours["placeholder"],
            None if own is None else own.numpy().tobytes(),
            ours.get("languages", ()),
        )
        refuse_foreign_targets([ours["model"], ours["search"]])
        sizes = {"src_vocab_size": tokenizer.src_vocab_size, "tgt_vocab_size": tokenizer.tgt_vocab_size}
        model = build(ours["model"], "model", **sizes)
        search = build(ours["search"], "search")
        if not isinstance(model, EncoderDecoder) or not isinstance(search, BeamSearch):
            raise UserError("it holds no model and search")
        load_weights(model, content["state_dict"])
    except UserError as error:
        raise UserError(f"checkpoint {file}: {error}") from None
    except (KeyError, AttributeError, TypeError, re.error) as error:
        raise UserError(f"checkpoint {file}: not whole ({type(error).__name__}: {error})") from None
    return Checkpoint(model.eval(), tokenizer, search, ours, file)


def load_weights(model: EncoderDecoder, state_dict: dict[str, Any]) -> None:
    """Put the weights of a task's state into a model.

    Raises:
        UserError: naming the weights that do not fit.
    """
    weights = {name.removeprefix("model."): value for name, value in state_dict.items()}
    own = model.state_dict()
    differences = [
        f"{name} is {tuple(weights[name].shape)} there and {tuple(own[name].shape)} here"
        for name in own
        if name in weights and weights[name].shape != own[name].shape
    ]
    differences += [f"{name} is missing there" for name in own if name not in weights]
    differences += [f"{name} is missing here" for name in weights if name not in own]
    if differences:
        more = f", and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise UserError(f"its weights do not fit this model: {'; '.join(differences[:3])}{more}")
    model.load_state_dict(weights)


def refuse_other_model(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Make sure that two configs name the same model, dropout apart: weights of one fit another of the same shapes, and
    mean something else there.

    Raises:
        UserError: naming the first key in which they differ.
    """
    for key, a, b in different_values(with_defaults(theirs), with_defaults(mine), "model"):
        if "dropout" not in key:
            raise UserError(f"{key} is {a} there and {b} here")


def with_defaults(model: dict[str, Any]) -> dict[str, Any]:
    """A model's config with what it does not say: one that was written before there was a choice made none."""
    parameters = inspect.signature(get_class(model["_target_"])).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty} | model
