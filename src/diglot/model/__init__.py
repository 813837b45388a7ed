"""Encoder-decoder models: the Transformer (Vaswani et al., 2017) and a recurrent baseline with attention.

Axes: B batch, S source length, T target length, D d_model, H n_heads, K d_head, V vocabulary size. Q and M are the
query and key lengths of an attention.

A mask is boolean and True where attention is allowed: `src_mask` (B, S) is True on tokens and False on padding.
A bias is a float that is added to attention scores. The two are never interchangeable.
"""

from diglot.model.encoder_decoder import AttentionWeights, EncoderDecoder, evaluating
from diglot.model.norm import RMSNorm
from diglot.model.recurrent import GruAttention
from diglot.model.transformer import Transformer

__all__ = ["AttentionWeights", "EncoderDecoder", "GruAttention", "RMSNorm", "Transformer", "evaluating"]
