"""Scores of a system: what is translated and compared, in which metrics, and how sure a difference is."""
