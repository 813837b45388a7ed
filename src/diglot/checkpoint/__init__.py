"""Checkpoints: the file that holds a whole model, how it is written, and the average of several."""
