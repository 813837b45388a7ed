"""The Transformer, from attention to the whole encoder-decoder (Vaswani et al., 2017), and what it replaced.

Axes: B batch, S source length, T target length, D d_model, H n_heads, K d_head, V vocabulary size; Q and M are an
attention's query and memory lengths.

A mask is boolean and True where information may flow: `src_mask` (B, S) is True on tokens and False on padding.
A bias is a float added to attention scores. Neither is ever given as the other.
"""

from diglot.model.encoder_decoder import AttentionWeights, EncoderDecoder, evaluating
from diglot.model.norm import RMSNorm
from diglot.model.recurrent import GruAttention
from diglot.model.transformer import Transformer

__all__ = ["AttentionWeights", "EncoderDecoder", "GruAttention", "RMSNorm", "Transformer", "evaluating"]
