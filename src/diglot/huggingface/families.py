"""The weights of Marian, Pegasus, M2M100 (NLLB), BART, mBART, T5 and mT5 in diglot's Transformer, and back.

One list of `Entry` serves both directions. `diglot.huggingface.configs` does the same for config.json.

Four differences between the classes and diglot are folded into the weights, which computes the same:
- The classes put all sines of a sinusoidal encoding before all cosines, and diglot alternates them. Therefore the
  dimensions of the residual stream are in another order.
- BART and mBART never read the first two rows of their position tables.
- T5 does not divide attention scores by sqrt(d_head). Therefore the query weights are multiplied by it.
- T5 multiplies the decoder's states by d_model^-0.5 if the output is tied. Therefore the last norm is multiplied by it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from diglot.config.stock_class import BART, M2M100, MARIAN, MBART, PEGASUS, T5, class_name
from diglot.errors import UserError
from diglot.huggingface.configs import has_own_positions, model_node, scales_output, stock_class_of
from diglot.model import Transformer
from diglot.model.position import Learned, PositionEncoding, RelativeBias, Sinusoidal

__all__ = ["adapter_weights", "model_node", "read_weights", "written_weights"]

UNREAD_POSITIONS = 2  # rows of the position tables of BART and mBART that are never read
TABLE_TOLERANCE = 0.02  # of sinusoids; the tables of many folders are rounded to 16 bits
# Tensors of some folders that their classes do not read, either.
UNUSED = {
    *(f"model.{stack}.{name}" for stack in ("encoder", "decoder") for name in ("version", "embed_positions.weights")),
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
}

# The modules of a layer by their names in diglot. A position in T5's layers depends on the stack.
_BART_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
_BART_LAYER = {
    **{f"self_attention.sublayer.{ours}": f"self_attn.{theirs}" for ours, theirs in _BART_ATTENTION.items()},
    "self_attention.norm": "self_attn_layer_norm",
    **{f"cross_attention.sublayer.{ours}": f"encoder_attn.{theirs}" for ours, theirs in _BART_ATTENTION.items()},
    "cross_attention.norm": "encoder_attn_layer_norm",
    "feed_forward.sublayer.up": "fc1",
    "feed_forward.sublayer.down": "fc2",
    "feed_forward.norm": "final_layer_norm",
}
_T5_ATTENTION = {"query": "q", "key": "k", "value": "v", "out": "o"}
_WRITERS = ("out", "down")  # linear layers whose output is added to the residual stream; all others read it


def _t5_layer(stack: str, is_gated: bool) -> dict[str, str]:
    network = "layer.1" if stack == "encoder" else "layer.2"
    up = {"feed_forward.sublayer.up": f"{network}.DenseReluDense.wi"}
    if is_gated:
        up = {
            "feed_forward.sublayer.gate": f"{network}.DenseReluDense.wi_0",
            "feed_forward.sublayer.up": f"{network}.DenseReluDense.wi_1",
        }
    return {
        **{f"self_attention.sublayer.{our}": f"layer.0.SelfAttention.{name}" for our, name in _T5_ATTENTION.items()},
        "self_attention.norm": "layer.0.layer_norm",
        **{f"cross_attention.sublayer.{our}": f"layer.1.EncDecAttention.{name}" for our, name in _T5_ATTENTION.items()},
        "cross_attention.norm": "layer.1.layer_norm",
        **up,
        "feed_forward.sublayer.down": f"{network}.DenseReluDense.wo",
        "feed_forward.norm": f"{network}.layer_norm",
    }


class Entry(NamedTuple):
    """A weight of diglot's model, and the tensor that holds it in a stock class.

    Attributes:
        weight: the weight.
        names: the name of the tensor, and those that it may have instead, because they are tied.
        rows: for each row of the weight, the row of the tensor; None: the same.
        stream: the dimension that is the residual stream's; None: none.
        scale: the weight is the tensor times this.
        unread: number of the tensor's first rows that the weight does not have.
        is_flat: whether the tensor has a first dimension of 1 that the weight does not have.
        instead: the names of the tensors of which the weight is a copy if the folder has none of `names`.
        is_optional: whether a missing tensor stands for zeros.
    """

    weight: Tensor
    names: tuple[str, ...]
    rows: Tensor | None = None
    stream: int | None = None
    scale: float = 1.0
    unread: int = 0
    is_flat: bool = False
    instead: tuple[str, ...] = ()
    is_optional: bool = False

    def shape(self) -> tuple[int, ...]:
        """Return the shape of the tensor."""
        first, *others = self.weight.shape
        return (1, first) if self.is_flat else (first + self.unread, *others)

    def read(self, tensor: Tensor, order: Tensor) -> Tensor:
        """Return the weight for a tensor, given the order of the residual stream (see `_order`)."""
        value = (tensor[0] if self.is_flat else tensor[self.unread :]).to(self.weight.dtype) * self.scale
        if self.rows is not None:
            value = value[self.rows]
        return value if self.stream is None else value.index_select(self.stream, order.argsort())

    def written(self, order: Tensor) -> Tensor:
        """Return the tensor for the weight, in float32."""
        value = self.weight.detach()
        if self.rows is not None:
            value = value[self.rows.argsort()]
        value = (value if self.stream is None else value.index_select(self.stream, order)).float() / self.scale
        if self.unread:
            value = torch.cat((value.new_zeros(self.unread, *value.shape[1:]), value))
        return (value[None] if self.is_flat else value).clone().contiguous()


@torch.no_grad()
def read_weights(
    model: Transformer,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    src_rows: Sequence[int] | Tensor,
    tgt_rows: Sequence[int] | Tensor,
) -> None:
    """Copy the tensors of a folder into a model.

    Args:
        model: the model that `model_node` describes.
        config: the content of config.json.
        tensors: the tensors by their names; one that is tied to another may be missing.
        src_rows: the folder's id for each source id of diglot.
        tgt_rows: the folder's id for each target id of diglot.

    Raises:
        UserError: a tensor is missing, unknown, or has another shape; or tied tensors differ. The message names it.
    """
    name = stock_class_of(config)
    tensors = _with_prefix(tensors, name)
    rows = tuple(torch.as_tensor(each, dtype=torch.long) for each in (src_rows, tgt_rows))
    order, used = _order(model), set(UNUSED)
    for entry in _entries(model, name, rows, name == T5 and scales_output(config)):
        used.update(entry.names)
        found = [each for each in entry.names if each in tensors]
        found = found or [each for each in entry.instead if each in tensors]
        if not found and not entry.is_optional:
            raise UserError(f"the folder's weights have no {entry.names[0]}")
        for each in found:
            _check_shape(each, tensors[each], entry.shape())
            if each != found[0] and not torch.equal(tensors[each], tensors[found[0]]):
                raise UserError(f"{each} and {found[0]} differ, but config.json says that they are the same")
        entry.weight.copy_(entry.read(tensors[found[0]], order) if found else torch.zeros_like(entry.weight))
    if name in (MARIAN, PEGASUS) and not has_own_positions(config):
        used.update(_check_tables(model, tensors))
    if unknown := sorted(set(tensors) - used):
        raise UserError(f"the folder's weights have {unknown[0]}, which no {name} has")


@torch.no_grad()
def written_weights(
    model: Transformer,
    node: Mapping[str, Any],
    src_rows: Sequence[int] | Tensor,
    tgt_rows: Sequence[int] | Tensor,
    n_positions: int,
) -> dict[str, Tensor]:
    """Return a model's weights by their names in its stock class, in float32. A tied weight has one name.

    Args:
        model: a model with a stock class.
        node: its config.
        src_rows: the exported id for each source id.
        tgt_rows: the exported id for each target id.
        n_positions: number of positions that are written.
    """
    name, order = class_name(node), _order(model)
    rows = tuple(torch.as_tensor(each, dtype=torch.long) for each in (src_rows, tgt_rows))
    scales = name == T5 and node["tying"] == "all"
    found = {entry.names[0]: entry.written(order) for entry in _entries(model, name, rows, scales)}
    if name in (MARIAN, PEGASUS) and isinstance(model.encoder_position, Sinusoidal):
        table = _sinusoids(model, n_positions)
        found |= {f"model.{stack}.embed_positions.weight": table.clone() for stack in ("encoder", "decoder")}
    if name not in (M2M100, T5):
        found.setdefault("final_logits_bias", torch.zeros(1, model.output.out_features))
    return found


def adapter_weights(
    model: Transformer, node: Mapping[str, Any], pairs: Mapping[str, tuple[Tensor, Tensor]]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return low-rank updates by the names of the linear layers in the stock class, in float32.

    Args:
        model: a model with a stock class.
        node: its config.
        pairs: the matrices A (R, I) and B (O, R) by the name of a linear layer in diglot; their product B A is added to
            the layer's weight (O, I).
    """
    name, order, found = class_name(node), _order(model), {}
    for layer, place, ours, theirs in _modules(model, name):
        pair = pairs.get(f"{place}.{ours}")
        if pair is None:
            continue
        entry = next(_module(layer, ours, theirs, name))
        a, b = (matrix.detach().float() for matrix in pair)
        a, b = (a[:, order], b) if entry.stream == 1 else (a, b[order])
        found[theirs] = a.clone().contiguous(), (b / entry.scale).contiguous()
    return found


def _order(model: Transformer) -> Tensor:
    """Return the dimension of diglot's residual stream for each dimension of the stock class's."""
    dimensions = torch.arange(model.d_model)
    if isinstance(model.encoder_position, Sinusoidal):
        return torch.cat((dimensions[0::2], dimensions[1::2]))
    return dimensions


def _sinusoids(model: Transformer, n_positions: int) -> Tensor:
    """Return the table (n_positions, D) of a model's sinusoids in the order of the stock classes."""
    zeros = torch.zeros(1, n_positions, model.d_model)
    return model.encoder_position.embed(zeros, torch.arange(n_positions))[0][:, _order(model)]


def _with_prefix(tensors: Mapping[str, Tensor], name: str) -> Mapping[str, Tensor]:
    """Return the tensors by their full names: those of a folder without an output layer have no prefix."""
    if name == T5 or any(each.startswith("model.") for each in tensors):
        return tensors
    heads = ("lm_head.weight", "final_logits_bias")
    return {each if each in heads else f"model.{each}": tensor for each, tensor in tensors.items()}


def _check_shape(name: str, tensor: Tensor, wanted: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != wanted:
        raise UserError(f"{name} has the shape {list(tensor.shape)}, but config.json describes {list(wanted)}")
    if not tensor.is_floating_point():
        raise UserError(f"{name} has the type {tensor.dtype}: quantised weights cannot be read")


def _check_tables(model: Transformer, tensors: Mapping[str, Tensor]) -> set[str]:
    """Check that the position tables of a folder are sinusoids, and return their names.

    Raises:
        UserError: a table has other values.
    """
    names = {f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")}
    for name in sorted(names & tensors.keys()):
        n_positions = len(tensors[name])
        _check_shape(name, tensors[name], (n_positions, model.d_model))
        if not (tensors[name].float() - _sinusoids(model, n_positions)).abs().max() < TABLE_TOLERANCE:
            raise UserError(
                f"{name} holds other values than the sinusoids that config.json describes: if the positions are "
                "learned, config.json needs static_position_embeddings=false"
            )
    return names


def _entries(model: Transformer, name: str, rows: tuple[Tensor, ...], scales_states: bool) -> Iterator[Entry]:
    """Yield the weights of a model with the tensors of its stock class.

    Args:
        model: the model.
        name: the name of the stock class.
        rows: the class's id for each source id, and for each target id.
        scales_states: whether the class multiplies the decoder's states by d_model^-0.5.
    """
    yield from _embeddings(model, name, rows)
    for layer, _, ours, theirs in _modules(model, name):
        yield from _module(layer, ours, theirs, name)
    prefix, final_norm = ("", "final_layer_norm") if name == T5 else ("model.", "layer_norm")
    for stack in ("encoder", "decoder"):
        yield from _norm(
            getattr(model, f"{stack}_norm"),
            f"{prefix}{stack}.{final_norm}",
            model.d_model**-0.5 if scales_states and stack == "decoder" else 1.0,
        )
        yield from _norm(getattr(model, f"{stack}_embedding_norm"), f"{prefix}{stack}.layernorm_embedding")
        yield from _positions(getattr(model, f"{stack}_position"), stack, name)


def _modules(model: Transformer, name: str) -> Iterator[tuple[nn.Module, str, str, str]]:
    """Yield all linear layers and norms of the stacks.

    Yields:
        The layer of an encoder or decoder, its name in the model, and the module's name in that layer and in the class.
    """
    prefix, layer_list = ("", "block") if name == T5 else ("model.", "layers")
    for stack in ("encoder", "decoder"):
        layers = getattr(model, stack)
        names = _t5_layer(stack, hasattr(layers[0].feed_forward.sublayer, "gate")) if name == T5 else _BART_LAYER
        for i, layer in enumerate(layers):
            for ours, theirs in names.items():
                if stack == "decoder" or not ours.startswith("cross_"):
                    yield layer, f"{stack}.{i}", ours, f"{prefix}{stack}.{layer_list}.{i}.{theirs}"


def _embeddings(model: Transformer, name: str, rows: tuple[Tensor, ...]) -> Iterator[Entry]:
    """Yield the embeddings and the output projection; weights that are tied share an entry."""
    prefix = "" if name == T5 else "model."
    src, tgt, out = model.src_embedding.weight, model.tgt_embedding.weight, model.output.weight
    of_src, of_tgt, of_out = (
        *(f"{prefix}{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")),
        "lm_head.weight",
    )
    shared = (f"{prefix}shared.weight",) if src is tgt else ()
    inputs = (*shared, of_src, of_tgt) if src is tgt else (of_tgt,)
    if src is not tgt:
        yield Entry(src, (of_src,), rows[0], stream=1)
    yield Entry(tgt, (*inputs, of_out) if out is tgt else inputs, rows[1], stream=1)
    if out is not tgt:
        yield Entry(out, (of_out,), rows[1], stream=1, instead=inputs if src is tgt else ())
    if model.output.bias is not None:
        yield Entry(model.output.bias, ("final_logits_bias",), rows[1], is_flat=True, is_optional=True)


def _module(layer: nn.Module, ours: str, theirs: str, name: str) -> Iterator[Entry]:
    """Yield the weights of a linear layer or norm of a layer.

    Args:
        layer: the layer of an encoder or decoder.
        ours: the name of the module in the layer.
        theirs: the full name of the module in the stock class.
        name: the name of the stock class.
    """
    module, part = layer.get_submodule(ours), ours.rpartition(".")[2]
    if not isinstance(module, nn.Linear):
        yield from _norm(module, theirs)
        return
    scale = 1.0
    if part == "query" and name == T5:
        attention: Any = layer.get_submodule(ours.removesuffix(".query"))
        scale = attention.d_head**0.5
    yield Entry(module.weight, (f"{theirs}.weight",), stream=0 if part in _WRITERS else 1, scale=scale)
    if module.bias is not None:
        yield Entry(module.bias, (f"{theirs}.bias",), stream=0 if part in _WRITERS else None, scale=scale)


def _norm(norm: nn.Module, theirs: str, scale: float = 1.0) -> Iterator[Entry]:
    """Yield the weights of a norm, of which one without weights has ones and zeros, or nothing for the identity."""
    if isinstance(norm, (nn.LayerNorm, nn.RMSNorm)):
        weight = torch.ones(norm.normalized_shape) if norm.weight is None else norm.weight
        yield Entry(weight, (f"{theirs}.weight",), stream=0, scale=scale)
    if isinstance(norm, nn.LayerNorm):
        bias = torch.zeros(norm.normalized_shape) if norm.bias is None else norm.bias
        yield Entry(bias, (f"{theirs}.bias",), stream=0, scale=scale)


def _positions(position: PositionEncoding, stack: str, name: str) -> Iterator[Entry]:
    if isinstance(position, RelativeBias):
        theirs = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield Entry(position.table.weight, (theirs,))
    elif isinstance(position, Learned):
        unread = UNREAD_POSITIONS if name in (BART, MBART) else 0
        yield Entry(position.table.weight, (f"model.{stack}.embed_positions.weight",), stream=1, unread=unread)
