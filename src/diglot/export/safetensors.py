"""A model as safetensors: its weights, and as JSON all that is needed to build it again; nothing in them can be run."""

from pathlib import Path

from safetensors.torch import save

from diglot.checkpoint.file import Checkpoint
from diglot.data.text import write_bytes, write_json
from diglot.export.folder import write_tokenizer


def write(loaded: Checkpoint, folder: Path) -> None:
    """Write a checkpoint's weights, config and tokenizer into a folder.

    Weights that are tied stand there once, under the first of their names; `tied` in config.json has the others.

    Args:
        loaded: the checkpoint.
        folder: that exists.

    Raises:
        UserError: it cannot be written.
    """
    model = loaded.model
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    names = {id(weight): name for name, weight in model.named_parameters()}
    tied = {name: names[id(weight)] for name, weight in model.named_parameters(remove_duplicate=False)}
    write_bytes(folder / "model.safetensors", save(weights, metadata={"format": "pt"}))
    about = {
        "format": "safetensors",
        **write_tokenizer(folder, loaded.tokenizer, loaded.record),
        "model": loaded.record["model"],
        "sizes": loaded.tokenizer.vocab_sizes,
        "tied": {name: first for name, first in tied.items() if name != first},
    }
    write_json(folder / "config.json", about)
