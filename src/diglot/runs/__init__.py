"""Runs: their folders, what they read, how they resume, and their reports."""
