"""State and history of a search."""

from typing import NamedTuple

import torch
from torch import Tensor

NEAR = 1e-5  # scores that differ by less are a near tie


class Hypothesis(NamedTuple):
    """One translation of a sentence.

    Attributes:
        tokens: token ids without <s> and </s>.
        score: score of the search, higher is better.
        cut: whether the length limit ended the hypothesis although the model preferred another token to </s>.
        log_probs: the model's natural log-probability of each token given those before it, and of </s>.
        near_tie: whether some choice in the search of the sentence was so close (within NEAR) that rounding, which
            varies between batches, may change it. The same for all hypotheses of a sentence.
    """

    tokens: list[int]
    score: float
    cut: bool
    log_probs: list[float]
    near_tie: bool = False


class Choice(NamedTuple):
    """The extensions chosen in a step of the search, each (R, n).

    Hypothesis j of the next step is hypothesis `parents[:, j]` of this step, extended by the token `tokens[:, j]` with
    log-probability `log_probs[:, j]`.
    """

    parents: Tensor
    tokens: Tensor
    log_probs: Tensor


class State:
    """State of a search: R sentences, with n live hypotheses each, and the best k that have ended.

    Attributes:
        sentences: index of each sentence in the batch (R,).
        scores: log-probability of each live hypothesis (R, n); -inf for unused slots.
        ended_scores: score of each ended hypothesis (R, k); -inf for unused slots.
        ended_steps: step in which each ended (R, k).
        ended_parents: index of the live hypothesis that ended (R, k).
        ended_log_probs: log-probability of each final </s> (R, k).
        ended_cut: whether the length limit ended each (R, k).
        done: whether a sentence is finished (R,). Finished sentences have no live hypotheses; they are removed when
            half of all are finished.
        near_tie: whether a choice was close (R,).
        limits: maximum number of tokens of each translation (R,).
        minima: minimum number of tokens of each translation (R,).
        latest_minimum: greatest of the minima in the batch.
        padding: True on padding of the source (R, S).
        eos: the id of </s>.
        keys: random number keys (R, n, T), if the search uses any.
        coverage: total attention of each hypothesis to each source token (R, n, S), if the search uses it.
        at_limit: whether only </s> may follow (R,); None: no sentence is at its limit.
        prefers_to_continue: whether the model prefers another token to </s> (R, n); set while sentences are at their
            limit.
    """

    def __init__(
        self,
        n_live: int,
        n_best: int,
        limits: Tensor,
        minima: Tensor,
        padding: Tensor,
        eos: int,
        dtype: torch.dtype,
    ) -> None:
        n_all, device = len(limits), limits.device
        self.sentences = torch.arange(n_all, device=device)
        self.scores = torch.full((n_all, n_live), -torch.inf, dtype=dtype, device=device)
        self.ended_scores = torch.full((n_all, n_best), -torch.inf, dtype=dtype, device=device)
        self.ended_steps = torch.zeros((n_all, n_best), dtype=torch.long, device=device)
        self.ended_parents = torch.zeros_like(self.ended_steps)
        self.ended_log_probs = torch.zeros_like(self.ended_scores)
        self.ended_cut = torch.zeros((n_all, n_best), dtype=torch.bool, device=device)
        self.done = torch.zeros(n_all, dtype=torch.bool, device=device)
        self.near_tie = torch.zeros_like(self.done)
        self.limits, self.minima, self.padding, self.eos = limits, minima, padding, eos
        self.latest_minimum = int(minima.max())
        self.coverage: Tensor | None = None
        self.keys: Tensor | None = None
        self.at_limit: Tensor | None = None
        self.prefers_to_continue: Tensor | None = None

    def note_near_ties(self, gaps: Tensor) -> None:
        """Mark the sentences in which a choice was close.

        Args:
            gaps: score differences between chosen and rejected candidates (R, ...); NaN or infinity: no choice.
        """
        self.near_tie |= (gaps.abs() < NEAR).view(len(gaps), -1).any(1)

    def keep(self, rows: Tensor) -> None:
        """Keep only these sentences."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value[rows])


class History:
    """Record of each step's choices, from which the hypotheses are reconstructed once at the end.

    Args:
        n_all: number B of sentences.
        n: number of live hypotheses per sentence.
        n_steps: maximum number of steps.
        like: tensor with the dtype and device of the log-probabilities.
    """

    def __init__(self, n_all: int, n: int, n_steps: int, like: Tensor) -> None:
        self.log_probs = like.new_zeros((n_steps, n_all, n))
        self.parents = torch.zeros_like(self.log_probs, dtype=torch.int32)
        self.tokens = torch.zeros_like(self.parents)
        self.ended: list[tuple[Tensor, ...]] = []

    def add(self, state: State, step: int, choice: Choice) -> None:
        """Record the choice of a step, which counts from 0."""
        self.parents[step, state.sentences] = choice.parents.int()
        self.tokens[step, state.sentences] = choice.tokens.int()
        self.log_probs[step, state.sentences] = choice.log_probs

    def keep(self, state: State) -> None:
        """Store the ended hypotheses of the finished sentences."""
        ended = (state.ended_scores, state.ended_steps, state.ended_parents, state.ended_log_probs, state.ended_cut)
        self.ended.append(tuple(x[state.done].cpu() for x in (state.sentences, state.near_tie, *ended)))

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence, from the records that `keep` has stored."""
        sentences, near_ties, scores, steps, parents, end_log_probs, cut = map(torch.cat, zip(*self.ended, strict=True))
        sentence = sentences.repeat_interleave(scores.size(1))
        all_tokens, all_parents, all_log_probs = self.tokens.cpu(), self.parents.cpu().long(), self.log_probs.cpu()
        steps, slot = steps.flatten(), parents.flatten()
        longest = int(steps.max()) if len(steps) else 0
        tokens = torch.zeros((len(steps), longest), dtype=torch.int32)
        log_probs = torch.zeros((len(steps), longest), dtype=all_log_probs.dtype)
        for step in range(longest - 1, -1, -1):  # from the last token to the first
            is_longer = steps > step
            tokens[:, step] = all_tokens[step, sentence, slot]
            log_probs[:, step] = all_log_probs[step, sentence, slot]
            slot = torch.where(is_longer, all_parents[step, sentence, slot], slot)
        hypotheses: list[list[Hypothesis]] = [[] for _ in range(self.tokens.size(1))]
        rows = zip(
            sentence.tolist(),
            near_ties.repeat_interleave(scores.size(1)).tolist(),
            steps.tolist(),
            tokens.tolist(),
            log_probs.tolist(),
            end_log_probs.flatten().tolist(),
            scores.flatten().tolist(),
            cut.flatten().tolist(),
            strict=True,
        )
        for i, near_tie, length, its_tokens, its_log_probs, end, score, was_cut in rows:
            if score != float("-inf"):
                log_probs_and_end = [*its_log_probs[:length], end]
                hypotheses[i].append(Hypothesis(its_tokens[:length], score, was_cut, log_probs_and_end, near_tie))
        # If no hypothesis has ended, for example because weights are not finite, return an empty one with score -inf.
        return [row or [Hypothesis([], float("-inf"), True, [float("-inf")])] for row in hypotheses]


def log_softmax(logits: Tensor) -> Tensor:
    """Compute log-probabilities in float32, or in the dtype of the logits if it is wider."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def topk(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k greatest values of each row (..., V) and their indices, like torch.topk but faster on a CPU.

    The k greatest values lie in the k groups of 64 with the greatest maxima, so only these groups are sorted.
    """
    size, group = values.size(-1), 64
    n_groups = size // group
    if n_groups <= k:
        return values.topk(min(k, size), -1)
    rows = values.reshape(-1, size)
    grouped, remainder = rows[:, : n_groups * group].unflatten(1, (n_groups, group)), rows[:, n_groups * group :]
    groups = grouped.amax(-1).topk(k, -1, sorted=False).indices  # (rows, k)
    members = grouped.gather(1, groups[..., None].expand(-1, -1, group)).flatten(1)  # (rows, k group)
    greatest, indices = torch.cat((members, remainder), 1).topk(k, 1)
    group_indices = groups.gather(1, (indices // group).clamp(max=k - 1)) * group + indices % group
    remainder_indices = indices - k * group + n_groups * group
    indices = torch.where(indices < k * group, group_indices, remainder_indices)
    return greatest.view(*values.shape[:-1], k), indices.view(*values.shape[:-1], k)
