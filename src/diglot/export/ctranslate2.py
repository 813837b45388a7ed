"""Conversion of a Transformer to CTranslate2 (Klein et al., 2020), a C++ engine that also translates in int8."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ctranslate2.specs import TransformerSpec
from ctranslate2.specs.common_spec import Activation, LayerNormSpec, LinearSpec
from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec
from torch import Tensor, nn

from diglot.data.tokenizer import Tokenizer
from diglot.model import Transformer
from diglot.model.attention import Attention
from diglot.model.feed_forward import FeedForward, GatedFeedForward
from diglot.model.position import Alibi, PositionEncoding, RelativeBias, Rotary
from diglot.model.residual import DeepNorm, PreNorm, Residual, SandwichNorm

# Size of the position table that is written for an encoding without a maximum.
POSITIONS = 4096

ACTIVATIONS = {
    nn.ReLU: Activation.RELU,
    nn.GELU: Activation.GELU,
    nn.SiLU: Activation.SWISH,
    nn.Tanh: Activation.Tanh,
    nn.Sigmoid: Activation.Sigmoid,
}
# Names of the norms before and after a sublayer, in a layer that has both.
BOTH_SIDES = {
    "self_attention": ("input_layer_norm", "post_attention_layer_norm"),
    "attention": ("external_pre_encoder_attention_layer_norm", "external_post_encoder_attention_layer_norm"),
    "ffn": ("pre_feedforward_layer_norm", "post_feedforward_layer_norm"),
}


def write(model: Transformer, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the model's weights in float32, vocabularies and config into a folder.

    Args:
        model: a model that CTranslate2 can represent (see diglot.config.exportable).
        tokenizer: the tokenizer of the model.
        folder: an existing folder.

    Raises:
        OSError: the folder cannot be written to.
    """
    spec = spec_of(model, tokenizer)
    spec.validate()
    spec.optimize()  # stores equal weights once
    spec.save(str(folder))


def longest(model: Transformer) -> dict[str, int | None]:
    """Return the maximum source and target length in the exported model, including </s>; None: any length."""
    positions = {"source": model.encoder_position, "target": model.decoder_position}
    return {side: _n_positions(position) if _has_table(position) else None for side, position in positions.items()}


def spec_of(model: Transformer, tokenizer: Tokenizer) -> TransformerSpec:
    """Return CTranslate2's specification of a model, with its weights in float32. See `write`."""
    encoder = _stack(TransformerEncoderSpec, model, model.encoder, model.encoder_position, model.encoder_embedding_norm)
    decoder = _stack(
        TransformerDecoderSpec,
        model,
        model.decoder,
        model.decoder_position,
        model.decoder_embedding_norm,
        alibi=isinstance(model.decoder_position, Alibi),
        alibi_use_positive_positions=False,
        external_pre_post_encoder_layers=isinstance(model.decoder[0].feed_forward, SandwichNorm),
    )
    encoder.embeddings[0].weight = _plain(model.src_embedding.weight)
    decoder.embeddings.weight = _plain(model.tgt_embedding.weight)
    _set_linear(decoder.projection, [model.output])
    for spec, norm in ((encoder, model.encoder_norm), (decoder, model.decoder_norm)):
        if not isinstance(norm, nn.Identity):
            _set_norm(spec.layer_norm, norm)
    spec = TransformerSpec(encoder, decoder)
    tgt = tokenizer.pieces(range(tokenizer.tgt_vocab_size), "tgt")
    spec.register_source_vocabulary(tokenizer.pieces(range(tokenizer.src_vocab_size), "src"))
    spec.register_target_vocabulary(tgt)
    spec.config.unk_token, spec.config.bos_token = tgt[tokenizer.unk_id], tgt[tokenizer.bos_id]
    spec.config.eos_token, spec.config.decoder_start_token = tgt[tokenizer.eos_id], tgt[tokenizer.bos_id]
    spec.config.add_source_eos = True
    all_eps = {norm.eps for norm in model.modules() if isinstance(norm, (nn.LayerNorm, nn.RMSNorm))}
    eps = all_eps.pop()  # if there are two, both are CTranslate2's defaults, so none is set
    spec.config.layer_norm_epsilon = None if all_eps else torch.finfo(torch.float32).eps if eps is None else eps
    return spec


def _stack(
    make: Callable[..., Any],
    model: Transformer,
    layers: nn.ModuleList,
    position: PositionEncoding,
    embedding_norm: nn.Module,
    **options: Any,
) -> Any:
    """Return the specification of the encoder or decoder, without embeddings and final norm."""
    first_layer: Any = layers[0]
    residual, attention, network = (
        first_layer.feed_forward,
        first_layer.self_attention.sublayer,
        first_layer.feed_forward.sublayer,
    )
    spec = make(
        len(layers),
        _n_heads(attention),
        pre_norm=isinstance(residual, PreNorm),
        pre_post_layer_norm=isinstance(residual, SandwichNorm),
        activation=_activation(network.activation),
        ffn_glu=isinstance(network, GatedFeedForward),
        rms_norm=isinstance(residual.norm, nn.RMSNorm),
        relative_attention_bias=isinstance(position, RelativeBias),
        rotary_dim=0 if isinstance(position, Rotary) else None,  # 0: all dimensions, in neighbouring pairs
        rotary_base=position.base if isinstance(position, Rotary) else 1.0,
        num_heads_kv=_n_kv_heads(attention),
        head_dim=attention.d_head,
        qk_norm=not isinstance(attention.query_norm, nn.Identity),
        layernorm_embedding=not isinstance(embedding_norm, nn.Identity),
        **options,
    )
    # DeepNorm multiplies the skip connection by alpha. Here, the residual stream itself is scaled by alpha instead: the
    # embeddings and norms that produce it are multiplied by alpha, and the projections that read it are divided by
    # alpha. Each sum is then alpha x + f(x), as in the model, so that the norms' eps have the same effect.
    scale = residual.alpha if isinstance(residual, DeepNorm) else 1.0
    embedding_scale = scale
    if not isinstance(embedding_norm, nn.Identity):
        _set_norm(spec.layernorm_embedding, embedding_norm, scale)
        embedding_scale = 1.0
    spec.scale_embeddings = (model.d_model**0.5 if model.scale_embeddings else 1.0) * embedding_scale
    if _has_table(position):
        n = _n_positions(position)
        table = position.embed(torch.zeros(1, n, model.d_model), torch.arange(n))[0]  # (n, D)
        spec.position_encodings.encodings = _plain(table * embedding_scale)
    layer: Any
    for index, (layer, layer_spec) in enumerate(zip(layers, spec.layer, strict=True)):
        is_last = index == len(layers) - 1
        if isinstance(position, RelativeBias):
            layer_spec.self_attention.relative_attention_bias = _plain(position.table.weight)
            layer_spec.self_attention.relative_attention_max_distance = np.int32(position.max_distance)
        _set_attention(layer_spec.self_attention, layer.self_attention.sublayer, scale)
        _set_norms(layer_spec, "self_attention", layer.self_attention, scale)
        if hasattr(layer, "cross_attention"):
            _set_attention(layer_spec.attention, layer.cross_attention.sublayer, scale)
            _set_norms(layer_spec, "attention", layer.cross_attention, scale)
        _set_network(layer_spec.ffn, layer.feed_forward.sublayer, scale)
        _set_norms(layer_spec, "ffn", layer.feed_forward, 1.0 if is_last else scale)
    return spec


def _set_norms(spec: Any, part: str, residual: Residual, scale: float) -> None:
    if isinstance(residual, SandwichNorm):
        before, after = BOTH_SIDES[part]
        _set_norm(getattr(spec, before), residual.norm)
        _set_norm(getattr(spec, after), residual.out_norm)
    else:
        _set_norm(getattr(spec, part).layer_norm, residual.norm, scale)


def _set_attention(spec: Any, attention: Attention, scale: float) -> None:
    is_self = len(spec.linear) == 2
    key_value = [attention.key, attention.value]
    _set_linear(spec.linear[0], [attention.query, *(key_value if is_self else ())], scale)
    if not is_self:
        _set_linear(spec.linear[1], key_value)  # the encoder's output is not scaled
    _set_linear(spec.linear[-1], [attention.out])
    spec.num_heads_kv = np.int32(_n_kv_heads(attention))
    spec.head_dim = np.int32(attention.d_head)
    if not isinstance(attention.query_norm, nn.Identity):
        is_rms = isinstance(attention.query_norm, nn.RMSNorm)
        spec.q_norm, spec.k_norm = LayerNormSpec(rms_norm=is_rms), LayerNormSpec(rms_norm=is_rms)
        _set_norm(spec.q_norm, attention.query_norm)
        _set_norm(spec.k_norm, attention.key_norm)


def _set_network(spec: Any, network: FeedForward, scale: float) -> None:
    if isinstance(network, GatedFeedForward):
        _set_linear(spec.linear_0, [network.gate], scale)
        _set_linear(spec.linear_0_noact, [network.up], scale)
    else:
        _set_linear(spec.linear_0, [network.up], scale)
    _set_linear(spec.linear_1, [network.down])


def _set_linear(spec: LinearSpec, layers: Sequence[nn.Linear], scale: float = 1.0) -> None:
    """Concatenate linear layers that share an input, dividing their weights by the scale of the input."""
    spec.weight = _plain(torch.cat([layer.weight for layer in layers]) / scale)
    if layers[0].bias is not None:
        spec.bias = _plain(torch.cat([layer.bias for layer in layers]))


def _set_norm(spec: LayerNormSpec, norm: Any, scale: float = 1.0) -> None:
    width = norm.normalized_shape
    spec.gamma = _plain((torch.ones(width) if norm.weight is None else norm.weight) * scale)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = _plain((torch.zeros(width) if norm.bias is None else norm.bias) * scale)


def _activation(activation: nn.Module) -> Activation:
    is_tanh = isinstance(activation, nn.GELU) and activation.approximate == "tanh"
    return Activation.GELUTanh if is_tanh else ACTIVATIONS[type(activation)]


def _has_table(position: PositionEncoding) -> bool:
    """Return whether an encoding adds a vector to each embedding, even a zero vector."""
    return not isinstance(position, (Rotary, Alibi, RelativeBias))


def _n_positions(position: PositionEncoding) -> int:
    return position.max_positions or POSITIONS


def _n_heads(attention: Attention) -> int:
    return attention.query.out_features // attention.d_head


def _n_kv_heads(attention: Attention) -> int:
    return attention.key.out_features // attention.d_head


def _plain(weight: Tensor) -> Tensor:
    return weight.detach().float().contiguous()
