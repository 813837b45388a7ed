"""Statistics of attention heads."""

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


class HeadSums:
    """Attention weights of the heads of one layer, summed over sentences.

    Attributes:
        causal: whether query i sees keys 0 to i, as in decoder self-attention; otherwise each query sees all keys.
        is_cross: whether queries are target tokens and keys are source tokens.
    """

    DEAD = 0.98  # a head is dead if its entropy, or the weight of a single key, reaches this share of the maximum

    def __init__(self, causal: bool, is_cross: bool = False) -> None:
        self.causal, self.is_cross = causal, is_cross
        self._queries = 0
        self._entropy: list[Tensor] = []  # normalised entropy of each sentence, summed over queries (H,)
        self._received: list[Tensor] = []  # weight that each key receives, per sentence, summed over queries (M, H)
        self._distance: list[Tensor] = []  # distance of the attended keys in each sentence, summed over queries (H,)
        self._shared: list[Tensor] = []  # weight that two heads share, per sentence, summed over queries (H, H)

    def add(self, weights: Tensor) -> None:
        """Add a sentence's weights (H, Q, M), without padding.

        Queries with a single key are skipped, because their weights are always 1.
        """
        n_all, width = weights.shape[1:]
        n_keys = torch.full(weights.shape[1:2], weights.size(2), device=weights.device)
        if self.causal:
            n_keys = torch.arange(1, weights.size(1) + 1, device=weights.device)
        weights, n_keys = weights[:, n_keys > 1], n_keys[n_keys > 1]
        if len(n_keys):
            self._queries += len(n_keys)
            self._entropy.append((torch.special.entr(weights).sum(-1) / n_keys.log()).sum(-1))
            self._received.append(weights.sum(1).T)
            queries = torch.arange(n_all, device=weights.device)[-len(n_keys) :]
            if self.is_cross:  # as if both sides had the same length
                queries = queries * (width - 1) / max(1, n_all - 1)
            distance = (torch.arange(width, device=weights.device) - queries[:, None]).abs()
            self._distance.append((weights * distance).sum((1, 2)))
            self._shared.append(torch.minimum(weights[:, None], weights[None]).sum((2, 3)))

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
    def distance(self) -> Tensor:
        """Return the mean distance (H,) in tokens between a query and the keys that it attends to, by weight.

        In cross-attention, the position of a query is scaled to the length of the source.
        """
        return torch.stack(self._distance).sum(0) / self._queries

    @property
    def coverage(self) -> Tensor:
        """Return the share (H,) of keys that are covered, where a key is covered if it receives the weight of a query.

        A key that receives less counts in part. Tu et al. (2016) call the received weight coverage.
        """
        return torch.cat(self._received).clamp(max=1).mean(0)

    @property
    def doubles(self) -> Tensor:
        """Return the weight (H,) that each head shares with the most similar other head of its layer, from 0 to 1.

        1 means that another head attends to the same keys with the same weights. A single head has 0.
        """
        shared = torch.stack(self._shared).sum(0) / self._queries
        return shared.fill_diagonal_(0).amax(1).clamp(0, 1)

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
