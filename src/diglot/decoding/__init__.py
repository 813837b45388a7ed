"""Searches for translations: beam search, sampling, ensembles, and scores of given targets."""

from diglot.data.special_ids import SpecialIds
from diglot.decoding.beam import BeamSearch
from diglot.decoding.ensemble import Ensemble
from diglot.decoding.sampling import SamplingSearch
from diglot.decoding.score import pair_scores
from diglot.decoding.search import Search
from diglot.decoding.state import Hypothesis

__all__ = ["BeamSearch", "Ensemble", "Hypothesis", "SamplingSearch", "Search", "SpecialIds", "pair_scores"]
