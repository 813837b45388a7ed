"""Export as a stock class of Hugging Face's library transformers, which loads the folder without diglot.

The tokenizer becomes a MarianTokenizer. diglot.config.stock_class says which class holds which model. Nothing here
imports transformers.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from diglot.config.stock_class import M2M100, MARIAN, class_name
from diglot.data.capitals import CAPITALS
from diglot.data.pieces import tag
from diglot.data.text import write_bytes, write_json
from diglot.data.tokenizer import Tokenizer
from diglot.decoding import BeamSearch, Search
from diglot.huggingface.configs import stock_config
from diglot.huggingface.families import written_weights
from diglot.model import Transformer

POSITIONS = 1024  # size of the position table that is written for an encoding without a maximum
MAX_LENGTH = 256  # greatest number of target tokens that generation_config.json allows


def n_positions(model: Transformer) -> int:
    """Return the number of positions of the exported model, the same for sources and targets."""
    return min(model.max_src_positions or POSITIONS, model.max_tgt_positions or POSITIONS)


def write_model(model: Transformer, config: dict[str, Any], tokenizer: Tokenizer, search: Search, folder: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors into a folder.

    Args:
        model: a model that a stock class can hold (see diglot.config.stock_class).
        config: the config of the model.
        tokenizer: the tokenizer of the model.
        search: the search whose options become the defaults of `generate`.
        folder: an existing folder.

    Raises:
        UserError: the folder cannot be written to.
    """
    write_bytes(
        folder / "model.safetensors",
        save(state_dict(model, config, tokenizer), metadata={"format": "pt"}),
    )
    write_json(folder / "config.json", model_config(model, config, tokenizer))
    write_json(folder / "generation_config.json", generation_config(model, config, tokenizer, search))


def model_config(model: Transformer, config: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the content of config.json. See `write_model`."""
    is_marian = class_name(config) == MARIAN
    return {
        **stock_config(config, model, n_positions(model)),
        "vocab_size": tokenizer.src_vocab_size,
        **({"decoder_vocab_size": tokenizer.tgt_vocab_size} if is_marian else {}),
        "is_encoder_decoder": True,
        "use_cache": True,
        "dtype": "float32",
        **_ids(tokenizer, config),
        "forced_eos_token_id": None,
    }


def generation_config(
    model: Transformer, config: dict[str, Any], tokenizer: Tokenizer, search: Search
) -> dict[str, Any]:
    """Return the content of generation_config.json: the options of `generate` that match the search best."""
    # diglot's search never writes these tokens; <s> may be </s>.
    never = [token for token in (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id) if token != tokenizer.eos_id]
    content: dict[str, Any] = {
        **_ids(tokenizer, config),
        "max_length": min(MAX_LENGTH, n_positions(model)),
        "num_beams": 1,
        "suppress_tokens": exported(never, tokenizer, config),
    }
    if isinstance(search, BeamSearch):
        penalty = search.length_penalty
        content["num_beams"] = search.beam_size
        if search.beam_size > 1:
            content["length_penalty"] = 1.0 if penalty == "mean" else penalty
    return content


def _ids(tokenizer: Tokenizer, config: dict[str, Any]) -> dict[str, int]:
    special = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    pad, bos, eos = exported(special, tokenizer, config)
    start = pad if _exchanges_start(tokenizer, config) else bos
    return {"pad_token_id": pad, "bos_token_id": bos, "eos_token_id": eos, "decoder_start_token_id": start}


def state_dict(model: Transformer, config: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Tensor]:
    """Return the weights by their names in the stock class, in float32.

    If <s> begins a target in diglot, and <pad> in the export, the two tokens exchange their embeddings. As padding, a
    token is masked, so that its embedding has no effect.
    """
    src_rows, tgt_rows = (
        torch.tensor(exported(range(size), tokenizer, config))
        for size in (tokenizer.src_vocab_size, tokenizer.tgt_vocab_size)
    )
    if _exchanges_start(tokenizer, config):
        for rows in (src_rows, tgt_rows):
            rows[tokenizer.pad_id], rows[tokenizer.bos_id] = tokenizer.bos_id, tokenizer.pad_id
    return written_weights(model, config, src_rows, tgt_rows, n_positions(model))


def _exchanges_start(tokenizer: Tokenizer, config: dict[str, Any]) -> bool:
    """Return whether exported targets begin with <pad> in the place of <s>.

    They do, because generation and CTranslate2's converter expect it; but M2M100 gives <pad> no position.
    """
    return class_name(config) != M2M100 and tokenizer.bos_id not in (tokenizer.pad_id, tokenizer.eos_id)


def exported(ids: Iterable[int], tokenizer: Tokenizer, config: dict[str, Any]) -> list[int]:
    """Return the exported ids of tokens; applied twice, it returns the same ids.

    They are diglot's, except that <pad> and <unk> are exchanged in M2M100, whose positions begin after the id of <pad>.
    """
    if class_name(config) != M2M100:
        return list(ids)
    swapped = {tokenizer.pad_id: tokenizer.unk_id, tokenizer.unk_id: tokenizer.pad_id}
    return [swapped.get(token, token) for token in ids]


def write_tokenizer_files(tokenizer: Tokenizer, record: dict[str, Any], longest: int, folder: Path) -> None:
    """Write the files of a MarianTokenizer into a folder.

    The tag of a target language is `>>de<<` before the source, as in the models of OPUS-MT.

    Args:
        tokenizer: the tokenizer.
        record: the record of the checkpoint, which has the languages.
        longest: greatest number of tokens of a source.
        folder: an existing folder.
    """
    tags = {tag(language): f">>{language}<<" for language in tokenizer.languages}
    for side, model, vocabulary in (
        ("source", tokenizer.model, "vocab.json"),
        ("target", tokenizer.tgt_model or tokenizer.model, "target_vocab.json"),
    ):
        write_bytes(folder / f"{side}.spm", model)
        if side == "target" and tokenizer.is_joint:
            continue
        size = tokenizer.src_vocab_size if side == "source" else tokenizer.tgt_vocab_size
        pieces = tokenizer.pieces(range(size), "src" if side == "source" else "tgt")
        ids = exported(range(size), tokenizer, record["model"])
        write_json(folder / vocabulary, {tags.get(piece, piece): i for i, piece in zip(ids, pieces, strict=True)})
    pad, unk, bos, eos = tokenizer.pieces(tokenizer.special, "tgt")
    marks = [CAPITALS] if tokenizer.marks_capitals else []
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "MarianTokenizer",
            "source_lang": record["src_lang"],
            "target_lang": record["tgt_lang"],
            "unk_token": unk,
            "eos_token": eos,
            "pad_token": pad,
            "bos_token": bos,
            "additional_special_tokens": marks,  # the name that releases before 5 of transformers know, too
            "model_max_length": longest,
            "separate_vocabs": not tokenizer.is_joint,
        },
    )
