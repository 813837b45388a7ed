"""Helpers for tests: running commands, writing checkpoints, and callbacks that record or interrupt a run."""
