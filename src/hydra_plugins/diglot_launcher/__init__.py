"""Hydra's side of sweeps: which jobs there are (sweeper, optuna) and that they run (launcher).

Hydra imports these modules at the start of every command, so they import what is heavy only where it is used.
"""
