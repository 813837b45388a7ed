"""Checkpoints of untrained models and tokenizers of other origin, for tests."""

import struct
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from diglot.checkpoint import file as checkpoint
from diglot.config import build
from diglot.data.pieces import EOS, PAD, adopt, start_with, tag
from diglot.data.tokenizer import Prefixes, Tokenizer

# Kinds of tokenizers: Marian, T5 and Pegasus start a target with <pad>; BART with </s> and <s>; NLLB, M2M100 and
# mBART-50 with </s> and a tag.
KINDS = ("pad", "eos", "tags")


def of_kind(tokenizer: Tokenizer, kind: str) -> Tokenizer:
    """Return a tokenizer with the start and the prefixes of one of `KINDS`, for the languages of the sample corpus."""
    if kind == "pad":
        return Tokenizer(start_with(tokenizer.model, PAD), tokenizer.placeholder)
    if kind == "eos":
        model, prefixes = start_with(tokenizer.model, EOS), Prefixes(("<s>",), ("<s>",))
        return Tokenizer(model, tokenizer.placeholder, prefixes=prefixes)
    languages = ("avi", "bol")
    model = start_with(adopt(tokenizer.model, [tag(language) for language in languages]), EOS)
    return Tokenizer(model, tokenizer.placeholder, None, languages, Prefixes(("src_lang",), ("tgt_lang",)))


def checkpoint_content(
    config: DictConfig, tokenizer: Tokenizer, seed: int = 1, languages: tuple[str, str] = ("avi", "bol"), **more: Any
) -> dict[str, Any]:
    """Return the content of a checkpoint of an untrained model; `more` is added to its record."""
    torch.manual_seed(seed)
    sizes = {"src_vocab_size": tokenizer.src_vocab_size, "tgt_vocab_size": tokenizer.tgt_vocab_size}
    model = build(config.model, "model", **sizes)
    with torch.no_grad():
        for parameter in model.parameters():  # so that biases differ as well
            parameter += torch.randn_like(parameter) * 0.05
    record = checkpoint.record(config, tokenizer, "sample", *languages)
    state = {f"model.{name}": weight for name, weight in model.state_dict().items()}
    return {"diglot": record | {"update": 100 * seed} | more, "state_dict": state}


def write_checkpoint(path: Path, content: dict[str, Any]) -> Path:
    """Write a checkpoint as a run does."""
    checkpoint.write(content, path)
    return path


def write_old_checkpoint(path: Path, content: dict[str, Any]) -> Path:
    """Write a checkpoint in the old format, as written by torch.save."""
    with path.open("wb") as file:
        torch.save(content | {"diglot": content["diglot"] | {"format": checkpoint.OLD_FORMAT}}, file)
    return path


def bits(value: Tensor) -> bytes:
    return value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(a: Any, b: Any) -> bool:
    """Return whether two trees are equal in types, order, bits and the strides of tensors."""
    if type(a) is not type(b):
        return False
    if type(a) is Tensor:
        return (a.dtype, a.shape, a.stride(), bits(a)) == (b.dtype, b.shape, b.stride(), bits(b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items())) and same(getattr(a, "_metadata", 0), getattr(b, "_metadata", 0))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (set, frozenset)):
        return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
    if type(a) is complex:
        return same((a.real, a.imag), (b.real, b.imag))
    if type(a) is float:
        return struct.pack("<d", a) == struct.pack("<d", b)
    return bool(a == b)
