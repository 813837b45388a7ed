"""Sweeps: many runs of one command, each a separate job, compared at the end."""
