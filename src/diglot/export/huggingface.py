"""Export as a stock class of Hugging Face's library transformers, which loads the folder without diglot.

diglot.config.stock_class says which class holds which model, and diglot.huggingface.stock_tokenizer which one holds its
tokenizer. Nothing here imports transformers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from diglot.config.stock_class import M2M100, MARIAN, class_name
from diglot.data.text import write_bytes, write_json
from diglot.data.tokenizer import Tokenizer
from diglot.decoding import BeamSearch, Search
from diglot.huggingface.configs import stock_config
from diglot.huggingface.families import written_weights
from diglot.huggingface.stock_tokenizer import StockTokenizer
from diglot.model import Transformer

POSITIONS = 1024  # size of the position table that is written for an encoding without a maximum
MAX_LENGTH = 256  # greatest number of target tokens that generation_config.json allows


def n_positions(model: Transformer) -> int:
    """Return the number of positions of the exported model, the same for sources and targets."""
    return min(model.max_src_positions or POSITIONS, model.max_tgt_positions or POSITIONS)


def write_model(
    model: Transformer,
    record: Mapping[str, Any],
    tokenizer: Tokenizer,
    stock: StockTokenizer,
    search: Search,
    folder: Path,
) -> None:
    """Write config.json, generation_config.json and model.safetensors into a folder.

    Args:
        model: a model that a stock class can hold (see diglot.config.stock_class).
        record: the record of its checkpoint.
        tokenizer: the tokenizer of the model.
        stock: the tokenizer as a class of transformers.
        search: the search whose options become the defaults of `generate`.
        folder: an existing folder.

    Raises:
        UserError: the folder cannot be written to.
    """
    write_bytes(
        folder / "model.safetensors",
        save(state_dict(model, record["model"], tokenizer, stock), metadata={"format": "pt"}),
    )
    write_json(folder / "config.json", model_config(model, record["model"], tokenizer, stock))
    write_json(folder / "generation_config.json", generation_config(model, record, tokenizer, stock, search))


def model_config(
    model: Transformer, config: dict[str, Any], tokenizer: Tokenizer, stock: StockTokenizer
) -> dict[str, Any]:
    """Return the content of config.json. See `write_model`."""
    is_marian = class_name(config) == MARIAN
    return {
        **stock_config(config, model, n_positions(model)),
        "vocab_size": tokenizer.src_vocab_size,
        **({"decoder_vocab_size": tokenizer.tgt_vocab_size} if is_marian else {}),
        "is_encoder_decoder": True,
        "use_cache": True,
        "dtype": "float32",
        **_ids(tokenizer, stock, config),
        "forced_eos_token_id": None,
    }


def generation_config(
    model: Transformer, record: Mapping[str, Any], tokenizer: Tokenizer, stock: StockTokenizer, search: Search
) -> dict[str, Any]:
    """Return the content of generation_config.json: the options of `generate` that match the search best."""
    # diglot's search never writes these tokens; <s> may be </s>.
    never = [token for token in (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id) if token != tokenizer.eos_id]
    content: dict[str, Any] = {
        **_ids(tokenizer, stock, record["model"]),
        "max_length": min(MAX_LENGTH, n_positions(model)),
        "num_beams": 1,
        "suppress_tokens": [stock.tgt_ids[token] for token in never],
    }
    if (first := certain_prefix(record, tokenizer)) is not None:
        content["forced_bos_token_id"] = stock.tgt_ids[first]
    if isinstance(search, BeamSearch):
        penalty = search.length_penalty
        content["num_beams"] = search.beam_size
        if search.beam_size > 1:
            content["length_penalty"] = 1.0 if penalty == "mean" else penalty
    return content


def certain_prefix(record: Mapping[str, Any], tokenizer: Tokenizer) -> int | None:
    """Return the id with which each translation begins; None: there is none, or it depends on the target language.

    The target language is certain if the record names one, and all corpora of a mixture have it according to the keys
    of the config. (Extensions of files are not looked at.)
    """
    if not tokenizer.n_tgt_prefix:
        return None
    code = None
    if tokenizer.languages:
        code = tokenizer.find_language(record["tgt_lang"])
        if code is None or any(tokenizer.find_language(each) != code for each in _languages_of_corpora(record)):
            return None
    ((*_, prefix),) = tokenizer.encode([""], code)
    return prefix[0] if prefix else None


def _languages_of_corpora(record: Mapping[str, Any]) -> list[str]:
    """Return the code of the target language of each corpus of a mixture; an empty text if the config has none."""
    data = record.get("config", {}).get("data")
    corpora = data.get("corpora") if isinstance(data, dict) else None
    if not isinstance(corpora, dict):
        return []
    codes = [
        each.get("tgt_lang", data.get("tgt_lang")) if isinstance(each, dict) else None for each in corpora.values()
    ]
    return [code if isinstance(code, str) else "" for code in codes]


def _ids(tokenizer: Tokenizer, stock: StockTokenizer, config: dict[str, Any]) -> dict[str, int]:
    pad, bos, eos = (stock.tgt_ids[token] for token in (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id))
    start = pad if _exchanges_start(tokenizer, config) else bos
    return {"pad_token_id": pad, "bos_token_id": bos, "eos_token_id": eos, "decoder_start_token_id": start}


def state_dict(
    model: Transformer, config: dict[str, Any], tokenizer: Tokenizer, stock: StockTokenizer
) -> dict[str, Tensor]:
    """Return the weights by their names in the stock class, in float32.

    If <s> begins a target in diglot, and <pad> in the export, the two tokens exchange their embeddings. As padding, a
    token is masked, so that its embedding has no effect.
    """
    src_rows, tgt_rows = torch.tensor(stock.src_ids), torch.tensor(stock.tgt_ids)
    if _exchanges_start(tokenizer, config):
        for rows in (src_rows, tgt_rows):
            rows[[tokenizer.pad_id, tokenizer.bos_id]] = rows[[tokenizer.bos_id, tokenizer.pad_id]]
    return written_weights(model, config, src_rows, tgt_rows, n_positions(model))


def _exchanges_start(tokenizer: Tokenizer, config: dict[str, Any]) -> bool:
    """Return whether exported targets begin with <pad> in the place of <s>.

    They do, because generation and CTranslate2's converter expect it; but M2M100 gives <pad> no position.
    """
    return class_name(config) != M2M100 and tokenizer.bos_id not in (tokenizer.pad_id, tokenizer.eos_id)
