"""Export as safetensors: the weights, and a JSON file with everything else that is needed to rebuild the model."""

from pathlib import Path

from safetensors.torch import save

from diglot.checkpoint.file import Checkpoint
from diglot.data.text import write_bytes, write_json
from diglot.export.folder import write_tokenizer


def write(loaded: Checkpoint, folder: Path) -> None:
    """Write a checkpoint's weights, config and tokenizer into a folder.

    Tied weights are stored once, under the first of their names; `tied` in config.json maps the other names to it.

    Args:
        loaded: the checkpoint.
        folder: an existing folder.

    Raises:
        UserError: the folder cannot be written to.
    """
    model = loaded.model
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    names = {id(weight): name for name, weight in model.named_parameters()}
    tied = {name: names[id(weight)] for name, weight in model.named_parameters(remove_duplicate=False)}
    write_bytes(folder / "model.safetensors", save(weights, metadata={"format": "pt"}))
    config = {
        "format": "safetensors",
        **write_tokenizer(folder, loaded.tokenizer, loaded.record),
        "model": loaded.record["model"],
        "sizes": loaded.tokenizer.vocab_sizes,
        "tied": {name: stored_name for name, stored_name in tied.items() if name != stored_name},
    }
    write_json(folder / "config.json", config)
