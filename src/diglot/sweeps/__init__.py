"""Sweeps: many runs of one command, each a job of its own, compared at the end."""
