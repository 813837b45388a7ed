"""Ensembles of models."""

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from diglot.decoding.state import log_softmax
from diglot.model import EncoderDecoder


class EnsembleCache:
    """The decoder caches of all models of an ensemble."""

    def __init__(self, caches: list[Any]) -> None:
        self.caches = caches

    def __len__(self) -> int:
        return len(self.caches[0])

    def select(self, hypotheses: Tensor, sentences: Tensor | None = None) -> None:
        for cache in self.caches:
            cache.select(hypotheses, sentences)


class Ensemble(EncoderDecoder):
    """Ensemble that averages the token probabilities of models with the same vocabularies.

    Args:
        models: at least one model.

    Raises:
        ValueError: the models differ in vocabulary size.
    """

    def __init__(self, models: Sequence[EncoderDecoder]) -> None:
        nn.Module.__init__(self)  # skips EncoderDecoder's, as an ensemble has no embeddings
        self._models = list(models)
        self.models = nn.ModuleList(models)  # registered, so that .to() and .eval() apply to them
        sizes = {(m.src_embedding.num_embeddings, m.tgt_embedding.num_embeddings) for m in models}
        if len(sizes) != 1:
            raise ValueError(f"models of an ensemble must share their vocabularies; these have {sorted(sizes)} tokens")
        self.max_src_positions = _minimum(m.max_src_positions for m in models)
        self.max_tgt_positions = _minimum(m.max_tgt_positions for m in models)
        self._widths: list[int] = []

    def encode(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """Encode with each model and concatenate the memories: (B, S, D of the first + D of the second + ...)."""
        memories = [model.encode(src, src_mask) for model in self._models]
        self._widths = [memory.size(-1) for memory in memories]
        return torch.cat(memories, -1)

    def decode(
        self, tgt: Tensor, memory: Tensor, src_mask: Tensor | None = None, cache: EnsembleCache | None = None
    ) -> Tensor:
        caches = [None] * len(self._models) if cache is None else cache.caches
        members = zip(self._models, memory.split(self._widths, -1), caches, strict=True)
        log_probs = [log_softmax(model.decode(tgt, part, src_mask, its_cache)) for model, part, its_cache in members]
        return torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))

    def new_cache(self) -> EnsembleCache:
        return EnsembleCache([model.new_cache() for model in self._models])

    def attentions(self) -> dict[str, Sequence[Any]]:
        attentions = [model.attentions() for model in self._models]
        return {kind: list(chain.from_iterable(by_kind[kind] for by_kind in attentions)) for kind in attentions[0]}


def _minimum(limits: Any) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
