"""From logits to hypotheses."""

from diglot.decoding.search import BeamSearch, Hypothesis, SpecialIds

__all__ = ["BeamSearch", "Hypothesis", "SpecialIds"]
