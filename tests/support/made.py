"""Checkpoints made in tests, of models that nothing has trained."""

from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from diglot.checkpoint import file as checkpoint
from diglot.checkpoint.atomic_io import AtomicCheckpointIO
from diglot.config import build
from diglot.data.tokenizer import Tokenizer


def checkpoint_content(
    config: DictConfig, tokenizer: Tokenizer, seed: int = 1, languages: tuple[str, str] = ("avi", "bol"), **more: Any
) -> dict[str, Any]:
    """What a run of that config would have written before its first update; `more` is said of it."""
    torch.manual_seed(seed)
    sizes = {"src_vocab_size": tokenizer.src_vocab_size, "tgt_vocab_size": tokenizer.tgt_vocab_size}
    model = build(config.model, "model", **sizes)
    with torch.no_grad():
        for parameter in model.parameters():  # biases, too, are others in each
            parameter += torch.randn_like(parameter) * 0.05
    record = checkpoint.record(config, tokenizer, "sample", *languages)
    state = {f"model.{name}": weight for name, weight in model.state_dict().items()}
    return {"diglot": record | {"update": 100 * seed} | more, "state_dict": state}


def write_checkpoint(path: Path, content: dict[str, Any]) -> Path:
    """Write it as a run does."""
    AtomicCheckpointIO(checkpoint.read, checkpoint.check_made_of).save_checkpoint(content, path)
    return path
