"""Certificates: what a run's scores are made of and depend on, as a file that anybody can check."""
