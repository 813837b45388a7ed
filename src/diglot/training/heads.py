"""What attention heads do, in numbers."""

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


class HeadSums:
    """What the heads of one attention look at, added up over sentences.

    Attributes:
        causal: whether query i sees keys 0 to i, as in a decoder's self-attention; otherwise each query sees all keys.
    """

    DEAD = 0.98  # the share of what is possible that counts as all of it

    def __init__(self, causal: bool) -> None:
        self.causal = causal
        self._queries = 0
        self._entropy: list[Tensor] = []  # for each sentence, summed over queries (H,)
        self._received: list[Tensor] = []  # for each sentence, what each key is given, summed over queries (M, H)

    def add(self, weights: Tensor) -> None:
        """Count a sentence's weights (H, Q, M), without padding. A query that sees a single key says nothing of a head
        and is left out."""
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
        """Mean entropy of each head's weights as a share of the most that a query's keys allow (H,).

        0: each query looks at one key; 1: at all alike. Clark et al. (2019) read heads by their entropy, Voita et al.
        (2019) by something like its opposite, the mean of a head's largest weights.
        """
        return (torch.stack(self._entropy).sum(0) / self._queries).clamp(0, 1)

    @property
    def dead(self) -> Tensor:
        """Which heads look alike whatever they are asked: boolean (H,).

        Either the entropy is at least 0.98: a plain mean of what is there. Or one key, the same in all sentences
        counted from the start or from the end, is given at least 0.98 of the weight: as a rule <s> or </s>, where a
        head looks that has nothing to say (Clark et al., 2019). Such heads can go without loss, and many others too
        (Michel et al., 2019): this finds only the plainest.
        """
        from_start = pad_sequence(self._received, batch_first=True).sum(0)  # (longest M, H)
        from_end = pad_sequence([received.flip(0) for received in self._received], batch_first=True).sum(0)
        most = torch.maximum(from_start.amax(0), from_end.amax(0)) / self._queries
        return (self.entropy >= self.DEAD) | (most >= self.DEAD)
