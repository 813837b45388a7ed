"""From logits to hypotheses."""

from diglot.decoding.score import pair_scores
from diglot.decoding.search import BeamSearch, Hypothesis, SpecialIds

__all__ = ["BeamSearch", "Hypothesis", "SpecialIds", "pair_scores"]
