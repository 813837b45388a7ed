"""Exported weights can be read by plain Python, and the model can be rebuilt from the exported config."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from diglot.checkpoint.file import Checkpoint
from diglot.config import build, resolved
from diglot.data.tokenizer import Tokenizer
from diglot.decoding import BeamSearch
from diglot.export import safetensors

VARIANTS = [
    ("model=tiny", "model.tying=all"),
    ("model=tiny", "model.tying=target", "model/position=learned", "model/residual=sandwich_norm"),
    ("model=tiny", "model.tying=none", "model/position=alibi", "model.qk_norm=true"),
    ("model=tiny", "model.tying=inputs", "model.bias=false", "model.output_bias=true", "model.embedding_norm=true"),
    ("model=gru_attention", "model.d_hidden=20", "model.d_attention=12"),
]


@pytest.fixture(params=VARIANTS, ids=lambda words: " ".join(words))
def written(request, compose_train, tokenizer, tmp_path) -> tuple[Checkpoint, Path]:
    """Export a model with random weights; return its checkpoint and the folder."""
    config = compose_train(*request.param, "model.d_model=24", "model.dropout=0.0")
    sizes = {"src_vocab_size": tokenizer.src_vocab_size, "tgt_vocab_size": tokenizer.tgt_vocab_size}
    torch.manual_seed(1)
    model = build(config.model, "model", **sizes).eval()
    record = {"model": resolved(config.model), "search": resolved(config.search), "update": 7}
    record |= {"corpus": "sample", "src_lang": "avi", "tgt_lang": "bol"}
    loaded = Checkpoint(model, tokenizer, BeamSearch(), record, Path("best.ckpt"))
    safetensors.write(loaded, tmp_path)
    return loaded, tmp_path


def read_plainly(file: Path) -> dict[str, np.ndarray]:
    """Read a safetensors file by its specification: an 8-byte length, a JSON header of this length, then the data."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__")
    found = {}
    for name, about in header.items():
        assert about["dtype"] == "F32"
        start, stop = about["data_offsets"]
        found[name] = np.frombuffer(content[8 + length :][start:stop], dtype="<f4").reshape(about["shape"])
    return found


def test_plain_python_reads_the_weights_bit_for_bit(written):
    loaded, folder = written
    found, about = read_plainly(folder / "model.safetensors"), json.loads((folder / "config.json").read_bytes())
    state = loaded.model.state_dict()
    assert found.keys() | about["tied"].keys() == state.keys()
    assert not found.keys() & about["tied"].keys()
    for name, weight in state.items():
        assert found[about["tied"].get(name, name)].tobytes() == weight.numpy().tobytes()
    wanted = {"all": {"src_embedding.weight", "output.weight"}, "target": {"output.weight"}, "none": set()}
    wanted["inputs"] = {"src_embedding.weight"}
    assert set(about["tied"]) == wanted[loaded.record["model"]["tying"]]


def test_the_model_is_built_again_from_the_config_and_gives_the_same_logits(written):
    loaded, folder = written
    about: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
    weights = load_file(folder / "model.safetensors")
    model = build(about["model"], "model", **about["sizes"]).eval()
    model.load_state_dict(weights | {name: weights[first] for name, first in about["tied"].items()})
    src, tgt_in = torch.randint(4, 300, (3, 7)), torch.randint(4, 300, (3, 5))
    with torch.no_grad():
        assert torch.equal(model(src, tgt_in), loaded.model(src, tgt_in))


def test_the_config_describes_the_inputs_and_outputs_of_the_model(written):
    loaded, folder = written
    about = json.loads((folder / "config.json").read_bytes())
    assert about["special_ids"] == {"pad": 0, "unk": 1, "bos": 2, "eos": 3}
    assert about["languages"] == {"src": "avi", "tgt": "bol", "all": []}
    assert about["search"]["beam_size"] == 4
    again = Tokenizer((folder / about["tokenizer"]["src"]).read_bytes(), about["placeholder"])
    assert again.digest() == loaded.tokenizer.digest()
