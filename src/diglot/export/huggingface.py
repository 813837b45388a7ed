"""Export as a stock class of Hugging Face's library transformers, which loads the folder without diglot.

Pre-norm models become PegasusForConditionalGeneration, post-norm models MarianMTModel. The tokenizer becomes a
MarianTokenizer. Nothing here imports transformers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from diglot.config.exportable import CHOICES
from diglot.config.stock_class import CLASSES, PEGASUS, activation_name
from diglot.data.capitals import CAPITALS
from diglot.data.pieces import tag
from diglot.data.text import write_bytes, write_json
from diglot.data.tokenizer import Tokenizer
from diglot.decoding import BeamSearch, Search
from diglot.model import Transformer
from diglot.model.position import Sinusoidal
from diglot.model.residual import Residual

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
        save(state_dict(model, tokenizer.pad_id, tokenizer.bos_id), metadata={"format": "pt"}),
    )
    write_json(folder / "config.json", model_config(model, config, tokenizer))
    write_json(folder / "generation_config.json", generation_config(model, tokenizer, search))


def class_name(config: dict[str, Any]) -> str:
    """Return the name of the stock class for the config of a model."""
    return CLASSES[CHOICES["residual"][config["residual"]["_target_"]]]


def model_config(model: Transformer, config: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the content of config.json. See `write_model`."""
    name = class_name(config)
    heads = config["n_heads"]
    n_heads = {stack: heads if isinstance(heads, int) else heads[stack] for stack in ("encoder", "decoder")}
    dropout = config["dropout"]
    content: dict[str, Any] = {
        "architectures": [name],
        "model_type": "pegasus" if name == PEGASUS else "marian",
        "vocab_size": tokenizer.src_vocab_size,
        "d_model": model.d_model,
        "encoder_layers": len(model.encoder),
        "decoder_layers": len(model.decoder),
        "encoder_attention_heads": n_heads["encoder"],
        "decoder_attention_heads": n_heads["decoder"],
        "encoder_ffn_dim": config["d_ff"],
        "decoder_ffn_dim": config["d_ff"],
        "activation_function": activation_name(config["feed_forward"]["activation"]),
        "dropout": dropout,
        "attention_dropout": config.get("attention_dropout", 0.0),
        "activation_dropout": config.get("activation_dropout", 0.0),
        "max_position_embeddings": n_positions(model),
        "scale_embedding": True,
        "tie_word_embeddings": config["tying"] != "none",
        "is_encoder_decoder": True,
        "use_cache": True,
        "dtype": "float32",
        **_ids(tokenizer),
        "forced_eos_token_id": None,
    }
    if name == PEGASUS:  # names of BART's config, which CTranslate2's converter reads
        content |= {"normalize_before": True, "normalize_embedding": False}
    else:
        content |= {
            "share_encoder_decoder_embeddings": config["tying"] == "all",
            "decoder_vocab_size": tokenizer.tgt_vocab_size,
        }
    return content


def generation_config(model: Transformer, tokenizer: Tokenizer, search: Search) -> dict[str, Any]:
    """Return the content of generation_config.json: the options of `generate` that match the search best."""
    content: dict[str, Any] = {
        **_ids(tokenizer),
        "max_length": min(MAX_LENGTH, n_positions(model)),
        "num_beams": 1,
        # diglot's search never writes these tokens.
        "suppress_tokens": [tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id],
    }
    if isinstance(search, BeamSearch):
        penalty = search.length_penalty
        content["num_beams"] = search.beam_size
        if search.beam_size > 1:
            content["length_penalty"] = 1.0 if penalty == "mean" else penalty
    return content


def _ids(tokenizer: Tokenizer) -> dict[str, int]:
    return {
        "pad_token_id": tokenizer.pad_id,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "decoder_start_token_id": tokenizer.pad_id,
    }


def state_dict(model: Transformer, pad: int, bos: int) -> dict[str, Tensor]:
    """Return the weights by their names in the stock class, in float32.

    The stock classes put all sines of a sinusoidal encoding before all cosines, and diglot alternates them. Therefore
    the dimensions of the residual stream are permuted, which is exact.

    These classes begin a target with <pad>, and diglot with <s>. Therefore the two tokens exchange their embeddings. As
    padding, a token is masked, so that its embedding has no effect.
    """
    return dict(_Writer(residual_order(model), n_positions(model)).weights(model, pad, bos))


def residual_order(model: Transformer) -> Tensor:
    """Return the dimension of diglot's residual stream for each dimension of the stock class's."""
    order = torch.arange(model.d_model)
    return torch.cat((order[0::2], order[1::2])) if isinstance(model.encoder_position, Sinusoidal) else order


class _Writer:
    """Yields the weights of a model by their names in the stock class.

    Args:
        order: the dimension of diglot's residual stream for each dimension of the stock class's.
        n_positions: size of the position tables.
    """

    def __init__(self, order: Tensor, n_positions: int) -> None:
        self.order, self.n_positions = order, n_positions

    def weights(self, model: Transformer, pad: int, bos: int) -> Iterator[tuple[str, Tensor]]:
        def rows(weight: Tensor) -> Tensor:
            tokens = torch.arange(len(weight))
            tokens[pad], tokens[bos] = bos, pad
            return self.read(weight[tokens])

        src, tgt, out = model.src_embedding.weight, model.tgt_embedding.weight, model.output.weight
        if src is tgt and tgt is out:
            yield "model.shared.weight", rows(src)
        else:
            yield "model.encoder.embed_tokens.weight", rows(src)
            yield "model.decoder.embed_tokens.weight", rows(tgt)
            if out is not tgt:
                yield "lm_head.weight", rows(out)
        yield "final_logits_bias", torch.zeros(1, len(out))
        stacks: dict[str, tuple[Any, Any, Any]] = {
            "encoder": (model.encoder, model.encoder_position, model.encoder_norm),
            "decoder": (model.decoder, model.decoder_position, model.decoder_norm),
        }
        for stack, (layers, position, norm) in stacks.items():
            zeros = torch.zeros(1, self.n_positions, model.d_model)
            table = position.embed(zeros, torch.arange(self.n_positions))[0]  # (n, D)
            yield f"model.{stack}.embed_positions.weight", self.read(table)
            if not isinstance(norm, nn.Identity):
                yield from self.norm(f"model.{stack}.layer_norm", norm)
            for i, layer in enumerate(layers):
                name = f"model.{stack}.layers.{i}"
                yield from self.attention(f"{name}.self_attn", layer.self_attention)
                if stack == "decoder":
                    yield from self.attention(f"{name}.encoder_attn", layer.cross_attention)
                network = layer.feed_forward.sublayer
                yield from self.linear(f"{name}.fc1", network.up, reads=True)
                yield from self.linear(f"{name}.fc2", network.down, reads=False)
                yield from self.norm(f"{name}.final_layer_norm", layer.feed_forward.norm)

    def attention(self, name: str, residual: Residual) -> Iterator[tuple[str, Tensor]]:
        attention: Any = residual.sublayer
        for part in ("query", "key", "value"):
            yield from self.linear(f"{name}.{part[0]}_proj", getattr(attention, part), reads=True)
        yield from self.linear(f"{name}.out_proj", attention.out, reads=False)
        yield from self.norm(f"{name}_layer_norm", residual.norm)

    def linear(self, name: str, layer: nn.Linear, reads: bool) -> Iterator[tuple[str, Tensor]]:
        """Yield the weight and bias of a layer that reads from the residual stream, or else writes to it."""
        weight = self.read(layer.weight) if reads else self.write(layer.weight)
        yield f"{name}.weight", weight
        bias = torch.zeros(len(weight)) if layer.bias is None else layer.bias
        yield f"{name}.bias", plain(bias) if reads else self.write(bias)

    def norm(self, name: str, norm: Any) -> Iterator[tuple[str, Tensor]]:
        width = norm.normalized_shape
        yield f"{name}.weight", self.write(torch.ones(width) if norm.weight is None else norm.weight)
        yield f"{name}.bias", self.write(torch.zeros(width) if norm.bias is None else norm.bias)

    def read(self, weight: Tensor) -> Tensor:
        """Return a weight (..., D) with its last dimension in the order of the stock class."""
        return plain(weight[..., self.order])

    def write(self, weight: Tensor) -> Tensor:
        """Return a weight (D, ...) with its first dimension in the order of the stock class."""
        return plain(weight[self.order])


def plain(weight: Tensor) -> Tensor:
    """Return a copy of a weight as it is written: in float32 and contiguous."""
    return weight.detach().float().clone().contiguous()


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
        write_json(folder / vocabulary, {tags.get(piece, piece): i for i, piece in enumerate(pieces)})
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
            "extra_special_tokens": marks,
            "model_max_length": longest,
            "separate_vocabs": not tokenizer.is_joint,
        },
    )
