"""Statistics of attention heads."""

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


class HeadSums:
    """Attention weights of the heads of one layer, summed over sentences.

    Attributes:
        causal: whether query i sees keys 0 to i, as in decoder self-attention; otherwise each query sees all keys.
    """

    DEAD = 0.98  # a head is dead if its entropy, or the weight of a single key, reaches this share of the maximum

    def __init__(self, causal: bool) -> None:
        self.causal = causal
        self._queries = 0
        self._entropy: list[Tensor] = []  # normalised entropy of each sentence, summed over queries (H,)
        self._received: list[Tensor] = []  # weight that each key receives, per sentence, summed over queries (M, H)

    def add(self, weights: Tensor) -> None:
        """Add a sentence's weights (H, Q, M), without padding.

        Queries with a single key are skipped, because their weights are always 1.
        """
        n_keys = torch.full(weights.shape[1:2], weights.size(2), device=weights.device)
        if self.causal:
            n_keys = torch.arange(1, weights.size(1) + 1, device=weights.device)
        weights, n_keys = weights[:, n_keys > 1], n_keys[n_keys > 1]
        if len(n_keys):
            self._queries += len(n_keys)
            self._entropy.append((torch.special.entr(weights).sum(-1) / n_keys.log()).sum(-1))
            self._received.append(weights.sum(1).T)

    def __bool__(self) -> bool:
        return self._queries > 0

    @property
    def entropy(self) -> Tensor:
        """Return the mean entropy (H,) of each head's weights, as a share of the maximum that a query's keys allow.

        0 means that each query attends to one key, 1 that it attends to all keys equally. Clark et al. (2019)
        characterise heads by their entropy, Voita et al. (2019) by something like its opposite, the mean of a head's
        largest weights.
        """
        return (torch.stack(self._entropy).sum(0) / self._queries).clamp(0, 1)

    @property
    def dead(self) -> Tensor:
        """Return a boolean mask (H,) of the heads whose attention hardly depends on the query.

        Such a head meets one of two conditions. Either its entropy is at least 0.98, so that it takes a plain mean of
        all keys. Or one key, at the same position in all sentences counted from the start or from the end, receives at
        least 0.98 of the weight. Usually this key is <s> or </s>, which a head attends to when it has nothing to
        contribute (Clark et al., 2019). Such heads can be removed without loss. So can many others (Michel et al.,
        2019): this finds only the most obvious ones.
        """
        from_start = pad_sequence(self._received, batch_first=True).sum(0)  # (longest M, H)
        from_end = pad_sequence([received.flip(0) for received in self._received], batch_first=True).sum(0)
        max_share = torch.maximum(from_start.amax(0), from_end.amax(0)) / self._queries
        return (self.entropy >= self.DEAD) | (max_share >= self.DEAD)
