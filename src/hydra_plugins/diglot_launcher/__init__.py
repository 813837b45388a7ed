"""Hydra's side of sweeps: the sweepers (sweeper, optuna) choose the jobs, and the launcher runs them.

Hydra imports these modules at the start of every command. So they import slow modules only where they use them.
"""
