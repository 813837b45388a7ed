"""Evaluation of a system: test sets, metrics and significance tests."""
