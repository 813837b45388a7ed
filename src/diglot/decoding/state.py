"""Where a search stands, and what it has chosen so far."""

from typing import NamedTuple

import torch
from torch import Tensor

NEAR = 1e-5  # what is less apart is a near tie


class Hypothesis(NamedTuple):
    """One translation of a sentence.

    Attributes:
        tokens: ids without <s> and </s>.
        score: what hypotheses are compared by, higher is better: see the search.
        cut: whether the length limit ended it against the model's will.
        log_probs: the model's natural log-probability of each token given all before it, and of </s>.
        near_tie: whether in the search of its sentence a choice was so close (by NEAR) that the rounding of sums, which
            differs from batch to batch, may make it otherwise. The same for all hypotheses of a sentence.
    """

    tokens: list[int]
    score: float
    cut: bool
    log_probs: list[float]
    near_tie: bool = False


class Choice(NamedTuple):
    """How a step extends the hypotheses of the sentences that are searched (R, n): hypothesis j of the next step is
    hypothesis `parents[:, j]` of this one and one token more, whose log-probability it gets."""

    parents: Tensor
    tokens: Tensor
    log_probs: Tensor


class State:
    """Where a search stands: R sentences, n hypotheses of each that go on, the best k that have ended.

    Attributes:
        sentences: the number of each sentence in the batch (R,).
        scores: log-probability of each hypothesis that goes on (R, n); -inf: there is none.
        ended_scores: scores of those that have ended (R, k); -inf: there is none.
        ended_steps: the step in which each ended (R, k).
        ended_parents: which hypothesis of that step it was (R, k).
        ended_log_probs: of their </s> (R, k).
        ended_cut: whether the length limit ended them (R, k).
        done: sentences that need no more steps (R,); they stay until half of all are done, with no hypothesis left.
        near_tie: sentences in which a choice was close (R,).
        limits: the most tokens of each sentence's translation (R,).
        minima: the fewest.
        latest_minimum: the greatest of them in the batch.
        padding: True on source tokens that are none (R, S).
        eos: the id of </s>.
        keys: of a search's own random numbers (R, n, T).
        coverage: how much the hypotheses have looked at each source token (R, n, S), where anybody wants to know.
        at_limit: sentences of which only </s> may follow now (R,); None: none is there.
        wants_more: hypotheses of which the model wants to write on, where some are at their limit (R, n).
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
        self.wants_more: Tensor | None = None

    def note_near_ties(self, gaps: Tensor) -> None:
        """Remember the sentences in which a choice was close.

        Args:
            gaps: between what was chosen and what was not (R, ...); no number: there was no choice.
        """
        self.near_tie |= (gaps.abs() < NEAR).view(len(gaps), -1).any(1)

    def keep(self, rows: Tensor) -> None:
        """Go on with these sentences only."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value[rows])


class History:
    """What each step chose, from which whole hypotheses are read off at the end: nothing is copied on the way.

    Args:
        n_all: number B of sentences.
        n: hypotheses of a sentence that go on.
        n_steps: the most steps there can be.
        like: whose type and device the log-probabilities share.
    """

    def __init__(self, n_all: int, n: int, n_steps: int, like: Tensor) -> None:
        self.log_probs = like.new_zeros((n_steps, n_all, n))
        self.parents = torch.zeros_like(self.log_probs, dtype=torch.int32)
        self.tokens = torch.zeros_like(self.parents)
        self.ended: list[tuple[Tensor, ...]] = []

    def add(self, state: State, step: int, choice: Choice) -> None:
        self.parents[step, state.sentences] = choice.parents.int()
        self.tokens[step, state.sentences] = choice.tokens.int()
        self.log_probs[step, state.sentences] = choice.log_probs

    def keep(self, state: State) -> None:
        """Remember what has ended of the sentences that are done."""
        ended = (state.ended_scores, state.ended_steps, state.ended_parents, state.ended_log_probs, state.ended_cut)
        self.ended.append(tuple(x[state.done].cpu() for x in (state.sentences, state.near_tie, *ended)))

    def hypotheses(self) -> list[list[Hypothesis]]:
        sentences, near_ties, scores, steps, parents, end_log_probs, cut = map(torch.cat, zip(*self.ended, strict=True))
        sentence = sentences.repeat_interleave(scores.size(1))
        all_tokens, all_parents, all_log_probs = self.tokens.cpu(), self.parents.cpu().long(), self.log_probs.cpu()
        steps, place = steps.flatten(), parents.flatten()
        longest = int(steps.max()) if len(steps) else 0
        tokens = torch.zeros((len(steps), longest), dtype=torch.int32)
        log_probs = torch.zeros((len(steps), longest), dtype=all_log_probs.dtype)
        for step in range(longest - 1, -1, -1):  # from the last token to the first
            going = steps > step
            tokens[:, step] = all_tokens[step, sentence, place]
            log_probs[:, step] = all_log_probs[step, sentence, place]
            place = torch.where(going, all_parents[step, sentence, place], place)
        found: list[list[Hypothesis]] = [[] for _ in range(self.tokens.size(1))]
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
        for number, near_tie, length, its_tokens, its_log_probs, end, score, was_cut in rows:
            if score != float("-inf"):
                log_probs_and_end = [*its_log_probs[:length], end]
                found[number].append(Hypothesis(its_tokens[:length], score, was_cut, log_probs_and_end, near_tie))
        # A model that gives no token a chance (its weights are not finite, say) has still one thing to say: nothing.
        return [row or [Hypothesis([], float("-inf"), True, [float("-inf")])] for row in found]


def log_softmax(logits: Tensor) -> Tensor:
    """Log-probabilities, in float32 at least."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def topk(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k greatest of each row (..., V), and where they stand, as torch.topk gives them, only sooner on a CPU.

    The k greatest stand in the k groups with the greatest maxima, and no others need to be sorted.
    """
    size, group = values.size(-1), 64
    n_groups = size // group
    if n_groups <= k:
        return values.topk(min(k, size), -1)
    rows = values.reshape(-1, size)
    grouped, rest = rows[:, : n_groups * group].unflatten(1, (n_groups, group)), rows[:, n_groups * group :]
    groups = grouped.amax(-1).topk(k, -1, sorted=False).indices  # (rows, k)
    members = grouped.gather(1, groups[..., None].expand(-1, -1, group)).flatten(1)  # (rows, k group)
    found, places = torch.cat((members, rest), 1).topk(k, 1)
    of_group = groups.gather(1, (places // group).clamp(max=k - 1)) * group + places % group
    of_rest = places - k * group + n_groups * group
    places = torch.where(places < k * group, of_group, of_rest)
    return found.view(*values.shape[:-1], k), places.view(*values.shape[:-1], k)
